//! Deletion of objects that cannot be decoded: needs a feature gate and an additional verb (requirements
//! D-DEL-13 to -23).

use apimachinery::field::{FieldError, FieldPath};
use apimachinery::status::Status;
use serving::gates::Gate;

use super::options::{DeleteOptions, IGNORE_STORE_READ_ERROR};
use crate::Call;
use crate::options::reject_if_any;

/// The additional verb that the user must be allowed.
const VERB: &str = "unsafe-delete-ignore-read-errors";

/// Whether the option is set and the feature gate is enabled.
fn is_unsafe_delete(call: &Call<'_>, options: &DeleteOptions) -> bool {
    options.ignore_store_read_error && call.api_state.gates.enabled(Gate::AllowUnsafeMalformedObjectDeletion)
}

/// Whether the delete may remove an object that cannot be decoded: the option is set, the gate is enabled,
/// and the user may use [`VERB`]. Without the option or the gate, the result is false and nothing is
/// authorized.
///
/// # Errors
///
/// 403: the user may not use the verb, whether or not the object can be decoded.
pub(crate) async fn authorize_unsafe_delete(
    call: &Call<'_>,
    options: &DeleteOptions,
) -> Result<bool, Status> {
    if !is_unsafe_delete(call, options) {
        return Ok(false);
    }
    call.authorize_verb(VERB).await.map(|()| true)
}

/// Adds the audit annotation of a delete that ignores read errors.
pub(crate) fn annotate(call: &Call<'_>) {
    let domain = call.api_state.names.group("apiserver");
    call.recorder.annotate(format!("{domain}/unsafe-delete-ignore-read-error"), "");
}

/// Rejects [`IGNORE_STORE_READ_ERROR`] for deletecollection, whose list fails on an undecodable object.
///
/// # Errors
///
/// 422 when the option is set and the gate is enabled.
pub(crate) fn reject_in_collections(call: &Call<'_>, options: &DeleteOptions) -> Result<(), Status> {
    if !is_unsafe_delete(call, options) {
        return Ok(());
    }
    let detail = "is not allowed with DELETECOLLECTION, try again after removing the option";
    let error = FieldError::invalid(&FieldPath::new(IGNORE_STORE_READ_ERROR), true, detail);
    reject_if_any("DeleteOptions", &call.api_state.names, &[error])
}

//! Deleting what cannot be read any more: only where a feature gate allows it, and only by who may (requirements D-DEL-13
//! to -23).

use apimachinery::field::{FieldError, FieldPath};
use apimachinery::status::Status;
use serving::gates::Gate;

use super::options::{DeleteOptions, IGNORE};
use crate::verbs::Call;
use crate::verbs::options::refuse;

/// The right that it needs beside that to delete.
const VERB: &str = "unsafe-delete-ignore-read-errors";

/// Whether the option says so and counts.
fn is_asked(call: &Call<'_>, options: &DeleteOptions) -> bool {
    options.ignore_store_read_error && call.plane.gates.enabled(Gate::AllowUnsafeMalformedObjectDeletion)
}

/// Whether the object is to go also if it cannot be read. Without the gate nobody is asked, and it stays.
///
/// # Errors
///
/// 403: the client may not do that, readable or not.
pub(in crate::verbs) async fn may_be_deleted(
    call: &Call<'_>,
    options: &DeleteOptions,
) -> Result<bool, Status> {
    if !is_asked(call, options) {
        return Ok(false);
    }
    call.may_also(VERB).await.map(|()| true)
}

/// Says in the audit log that it was asked for.
pub(in crate::verbs) fn annotate(call: &Call<'_>) {
    let domain = call.plane.names.group("apiserver");
    call.notes.annotate(format!("{domain}/unsafe-delete-ignore-read-error"), "");
}

/// A collection is listed first, which what cannot be read prevents.
///
/// # Errors
///
/// 422.
pub(in crate::verbs) fn refuse_in_collections(
    call: &Call<'_>,
    options: &DeleteOptions,
) -> Result<(), Status> {
    if !is_asked(call, options) {
        return Ok(());
    }
    let why = "is not allowed with DELETECOLLECTION, try again after removing the option";
    let error = FieldError::invalid(&FieldPath::new(IGNORE), true, why);
    refuse("DeleteOptions", &call.plane.names, &[error])
}

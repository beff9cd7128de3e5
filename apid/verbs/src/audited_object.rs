//! The object of a request in its audit event.
//!
//! # Reference
//!
//! As in kube-apiserver, the event has the decoded object in the version of the request, with defaults, as it is before
//! admission.

use admission::Recorder;
use apimachinery::codec::json;
use apimachinery::object::Object;
use kinds::{Context, Kind};
use schema::key_order::OrderedFields;

/// Records a decoded object for the audit event, if the event contains objects of requests.
///
/// `served`: the kind in the version of the object; `stored`: the kind in its storage version.
pub(crate) fn record(recorder: &Recorder, served: &Kind, stored: &Kind, object: &Object, ctx: &Context<'_>) {
    if !recorder.records_request_object() {
        return;
    }
    let mut audited = object.clone();
    if served.to_stored(&mut audited, ctx.names).is_ok() {
        stored.default(&mut audited, ctx);
    }
    if let Err(error) = served.represent(&mut audited, ctx.names) {
        // The verb fails for the same reason; the event shows the object as it was sent.
        tracing::debug!(%error, "audited object cannot be converted to the version of its request");
        audited = object.clone();
    }
    let mut out = Vec::new();
    json::encode_into(&mut out, &OrderedFields::new(&audited.0));
    recorder.set_request_object(out);
}

//! Reviews: objects whose creation is a question to authd; apid stores none of them.
//!
//! # Invariants
//!
//! INVARIANT (limited reviews): apid forwards to authd only reviews within the limits of
//! [`apimachinery::review`].

use admission::Recorder;
use apimachinery::object::Object;
use apimachinery::review::check_sizes;
use apimachinery::status::Status;
use kinds::Kind;

use super::audited_object;
use super::create::set_namespace;
use super::decode::decode;
use super::options::WriteOptions;
use super::{Payload, context};
use crate::ApiState;
use crate::VerbFuture;
use authclient::Authorized;

/// Lets authd evaluate a review. Returns the review with its status, and warnings.
///
/// # Errors
///
/// 400 for a malformed body, 403 or 422 from authd, 503 when authd does not respond.
pub fn review<'a>(
    api_state: &'a ApiState,
    authorized: &'a Authorized,
    resource: &'a Kind,
    payload: Payload<'a>,
    options: &'a WriteOptions,
    request_id: &'a str,
    recorder: &'a Recorder,
) -> VerbFuture<'a, (Object, Vec<String>)> {
    Box::pin(async move {
        let attributes = authorized.attributes();
        let (mut object, warnings) =
            decode(resource, &attributes.version, payload, options.field_validation, api_state)?;
        let ctx = context(api_state, "");
        recorder.set_reference(&object);
        audited_object::record(recorder, resource, resource, &object, &ctx);
        check_sizes(&api_state.names, &object).map_err(|status| *status)?;
        if resource.namespaced {
            set_namespace(&mut object, &attributes.namespace)?;
        }
        resource.default(&mut object, &ctx);
        let request = serde_json::to_vec(&object.0).map_err(Status::internal)?;
        let response = api_state.auth.review(authorized, resource.plural(), request, request_id).await?;
        let value = serde_json::from_slice(&response).map_err(Status::internal)?;
        let object = Object::from_value(value)
            .map_err(|_| Status::internal("authd returned a review that is not an object"))?;
        Ok((object, warnings))
    })
}

//! Reviews: objects whose creation is a question to authd; apid stores none of them.
//!
//! # Invariants
//!
//! INVARIANT (limited reviews): apid forwards to authd only reviews within the limits of
//! [`apimachinery::review`].

use apimachinery::object::Object;
use apimachinery::review::check_sizes;
use apimachinery::status::Status;
use kinds::{Context, Resource};

use super::Payload;
use super::decode::decode;
use super::options::WriteOptions;
use crate::auth::Authorized;
use crate::server_state::ServerState;

/// Lets authd evaluate a review. Returns the review with its status, and warnings.
///
/// # Errors
///
/// 400 for a malformed body, 403 or 422 from authd, 503 when authd does not respond.
pub async fn review(
    server_state: &ServerState,
    authorized: &Authorized,
    resource: &Resource,
    payload: Payload<'_>,
    options: &WriteOptions,
    request_id: &str,
) -> Result<(Object, Vec<String>), Status> {
    let attributes = authorized.attributes();
    let (mut object, warnings) =
        decode(resource, &attributes.version, payload, options.field_validation, server_state)?;
    check_sizes(&server_state.names, &object).map_err(|status| *status)?;
    let ctx = Context {
        names: &server_state.names,
        clock: &*server_state.clock,
        rng: &*server_state.rng,
        subresource: "",
    };
    if resource.kind.namespaced() {
        if object.namespace().is_empty() {
            object.set_meta("namespace", attributes.namespace.as_str());
        } else if object.namespace() != attributes.namespace {
            return Err(Status::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
    }
    resource.default(&mut object, &ctx);
    let request = serde_json::to_vec(&object.0).map_err(Status::internal)?;
    let response =
        server_state.auth.review(authorized, resource.kind.resource(), request, request_id).await?;
    let value = serde_json::from_slice(&response).map_err(Status::internal)?;
    let object = Object::from_value(value)
        .map_err(|_| Status::internal("authd returned a review that is not an object"))?;
    Ok((object, warnings))
}

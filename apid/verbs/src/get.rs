//! The get verb.

use super::version::{RequestedVersion, parse_or_500};
use super::{Call, ResponseObject, component_statuses, scale};
use crate::VerbFuture;

/// Returns the object, at least as new as the requested resourceVersion (requirements D-RV-4 to -6).
///
/// # Errors
///
/// 404; 500 for a malformed resourceVersion; 504 when the watch cache does not reach the version in time.
pub fn get<'a>(call: &'a Call<'a>, resource_version: &'a str) -> VerbFuture<'a, ResponseObject> {
    Box::pin(async move {
        if call.collection.kind.is_computed() {
            return component_statuses::get(call).await.map(ResponseObject::from_item);
        }
        // The watch cache contains every acknowledged commit, so its state is the most recent one.
        if let RequestedVersion::At(version) = parse_or_500(resource_version)? {
            call.wait_for_version(version).await?;
        }
        let item = call.get_or_404().await?;
        if let Some(status) = call.untransformable(&item) {
            return Err(status);
        }
        let object = ResponseObject::from_item(item);
        if call.virtual_kind().is_some() { scale::to_scale(call, &object) } else { Ok(object) }
    })
}

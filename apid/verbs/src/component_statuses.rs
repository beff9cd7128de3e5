//! ComponentStatuses: the health of the parts of the control plane, computed at each read.
//!
//! # Reference
//!
//! kube-apiserver probes etcd and, on local ports, a scheduler and a controller manager. apid has no scheduler, and its
//! controllers run in its own process. The components are the stores and authd, with their checks of `/readyz`. A failed
//! check is the `error` of the condition, as for etcd. A list ignores limit and resourceVersion.

use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::status::Status;
use kinds::entry::{self, Decoder};
use serde_json::json;
use storage::{Revision, Row};

use super::list::ListResult;
use super::selection::Selection;
use super::{Call, UnreadableObjects};
use crate::Item;

/// Returns the component with the name of the request.
///
/// # Errors
///
/// 404 for an unknown component.
pub(super) async fn get(call: &Call<'_>) -> Result<Arc<Item>, Status> {
    let key = call.key();
    let component = check_components(call).await?.0.into_iter().find(|item| **item.key() == *key);
    component.ok_or_else(|| Status::not_found(&call.collection.kind.internal().group_resource, call.name))
}

/// Lists the components that a selection includes.
pub(super) async fn list(call: &Call<'_>, selection: &Selection) -> Result<ListResult, Status> {
    let (components, revision) = check_components(call).await?;
    let mut items = Vec::new();
    for item in components {
        if selection.selects(&item)? {
            items.push(item);
        }
    }
    let continue_token = String::new();
    Ok(ListResult {
        items,
        revision,
        continue_token,
        remaining: None,
        uncached_bytes: 0,
        lease: None,
        unreadable: UnreadableObjects::default(),
    })
}

/// Runs the checks. Returns the components in the order of their names, and the revision of the store.
async fn check_components(call: &Call<'_>) -> Result<(Vec<Arc<Item>>, Revision), Status> {
    let api_state = call.api_state;
    let revision = call.collection.items.snapshot().await.map_err(|error| call.failure(error))?.revision();
    let authd = api_state.auth.connection().health().map_err(|problem| problem.to_string());
    let store = api_state.store.health().map_err(|error| error.to_string());
    let resource = call.collection.kind.internal();
    let decoder = Arc::new(Decoder::new(resource));
    let item = |(name, check): (String, Result<(), String>)| {
        let row = Row {
            key: resource.key("", &name).into(),
            value: entry::encode(&component_status(&name, check)),
            revision,
        };
        Item::detached(row, &decoder)
    };
    let prefix = api_state.names.store_check;
    let mut components = vec![("authd".to_owned(), authd), (format!("{prefix}-0"), store)];
    if let Some(separate) = &api_state.separate_store {
        let check = separate.store.health().map_err(|error| error.to_string());
        components.push((format!("{prefix}-1"), check));
    }
    Ok((components.into_iter().map(item).collect(), revision))
}

fn component_status(name: &str, check: Result<(), String>) -> Object {
    let condition = match check {
        Ok(()) => json!({"type": "Healthy", "status": "True", "message": "ok"}),
        Err(reason) => json!({"type": "Healthy", "status": "False", "error": reason}),
    };
    let mut object = Object::default();
    object.set("kind", "ComponentStatus");
    object.set("apiVersion", "v1");
    object.set("metadata", json!({ "name": name }));
    object.set("conditions", json!([condition]));
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_check_is_error_of_condition() {
        let condition = |check| component_status("etcd-0", check).get("conditions").unwrap()[0].clone();
        assert_eq!(condition(Ok(())), json!({"type": "Healthy", "status": "True", "message": "ok"}));
        assert_eq!(
            condition(Err("the disk is slow".to_owned())),
            json!({"type": "Healthy", "status": "False", "error": "the disk is slow"})
        );
    }
}

//! Session with kinds found by discovery, and with untyped objects.

use std::collections::BTreeSet;

use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::{Discovery, Scope, pinned_kind, verbs};
use kube::{Client, ResourceExt};
use serde_json::json;

pub(crate) async fn run(client: Client) {
    let plain = Discovery::new(client.clone()).run().await.expect("discovery");
    let aggregated = Discovery::new(client.clone()).run_aggregated().await.expect("aggregated discovery");
    assert_eq!(names(&plain), names(&aggregated), "both discovery forms return the same resources");
    assert!(names(&plain).len() > 50, "{:?}", names(&plain));
    let groups: Vec<&str> = plain.groups_alphabetical().iter().map(|group| group.name()).collect();
    assert!(groups.contains(&"") && groups.contains(&"apps"), "{groups:?}");

    // Lists every kind that supports list.
    let mut listed = 0;
    for group in plain.groups() {
        for (resource, capabilities) in group.recommended_resources() {
            if capabilities.supports_operation(verbs::LIST) {
                let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
                let list = api.list(&ListParams::default()).await;
                let list = list.unwrap_or_else(|error| panic!("{}: {error}", resource.plural));
                assert!(list.metadata.resource_version.is_some(), "{}", resource.plural);
                listed += 1;
            }
        }
    }
    assert!(listed > 45, "{listed} kinds listed");

    let lease = GroupVersionKind::gvk("coordination.k8s.io", "v1", "Lease");
    let (resource, capabilities) = plain.resolve_gvk(&lease).expect("leases");
    assert!(capabilities.scope == Scope::Namespaced && capabilities.supports_operation(verbs::WATCH));
    let (pinned, _) = pinned_kind(&client, &lease).await.expect("leases");
    assert_eq!((pinned.plural.as_str(), pinned.api_version.as_str()), ("leases", "coordination.k8s.io/v1"));
    let (scaled, capabilities) =
        plain.resolve_gvk(&GroupVersionKind::gvk("apps", "v1", "Deployment")).expect("deployments");
    let subresources: BTreeSet<&str> =
        capabilities.subresources.iter().map(|(r, _)| r.plural.as_str()).collect();
    assert!(scaled.plural == "deployments" && subresources.len() >= 2, "{subresources:?}");

    let api: Api<DynamicObject> = Api::namespaced_with(client, "default", &resource);
    let made = DynamicObject::new("lock", &resource).data(json!({"spec": {"holderIdentity": "a"}}));
    let made = api.create(&PostParams::default(), &made).await.expect("created");
    assert_eq!(made.data["spec"]["holderIdentity"], "a");
    let patch = Patch::Merge(json!({"spec": {"holderIdentity": "b"}}));
    api.patch("lock", &PatchParams::default(), &patch).await.expect("patched");
    let mut current = api.get("lock").await.expect("there");
    assert_eq!(current.data["spec"]["holderIdentity"], "b");
    current.labels_mut().insert("held".to_owned(), "yes".to_owned());
    api.replace("lock", &PostParams::default(), &current).await.expect("replaced");
    let labelled = api.list(&ListParams::default().labels("held=yes")).await.expect("a list");
    assert_eq!(labelled.items.len(), 1);
    assert_eq!(labelled.items[0].name_any(), "lock");
    api.delete("lock", &DeleteParams::default()).await.expect("deleted");
    assert!(api.get_opt("lock").await.expect("a response").is_none());
}

/// Names of all resources of all versions.
fn names(discovery: &Discovery) -> BTreeSet<String> {
    discovery
        .groups()
        .flat_map(|group| group.versions().flat_map(|version| group.versioned_resources(version)))
        .map(|(resource, _)| format!("{}/{}/{}", resource.group, resource.version, resource.plural))
        .collect()
}

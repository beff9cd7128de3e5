//! Typed APIs: the life cycle of config maps, pods and deployments.

use std::fmt::Debug;

use futures_util::TryStreamExt;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use k8s_openapi::serde::de::DeserializeOwned;
use kube::api::{
    Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, PropagationPolicy, WatchEvent,
    WatchParams,
};
use kube::{Client, Error, ResourceExt};
use serde_json::{Value, json};

/// Decodes an object from JSON.
pub(crate) fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object of that type")
}

/// Code and reason of a rejected request.
fn rejected_status<T: Debug>(result: Result<T, Error>) -> (u16, String) {
    match result {
        Err(Error::Api(status)) => (status.code, status.reason.clone()),
        other => panic!("not rejected: {other:?}"),
    }
}

pub(crate) async fn run(client: Client) {
    let version = client.apiserver_version().await.expect("a version");
    assert_eq!((version.major.as_str(), version.minor.as_str()), ("1", "33"));
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let made: Namespace = object(json!({"metadata": {"name": "typed"}}));
    namespaces.create(&PostParams::default(), &made).await.expect("created");
    config_maps(Api::namespaced(client.clone(), "typed")).await;
    pods(Api::namespaced(client.clone(), "typed")).await;
    deployments(Api::namespaced(client.clone(), "typed")).await;
    applied(Api::namespaced(client, "typed")).await;
    namespaces.delete("typed", &DeleteParams::default()).await.expect("deleted");
}

async fn config_maps(api: Api<ConfigMap>) {
    let post = PostParams::default();
    let config_map = |name: &str| -> ConfigMap {
        object(json!({"metadata": {"name": name, "labels": {"part": "typed"}}, "data": {"a": "1", "b": "2"}}))
    };
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    assert!(api.create(&dry, &config_map("one")).await.expect("tried").uid().is_some());
    assert!(api.get_opt("one").await.expect("a response").is_none(), "a dry run leaves nothing");
    let one = api.create(&post, &config_map("one")).await.expect("created");
    assert_eq!(one.data, config_map("one").data);
    assert_eq!(
        rejected_status(api.create(&post, &config_map("one")).await),
        (409, "AlreadyExists".to_owned())
    );
    let named = ConfigMap {
        metadata: ObjectMeta { generate_name: Some("typed-".to_owned()), ..ObjectMeta::default() },
        ..ConfigMap::default()
    };
    assert!(api.create(&post, &named).await.expect("created").name_any().len() > "typed-".len());
    let mut namespace = config_map("elsewhere");
    namespace.metadata.namespace = Some("default".to_owned());
    assert_eq!(rejected_status(api.create(&post, &namespace).await).0, 400);

    let patch = PatchParams::apply("sessions");
    let data = |object: ConfigMap| object.data.map(|data| json!(data));
    let merged = Patch::Merge(json!({"data": {"a": null, "c": "3"}}));
    assert_eq!(
        data(api.patch("one", &patch, &merged).await.expect("patched")),
        Some(json!({"b": "2", "c": "3"}))
    );
    let strategic = Patch::Strategic(json!({"data": {"$patch": "replace", "d": "4"}}));
    assert_eq!(data(api.patch("one", &patch, &strategic).await.expect("patched")), Some(json!({"d": "4"})));
    assert_eq!(rejected_status(api.patch("none", &patch, &merged).await), (404, "NotFound".to_owned()));

    let stale = api.get("one").await.expect("there");
    let mut fresh = stale.clone();
    fresh.data.get_or_insert_default().insert("e".to_owned(), "5".to_owned());
    let fresh = api.replace("one", &post, &fresh).await.expect("replaced");
    assert_ne!(fresh.resource_version(), stale.resource_version());
    assert_eq!(rejected_status(api.replace("one", &post, &stale).await), (409, "Conflict".to_owned()));

    let metadata = api.get_metadata("one").await.expect("metadata alone");
    assert_eq!((metadata.uid(), metadata.labels()), (fresh.uid(), fresh.labels()));

    for index in 0..7 {
        api.create(&post, &config_map(&format!("paged-{index}"))).await.expect("created");
    }
    let mut params = ListParams::default().labels("part=typed").limit(3);
    let mut names = Vec::new();
    loop {
        let page = api.list(&params).await.expect("a page");
        assert!(page.items.len() <= 3);
        names.extend(page.items.iter().map(ResourceExt::name_any));
        match page.metadata.continue_ {
            Some(token) if !token.is_empty() => params = params.continue_token(&token),
            _ => break,
        }
    }
    assert_eq!(names.len(), 8, "{names:?}");
    let two = ListParams::default().fields("metadata.name=paged-2");
    assert_eq!(api.list_metadata(&two).await.expect("a list").items.len(), 1);

    watched(&api, &config_map("watched")).await;

    let mut entry =
        api.entry("entered").await.expect("a response").or_insert(|| config_map("entered")).and_modify(
            |object| drop(object.data.get_or_insert_default().insert("x".to_owned(), "y".to_owned())),
        );
    entry.commit(&post).await.expect("written");
    assert!(api.get("entered").await.expect("there").data.is_some_and(|data| data.contains_key("x")));

    let uid = DeleteParams {
        preconditions: Some(kube::api::Preconditions {
            uid: Some("another".to_owned()),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    assert_eq!(rejected_status(api.delete("one", &uid).await), (409, "Conflict".to_owned()));
    let gone = api.delete("one", &DeleteParams::default()).await.expect("deleted");
    assert!(gone.right().is_some_and(|status| status.is_success()), "a status");
    assert_eq!(rejected_status(api.get("one").await), (404, "NotFound".to_owned()));
    let all = ListParams::default().labels("part=typed");
    let gone = api.delete_collection(&DeleteParams::default(), &all).await.expect("deleted");
    assert_eq!(gone.left().map(|list| list.items.len()), Some(8));
    assert!(api.list(&all).await.expect("a list").items.is_empty());
}

/// A watch from the version of a list delivers later events and a bookmark, and ends at its timeout.
async fn watched(api: &Api<ConfigMap>, object: &ConfigMap) {
    let listed = api.list(&ListParams::default()).await.expect("a list");
    let version = listed.metadata.resource_version.expect("a version");
    let name = object.name_any();
    api.create(&PostParams::default(), object).await.expect("created");
    let label = Patch::Merge(json!({"metadata": {"labels": {"seen": "yes"}}}));
    api.patch(&name, &PatchParams::default(), &label).await.expect("patched");
    api.delete(&name, &DeleteParams::default()).await.expect("deleted");
    let params = WatchParams::default().fields(&format!("metadata.name={name}")).timeout(3);
    let events: Vec<WatchEvent<ConfigMap>> =
        api.watch(&params, &version).await.expect("a watch").try_collect().await.expect("events");
    let kinds: Vec<&str> = events
        .iter()
        .map(|event| match event {
            WatchEvent::Added(_) => "added",
            WatchEvent::Modified(_) => "modified",
            WatchEvent::Deleted(_) => "deleted",
            WatchEvent::Bookmark(_) => "bookmark",
            WatchEvent::Error(status) => panic!("{status:?}"),
        })
        .collect();
    assert_eq!(kinds.get(..3), Some(&["added", "modified", "deleted"][..]), "{kinds:?}");
    assert!(kinds.iter().skip(3).all(|kind| *kind == "bookmark"), "{kinds:?}");
}

async fn pods(api: Api<Pod>) {
    let pod: Pod = object(json!({
        "metadata": {"name": "loaf", "labels": {"app": "loaf"}},
        "spec": {"containers": [{"name": "crust", "image": "crust:1"}, {"name": "crumb", "image": "crumb:1"}]},
    }));
    api.create(&PostParams::default(), &pod).await.expect("created");
    let image = Patch::Strategic(json!({"spec": {"containers": [{"name": "crumb", "image": "crumb:2"}]}}));
    let patched = api.patch("loaf", &PatchParams::default(), &image).await.expect("patched");
    let images: Vec<_> =
        patched.spec.iter().flat_map(|spec| &spec.containers).map(|c| c.image.as_deref()).collect();
    assert_eq!(images, [Some("crust:1"), Some("crumb:2")]);

    let ready = Patch::Merge(json!({"status": {"phase": "Running", "podIP": "192.0.2.7"}}));
    api.patch_status("loaf", &PatchParams::default(), &ready).await.expect("patched");
    let status = api.get_status("loaf").await.expect("there").status.expect("a status");
    assert_eq!((status.phase.as_deref(), status.pod_ip.as_deref()), (Some("Running"), Some("192.0.2.7")));
    let running = ListParams::default().labels("app in (loaf, bun),!old").fields("status.phase=Running");
    assert_eq!(api.list(&running).await.expect("a list").items.len(), 1);
    let failed = ListParams::default().fields("status.phase=Failed");
    assert!(api.list(&failed).await.expect("a list").items.is_empty());
    let gone = api.delete("loaf", &DeleteParams::default().grace_period(0)).await.expect("deleted");
    assert!(gone.left().is_some_and(|pod| pod.name_any() == "loaf"), "the deleted pod");
}

async fn deployments(api: Api<Deployment>) {
    let deployment: Deployment = object(json!({
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "a", "image": "a:1"}]},
            },
        },
    }));
    let made = api.create(&PostParams::default(), &deployment).await.expect("created");
    assert_eq!(made.metadata.generation, Some(1));
    let scale = api.get_scale("web").await.expect("a scale");
    assert_eq!(scale.spec.and_then(|spec| spec.replicas), Some(2));
    let larger = Patch::Merge(json!({"spec": {"replicas": 4}}));
    api.patch_scale("web", &PatchParams::default(), &larger).await.expect("scaled");

    let mut current = api.get("web").await.expect("there");
    assert_eq!(current.metadata.generation, Some(2));
    assert_eq!(current.spec.as_ref().and_then(|spec| spec.replicas), Some(4));
    current.status = object(json!({"observedGeneration": 2, "replicas": 4, "readyReplicas": 3}));
    let replaced = api.replace("web", &PostParams::default(), &current).await.expect("replaced");
    assert_eq!(
        replaced.status.and_then(|status| status.ready_replicas),
        None,
        "status is a separate subresource"
    );
    current.metadata.resource_version = replaced.metadata.resource_version;
    api.replace_status("web", &PostParams::default(), &current).await.expect("replaced");
    let status = api.get("web").await.expect("there").status.expect("a status");
    assert_eq!((status.ready_replicas, status.observed_generation), (Some(3), Some(2)));
    api.restart("web").await.expect("restarted");
    assert_eq!(api.get("web").await.expect("there").metadata.generation, Some(3));

    let foreground =
        DeleteParams { propagation_policy: Some(PropagationPolicy::Background), ..DeleteParams::default() };
    api.delete("web", &foreground).await.expect("deleted");
}

/// Server-side apply: the first apply creates, field owners are separate, and force takes ownership.
async fn applied(api: Api<ConfigMap>) {
    let data = |data: Value| -> Patch<Value> {
        Patch::Apply(
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shared"}, "data": data}),
        )
    };
    let (left, right) = (PatchParams::apply("left"), PatchParams::apply("right"));
    api.patch("shared", &left, &data(json!({"a": "1", "b": "1"}))).await.expect("created");
    api.patch("shared", &right, &data(json!({"c": "2"}))).await.expect("another field");
    let (code, reason) = rejected_status(api.patch("shared", &right, &data(json!({"a": "2"}))).await);
    assert_eq!((code, reason.as_str()), (409, "Conflict"));
    let taken = api.patch("shared", &right.force(), &data(json!({"a": "2"}))).await.expect("taken over");
    let expected = json!({"a": "2", "b": "1"});
    assert_eq!(
        json!(taken.data),
        expected,
        "fields no longer applied are removed, fields of other owners stay"
    );
    let managers: Vec<_> = taken.managed_fields().iter().filter_map(|entry| entry.manager.clone()).collect();
    assert_eq!(managers, ["left", "right"]);
    let same = api.patch("shared", &left, &data(json!({"b": "1"}))).await.expect("applied");
    assert_eq!(json!(same.data), expected);
}

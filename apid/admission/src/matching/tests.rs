//! Tests of rules, equivalent versions, selectors and the index.

use std::sync::Arc;

use apimachinery::names::Preset;
use apimachinery::object::Object;
use apimachinery::user::UserInfo;
use kinds::Registry;
use serde_json::{Value, json};

use super::index::ResourceIndex;
use super::*;
use crate::testing::Fake;
use crate::{Attributes, Operation, Recorder};

/// A write: operation, `group/version/resource`, subresource, namespace.
type Request<'a> = (Operation, &'a str, &'a str, &'a str);

const CREATE_POD: Request<'_> = (Operation::Create, "/v1/pods", "", "team");

fn fake() -> Fake {
    let namespace = |name: &str, tier: &str| json!({"metadata": {"name": name, "labels": {"tier": tier}}});
    Fake::new(Preset::Kubernetes).with_objects(
        "",
        "Namespace",
        &[namespace("team", "web"), namespace("other", "db")],
    )
}

/// The version in which constraints match a write, an error text, or None.
async fn find(
    constraints: &Constraints,
    (operation, path, subresource, namespace): Request<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<Option<String>, String> {
    let fake = fake();
    let environment = fake.environment.clone();
    let registry = Registry::new(&fake.names);
    let parts: Vec<&str> = path.split('/').collect();
    let served = registry.find(parts[0], parts[1], parts[2]).unwrap();
    let object = Object::from_value(object.clone()).ok();
    let old = old.map(|old| Object::from_value(old.clone()).unwrap());
    let (user, recorder, options) = (Arc::new(UserInfo::default()), Recorder::default(), || Value::Null);
    let attributes = Attributes {
        operation,
        resource: served.stored(),
        served,
        version: parts[1],
        subresource,
        namespace,
        name: "x",
        old: old.as_ref(),
        user: &user,
        dry_run: false,
        options: &options,
        has_generated_name: false,
        is_in_collection: false,
        deadline: None,
        recorder: &recorder,
        environment: &environment,
    };
    let write_namespace = WriteNamespace::default();
    let matched = constraints.matches(&attributes, object.as_ref(), &write_namespace).await;
    // Further constraints see the same namespace, which is read once.
    if let Ok(found) = &matched {
        fake.backend.put("", "Namespace", json!({"metadata": {"name": namespace}}));
        let again = constraints.matches(&attributes, object.as_ref(), &write_namespace).await.unwrap();
        assert_eq!(found.is_some(), again.is_some(), "the namespace was read again");
    }
    matched.map_err(|status| format!("{} {}", status.code, status.message)).map(|matched| {
        matched.map(|matched| {
            let (resource, version) = matched.resource_and_version(&attributes);
            format!("{}/{version}/{}", resource.group_resource.group, resource.group_resource.resource)
        })
    })
}

fn rule(changed: Value) -> Value {
    let mut rule =
        json!({"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]});
    for (field, value) in changed.as_object().unwrap() {
        rule[field] = value.clone();
    }
    rule
}

fn constraints(rules: Value, more: Value) -> Constraints {
    Constraints { rules: Some(Constraints::read_rules(Some(&rules))), ..Constraints::read(&more) }
}

#[tokio::test]
async fn rule_matches_operation_group_version_resource_subresource_and_scope() {
    let update_status = (Operation::Update, "/v1/pods", "status", "team");
    let delete_namespace = (Operation::Delete, "/v1/namespaces", "", "");
    let create_node = (Operation::Create, "/v1/nodes", "", "");
    for (changed, request, matches) in [
        (json!({}), CREATE_POD, true),
        (json!({"operations": ["CREATE"]}), CREATE_POD, true),
        (json!({"operations": ["UPDATE", "DELETE"]}), CREATE_POD, false),
        (json!({"operations": []}), CREATE_POD, false),
        (json!({"apiGroups": ["*"]}), CREATE_POD, true),
        (json!({"apiGroups": ["apps"]}), CREATE_POD, false),
        (json!({"apiVersions": ["*"]}), CREATE_POD, true),
        (json!({"apiVersions": ["v1beta1"]}), CREATE_POD, false),
        (json!({"resources": ["*"]}), CREATE_POD, true),
        (json!({"resources": ["*"]}), update_status, false),
        (json!({"resources": ["*/*"]}), CREATE_POD, true),
        (json!({"resources": ["*/*"]}), update_status, true),
        (json!({"resources": ["pods/*"]}), CREATE_POD, true),
        (json!({"resources": ["pods/*"]}), update_status, true),
        (json!({"resources": ["pods/status"]}), update_status, true),
        (json!({"resources": ["pods/status"]}), CREATE_POD, false),
        (json!({"resources": ["*/status"]}), update_status, true),
        (json!({"resources": ["pods"]}), update_status, false),
        (json!({"scope": "Namespaced"}), CREATE_POD, true),
        (json!({"scope": "Cluster"}), CREATE_POD, false),
        (json!({"scope": "*"}), CREATE_POD, true),
        (json!({"resources": ["*"], "scope": "Namespaced"}), create_node, false),
        (json!({"resources": ["*"], "scope": "Cluster"}), create_node, true),
        (json!({"resources": ["*"], "scope": "Namespaced"}), delete_namespace, false),
        (json!({"resources": ["*"], "scope": "Cluster"}), delete_namespace, true),
        (json!({"resourceNames": ["x"]}), CREATE_POD, true),
        (json!({"resourceNames": ["y"]}), CREATE_POD, false),
    ] {
        let constraints = constraints(json!([rule(changed.clone())]), json!({}));
        let found = find(&constraints, request, &json!({}), None).await.unwrap();
        assert_eq!(found.is_some(), matches, "{changed} {request:?}");
    }
}

#[tokio::test]
async fn equivalent_match_policy_finds_other_versions_of_a_resource() {
    let core = || rule(json!({"resources": ["events"]}));
    let grouped = || rule(json!({"apiGroups": ["events.k8s.io"], "resources": ["events"]}));
    let request = (Operation::Create, "/v1/events", "", "team");
    for (rules, policy, found) in [
        (json!([grouped()]), "Equivalent", Some("events.k8s.io/v1/events")),
        (json!([grouped()]), "Exact", None),
        (json!([grouped(), core()]), "Equivalent", Some("/v1/events")),
        (json!([rule(json!({}))]), "Equivalent", None),
        (json!([]), "Equivalent", None),
    ] {
        let constraints = constraints(rules.clone(), json!({"matchPolicy": policy}));
        let got = find(&constraints, request, &json!({}), None).await.unwrap();
        assert_eq!(got.as_deref(), found, "{rules} {policy}");
    }
    let scalers = |version: &str| {
        rule(
            json!({"apiGroups": ["autoscaling"], "apiVersions": [version], "resources": ["horizontalpodautoscalers"]}),
        )
    };
    let request = (Operation::Update, "autoscaling/v1/horizontalpodautoscalers", "", "team");
    let got = find(&constraints(json!([scalers("v2")]), json!({})), request, &json!({}), None).await.unwrap();
    assert_eq!(got.as_deref(), Some("autoscaling/v2/horizontalpodautoscalers"));
    let got = find(&constraints(json!([scalers("v9")]), json!({})), request, &json!({}), None).await.unwrap();
    assert_eq!(got, None);
}

#[tokio::test]
async fn excluded_rules_override_rules() {
    for (excluded, matches) in [(json!({}), false), (json!({"operations": ["DELETE"]}), true)] {
        let constraints = Constraints {
            excluded: Constraints::read_rules(Some(&json!([rule(excluded.clone())]))),
            ..constraints(json!([rule(json!({}))]), json!({}))
        };
        let found = find(&constraints, CREATE_POD, &json!({}), None).await.unwrap();
        assert_eq!(found.is_some(), matches, "{excluded}");
    }
    let every = Constraints::read(&json!({}));
    assert_eq!(
        find(&every, CREATE_POD, &json!({}), None).await.unwrap().as_deref(),
        Some("/v1/pods"),
        "constraints without a list of rules match every resource"
    );
}

#[tokio::test]
async fn selectors_use_labels_of_namespace_and_of_new_or_old_object() {
    let web = json!({"namespaceSelector": {"matchLabels": {"tier": "web"}}});
    let app = json!({"objectSelector": {"matchLabels": {"app": "a"}}});
    let labelled = json!({"metadata": {"labels": {"app": "a", "tier": "web"}}});
    let bare = json!({"metadata": {}});
    let everything = || json!([rule(json!({"resources": ["*", "*/*"], "apiGroups": ["*"]}))]);
    for (selectors, request, object, old, matches) in [
        (&web, CREATE_POD, &bare, None, true),
        (&web, (Operation::Create, "/v1/pods", "", "other"), &labelled, None, false),
        (&web, (Operation::Create, "/v1/nodes", "", ""), &bare, None, true),
        (&web, (Operation::Create, "/v1/namespaces", "", ""), &labelled, None, true),
        (&web, (Operation::Create, "/v1/namespaces", "", ""), &bare, None, false),
        (&app, CREATE_POD, &bare, None, false),
        (&app, CREATE_POD, &labelled, None, true),
        (&app, (Operation::Update, "/v1/pods", "", "team"), &bare, Some(&labelled), true),
        (&app, (Operation::Update, "/v1/pods", "", "team"), &bare, Some(&bare), false),
        (&app, (Operation::Delete, "/v1/pods", "", "team"), &Value::Null, Some(&labelled), true),
        (&app, (Operation::Update, "apps/v1/deployments", "scale", "team"), &labelled, None, false),
    ] {
        let constraints = constraints(everything(), selectors.clone());
        let found = find(&constraints, request, object, old).await.unwrap();
        assert_eq!(found.is_some(), matches, "{selectors} {request:?} {object}");
    }
}

#[tokio::test]
async fn missing_namespace_fails_only_writes_to_which_rules_apply() {
    let web = json!({"namespaceSelector": {"matchLabels": {"tier": "web"}}});
    let request = (Operation::Create, "/v1/pods", "", "gone");
    let error = find(&constraints(json!([rule(json!({}))]), web.clone()), request, &json!({}), None).await;
    assert_eq!(error.unwrap_err(), "404 namespaces \"gone\" not found");
    let other = constraints(json!([rule(json!({"resources": ["secrets"]}))]), web);
    assert_eq!(find(&other, request, &json!({}), None).await, Ok(None));
}

#[test]
fn index_returns_candidates_in_order() {
    let constraints_on =
        |resources: Value| constraints(json!([rule(json!({"resources": resources}))]), json!({}));
    let all = [
        constraints_on(json!(["pods"])),
        constraints_on(json!(["*/scale"])),
        constraints_on(json!(["secrets", "pods/status"])),
        Constraints::read(&json!({})),
        constraints_on(json!([])),
    ];
    let index = ResourceIndex::new(all.iter());
    for (resource, candidates) in
        [("pods", &[0, 1, 2, 3][..]), ("secrets", &[1, 2, 3]), ("nodes", &[1, 3]), ("", &[1, 3])]
    {
        assert_eq!(index.candidates(resource).collect::<Vec<_>>(), candidates, "{resource}");
    }
}

/// Wildcards and distinct names together do not multiply.
#[test]
fn index_of_many_constraints_takes_linear_memory() {
    let on = |resource: String| constraints(json!([rule(json!({"resources": [resource]}))]), json!({}));
    let wildcards = (0..10_000).map(|_| on("*".to_owned()));
    let all: Vec<Constraints> = wildcards.chain((0..10_000).map(|number| on(format!("r{number}")))).collect();
    let index = ResourceIndex::new(all.iter());
    assert_eq!(index.positions(), 20_000);
    assert_eq!(index.candidates("r7").count(), 10_001);
}

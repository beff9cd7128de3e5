//! Valid and invalid reviews of every kind.

use std::sync::Arc;

use apimachinery::clock::SystemClock;
use apimachinery::names::Preset;
use authproto::auth;

use super::*;
use crate::mirror::{Feed, Mirror};

const ACCESS: &str = "authorization.k8s.io";

/// In `a`, alice may get configmaps and the secret `one`, and has a binding to a missing role.
fn mirror() -> (Arc<Mirror>, Feed) {
    use auth::mirror_object::Kind;
    let mirror = Mirror::new(Arc::new(Names::new(Preset::Kubernetes, "").unwrap()));
    let mut feed = mirror.begin();
    let mut put = |name: &str, kind: Kind| {
        let object = auth::MirrorObject {
            namespace: "a".into(),
            name: name.into(),
            kind: Some(kind),
            ..auth::MirrorObject::default()
        };
        feed.put(auth::MirrorPut { revision: 1, object: Some(object) }).unwrap();
    };
    let rule = |resource: &str, names: &[&str]| auth::PolicyRule {
        verbs: vec!["get".into()],
        api_groups: vec![String::new()],
        resources: vec![resource.into()],
        resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
        non_resource_urls: Vec::new(),
    };
    let rules = vec![rule("configmaps", &[]), rule("secrets", &["one"])];
    put("grant", Kind::Role(auth::MirrorRole { rules, ..auth::MirrorRole::default() }));
    for role in ["grant", "gone"] {
        put(
            role,
            Kind::RoleBinding(auth::MirrorBinding {
                role_kind: "Role".into(),
                role_name: role.into(),
                subjects: vec![auth::Subject {
                    kind: "User".into(),
                    name: "alice".into(),
                    ..auth::Subject::default()
                }],
            }),
        );
    }
    feed.synced(1).unwrap();
    (mirror, feed)
}

fn review(resource: &str, namespace: &str, object: Value) -> Value {
    let user = UserInfo {
        name: "alice".into(),
        uid: "alice-uid".into(),
        groups: vec!["team-a".into()],
        extra: [("k".to_owned(), vec!["v".to_owned()])].into(),
    };
    review_with(resource, namespace, object, user, crate::authz::Union::from_flag("RBAC"))
}

/// Reviews an object of a user with these authorizers.
fn review_with(
    resource: &str,
    namespace: &str,
    object: Value,
    user: UserInfo,
    authz: crate::authz::Union,
) -> Value {
    let (mirror, _feed) = mirror();
    let names = Names::new(Preset::Kubernetes, "").unwrap();
    let object = object.to_string();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokens"), "bob-token,bob,bob-uid,team-b").unwrap();
    let settings = crate::authn::AuthnSettings {
        names: Arc::new(names.clone()),
        trust: Arc::default(),
        proxy: crate::authn::ProxySettings::default(),
        token_file: crate::authn::TokenFile::read(&dir.path().join("tokens"), vec!["api".into()]).ok(),
        certificate_uids: true,
        anonymous: crate::authn::Anonymous { enabled: true, paths: Vec::new() },
        jwt: crate::authn::JwtSettings::none(),
        token_webhook: None,
        api_audiences: vec!["api".into()],
        issuer: None,
        service_account_lookup: true,
        bootstrap_tokens: false,
    };
    let authn = crate::authn::AuthenticatorUnion::build(&settings);
    let active =
        ActiveConfig { authn: Arc::new(authn), authz: Arc::new(authz), epoch: auth::Epoch::default() };
    let review = Review {
        resource,
        namespace,
        user: &user,
        object: object.as_bytes(),
        at_least: mirror.at_least(1),
        request_id: "test",
    };
    let reviewer = Reviewer { names: &names, active: &active, clock: &SystemClock::new() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    match runtime.block_on(reviewer.review(review)) {
        Ok(object) => object.into_value(),
        Err(ReviewError::Status(status)) => status.to_value(),
        Err(error) => panic!("{error}"),
    }
}

fn get(resource: &str, namespace: &str, name: &str) -> Value {
    json!({"verb": "get", "resource": resource, "namespace": namespace, "name": name})
}

/// Checks the `status` of an access review, or the causes of its 422.
fn check(resource: &str, namespace: &str, object: &Value, expected: &Value) {
    let mut object = object.clone();
    object["apiVersion"] = format!("{ACCESS}/v1").into();
    let answer = review(resource, namespace, object.clone());
    let got = match answer["code"].as_u64() {
        None => answer["status"].clone(),
        Some(422) => {
            let causes = answer["details"]["causes"].as_array().unwrap();
            causes.iter().map(|cause| json!([cause["field"], cause["message"]])).collect()
        }
        Some(_) => answer["message"].clone(),
    };
    assert_eq!(&got, expected, "{resource} {namespace} {object}");
}

#[test]
fn self_subject_review_returns_only_requesting_user() {
    let object = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview",
        "metadata": {"name": "x", "labels": {"a": "b"}}, "status": {"userInfo": {"username": "root"}}});
    assert_eq!(
        review("selfsubjectreviews", "", object),
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {},
            "status": {"userInfo": {"username": "alice", "uid": "alice-uid", "groups": ["team-a"], "extra": {"k": ["v"]}}}})
    );
}

#[test]
fn access_review_decision_equals_request_decision() {
    let granted = r#"RBAC: allowed by RoleBinding "grant/a" of Role "grant" to User "alice""#;
    let missing_role = r#"RBAC: role.rbac.authorization.k8s.io "gone" not found"#;
    for (attributes, expected) in [
        (get("configmaps", "a", ""), json!({"allowed": true, "reason": granted})),
        (get("secrets", "a", "one"), json!({"allowed": true, "reason": granted})),
        (get("configmaps", "b", ""), json!({"allowed": false})),
        (json!({}), json!({"allowed": false})),
    ] {
        let spec =
            json!({"spec": {"resourceAttributes": attributes}, "status": {"allowed": true, "reason": "me"}});
        check("selfsubjectaccessreviews", "", &spec, &expected);
        let spec = json!({"spec": {"resourceAttributes": attributes, "user": "alice"}});
        check("subjectaccessreviews", "", &spec, &expected);
        if attributes["namespace"] == "a" {
            check("localsubjectaccessreviews", "a", &spec, &expected);
        }
    }
    let own = json!({"spec": {"resourceAttributes": get("secrets", "a", "two")}});
    check("selfsubjectaccessreviews", "", &own, &json!({"allowed": false, "reason": missing_role}));
    let masters = json!({"spec": {"nonResourceAttributes": {"path": "/x", "verb": "get"}, "groups": ["system:masters"]}});
    check("subjectaccessreviews", "", &masters, &json!({"allowed": true}));
    let bob = json!({"spec": {"resourceAttributes": get("configmaps", "a", ""), "user": "bob"}});
    check("subjectaccessreviews", "", &bob, &json!({"allowed": false}));
}

#[test]
fn access_review_echoes_spec_and_replaces_status() {
    let spec = json!({"user": "bob", "groups": ["g"], "extra": {"K": ["v"]}, "uid": "u",
        "resourceAttributes": get("configmaps", "a", "")});
    let object = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "LocalSubjectAccessReview",
        "metadata": {"namespace": "a"}, "spec": spec});
    assert_eq!(
        review("localsubjectaccessreviews", "a", object),
        json!({"apiVersion": "authorization.k8s.io/v1", "kind": "LocalSubjectAccessReview",
            "metadata": {"namespace": "a"}, "spec": spec, "status": {"allowed": false}})
    );
}

#[test]
fn invalid_review_returns_422_with_causes() {
    let path = json!({"path": "/api", "verb": "get"});
    let path_attributes = r#"Invalid value: {"Path":"/api","Verb":"get"}"#;
    let neither = json!([[
        "spec.resourceAttributes",
        "Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified"
    ]]);
    let missing_subject =
        json!(["spec.user", "Invalid value: \"\": at least one of user or group must be specified"]);
    let other = |namespace: &str| {
        json!([[
            "spec.resourceAttributes.namespace",
            format!("Invalid value: \"{namespace}\": must match metadata.namespace")
        ]])
    };
    let own = "selfsubjectaccessreviews";
    let any = "subjectaccessreviews";
    let local = "localsubjectaccessreviews";
    for (resource, object, expected) in [
        (own, json!({"spec": {}}), neither.clone()),
        (own, json!({}), neither.clone()),
        (own, json!({"spec": null}), neither),
        (
            own,
            json!({"spec": {"resourceAttributes": {}, "nonResourceAttributes": path}}),
            json!([[
                "spec.nonResourceAttributes",
                format!("{path_attributes}: cannot be specified in combination with resourceAttributes")
            ]]),
        ),
        (
            own,
            json!({"metadata": {"name": "x"}, "spec": {"resourceAttributes": {}}}),
            json!([["metadata", "Invalid value: {\"name\":\"x\"}: must be empty"]]),
        ),
        (
            own,
            json!({"metadata": {"creationTimestamp": null, "labels": {}}, "spec": {"resourceAttributes": {}}}),
            json!({"allowed": false}),
        ),
        (
            own,
            json!({"metadata": {"namespace": "x"}, "spec": {"resourceAttributes": {}}}),
            json!({"allowed": false}),
        ),
        (any, json!({"spec": {"resourceAttributes": get("pods", "a", "")}}), json!([missing_subject])),
        (
            any,
            json!({"spec": {"resourceAttributes": get("pods", "a", ""), "groups": []}}),
            json!([missing_subject]),
        ),
        (local, json!({"spec": {"user": "x", "resourceAttributes": get("pods", "", "")}}), other("")),
        (local, json!({"spec": {"user": "x", "resourceAttributes": get("pods", "b", "")}}), other("b")),
        (
            local,
            json!({"spec": {"user": "x", "nonResourceAttributes": path}}),
            json!([[
                "spec.nonResourceAttributes",
                format!("{path_attributes}: disallowed on this kind of request")
            ]]),
        ),
        (
            local,
            json!({"metadata": {"namespace": "b"}, "spec": {"user": "x", "resourceAttributes": get("pods", "a", "")}}),
            json!("the namespace of the provided object does not match the namespace sent on the request"),
        ),
    ] {
        let namespace = if resource == local { "a" } else { "" };
        check(resource, namespace, &object, &expected);
    }
}

#[test]
fn review_selectors_are_validated() {
    let selector = "spec.resourceAttributes.labelSelector";
    let label = |selector: Value| json!({"spec": {"resourceAttributes": {"verb": "list", "labelSelector": selector}}});
    let field = |selector: Value| json!({"spec": {"resourceAttributes": {"verb": "list", "fieldSelector": selector}}});
    let fine = json!({"allowed": false});
    let values = "Required value: must be specified when `operator` is 'In' or 'NotIn'";
    for (object, expected) in [
        (
            label(
                json!({"requirements": [{"key": "app", "operator": "NotIn", "values": ["a", "b"]}, {"key": "x", "operator": "DoesNotExist"}]}),
            ),
            fine.clone(),
        ),
        (label(json!({"rawSelector": "app=web"})), fine.clone()),
        (label(json!({"requirements": [{"key": "a", "operator": "Newer", "values": ["b"]}]})), fine.clone()),
        (field(json!({"rawSelector": "spec.nodeName=n1"})), fine.clone()),
        (
            field(json!({"requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["n1"]}]})),
            fine,
        ),
        (
            label(json!({"rawSelector": "a=b", "requirements": [{"key": "a", "operator": "Exists"}]})),
            json!([[
                format!("{selector}.rawSelector"),
                "Invalid value: \"a=b\": may not specified at the same time as requirements"
            ]]),
        ),
        (
            label(json!({"requirements": []})),
            json!([[
                format!("{selector}.requirements"),
                format!(
                    "Required value: when {selector} is specified, requirements or rawSelector is required"
                )
            ]]),
        ),
        (
            label(json!({"requirements": [{"key": "b", "operator": "NotIn"}]})),
            json!([[format!("{selector}.requirements[0].values"), values]]),
        ),
        (
            label(json!({"requirements": [{"key": "b", "operator": "Exists", "values": ["x"]}]})),
            json!([[
                format!("{selector}.requirements[0].values"),
                "Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            ]]),
        ),
        (
            field(json!({"requirements": [{"operator": "In"}]})),
            json!([
                ["spec.resourceAttributes.fieldSelector.requirements[0].values", values],
                [
                    "spec.resourceAttributes.fieldSelector.requirements[0].key",
                    "Required value: must be specified"
                ]
            ]),
        ),
    ] {
        check("selfsubjectaccessreviews", "", &object, &expected);
    }
    let bad = label(json!({"requirements": [{"key": "Not A Key!", "operator": "Exists"}]}));
    let answer = review("selfsubjectaccessreviews", "", bad);
    assert_eq!(answer["details"]["causes"][0]["field"], format!("{selector}.requirements[0].key"));
}

#[test]
fn rules_review_lists_rules_of_requesting_user() {
    let object =
        |namespace: &str| json!({"kind": "SelfSubjectRulesReview", "spec": {"namespace": namespace}});
    let answer = review("selfsubjectrulesreviews", "", object("a"));
    assert_eq!(answer["spec"], json!({}));
    assert_eq!(
        answer["status"],
        json!({
            "resourceRules": [
                {"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"]},
                {"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["one"]}],
            "nonResourceRules": [],
            "incomplete": false,
            "evaluationError": r#"role.rbac.authorization.k8s.io "gone" not found"#})
    );
    let answer = review("selfsubjectrulesreviews", "", object("b"));
    assert_eq!(answer["status"], json!({"resourceRules": [], "nonResourceRules": [], "incomplete": false}));
    for object in [object(""), json!({})] {
        let answer = review("selfsubjectrulesreviews", "", object);
        assert_eq!((&answer["code"], &answer["message"]), (&json!(400), &json!("no namespace on request")));
    }
}

#[test]
fn token_review_returns_user_and_audiences() {
    let bob = json!({"username": "bob", "uid": "bob-uid", "groups": ["team-b", "system:authenticated"]});
    let invalid = json!({"error": "invalid bearer token", "user": {}});
    for (spec, expected) in [
        (json!({"token": "bob-token"}), json!({"authenticated": true, "user": bob, "audiences": ["api"]})),
        (
            json!({"token": "bob-token", "audiences": ["x", "api"]}),
            json!({"authenticated": true, "user": bob, "audiences": ["api"]}),
        ),
        (json!({"token": "bob-token", "audiences": ["x"]}), invalid.clone()),
        (json!({"token": "nobody"}), invalid),
    ] {
        let object = json!({"kind": "TokenReview", "metadata": {"name": "x", "namespace": "default"},
            "spec": spec, "status": {"authenticated": true, "user": {"username": "root"}}});
        let answer = review("tokenreviews", "", object);
        assert_eq!(
            (&answer["metadata"], &answer["spec"], &answer["status"]),
            (&json!({}), &spec, &expected),
            "{spec}"
        );
    }
    for spec in [json!({}), json!({"token": ""}), json!({"token": 5}), json!(null)] {
        let answer = review("tokenreviews", "", json!({"spec": spec}));
        assert_eq!((&answer["code"], &answer["reason"]), (&json!(400), &json!("BadRequest")), "{spec}");
    }
}

#[test]
fn review_with_wrong_types_never_allows() {
    for object in [
        json!([]),
        json!({"spec": []}),
        json!({"spec": {"resourceAttributes": []}}),
        json!({"spec": {"user": 5, "resourceAttributes": {"verb": ["get"], "resource": {}}}}),
        json!({"metadata": [], "spec": {"groups": "system:masters", "resourceAttributes": {"labelSelector": {"requirements": {}}}}}),
    ] {
        for resource in [
            "tokenreviews",
            "selfsubjectreviews",
            "selfsubjectaccessreviews",
            "subjectaccessreviews",
            "localsubjectaccessreviews",
            "selfsubjectrulesreviews",
        ] {
            let answer = review(resource, "a", object.clone());
            assert_ne!(answer["status"]["allowed"], true, "{resource} {object}");
        }
    }
}

#[test]
fn access_review_with_350000_requirements_returns_one_cause() {
    let selector = json!({"requirements": vec![json!({}); 350_000]});
    for resource in ["selfsubjectaccessreviews", "subjectaccessreviews"] {
        let mut attributes = get("pods", "a", "");
        attributes["fieldSelector"] = selector.clone();
        let object = json!({"spec": {"user": "bob", "resourceAttributes": attributes}});
        let cause = "Too many: 350000: must have at most 1000 items";
        check(resource, "", &object, &json!([["spec.resourceAttributes.fieldSelector.requirements", cause]]));
    }
}

#[test]
fn access_review_with_many_invalid_values_collects_limited_errors() {
    let spec = json!({"resourceAttributes": {"labelSelector": {"requirements":
        [{"key": "-", "operator": "In", "values": vec!["-"; 10_000]}]}}});
    let errors = super::attributes::check_attributes(spec.as_object().unwrap());
    assert_eq!(errors.len(), MAX_ERRORS);
}

#[test]
fn token_review_with_too_many_audiences_returns_422() {
    let object = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
        "spec": {"token": "bob-token", "audiences": vec!["api"; 1_001]}});
    let answer = review("tokenreviews", "", object);
    assert_eq!(
        answer["message"],
        "TokenReview.authentication.k8s.io \"\" is invalid: spec.audiences: Too many: 1001: must have at most 1000 items"
    );
}

fn explain(spec: Value) -> Value {
    review(
        "accessexplanations",
        "",
        json!({"apiVersion": "explain.k8s.io/v1alpha1", "kind": "AccessExplanation", "spec": spec}),
    )
}

fn attributes(verb: &str, resource: &str) -> Value {
    json!({"verb": verb, "resource": resource, "namespace": "a"})
}

#[test]
fn access_explanation_of_allowed_request_names_binding_and_rule() {
    let answer = explain(json!({"resourceAttributes": attributes("get", "configmaps")}));
    let status = &answer["status"];
    assert_eq!((&status["allowed"], status.get("manifest")), (&json!(true), None), "{answer}");
    let [opinion] = status["authorizers"].as_array().unwrap().as_slice() else { panic!("{answer}") };
    assert_eq!(
        (&opinion["name"], &opinion["type"], &opinion["verdict"]),
        (&json!("rbac"), &json!("RBAC"), &json!("Allow"))
    );
    assert_eq!(opinion["grant"], r#"RoleBinding "grant/a" of Role "grant" to User "alice""#);
    assert_eq!(opinion["rule"]["resources"], json!(["configmaps"]));
    assert!(opinion["latencyMicroseconds"].is_u64());
}

#[test]
fn access_explanation_of_denied_request_has_nearest_misses_and_manifest() {
    let answer = explain(json!({"resourceAttributes": attributes("delete", "configmaps")}));
    let status = &answer["status"];
    let miss =
        r#"RoleBinding "grant/a" of Role "grant" to User "alice" allows `get` on `configmaps`, not `delete`"#;
    assert_eq!(status["allowed"], false);
    assert_eq!(status["authorizers"][0]["nearestMisses"], json!([miss]));
    assert!(status["reason"].as_str().unwrap().contains(miss), "{answer}");
    let manifest = status["manifest"].as_str().unwrap();
    assert!(manifest.contains("kind: RoleBinding") && manifest.contains("- delete"), "{manifest}");
}

#[test]
fn access_explanation_of_other_user_requires_permission() {
    let other = json!({"user": "bob", "resourceAttributes": attributes("get", "configmaps")});
    let denied = explain(other);
    assert_eq!((&denied["code"], &denied["reason"]), (&json!(403), &json!("Forbidden")), "{denied}");
    let disguised = json!({"user": "alice", "groups": ["system:masters"], "resourceAttributes": attributes("get", "nodes")});
    assert_eq!(explain(disguised)["code"], 403, "other groups are another user");
    let own = json!({"user": "alice", "resourceAttributes": attributes("get", "configmaps")});
    assert_eq!(explain(own)["status"]["allowed"], true);
}

/// Builds an authorization webhook that cannot be reached, and RBAC after it.
fn failing_webhook_and_rbac() -> crate::authz::Union {
    use crate::authz::entry::{Entry, OnFailure, WebhookSettings};
    let dir = tempfile::tempdir().unwrap();
    let client_config = dir.path().join("client.yaml");
    let server = "https://policy.internal.test:1/hook";
    let text = format!(
        "clusters: [{{name: c, cluster: {{server: '{server}'}}}}]\nusers: [{{name: u, user: {{}}}}]\n\
         contexts: [{{name: x, context: {{cluster: c, user: u}}}}]\ncurrent-context: x\n"
    );
    std::fs::write(&client_config, text).unwrap();
    let webhook = WebhookSettings {
        client_config,
        version: crate::webhook::Version::V1,
        authorized_ttl: std::time::Duration::ZERO,
        unauthorized_ttl: std::time::Duration::ZERO,
        timeout: std::time::Duration::from_millis(100),
        on_failure: OnFailure::NoOpinion,
        conditions: Arc::default(),
    };
    let entries = vec![
        Entry { kind: "Webhook", name: "hook".to_owned(), webhook: Some(webhook) },
        Entry::for_kind("RBAC"),
    ];
    let names = Arc::new(Names::new(Preset::Kubernetes, "").unwrap());
    let context = crate::webhook::WebhookContext::new(names, Arc::default());
    let settings = crate::authz::Settings::new(context);
    crate::authz::Union::build(&crate::authz::Modes::from_entries(entries), &settings).unwrap()
}

#[test]
fn error_of_authorization_webhook_is_visible_only_to_readers_of_the_configuration() {
    let user = |groups: &[&str]| UserInfo {
        name: "alice".into(),
        groups: groups.iter().map(|&group| group.to_owned()).collect(),
        ..UserInfo::default()
    };
    let attributes = json!({"resourceAttributes": attributes("get", "configmaps")});
    for (resource, api_version, kind) in [
        ("accessexplanations", "explain.k8s.io/v1alpha1", "AccessExplanation"),
        ("selfsubjectaccessreviews", "authorization.k8s.io/v1", "SelfSubjectAccessReview"),
    ] {
        let object = json!({"apiVersion": api_version, "kind": kind, "spec": {"resourceAttributes":
            {"verb": "delete", "resource": "configmaps", "namespace": "a"}}});
        let answer = review_with(resource, "", object, user(&["team-a"]), failing_webhook_and_rbac());
        assert_eq!(answer["status"]["allowed"], false, "{answer}");
        assert!(
            answer["status"]["evaluationError"].as_str().unwrap().contains("the log of the server"),
            "{answer}"
        );
        assert!(!answer.to_string().contains("policy.internal"), "{answer}");
    }
    let object =
        json!({"apiVersion": "explain.k8s.io/v1alpha1", "kind": "AccessExplanation", "spec": attributes});
    let mut administrator_object = object.clone();
    administrator_object["spec"]["user"] = "alice".into();
    administrator_object["spec"]["groups"] = json!(["team-a"]);
    let root = UserInfo { name: "root".into(), ..user(&["system:masters"]) };
    let shown = review_with("accessexplanations", "", administrator_object, root, failing_webhook_and_rbac());
    let webhook = &shown["status"]["authorizers"][0];
    assert!(webhook["evaluationError"].as_str().unwrap().contains("policy.internal"), "{shown}");
}

#[test]
fn access_explanation_without_attributes_is_invalid() {
    assert_eq!(explain(json!({}))["code"], 422);
}

#[test]
fn token_explanation_names_the_check_of_each_authenticator_without_the_token() {
    let explain = |token: &str| {
        let object = json!({"apiVersion": "explain.k8s.io/v1alpha1", "kind": "TokenExplanation",
            "spec": {"token": token}});
        review("tokenexplanations", "", object)
    };
    let accepted = explain("bob-token");
    assert_eq!(accepted["status"]["user"]["username"], "bob");
    assert_eq!(accepted["status"]["user"]["groups"], json!(["team-b", "system:authenticated"]));
    assert_eq!(accepted["status"]["authenticators"][0]["outcome"], "Accepted", "{accepted}");
    // {"alg":"ES256","kid":"k1"} and {"iss":"https://i","sub":"s","aud":"a","exp":1}.
    let signed = "eyJhbGciOiJFUzI1NiIsImtpZCI6ImsxIn0.eyJpc3MiOiJodHRwczovL2kiLCJzdWIiOiJzIiwiYXVkIjoiYSIsImV4cCI6MX0.c2ln";
    let rejected = explain(signed);
    let status = &rejected["status"];
    assert_eq!(status["authenticated"], false, "{rejected}");
    assert_eq!(
        status["unverified"],
        json!({"algorithm": "ES256", "keyID": "k1", "issuer": "https://i", "subject": "s", "audiences": ["a"],
            "expires": "1970-01-01T00:00:01Z"})
    );
    for (token, answer) in [("bob-token", &accepted), (signed, &rejected)] {
        assert!(!answer.to_string().contains(token), "{answer}");
    }
    assert_eq!(explain("")["code"], 400);
}

#[test]
fn denied_access_review_names_nearest_misses_to_reviewers_only() {
    let spec = json!({"user": "alice", "resourceAttributes": attributes("delete", "configmaps")});
    let object = |kind: &str| json!({"apiVersion": format!("{ACCESS}/v1"), "kind": kind, "spec": spec});
    let reason = |answer: &Value| answer["status"]["reason"].as_str().unwrap_or_default().to_owned();
    let any = review("subjectaccessreviews", "", object("SubjectAccessReview"));
    assert!(reason(&any).contains("allows `get` on `configmaps`, not `delete`"), "{any}");
    let local = review("localsubjectaccessreviews", "a", object("LocalSubjectAccessReview"));
    assert_eq!(reason(&local), reason(&any));
    let own = review("selfsubjectaccessreviews", "", object("SelfSubjectAccessReview"));
    assert!(!reason(&own).contains("nearest"), "{own}");
}

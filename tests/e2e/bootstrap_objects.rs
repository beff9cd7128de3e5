//! Bootstrap objects: content under both presets, restarts without writes, restoration after changes.

use std::collections::BTreeMap;

use crate::e2e::policy_objects::{apply, create_mutating_policy};
use serde_json::{Value, json};
use tests::harness::{Client, ControlPlane, Options, eventually};

/// The collections of bootstrap objects.
fn collections(plane: &ControlPlane) -> Vec<String> {
    let api = |stem, resource: &str| format!("{}/{resource}", plane.api(stem, "v1"));
    vec![
        api("scheduling", "priorityclasses"),
        api("flowcontrol.apiserver", "prioritylevelconfigurations"),
        api("flowcontrol.apiserver", "flowschemas"),
        api("apiregistration", "apiservices"),
        api("networking", "servicecidrs"),
        api("networking", "ipaddresses"),
        "/api/v1/namespaces/default/services".to_owned(),
        "/api/v1/namespaces/default/endpoints".to_owned(),
        api("discovery", "namespaces/default/endpointslices"),
    ]
}

/// All bootstrap objects by path.
async fn bootstrap_objects(plane: &ControlPlane) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for collection in collections(plane) {
        let list = plane.admin().get(&collection).await.expect(200);
        for item in list["items"].as_array().expect("items") {
            let name = item["metadata"]["name"].as_str().expect("a name");
            all.insert(format!("{collection}/{name}"), item.clone());
        }
    }
    all
}

/// Waits until all 13 flow schemas have the condition `Dangling` with status False.
///
/// This is the last write after a start. Returns all bootstrap objects.
async fn wait_until_initialized(plane: &ControlPlane) -> BTreeMap<String, Value> {
    eventually("the status of flow schemas", || async {
        let all = bootstrap_objects(plane).await;
        let schemas = all.iter().filter(|(path, _)| path.contains("/flowschemas/"));
        let with_condition =
            schemas.filter(|(_, schema)| schema["status"]["conditions"][0]["status"] == "False").count();
        (with_condition == 13).then_some(all)
    })
    .await
}

fn options(preset: Options) -> Options {
    preset.flag("--advertise-address=192.0.2.10").flag("--service-cluster-ip-range=10.7.0.0/16")
}

#[tokio::test(flavor = "multi_thread")]
async fn bootstrap_objects_exist_and_restart_writes_nothing() {
    for preset in [Options::default(), Options::kubernetes()] {
        let mut plane = ControlPlane::start(options(preset)).await;
        let names = plane.names();
        let before = wait_until_initialized(&plane).await;
        let own = names.api_service;
        let object = |stem: &str, rest: &str| {
            let path = format!(
                "{}/{rest}",
                if stem.is_empty() { "/api/v1".to_owned() } else { plane.api(stem, "v1") }
            );
            before.get(&path).unwrap_or_else(|| panic!("{path} of {:?}", before.keys())).clone()
        };

        let class = object("scheduling", "priorityclasses/system-node-critical");
        assert_eq!(
            (&class["value"], &class["preemptionPolicy"]),
            (&json!(2_000_001_000), &json!("PreemptLowerPriority"))
        );
        assert_eq!(object("scheduling", "priorityclasses/system-cluster-critical")["value"], 2_000_000_000);

        for (level, shares, lendable) in [
            ("catch-all", 5, 0),
            ("system", 30, 33),
            ("node-high", 40, 25),
            ("leader-election", 10, 0),
            ("workload-high", 40, 50),
            ("workload-low", 100, 90),
            ("global-default", 20, 50),
        ] {
            let limited = &object("flowcontrol.apiserver", &format!("prioritylevelconfigurations/{level}"))["spec"]
                ["limited"];
            assert_eq!(
                (&limited["nominalConcurrencyShares"], &limited["lendablePercent"]),
                (&json!(shares), &json!(lendable))
            );
        }
        let schema = object(
            "flowcontrol.apiserver",
            &format!("flowschemas/{}-service-accounts", names.system_namespace),
        );
        assert_eq!(schema["spec"]["matchingPrecedence"], 900);
        assert_eq!(schema["metadata"]["annotations"][names.label_sub_key("apf", "autoupdate-spec")], "true");
        let subject = &schema["spec"]["rules"][0]["subjects"][0]["serviceAccount"];
        assert_eq!(*subject, json!({"name": "*", "namespace": names.system_namespace}));

        let service = object("", &format!("namespaces/default/services/{own}"));
        assert_eq!(
            (&service["spec"]["clusterIP"], &service["spec"]["type"]),
            (&json!("10.7.0.1"), &json!("ClusterIP"))
        );
        let port = plane.admin().port();
        assert_eq!(
            service["spec"]["ports"],
            json!([{"name": "https", "protocol": "TCP", "port": 443, "targetPort": port}])
        );
        let endpoints = object("", &format!("namespaces/default/endpoints/{own}"));
        assert_eq!(
            endpoints["subsets"],
            json!([{"addresses": [{"ip": "192.0.2.10"}], "ports": [{"name": "https", "port": port, "protocol": "TCP"}]}])
        );
        let slice = object("discovery", &format!("namespaces/default/endpointslices/{own}"));
        assert_eq!(slice["metadata"]["labels"][names.label_key("service-name")], own);
        assert_eq!(slice["endpoints"], json!([{"addresses": ["192.0.2.10"], "conditions": {"ready": true}}]));
        let cidr = object("networking", &format!("servicecidrs/{own}"));
        assert_eq!(cidr["spec"]["cidrs"], json!(["10.7.0.0/16"]));
        assert_eq!(cidr["status"]["conditions"][0]["type"], "Ready");
        let address = object("networking", "ipaddresses/10.7.0.1");
        assert_eq!(
            address["spec"]["parentRef"],
            json!({"resource": "services", "namespace": "default", "name": own})
        );

        let local = json!("Local");
        for (name, group, priorities) in [
            ("v1.".to_owned(), String::new(), (18_000, 1)),
            ("v2.autoscaling".to_owned(), "autoscaling".to_owned(), (17_500, 30)),
            (format!("v1.{}", names.group("policy")), names.group("policy"), (17_100, 15)),
            (
                format!("v1.{}", names.group("flowcontrol.apiserver")),
                names.group("flowcontrol.apiserver"),
                (16_100, 21),
            ),
        ] {
            let service = object("apiregistration", &format!("apiservices/{name}"));
            let spec = &service["spec"];
            assert_eq!(spec["group"].as_str().unwrap_or(""), group);
            let have = (spec["groupPriorityMinimum"].as_i64(), spec["versionPriority"].as_i64());
            assert_eq!(have, (Some(priorities.0), Some(priorities.1)), "{name}");
            let condition = &service["status"]["conditions"][0];
            assert_eq!((&condition["status"], &condition["reason"]), (&json!("True"), &local), "{name}");
        }

        // The system selects the port, so it may differ after the restart. Then only the endpoints change.
        plane.stop().await;
        plane.launch().await;
        let after = wait_until_initialized(&plane).await;
        for (path, object) in &before {
            if !path.contains("endpoint") {
                assert_eq!(after.get(path), Some(object), "the restart wrote {path}");
            }
        }
        assert_eq!(after.len(), before.len());
        let port = plane.admin().port();
        let slice = after.iter().find(|(path, _)| path.contains("/endpointslices/")).expect("a slice").1;
        assert_eq!(slice["ports"][0]["port"], port);
    }
}

/// Waits until the object at a path exists and satisfies a predicate.
async fn wait_for_object(
    client: &Client,
    path: &str,
    awaited_state: &str,
    good: impl Fn(&Value) -> bool,
) -> Value {
    eventually(awaited_state, || async {
        let answer = client.get(path).await;
        (answer.status == 200).then(|| answer.json()).filter(|object| good(object))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn managed_objects_are_restored_and_user_changes_are_kept() {
    let mut plane = ControlPlane::start(options(Options::default())).await;
    wait_until_initialized(&plane).await;
    let admin = plane.admin();
    let names = plane.names();
    let merge = "application/merge-patch+json";
    let level = |name: &str| {
        format!("{}/prioritylevelconfigurations/{name}", plane.api("flowcontrol.apiserver", "v1"))
    };
    let schema = |name: &str| format!("{}/flowschemas/{name}", plane.api("flowcontrol.apiserver", "v1"));
    let annotation = names.label_sub_key("apf", "autoupdate-spec");

    // Deleted mandatory and suggested objects are created again.
    for name in ["exempt", "probes"] {
        admin.delete(&schema(name)).await.expect(200);
        wait_for_object(&admin, &schema(name), "a deleted flow schema", |_| true).await;
    }
    // A changed mandatory object is restored, regardless of its autoupdate annotation.
    let change = json!({
        "metadata": {"annotations": {&annotation: "false"}}, "spec": {"exempt": {"nominalConcurrencyShares": 77}},
    });
    admin.patch(&level("exempt"), merge, &change).await.expect(200);
    wait_for_object(&admin, &level("exempt"), "a mandatory level", |level| {
        level["spec"]["exempt"]["nominalConcurrencyShares"] == 0
    })
    .await;
    // The other mandatory levels cannot change.
    let change = json!({"spec": {"limited": {"nominalConcurrencyShares": 77}}});
    admin.patch(&level("catch-all"), merge, &change).await.expect(422);
    let shares =
        |expected: i64| move |level: &Value| level["spec"]["limited"]["nominalConcurrencyShares"] == expected;
    // A suggested object is restored only if its annotation permits that.
    admin.patch(&level("system"), merge, &change).await.expect(200);
    wait_for_object(&admin, &level("system"), "a suggested level", shares(30)).await;
    let change = json!({
        "metadata": {"annotations": {&annotation: "false"}}, "spec": {"limited": {"nominalConcurrencyShares": 78}},
    });
    admin.patch(&level("node-high"), merge, &change).await.expect(200);
    // The object that is created again shows that the controller has processed the earlier changes.
    admin.delete(&level("global-default")).await.expect(200);
    wait_for_object(&admin, &level("global-default"), "a deleted level", |_| true).await;
    assert!(shares(78)(&admin.get(&level("node-high")).await.expect(200)));

    // A flow schema without its priority level gets the condition `Dangling`.
    let dangling =
        json!({"metadata": {"name": "lost"}, "spec": {"priorityLevelConfiguration": {"name": "nowhere"}}});
    let schemas = format!("{}/flowschemas", plane.api("flowcontrol.apiserver", "v1"));
    admin.post(&schemas, &dangling).await.expect(201);
    let with_condition = |expected: &'static str| {
        move |schema: &Value| schema["status"]["conditions"][0]["status"] == expected
    };
    let lost = wait_for_object(&admin, &schema("lost"), "a dangling schema", with_condition("True")).await;
    assert_eq!(lost["status"]["conditions"][0]["reason"], "NotFound");

    // A system PriorityClass cannot be deleted. The API's own Service is created again at once, the APIService of a
    // built-in version only at the next start.
    let class = format!("{}/priorityclasses/system-node-critical", plane.api("scheduling", "v1"));
    let service = format!("{}/apiservices/v1.apps", plane.api("apiregistration", "v1"));
    let own = format!("/api/v1/namespaces/default/services/{}", names.api_service);
    admin.delete(&class).await.expect(403);
    for path in [&service, &own] {
        admin.delete(path).await.expect(200);
    }
    wait_for_object(&admin, &own, "the API's own Service", |_| true).await;
    admin.get(&service).await.expect(404);
    plane.stop().await;
    plane.launch().await;
    wait_for_object(&plane.admin(), &service, "the next start creates the object", |_| true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn api_services_follow_custom_resource_definitions() {
    let plane = ControlPlane::start(Options::kubernetes()).await;
    let admin = plane.admin();
    let version = |name: &str, served: bool, storage: bool| {
        json!({"name": name, "served": served, "storage": storage,
               "schema": {"openAPIV3Schema": {"type": "object"}}})
    };
    let definition = json!({
        "metadata": {"name": "things.g.example.com"},
        "spec": {
            "group": "g.example.com", "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [version("v1", true, true), version("v1beta1", false, false)],
        },
    });
    let definitions = format!("{}/customresourcedefinitions", plane.api("apiextensions", "v1"));
    let services = format!("{}/apiservices", plane.api("apiregistration", "v1"));
    let own = json!({"metadata": {"name": "v2.g.example.com"}, "spec": {
        "group": "g.example.com", "version": "v2", "groupPriorityMinimum": 7, "versionPriority": 8}});
    admin.post(&services, &own).await.expect(201);
    admin.post(&definitions, &definition).await.expect(201);
    let path = format!("{services}/v1.g.example.com");
    let available = |service: &Value| service["status"]["conditions"][0]["status"] == "True";
    let service = wait_for_object(&admin, &path, "an APIService of a custom kind", available).await;
    assert_eq!(
        service["spec"],
        json!({"group": "g.example.com", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 100})
    );
    admin.get(&format!("{services}/v1beta1.g.example.com")).await.expect(404);
    admin.delete(&path).await.expect(200);
    wait_for_object(&admin, &path, "a deleted APIService", available).await;
    admin.delete(&format!("{definitions}/things.g.example.com")).await.expect(200);
    eventually("the end of an APIService", || async { (admin.get(&path).await.status == 404).then_some(()) })
        .await;
    let own = wait_for_object(
        &admin,
        &format!("{services}/v2.g.example.com"),
        "an APIService of a user",
        available,
    )
    .await;
    assert_eq!(own["spec"]["groupPriorityMinimum"], 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn unserved_or_unenforced_objects_are_logged_once_at_startup() {
    const LINE: &str = "objects are stored that this release does not serve or enforce";
    let mut plane = ControlPlane::start(Options::default().flag("--runtime-config=api/alpha=true")).await;
    assert!(!plane.log().contains(LINE), "{}", plane.log());
    for name in ["a", "b"] {
        let mutations =
            json!({"mutations": [apply("Object{metadata: Object.metadata{labels: {'a': 'b'}}}")]});
        let warning = create_mutating_policy(&plane, name, mutations, json!({})).await;
        assert!(warning.contains("does not run mutating admission policies"), "{warning}");
    }
    plane.stop().await;
    plane.launch().await;
    let line = eventually("the log names the kind", || async {
        plane.log().lines().find(|line| line.contains(LINE)).map(str::to_owned)
    })
    .await;
    assert!(line.contains("MutatingAdmissionPolicy: 2"), "{line}");
    assert_eq!(plane.log().matches(LINE).count(), 1);
}

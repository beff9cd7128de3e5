//! Events in an etcd cluster of their own (`--etcd-servers-overrides`).

use prerequisites::etcd::{EtcdServer, Release};
use serde_json::{Value, json};
use tests::harness::{Client, ControlPlane, Options, eventually};

use super::etcd::{EVENTS, MAPS, map, stored};

/// The clusters of Events and of all other objects; None when the test is skipped.
fn clusters() -> Option<(EtcdServer, EtcdServer)> {
    EtcdServer::start(Release::Current, &[]).zip(EtcdServer::start(Release::Current, &[]))
}

fn options(objects: &EtcdServer, events: &EtcdServer) -> Options {
    Options::kubernetes()
        .flag(&format!("--etcd-servers={}", objects.url()))
        .flag(&format!("--etcd-servers-overrides=/events#{}", events.url()))
        .flag("--etcd-compaction-interval=2s")
        .flag("--storage-initialization-timeout=1s")
}

fn event(name: &str) -> Value {
    json!({"metadata": {"name": name}, "involvedObject": {"namespace": "default"}, "reason": "Test"})
}

fn version(object: &Value) -> &str {
    object["metadata"]["resourceVersion"].as_str().expect("a version")
}

/// Waits until `/readyz` has a line.
async fn wait_for_readiness(client: &Client, line: &str) {
    eventually(line, || async { client.get("/readyz?verbose").await.text().contains(line).then_some(()) })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_lie_in_their_cluster_and_are_watched_over_a_restart() {
    let Some((objects, events)) = clusters() else { return };
    let mut first = ControlPlane::start(options(&objects, &events)).await;
    let second = ControlPlane::start(options(&objects, &events)).await;
    let (admin, other) = (first.admin(), second.admin());
    let ready = admin.get("/readyz?verbose").await.text();
    for check in ["etcd", "etcd-readiness", "etcd-override-0", "etcd-override-readiness-0"] {
        assert!(ready.contains(&format!("[+]{check} ok\n")), "{check}: {ready}");
    }

    // The revisions of the clusters differ: those of Events are far ahead.
    for number in 0..300 {
        admin.post(EVENTS, &event(&format!("earlier-{number}"))).await.expect(201);
    }
    admin.post(MAPS, &map("one", "x")).await.expect(201);
    let [(key, value, lease)] = &stored(&events, "/registry/events/default/earlier-299")[..] else {
        panic!("one key")
    };
    assert!(key == "/registry/events/default/earlier-299" && *lease != 0, "{key} has a lease");
    assert!(value.starts_with(b"k8s\0"), "{value:?}");
    assert!(stored(&objects, "/registry/events/").is_empty(), "no Event is among the other objects");
    assert_eq!(stored(&objects, "/registry/configmaps/default/one").len(), 1);
    let other_keys = stored(&events, "/").into_iter().map(|(key, ..)| key);
    let other_keys: Vec<String> = other_keys.filter(|key| !key.starts_with("/registry/events/")).collect();
    assert!(other_keys.iter().all(|key| key.starts_with("/registry/apid/")), "{other_keys:?}");

    let list = other.get("/apis/events.k8s.io/v1/namespaces/default/events").await.expect(200);
    assert!(list["items"].as_array().is_some_and(|items| items.len() >= 300), "{}", list["metadata"]);
    let from_list = format!("{EVENTS}?watch=1&resourceVersion={}", version(&list));
    let mut watch = other.watch(&from_list).await;
    let seen = admin.post(EVENTS, &event("seen")).await.expect(201);
    let next = watch.next().await.expect("an event of the other server");
    assert_eq!((&next["type"], version(&next["object"])), (&json!("ADDED"), version(&seen)));

    first.stop().await;
    other.post(EVENTS, &event("meanwhile")).await.expect(201);
    first.launch().await;
    let admin = first.admin();
    let mut resumed = admin.watch(&format!("{EVENTS}?watch=1&resourceVersion={}", version(&seen))).await;
    let next = resumed.next().await.expect("the event of the time of the restart");
    assert_eq!(next["object"]["metadata"]["name"], "meanwhile", "{next}");
    eventually("both clusters are compacted", || async {
        [&objects, &events].iter().all(|cluster| !stored(cluster, "compact_rev_key").is_empty()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deletion_of_a_namespace_removes_its_events_in_the_other_cluster() {
    let Some((objects, events)) = clusters() else { return };
    let plane = ControlPlane::start(options(&objects, &events)).await;
    let admin = plane.admin();
    admin.post("/api/v1/namespaces", &json!({"metadata": {"name": "team"}})).await.expect(201);
    let team_events = "/api/v1/namespaces/team/events";
    for number in 0..20 {
        let mut event = event(&format!("happened-{number}"));
        event["involvedObject"]["namespace"] = json!("team");
        admin.post(team_events, &event).await.expect(201);
    }
    admin.post(EVENTS, &event("kept")).await.expect(201);
    admin.post("/api/v1/namespaces/team/configmaps", &map("one", "x")).await.expect(201);
    assert_eq!(stored(&events, "/registry/events/team/").len(), 20);
    admin.delete("/api/v1/namespaces/team").await.expect(200);
    eventually("the namespace is gone", || async {
        (admin.get("/api/v1/namespaces/team").await.status == 404).then_some(())
    })
    .await;
    assert!(stored(&events, "/registry/events/team/").is_empty(), "no Event of the namespace is left");
    assert_eq!(stored(&events, "/registry/events/default/kept").len(), 1);
    assert!(stored(&objects, "/registry/configmaps/team/").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_for_other_objects_go_on_while_the_cluster_of_events_is_down() {
    let Some((mut objects, mut events)) = clusters() else { return };
    let mut plane = ControlPlane::start(options(&objects, &events)).await;
    let admin = plane.admin();
    admin.post(EVENTS, &event("one")).await.expect(201);
    events.kill();
    wait_for_readiness(&admin, "[-]etcd-override-0 failed").await;
    let ready = admin.get("/readyz?verbose").await.text();
    assert!(ready.contains("[+]etcd ok\n") && ready.contains("[+]etcd-readiness ok\n"), "{ready}");
    assert_eq!(admin.get("/readyz?exclude=etcd&exclude=etcd-readiness").await.status, 200);
    admin.post(MAPS, &map("one", "x")).await.expect(201);
    admin.get(&format!("{MAPS}/one")).await.expect(200);
    let refused = admin.post(EVENTS, &event("two")).await;
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(refused.text().contains("an etcd cluster of its own"), "{}", refused.text());

    let stopped = ControlPlane::new_stopped(options(&objects, &events));
    let output = stopped.command().output().expect("apid runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && text.contains("the cluster of `--etcd-servers-overrides`: "),
        "{text}"
    );

    events.restart();
    wait_for_readiness(&admin, "[+]etcd-override-readiness-0 ok").await;
    eventually("Events are written again", || async {
        (admin.post(EVENTS, &event("three")).await.status == 201).then_some(())
    })
    .await;
    admin.get(&format!("{EVENTS}/one")).await.expect(200);

    // A cluster that lost its data has another history. The next start reads the objects of the new one.
    for number in 0..20 {
        admin.post(EVENTS, &event(&format!("lost-{number}"))).await.expect(201);
    }
    let list = admin.get(EVENTS).await.expect(200);
    let mut watch = admin.watch(&format!("{EVENTS}?watch=1&resourceVersion={}", version(&list))).await;
    events.kill();
    events.restart_empty();
    for endpoint in ["/livez?verbose", "/readyz?verbose"] {
        eventually("the lost history is noted", || async {
            admin.get(endpoint).await.text().contains("[-]etcd-override-0 failed").then_some(())
        })
        .await;
    }
    assert_eq!(watch.next().await, None, "an open watch of Events ends");
    for _ in 0..30 {
        assert_eq!(admin.post(EVENTS, &event("late")).await.status, 503);
        assert_eq!(admin.get(EVENTS).await.status, 503);
    }
    admin.post(MAPS, &map("two", "x")).await.expect(201);
    let probes = [
        "/livez?exclude=etcd-override-0",
        "/readyz?exclude=etcd-override-0&exclude=etcd-override-readiness-0",
    ];
    for probe in probes {
        assert_eq!(admin.get(probe).await.status, 200, "{probe}");
    }
    plane.stop().await;
    plane.launch().await;
    let admin = plane.admin();
    admin.post(EVENTS, &event("after")).await.expect(201);
    admin.get(&format!("{EVENTS}/one")).await.expect(404);

    objects.kill();
    wait_for_readiness(&plane.anonymous(), "[-]etcd failed").await;
    let ready = plane.anonymous().get("/readyz?verbose").await.text();
    assert!(ready.contains("[+]etcd-override-0 ok\n"), "{ready}");
    assert_eq!(admin.get(EVENTS).await.status, 503, "no request is decided without the policy");
}

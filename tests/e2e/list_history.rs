//! Lists, continue tokens and watches after restarts and after history compaction.

use serde_json::{Value, json};
use tests::harness::{ControlPlane, Options, eventually};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const OURS: &str = "labelSelector=ours";

fn map(name: &str, value: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"ours": "yes"}}, "data": {"k": value}})
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn continue_tokens_exact_lists_and_watches_survive_restart() {
    for gates in ["ListFromCacheSnapshot=false", "ListFromCacheSnapshot=true"] {
        let mut plane =
            ControlPlane::start(Options::default().flag(&format!("--feature-gates={gates}"))).await;
        let admin = plane.admin();
        for name in ["a", "b", "c"] {
            admin.post(MAPS, &map(name, "1")).await.expect(201);
        }
        let first = admin.get(&format!("{MAPS}?{OURS}&limit=1")).await.expect(200);
        let token = first["metadata"]["continue"].as_str().unwrap().to_owned();
        let version = first["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        admin.put(&format!("{MAPS}/b"), &map("b", "2")).await.expect(200);
        admin.delete(&format!("{MAPS}/c")).await.expect(200);
        plane.stop().await;
        plane.launch().await;
        let admin = plane.admin();
        let rest = admin.get(&format!("{MAPS}?{OURS}&continue={token}")).await.expect(200);
        assert_eq!((names(&rest), &rest["items"][0]["data"]["k"]), (vec!["b", "c"], &json!("1")), "{gates}");
        assert_eq!(rest["metadata"]["resourceVersion"], json!(version));
        let exact = format!("{MAPS}?{OURS}&resourceVersion={version}&resourceVersionMatch=Exact");
        assert_eq!(names(&admin.get(&exact).await.expect(200)), ["a", "b", "c"]);
        let forged = format!("{}A", &token[..token.len() - 1]);
        let other = if forged == token { format!("{}B", &token[..token.len() - 1]) } else { forged };
        admin.get(&format!("{MAPS}?{OURS}&continue={other}")).await.expect(400);
        let mut watch = admin.watch(&format!("{MAPS}?watch=1&{OURS}&resourceVersion={version}")).await;
        admin.put(&format!("{MAPS}/a"), &map("a", "3")).await.expect(200);
        for (kind, name) in [("MODIFIED", "b"), ("DELETED", "c"), ("MODIFIED", "a")] {
            let event = watch.next().await.expect("an event");
            assert_eq!((&event["type"], &event["object"]["metadata"]["name"]), (&json!(kind), &json!(name)));
        }
        let deployments = admin.get("/apis/apps/v1/deployments").await.expect(200);
        assert_eq!(
            (&deployments["kind"], &deployments["apiVersion"]),
            (&json!("DeploymentList"), &json!("apps/v1"))
        );
        drop(watch);
        plane.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn compacted_history_returns_410_after_history_retention() {
    let mut plane = ControlPlane::start(Options::default().flag("--history-retention=1s")).await;
    let admin = plane.admin();
    for name in ["a", "b", "c"] {
        admin.post(MAPS, &map(name, "1")).await.expect(201);
    }
    let first = admin.get(&format!("{MAPS}?{OURS}&limit=1")).await.expect(200);
    let token = first["metadata"]["continue"].as_str().unwrap().to_owned();
    let version = first["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let next = format!("{MAPS}?{OURS}&limit=1&continue={token}");
    let expired = eventually("the history is compacted", || async {
        admin.put(&format!("{MAPS}/b"), &map("b", "2")).await.expect(200);
        let answer = admin.get(&next).await;
        (answer.status == 410).then(|| answer.json())
    })
    .await;
    assert_eq!(expired["reason"], "Expired");
    let fresh = expired["metadata"]["continue"].as_str().unwrap();
    let rest = admin.get(&format!("{MAPS}?{OURS}&limit=1&continue={fresh}")).await.expect(200);
    assert_eq!((names(&rest), &rest["items"][0]["data"]["k"]), (vec!["b"], &json!("2")));
    admin.get(&format!("{MAPS}?resourceVersion={version}&resourceVersionMatch=Exact")).await.expect(410);
    assert_eq!(names(&admin.get(&format!("{MAPS}?{OURS}")).await.expect(200)), ["a", "b", "c"]);
    let mut watch = admin.watch(&format!("{MAPS}?watch=1&resourceVersion={version}")).await;
    let event = watch.next().await.expect("an event");
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)));
    drop(watch);
    plane.stop().await;
}

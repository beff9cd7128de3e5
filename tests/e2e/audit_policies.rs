//! Audit policies and backends: recorded events of kube-apiserver, a full disk, and tools that read the log.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use apimachinery::names::Preset;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tests::harness::{AuditLog, Client, ControlPlane, Options, eventually};

/// A recorded script: requests before all policies, and requests under each policy.
pub(super) struct Script {
    pub(super) setup: Vec<Value>,
    pub(super) requests: Vec<Value>,
}

/// Objects that the script creates or changes, and that a later run of the script must not find.
const CREATED: [&str; 4] = [
    "/api/v1/namespaces/audit-a/configmaps/two",
    "/api/v1/namespaces/audit-a/configmaps/one",
    "/api/v1/namespaces/audit-b/configmaps/noted",
    "/api/v1/namespaces/audit-b/pods/loose?gracePeriodSeconds=0",
];

/// Requests whose responses differ from those of kube-apiserver, with the reason. Their events have no equal status and
/// no equal object in the response.
const OTHER_RESPONSES: [(&str, &str); 7] = [
    ("r16", "the Status of a 401 has the audit ID of the client"),
    ("r21", "objects that are not stored have no managed fields"),
    ("r23", "a SelfSubjectReview has no creationTimestamp"),
    ("r24", "objects that are not stored have no managed fields"),
    ("r38", "the Status names the resource componentstatuses"),
    ("r39", "the text of the JSON parser"),
    ("r46", "a HEAD request has the response of GET"),
];

pub(super) fn read_script(folder: &Path) -> Script {
    let text = fs::read_to_string(folder.join("requests.json")).expect("the script");
    let script: Value = serde_json::from_str(&text).expect("JSON");
    let list = |name: &str| script[name].as_array().expect("a list").clone();
    Script { setup: list("setup"), requests: list("requests") }
}

/// Sends the requests of a script, and returns the code of each.
pub(super) async fn send(plane: &ControlPlane, requests: &[Value]) -> Vec<(String, u16)> {
    let mut captured: BTreeMap<String, String> = BTreeMap::new();
    let mut codes = Vec::new();
    for request in requests {
        let text = |field: &str| request[field].as_str().unwrap_or_default();
        let client: Client = match text("as") {
            "anonymous" => plane.anonymous(),
            user => plane.user(user),
        };
        let mut headers = vec![("user-agent".to_owned(), "audit-script/1.0".to_owned())];
        if !text("id").is_empty() {
            headers.push(("audit-id".to_owned(), text("id").to_owned()));
        }
        for (name, value) in request["headers"].as_object().into_iter().flatten() {
            let mut value = value.as_str().expect("a header").to_owned();
            for (name, text) in &captured {
                value = value.replace(&format!("${{{name}}}"), text);
            }
            headers.push((name.to_lowercase(), value));
        }
        let has = |name: &str, headers: &[(String, String)]| headers.iter().any(|(other, _)| other == name);
        if !has("accept", &headers) {
            headers.push(("accept".to_owned(), "application/json".to_owned()));
        }
        let body = match (&request["rawBody"], &request["body"]) {
            (Value::String(raw), _) => raw.clone().into_bytes(),
            (_, Value::Null) => Vec::new(),
            (_, body) => body.to_string().into_bytes(),
        };
        if !body.is_empty() && !has("content-type", &headers) {
            headers.push(("content-type".to_owned(), "application/json".to_owned()));
        }
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let response = client.request(text("method"), text("path"), &headers, &body).await;
        for (name, path) in request["capture"].as_object().into_iter().flatten() {
            let pointer = format!("/{}", path.as_str().expect("a path").replace('.', "/"));
            let value = response.json().pointer(&pointer).cloned().expect("a captured value");
            captured.insert(name.clone(), value.as_str().expect("a text").to_owned());
        }
        codes.push((text("id").to_owned(), response.status));
    }
    codes
}

/// Restores the state before a run of the script.
pub(super) async fn restore(plane: &ControlPlane, script: &Script) {
    let admin = plane.admin();
    for path in CREATED {
        admin.delete(path).await;
    }
    let list = admin.get("/api/v1/namespaces/audit-a/configmaps").await.json();
    for item in list["items"].as_array().into_iter().flatten() {
        let name = item["metadata"]["name"].as_str().expect("a name");
        if name.starts_with("gen-") {
            admin.delete(&format!("/api/v1/namespaces/audit-a/configmaps/{name}")).await;
        }
    }
    let scale = json!({"spec": {"replicas": 1}});
    let path = "/apis/apps/v1/namespaces/audit-a/deployments/app/scale";
    admin.patch(path, "merge", &scale).await;
    let again: Vec<Value> = script
        .setup
        .iter()
        .filter(|request| request["path"] == "/api/v1/namespaces/audit-b/configmaps")
        .cloned()
        .collect();
    send(plane, &again).await;
}

/// Removes what differs between two servers from an event: times, identifiers, and what apid adds.
fn normalize(event: &mut Value, expected_reason: Option<&str>) {
    let is_creation = event["verb"] == "create";
    mask(event);
    for field in ["requestReceivedTimestamp", "stageTimestamp"] {
        event[field] = "<time>".into();
    }
    event["sourceIPs"] = json!(["<ip>"]);
    if let Some(reference) = event.get_mut("objectRef").and_then(Value::as_object_mut) {
        // apid also names the created object.
        reference.remove("uid");
        let is_generated =
            reference.get("name").and_then(Value::as_str).is_some_and(|name| name.starts_with("gen-"));
        if is_creation && is_generated {
            reference.remove("name");
        }
    }
    if let Some(annotations) = event.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove("authentication.k8s.io/reason");
        // apid explains decisions for which kube-apiserver has no reason, and rejected impersonation.
        match expected_reason {
            Some("") => drop(annotations.insert("authorization.k8s.io/reason".to_owned(), "".into())),
            // Two default roles allow the same paths, and kube-apiserver names either.
            Some(_) => {
                let reason = &mut annotations["authorization.k8s.io/reason"];
                let text = reason.as_str().unwrap_or_default().replace("public-info-viewer", "discovery");
                *reason = text.into();
            }
            None => annotations.retain(|key, _| !key.starts_with("authorization.k8s.io/")),
        }
        // The order of the fields in texts of JSON differs.
        for value in annotations.values_mut() {
            if let Some(parsed) = value.as_str().filter(|text| text.starts_with(['{', '['])) {
                *value = serde_json::from_str(parsed).expect("JSON");
            }
        }
        if annotations.is_empty() {
            event.as_object_mut().expect("an event").remove("annotations");
        }
    }
}

/// Masks identifiers and times anywhere in a value.
fn mask(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            // Descriptions of columns are texts of each server.
            if fields.contains_key("columnDefinitions") {
                fields.insert("columnDefinitions".to_owned(), Value::Null);
            }
            for (name, value) in fields.iter_mut() {
                let is_empty = value.as_str().is_none_or(str::is_empty);
                let masked = match name.as_str() {
                    "uid" if value.as_str().is_some_and(|uid| uid.len() == 36 || uid == "<uid>") => "<uid>",
                    "resourceVersion" => "<rv>",
                    "token" => "<token>",
                    "continue" => "<continue>",
                    "creationTimestamp" | "deletionTimestamp" | "expirationTimestamp" | "time" => "<time>",
                    "authentication.kubernetes.io/issued-credential-id" => "JTI=<uid>",
                    "authentication.kubernetes.io/credential-id" => {
                        *value = json!(["JTI=<uid>"]);
                        continue;
                    }
                    // Addresses and ports of the server.
                    // A column is an age.
                    "cells" => {
                        *value = Value::Null;
                        continue;
                    }
                    "audiences" if value.is_array() => {
                        *value = json!(["<audience>"]);
                        continue;
                    }
                    "name" if value.as_str().is_some_and(|name| name.starts_with("gen-")) => "gen-<random>",
                    _ => {
                        mask(value);
                        continue;
                    }
                };
                if !is_empty {
                    *value = masked.into();
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(mask),
        Value::String(_) | Value::Number(_) | Value::Bool(_) | Value::Null => {}
    }
}

/// Compares the events of a run with the recorded ones. Returns the differences.
pub(super) fn compare(policy: &str, recorded: &[Value], found: &[Value]) -> Vec<String> {
    let mut differences = Vec::new();
    let ids = |events: &[Value]| -> Vec<(String, String)> {
        let key = |event: &Value| (event["auditID"].to_string(), event["stage"].to_string());
        events.iter().map(key).collect()
    };
    let (expected_ids, found_ids) = (ids(recorded), ids(found));
    let missing = expected_ids.iter().filter(|id| !found_ids.contains(id));
    differences.extend(missing.map(|id| format!("{policy}: {id:?} is missing")));
    let more = found_ids.iter().filter(|id| !expected_ids.contains(id));
    differences.extend(more.map(|id| format!("{policy}: {id:?} is not recorded")));
    for recorded in recorded {
        let same =
            |event: &&Value| event["auditID"] == recorded["auditID"] && event["stage"] == recorded["stage"];
        let Some(event) = found.iter().find(same) else { continue };
        let id = recorded["auditID"].as_str().expect("an id");
        let reason = recorded.pointer("/annotations/authorization.k8s.io~1reason").and_then(Value::as_str);
        let (mut expected, mut event) = (recorded.clone(), event.clone());
        normalize(&mut expected, reason);
        normalize(&mut event, reason);
        if OTHER_RESPONSES.iter().any(|(known, _)| *known == id) {
            for event in [&mut expected, &mut event] {
                let fields = event.as_object_mut().expect("an event");
                fields.remove("responseStatus");
                fields.remove("responseObject");
            }
        }
        if expected != event {
            let fields = expected
                .as_object()
                .expect("an event")
                .keys()
                .chain(event.as_object().expect("an event").keys());
            let names: std::collections::BTreeSet<&String> =
                fields.filter(|name| expected.get(*name) != event.get(*name)).collect();
            for name in names {
                differences.push(format!(
                    "{policy}: {id} {} {name}:\n  expected {}\n  found    {}",
                    recorded["stage"],
                    expected.get(name).unwrap_or(&Value::Null),
                    event.get(name).unwrap_or(&Value::Null)
                ));
            }
        }
    }
    differences
}

fn recorded_events(folder: &Path, policy: &str) -> Option<Vec<Value>> {
    let text = fs::read_to_string(folder.join(format!("events/{policy}.jsonl"))).ok()?;
    Some(text.lines().map(|line| serde_json::from_str(line).expect("an event")).collect())
}

fn signal(plane: &ControlPlane) {
    let pid = i32::try_from(plane.pid()).ok().and_then(Pid::from_raw).expect("a process id");
    kill_process(pid, Signal::HUP).expect("a signal");
}

/// Each recorded policy is loaded without a restart. An invalid one between them changes nothing.
#[tokio::test]
async fn recorded_policies_write_recorded_events() {
    let Some(folder) = prerequisites::audit() else { return };
    let script = read_script(&folder);
    let audit = AuditLog::new();
    let policy_folder = tempfile::tempdir().expect("a folder");
    let policy_file = policy_folder.path().join("policy.yaml");
    fs::copy(folder.join("policies/04.yaml"), &policy_file).expect("a policy");
    let options = Options::kubernetes()
        .flag(&audit.flag())
        .flag(&format!("--audit-policy-file={}", policy_file.display()));
    let plane = ControlPlane::start(options).await;
    send(&plane, &script.setup).await;
    let text = fs::read_to_string(folder.join("index.json")).expect("the index");
    let index: BTreeMap<String, Value> = serde_json::from_str(&text).expect("JSON");
    let mut differences = Vec::new();
    let (mut reloads, mut rejections) = (0, 0);
    let mut policies: Vec<&String> =
        index.iter().filter(|(_, row)| row.get("flags").is_none()).map(|(policy, _)| policy).collect();
    policies.sort();
    for policy in policies {
        restore(&plane, &script).await;
        let text = fs::read_to_string(folder.join(format!("policies/{policy}.yaml"))).expect("a policy");
        // A comment makes each content new.
        fs::write(&policy_file, format!("{text}\n# {policy}\n")).expect("the policy is written");
        signal(&plane);
        reloads += 1;
        let count = |text: &str| plane.log().matches(text).count();
        eventually("the policy is loaded", || async {
            (count("audit policy reloaded") == reloads).then_some(())
        })
        .await;
        if rejections < 2 {
            fs::write(&policy_file, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: []\n")
                .expect("a file");
            signal(&plane);
            rejections += 1;
            eventually("the invalid policy is rejected", || async {
                (count("audit policy is invalid") == rejections).then_some(())
            })
            .await;
        }
        let before = audit.events().len();
        for (request, (id, code)) in script.requests.iter().zip(send(&plane, &script.requests).await) {
            let is_known = OTHER_RESPONSES.iter().any(|(known, _)| *known == id);
            if request["status"] != code && !is_known {
                differences.push(format!("{policy}: {id} has code {code}, recorded {}", request["status"]));
            }
        }
        let recorded = recorded_events(&folder, policy).expect("recorded events");
        // The last event may not be written yet.
        let own =
            |event: &Value| event["auditID"].as_str().is_some_and(|id| id.len() == 3 && id.starts_with('r'));
        let found = || audit.events().into_iter().skip(before).filter(own).collect::<Vec<_>>();
        for _ in 0..50 {
            if found().len() >= recorded.len() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        differences.extend(compare(policy, &recorded, &found()));
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

#[tokio::test]
async fn truncated_and_legacy_events_are_written_as_recorded() {
    let Some(folder) = prerequisites::audit() else { return };
    let script = read_script(&folder);
    let text = fs::read_to_string(folder.join("index.json")).expect("the index");
    let index: BTreeMap<String, Value> = serde_json::from_str(&text).expect("JSON");
    let mut differences = Vec::new();
    for (policy, row) in index.iter().filter(|(_, row)| row.get("flags").is_some()) {
        let audit = AuditLog::new();
        let flags = row["flags"].as_array().expect("flags").iter().map(|flag| flag.as_str().expect("a flag"));
        let file = folder.join(format!("policies/{policy}.yaml"));
        let options = Options::kubernetes()
            .flag(&audit.flag())
            .flag(&format!("--audit-policy-file={}", file.display()));
        let plane = ControlPlane::start(flags.fold(options, Options::flag)).await;
        send(&plane, &script.setup).await;
        send(&plane, &script.requests).await;
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        if let Some(recorded) = recorded_events(&folder, policy) {
            let own = |event: &Value| {
                event["auditID"].as_str().is_some_and(|id| id.len() == 3 && id.starts_with('r'))
            };
            let found: Vec<Value> = audit.events().into_iter().filter(own).collect();
            // Sizes differ with names and explanations, so only untruncated events of both are compared.
            let is_truncated = |event: &Value| event["annotations"].get("audit.k8s.io/truncated").is_some();
            let truncated = found.iter().filter(|event| is_truncated(event)).count();
            assert!(truncated > 3, "{truncated} events are truncated");
            let objects = |event: &&Value| {
                event.get("responseObject").is_some() || event.get("requestObject").is_some()
            };
            assert_eq!(found.iter().filter(|event| is_truncated(event)).find(objects), None);
            let whole = |events: &[Value]| -> Vec<Value> {
                let small = |event: &&Value| !is_truncated(event) && event.to_string().len() < 1_100;
                events.iter().filter(small).cloned().collect()
            };
            let ids: Vec<Value> = whole(&found).iter().map(|event| event["auditID"].clone()).collect();
            let recorded: Vec<Value> =
                whole(&recorded).into_iter().filter(|event| ids.contains(&event["auditID"])).collect();
            differences.extend(
                compare(policy, &recorded, &found).into_iter().filter(|line| !line.ends_with("not recorded")),
            );
        } else {
            let recorded = fs::read_to_string(folder.join(format!("events/{policy}.txt"))).expect("lines");
            let found = fs::read_to_string(audit.path()).expect("the log");
            let rest = |line: &str| {
                let (_, rest) = line.split_once(' ').expect("a time");
                rest.replace("127.0.0.1", "<ip>")
            };
            let found: Vec<String> =
                found.lines().filter(|line| line.contains(" id=\"r")).map(rest).collect();
            let recorded: Vec<String> = recorded.lines().map(rest).collect();
            assert_eq!(found, recorded);
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Writes to `/dev/full` fail like those to a full disk.
#[tokio::test]
async fn strict_mode_rejects_requests_while_the_disk_is_full() {
    let folder = tempfile::tempdir().expect("a folder");
    let policy = folder.path().join("policy.yaml");
    let text = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n\
                - {level: None, nonResourceURLs: ['/readyz*', '/metrics']}\n- {level: None, userGroups: ['system:nodes']}\n\
                - {level: None, users: [bob]}\n- {level: Metadata}\n";
    fs::write(&policy, text).expect("a policy");
    let options = Options { preset: Preset::Kubernetes, ..Options::default() }
        .flag("--audit-log-path=/dev/full")
        .flag("--audit-log-mode=blocking-strict")
        .flag(&format!("--audit-policy-file={}", policy.display()));
    let plane = ControlPlane::start(options).await;
    let path = "/api/v1/namespaces/default/configmaps";
    let rejected = plane.admin().post(path, &json!({"metadata": {"name": "x"}})).await;
    assert_eq!(rejected.status, 500, "{}", rejected.text());
    assert_eq!(rejected.text(), format!("Internal Server Error: \"{path}\": failed to store audit event\n"));
    assert_eq!(plane.user("bob").get(path).await.status, 403, "the policy audits no request of bob");
    let metrics = plane.admin().get("/metrics").await.text();
    assert!(metrics.contains("\napiserver_audit_requests_rejected_total 1\n"), "{metrics}");
    assert!(metrics.contains("\napiserver_audit_level_total{level=\"None\"} "), "{metrics}");
}

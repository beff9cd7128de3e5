//! Tests of the forms of events.

use std::sync::Arc;

use admission::ObjectReference;
use apimachinery::names::Preset;
use apimachinery::printable;
use bytes::Bytes;
use serde_json::json;

use super::*;
use crate::policy::Decision;
use crate::stage::{Level, Stages};

fn names() -> EventNames {
    EventNames::new(&Names::new(Preset::Svc, "example.test").unwrap())
}

fn event(level: Level) -> Event {
    let attributes = Attributes {
        verb: "get".into(),
        resource_request: true,
        version: "v1".into(),
        resource: "configmaps".into(),
        namespace: "a".into(),
        name: "x".into(),
        ..Attributes::default()
    };
    let received: Timestamp = "2025-01-02T03:04:05.123456Z".parse().unwrap();
    let uri = "/api/v1/namespaces/a/configmaps/x?pretty=1".to_owned();
    let mut event = Event::new("the-id".into(), received, uri, Arc::new(attributes));
    event.decision = Some(Decision { level, omit_stages: Stages::default(), omit_managed_fields: false });
    event.set_user_agent("tool/1".into());
    event.sources = vec!["127.0.0.1".into()];
    event.object = ObjectReference { name: "other".into(), uid: "u-1".into(), ..ObjectReference::default() };
    let alice = UserInfo {
        name: "alice".into(),
        groups: vec!["team".into(), "b".into()],
        extra: [("scopes".to_owned(), vec!["s".to_owned()])].into(),
        ..UserInfo::default()
    };
    event.user = Some(Arc::new(alice));
    event
}

fn stage_event<'a>(names: &'a EventNames, event: &'a Event, outcome: Option<Outcome<'a>>) -> StageEvent<'a> {
    let stage = if outcome.is_some() { Stage::ResponseComplete } else { Stage::RequestReceived };
    let at = "2025-01-02T03:04:06.000007Z".parse().unwrap();
    StageEvent { names, event, stage, at, outcome, is_truncated: false }
}

fn parse(line: &[u8]) -> Value {
    assert_eq!(line.iter().filter(|b| **b == b'\n').count(), 1);
    let text = std::str::from_utf8(line).unwrap().strip_suffix('\n').unwrap();
    assert!(!text.chars().any(printable::is_unprintable), "{text}");
    serde_json::from_str(text).unwrap()
}

#[test]
fn json_line_contains_one_event() {
    let (names, mut event) = (names(), event(Level::Metadata));
    event.annotate("authorization.example.test/decision".to_owned(), "forbid");
    event.annotate("authorization.example.test/decision".to_owned(), "allow");
    let hidden = "ja\u{202e}ne\u{1b}[2J\u{7f}\u{9b}\n\"\\é\u{e0041}";
    event.impersonated = Some(Arc::new(UserInfo { name: hidden.into(), ..UserInfo::default() }));
    let status = Status::unauthorized();
    let line = stage_event(&names, &event, Some(Outcome { code: 401, status: Some(&status) })).json_line();
    assert_eq!(
        parse(&line),
        json!({
            "kind": "Event", "apiVersion": "audit.example.test/v1", "level": "Metadata", "auditID": "the-id",
            "stage": "ResponseComplete", "requestURI": "/api/v1/namespaces/a/configmaps/x?pretty=1", "verb": "get",
            "user": {"username": "alice", "groups": ["team", "b"], "extra": {"scopes": ["s"]}},
            "impersonatedUser": {"username": hidden}, "sourceIPs": ["127.0.0.1"], "userAgent": "tool/1",
            "objectRef":
                {"resource": "configmaps", "namespace": "a", "name": "x", "uid": "u-1", "apiVersion": "v1"},
            "responseStatus": {
                "metadata": {}, "status": "Failure", "message": "Unauthorized", "reason": "Unauthorized",
                "code": 401
            },
            "requestReceivedTimestamp": "2025-01-02T03:04:05.123456Z",
            "stageTimestamp": "2025-01-02T03:04:06.000007Z",
            "annotations": {"authorization.example.test/decision": "forbid"},
        })
    );
}

#[test]
fn first_event_has_neither_response_nor_later_data() {
    let (names, mut event) = (names(), event(Level::RequestResponse));
    event.annotate("a/b".to_owned(), "c");
    event.impersonated = Some(Arc::default());
    event.set_request_object(b"{}".to_vec());
    let value = parse(&stage_event(&names, &event, None).json_line());
    for field in ["responseStatus", "annotations", "impersonatedUser", "requestObject"] {
        assert_eq!(value.get(field), None, "{field}");
    }
    assert_eq!(value["objectRef"].get("uid"), None);
    assert_eq!(value["stageTimestamp"], value["requestReceivedTimestamp"]);
}

#[test]
fn objects_are_written_at_their_level_without_omitted_managed_fields() {
    let object = json!({"metadata": {"name": "n\u{202e}", "managedFields": [{"manager": "m"}]}});
    let list = json!({"items": [object], "rows": [{"object": object}]});
    for (level, omits, request, response) in [
        (Level::Metadata, false, None, None),
        (Level::Request, false, Some(&object), None),
        (Level::RequestResponse, false, Some(&object), Some(&list)),
        (Level::RequestResponse, true, Some(&object), Some(&list)),
    ] {
        let (names, mut event) = (names(), event(level));
        event.decision = event.decision.map(|found| Decision { omit_managed_fields: omits, ..found });
        event.set_request_object(object.to_string().into_bytes());
        event.set_response_object(Bytes::from(list.to_string()));
        let line = stage_event(&names, &event, Some(Outcome { code: 200, status: None })).json_line();
        let value = parse(&line);
        let expected = |object: Option<&Value>| {
            let text = object?.to_string();
            let omitted = text.replace(r#""managedFields":[{"manager":"m"}],"#, "");
            serde_json::from_str::<Value>(if omits { &omitted } else { &text }).ok()
        };
        assert_eq!(value.get("requestObject").cloned(), expected(request), "{level:?}");
        assert_eq!(value.get("responseObject").cloned(), expected(response), "{level:?}");
    }
}

#[test]
fn truncated_event_has_an_annotation_in_place_of_objects() {
    let (names, mut event) = (names(), event(Level::Request));
    event.set_patch(Bytes::from_static(b"[1]"));
    let outcome = Some(Outcome { code: 200, status: None });
    let whole = stage_event(&names, &event, outcome);
    assert_eq!(parse(&whole.json_line())["requestObject"], json!([1]));
    assert_eq!(whole.json_line().len(), whole.json_bytes_of_item(&whole.list_item()));
    let value = parse(&StageEvent { is_truncated: true, ..whole }.json_line());
    assert_eq!(value.get("requestObject"), None);
    assert_eq!(value["annotations"], json!({"audit.example.test/truncated": "true"}));
}

#[test]
fn legacy_line_has_quoted_fields() {
    let (names, event) = (names(), event(Level::Metadata));
    let line = stage_event(&names, &event, Some(Outcome { code: 200, status: None })).legacy_line();
    assert_eq!(
        std::str::from_utf8(&line).unwrap(),
        "2025-01-02T03:04:05.123456Z AUDIT: id=\"the-id\" stage=\"ResponseComplete\" ip=\"127.0.0.1\" method=\"get\" \
         user=\"alice\" groups=\"\\\"team\\\",\\\"b\\\"\" as=\"<self>\" asgroups=\"<lookup>\" user-agent=\"tool/1\" \
         namespace=\"a\" uri=\"/api/v1/namespaces/a/configmaps/x?pretty=1\" response=\"200\"\n"
    );
    let line = stage_event(&names, &event, None).legacy_line();
    assert!(std::str::from_utf8(&line).unwrap().ends_with("response=\"<deferred>\"\n"));
}

#[test]
fn long_user_agent_is_cut_at_a_character() {
    let mut event = event(Level::Metadata);
    event.set_user_agent("é".repeat(1_000).into());
    assert_eq!(event.user_agent, format!("{}...TRUNCATED", "é".repeat(512)));
}

#[test]
fn times_are_written_like_micro_times() {
    for text in ["1970-01-01T00:00:00Z", "2024-02-29T23:59:59.999999Z", "-000001-01-01T00:00:00Z"] {
        let at: Timestamp = text.parse().unwrap();
        let mut out = Vec::new();
        push_time(&mut out, at);
        assert_eq!(out, format!("\"{}\"", micro_time(at)).into_bytes());
    }
}

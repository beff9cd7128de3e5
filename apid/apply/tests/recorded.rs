//! Recorded first applies: the owner of an apply to a new object equals the owner that kube-apiserver recorded.
//!
//! The recordings are in `CONFORMANCE_DIR`, by default `../shared/conformance` beside the repository. Without
//! recordings the test prints a message and passes.

use std::fs;

use apimachinery::object::{Object, Value};
use apply::managers::ManagedFields;
use apply::path::Element;
use apply::server_side::Apply;
use apply::set::Set;
use apply::update::{ManagedWrite, OneVersion};
use jiff::Timestamp;
use schema::Schema;

#[test]
fn recorded_first_applies_produce_recorded_owners() {
    let Some(recordings) = prerequisites::recordings() else { return };
    let text = fs::read_to_string(recordings.join("cases/apply.json")).unwrap();
    let file: Value = serde_json::from_str(&text).unwrap();
    let mut compared = 0;
    for case in file["cases"].as_array().unwrap() {
        for step in case["steps"].as_array().unwrap() {
            let answer = &step["answer"];
            let body = &answer["body"];
            let list = body["metadata"].get("managedFields").or_else(|| body.get("metadata.managedFields"));
            let (Some(list), Value::Object(_)) = (list, &step["body"]) else { continue };
            if answer["status"] != 201 || !step["path"].as_str().unwrap().contains("fieldManager=one") {
                continue;
            }
            let patch = Object::from_value(step["body"].clone()).unwrap();
            let Some(schema) = Schema::of_kind(patch.api_version(), patch.kind()) else { continue };
            assert_eq!(owned(schema, &patch), list[0]["fieldsV1"], "{}", case["name"]);
            compared += 1;
        }
    }
    assert!(compared > 10, "{compared}");
}

fn owned(schema: &'static Schema, patch: &Object) -> Value {
    let merge = schema.merge();
    let versions = OneVersion { api_version: patch.api_version().to_owned(), merge: merge.clone() };
    let (ignored, empty) = (Set::of(&[Element::field("status")]), schema.empty());
    let write = ManagedWrite {
        manager: "one",
        api_version: patch.api_version(),
        subresource: "",
        now: Some(Timestamp::UNIX_EPOCH),
        merge: &merge,
        versions: &versions,
        ignored: &ignored,
        empty: &empty,
        reset_then_track: false,
    };
    let applied = Apply { write, force: false, last_applied: None }.run(&empty, patch).unwrap();
    ManagedFields::of(&applied.object).entries[0].fields.to_value()
}

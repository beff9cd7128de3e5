//! Tests of managedFields entries: decoding, encoding, order, cap and times.

use serde_json::json;

use super::*;

fn entry(manager: &str, version: &str, second: i64) -> Entry {
    Entry {
        manager: manager.to_owned(),
        operation: EntryOperation::Update,
        api_version: version.to_owned(),
        subresource: String::new(),
        time: Timestamp::from_second(second).ok(),
        fields: Set::of(&[Element::field(manager)]),
    }
}

#[test]
fn managed_fields_round_trip_in_canonical_order() {
    let list = json!([
        {"manager": "z", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:a": {}}},
        {"manager": "a", "operation": "Apply", "apiVersion": "v1", "time": "2024-01-01T00:00:00Z",
         "fieldsType": "FieldsV1", "fieldsV1": {"f:a": {}}},
        {"manager": "a", "operation": "Update", "apiVersion": "v1", "time": "2023-01-01T00:00:00Z",
         "fieldsType": "FieldsV1", "fieldsV1": {"f:b": {}}, "subresource": "status"},
    ]);
    let mut managed = ManagedFields::decode(Some(&list)).unwrap();
    managed.entries.reverse();
    managed.entries.push(Entry { fields: Set::default(), ..entry("nothing", "v1", 0) });
    let mut object = Object::default();
    managed.write(&mut object);
    assert_eq!(object.at(&["metadata", "managedFields"]), Some(&list));
}

#[test]
fn malformed_managed_fields_are_rejected() {
    for wrong in [
        json!({}),
        json!([{}]),
        json!([{"manager": "a", "operation": "Delete", "apiVersion": "v1", "fieldsType": "FieldsV1"}]),
        json!([{"manager": "a", "operation": "Apply", "fieldsType": "FieldsV1"}]),
        json!([{"manager": "a", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV2"}]),
        json!([{"manager": "a", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1",
                "fieldsV1": {"spec": {}}}]),
    ] {
        assert_eq!(ManagedFields::decode(Some(&wrong)), None, "{wrong}");
    }
    assert!(is_reset(Some(&json!([{}]))) && is_reset(Some(&json!([{"operation": ""}]))));
    assert!(!is_reset(Some(&json!([]))) && !is_reset(None) && !is_reset(Some(&json!([{}, {}]))));
}

#[test]
fn unknown_fields_type_is_quoted_like_go() {
    let list = |found: &str| json!([{"operation": "Apply", "apiVersion": "v1", "fieldsType": found}]);
    let message = |found: &str| ManagedFields::check(Some(&list(found))).unwrap_err().to_string();
    assert_eq!(message("a\u{1}"), r#"invalid fieldsType "a\x01" in managed fields entry 0"#);
    assert!(message(&"a".repeat(100_000)).len() < 200);
}

#[test]
fn oldest_update_entries_above_limit_are_merged() {
    let mut managed = ManagedFields::default();
    for i in 0..11_i64 {
        managed.entries.push(entry(&format!("m{i:02}"), "v1", 1000 + i));
    }
    managed.entries.push(entry("other", "v2", 1));
    managed.entries.push(Entry { operation: EntryOperation::Apply, ..entry("applier", "v1", 0) });
    managed.cap_updates(UPDATES_MAX);
    let mut names: Vec<&str> = managed.entries.iter().map(|e| e.manager.as_str()).collect();
    names.sort_unstable();
    // The only update entry of its version stays, independent of its age.
    assert_eq!(
        names,
        ["ancient-changes", "applier", "m03", "m04", "m05", "m06", "m07", "m08", "m09", "m10", "other"]
    );
    let ancient = managed.entries.iter().find(|e| e.manager == "ancient-changes").unwrap();
    assert_eq!(ancient.fields.to_value(), json!({"f:m00": {}, "f:m01": {}, "f:m02": {}}));
    assert_eq!(ancient.time, Timestamp::from_second(1002).ok());
}

#[test]
fn managed_fields_differing_only_in_time_are_unchanged() {
    let object = |time: &str, value: &str| {
        let list = json!([{"manager": "a", "operation": "Update", "time": time}]);
        Object::from_value(json!({"metadata": {"managedFields": list}, "data": {"k": value}})).unwrap()
    };
    let old = object("1", "v");
    let mut same = object("2", "v");
    assert!(keep_times(&old, &mut same));
    assert_eq!(same, old);
    let mut changed = object("2", "w");
    assert!(!keep_times(&old, &mut changed));
    assert_eq!(changed, object("2", "w"));
}

/// CPU time of this thread in seconds.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let fields = stat.rsplit(')').next().unwrap().split_whitespace();
    fields.skip(11).take(2).map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
}

#[test]
fn managed_fields_of_40000_owners_take_almost_linear_time() {
    let entry = |i: usize, version: &str, time: &str| {
        json!({"manager": format!("m{i}"), "operation": "Update", "apiVersion": version, "time": time,
            "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {(format!("f:k{i}")): {}}}})
    };
    // A quadratic comparison or a repeated union would take minutes.
    for version_of in [|_: usize| "v1".to_owned(), |i: usize| format!("v{i}")] {
        let list = |time: &str| -> Value { (0..40_000).map(|i| entry(i, &version_of(i), time)).collect() };
        let before = cpu_seconds();
        let mut managed = ManagedFields::decode(Some(&list("2024-01-01T00:00:00Z"))).unwrap();
        assert_eq!(managed.entries.len(), 40_000);
        managed.cap_updates(UPDATES_MAX);
        let paths: usize = managed.entries.iter().map(|entry| entry.fields.len()).sum();
        assert_eq!(paths, 40_000);
        let object = |list: Value| Object::from_value(json!({"metadata": {"managedFields": list}})).unwrap();
        let old = object(list("2024-01-01T00:00:00Z"));
        let mut new = object(list("2024-01-02T00:00:00Z"));
        assert!(keep_times(&old, &mut new) && new == old);
        assert!(cpu_seconds() - before < 15.0, "{} s", cpu_seconds() - before);
    }
}

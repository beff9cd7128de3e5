//! Tests of field ownership after writes other than apply.

use schema::Schema;
use serde_json::{Value, json};

use super::*;

struct Kind {
    merge: Merge,
    versions: OneVersion,
    empty: Object,
    ignored: Set,
}

impl Kind {
    fn of(ty: &str) -> Self {
        let schema = Schema::of(ty).unwrap();
        let merge = schema.merge();
        let versions = OneVersion { api_version: "v1".to_owned(), merge: merge.clone() };
        Kind { merge, versions, empty: schema.empty(), ignored: Set::default() }
    }

    fn write<'a>(&'a self, manager: &'a str, subresource: &'a str, second: i64) -> ManagedWrite<'a> {
        ManagedWrite {
            manager,
            api_version: "v1",
            subresource,
            now: Some(Timestamp::from_second(second).unwrap()),
            merge: &self.merge,
            versions: &self.versions,
            ignored: &self.ignored,
            empty: &self.empty,
            reset_then_track: false,
        }
    }
}

fn object(value: Value) -> Object {
    Object::from_value(value).unwrap()
}

/// Manager, time in seconds and fields of each entry.
fn owners(object: &Object) -> Vec<(String, i64, Value)> {
    let mut managed = ManagedFields::of(object).entries;
    managed.sort_by_key(|entry| entry.time);
    managed
        .into_iter()
        .map(|e| (e.manager, e.time.map_or(0, Timestamp::as_second), e.fields.to_value()))
        .collect()
}

fn owner(manager: &str, second: i64, fields: Value) -> (String, i64, Value) {
    (manager.to_owned(), second, fields)
}

#[test]
fn update_moves_ownership_to_changing_manager() {
    let kind = Kind::of("core/v1.ConfigMap");
    let mut created = object(json!({"metadata": {"name": "a", "uid": "u"}, "data": {"k": "v", "l": "v"}}));
    kind.write("maker", "", 1).update(None, &mut created).unwrap();
    assert_eq!(owners(&created), [owner("maker", 1, json!({"f:data": {".": {}, "f:k": {}, "f:l": {}}}))]);

    let mut changed = created.clone();
    changed.set("data", json!({"k": "w", "l": "v", "m": "n"}));
    kind.write("two", "", 2).update(Some(&created), &mut changed).unwrap();
    assert_eq!(
        owners(&changed),
        [
            owner("maker", 1, json!({"f:data": {".": {}, "f:l": {}}})),
            owner("two", 2, json!({"f:data": {"f:k": {}, "f:m": {}}})),
        ]
    );

    // A removal creates no owner, and an owner without fields has no entry.
    let mut removed = changed.clone();
    removed.set("data", json!({"l": "v"}));
    kind.write("three", "", 3).update(Some(&changed), &mut removed).unwrap();
    assert_eq!(owners(&removed), [owner("maker", 1, json!({"f:data": {".": {}, "f:l": {}}}))]);

    // A no-op write changes neither owners nor times, with or without managedFields in the body.
    for sent in [removed.clone(), {
        let mut o = removed.clone();
        o.remove_meta("managedFields");
        o
    }] {
        let mut same = sent;
        kind.write("four", "", 4).update(Some(&removed), &mut same).unwrap();
        assert_eq!(same, removed);
    }
}

#[test]
fn subresource_write_has_separate_entry_and_ignores_status() {
    let mut kind = Kind::of("apps/v1.Deployment");
    kind.ignored = Set::of(&[crate::path::Element::field("status")]);
    let mut created =
        object(json!({"metadata": {"name": "a"}, "spec": {"replicas": 1}, "status": {"replicas": 1}}));
    kind.write("m", "", 1).update(None, &mut created).unwrap();
    assert_eq!(owners(&created), [owner("m", 1, json!({"f:spec": {"f:replicas": {}}}))]);
    let mut scaled = created.clone();
    scaled.set("spec", json!({"replicas": 3}));
    // Managed fields in the body of a subresource are ignored.
    scaled.set_meta("managedFields", json!([{}]));
    kind.write("m", "scale", 2).update(Some(&created), &mut scaled).unwrap();
    let managed = ManagedFields::of(&scaled);
    assert_eq!(managed.entries.len(), 1);
    assert_eq!(managed.entries[0].subresource, "scale");
}

#[test]
fn managed_fields_can_be_rewritten_and_reset() {
    let kind = Kind::of("core/v1.ConfigMap");
    let mut created = object(json!({"metadata": {"name": "a"}, "data": {"k": "v"}}));
    kind.write("maker", "", 1).update(None, &mut created).unwrap();

    let mut migrated = created.clone();
    let list = migrated.meta_mut().get_mut("managedFields").unwrap();
    list[0]["manager"] = json!("kubectl");
    list[0]["operation"] = json!("Apply");
    kind.write("x", "", 2).update(Some(&created), &mut migrated).unwrap();
    assert_eq!(ManagedFields::of(&migrated).entries[0].owner_text(), "\"kubectl\"");

    let mut emptied = created.clone();
    emptied.set_meta("managedFields", json!([]));
    kind.write("x", "", 2).update(Some(&created), &mut emptied).unwrap();
    assert_eq!(emptied, created);

    for (then_track, expected) in
        [(false, vec![]), (true, vec![owner("x", 2, json!({"f:data": {"f:k": {}}}))])]
    {
        let mut reset = created.clone();
        reset.set_meta("managedFields", json!([{}]));
        reset.set("data", json!({"k": "w"}));
        let write = ManagedWrite { reset_then_track: then_track, ..kind.write("x", "", 2) };
        write.update(Some(&created), &mut reset).unwrap();
        assert_eq!(owners(&reset), expected);
    }
}

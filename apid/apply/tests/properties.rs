//! Properties of apply on generated types and objects, checked against a reference model: a flat table of
//! values and owners.
//!
//! `CASES` sets the number of cases of each property (default 300), `SEED` the first seed; a failure prints
//! its seed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use apimachinery::object::{Map, Object, Value};
use apply::managers::ManagedFields;
use apply::server_side::{Apply, ApplyError};
use apply::set::{Set, path_text};
use apply::typed::{Fields, compare, field_set, merge};
use apply::update::{ManagedWrite, OneVersion};
use jiff::Timestamp;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use schema::merge::{Key, List, Merge, MergeField, Patch, Scalar, StructRef, StructType};
use serde_json::json;

fn cases(law: impl Fn(&mut SmallRng)) {
    let number = |name: &str, default: u64| {
        std::env::var(name)
            .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number")))
    };
    let first = number("SEED", 1);
    for seed in first..first + number("CASES", 300) {
        let run = std::panic::AssertUnwindSafe(|| law(&mut SmallRng::seed_from_u64(seed)));
        if let Err(failure) = std::panic::catch_unwind(run) {
            eprintln!("failed with SEED={seed}");
            std::panic::resume_unwind(failure);
        }
    }
}

// Types and objects.

fn field(name: &str, ty: Merge) -> MergeField {
    MergeField { name: name.to_owned(), ty, patch: Patch::default() }
}

fn structure(fields: Vec<MergeField>, atomic: bool) -> Merge {
    Merge::Struct(StructRef::own(Arc::new(StructType::new(fields, atomic, None))))
}

fn any_struct(rng: &mut SmallRng, depth: usize, more: Vec<MergeField>, atomic: bool) -> Merge {
    let mut fields = more;
    for name in ["a", "b", "c", "d"].into_iter().take(rng.random_range(1..=4)) {
        fields.push(field(name, any_type(rng, depth)));
    }
    structure(fields, atomic)
}

fn any_type(rng: &mut SmallRng, depth: usize) -> Merge {
    let scalar = Merge::Scalar(Scalar::Number);
    let atomic = rng.random_ratio(1, 4);
    match rng.random_range(0..if depth == 0 { 4 } else { 7 }) {
        0 => scalar,
        1 => Merge::Map { values: Box::new(scalar), atomic },
        2 => Merge::List { items: Box::new(scalar), list: List::Set },
        3 => Merge::List { items: Box::new(scalar), list: List::Atomic },
        4 => any_struct(rng, depth - 1, Vec::new(), atomic),
        5 => Merge::Map { values: Box::new(any_struct(rng, depth - 1, Vec::new(), false)), atomic },
        _ => {
            let keys = vec![
                Key { name: "port".to_owned(), default: None },
                Key { name: "protocol".to_owned(), default: Some(json!("TCP")) },
            ];
            let key_fields = vec![
                field("port", Merge::Scalar(Scalar::Number)),
                field("protocol", Merge::Scalar(Scalar::String)),
            ];
            let items = any_struct(rng, depth - 1, key_fields, false);
            Merge::List { items: Box::new(items), list: List::Map(keys.into_boxed_slice()) }
        }
    }
}

fn root(rng: &mut SmallRng) -> Merge {
    let metadata = vec![field("metadata", Merge::Untyped { atomic: true })];
    any_struct(rng, 3, metadata, false)
}

/// Generates a non-empty value from a small range, so that managers collide.
fn any_value(rng: &mut SmallRng, ty: &Merge) -> Value {
    match ty {
        Merge::Scalar(_) | Merge::Untyped { .. } => json!(rng.random_range(0..2)),
        Merge::Struct(r) => {
            let ty = r.resolve().unwrap();
            let mut map = Map::new();
            while map.is_empty() {
                for name in ["a", "b", "c", "d"] {
                    if let Some(field) = ty.field(name)
                        && rng.random_ratio(2, 3)
                    {
                        map.insert(name.to_owned(), any_value(rng, &field.ty));
                    }
                }
            }
            Value::Object(map)
        }
        Merge::Map { values, .. } => {
            let mut map = Map::new();
            for _ in 0..rng.random_range(1..4) {
                map.insert(format!("k{}", rng.random_range(0..4)), any_value(rng, values));
            }
            Value::Object(map)
        }
        Merge::List { list: List::Atomic, .. } => json!(vec![rng.random_range(0..2); rng.random_range(1..3)]),
        Merge::List { list: List::Set, .. } => {
            let mut items: Vec<u64> = Vec::new();
            for _ in 0..rng.random_range(1..4) {
                let item = rng.random_range(0..5);
                if !items.contains(&item) {
                    items.push(item);
                }
            }
            json!(items)
        }
        Merge::List { items: of, list: List::Map(_) } => {
            let mut seen = BTreeSet::new();
            let mut items = Vec::new();
            for _ in 0..rng.random_range(1..4) {
                let port = rng.random_range(0..3);
                let protocol = ["TCP", "UDP", ""][rng.random_range(0..3)];
                let key = (port, if protocol.is_empty() { "TCP" } else { protocol });
                if seen.insert(key) {
                    let mut item = any_value(rng, of);
                    item["port"] = json!(port);
                    if !protocol.is_empty() {
                        item["protocol"] = json!(protocol);
                    }
                    items.push(item);
                }
            }
            Value::Array(items)
        }
    }
}

fn any_object(rng: &mut SmallRng, ty: &Merge) -> Object {
    Object::from_value(any_value(rng, ty)).unwrap()
}

// The reference model.

/// Every path that can have an owner, as messages show it, with the values of leaves.
type Flat = BTreeMap<String, Value>;

fn flatten(ty: &Merge, object: &Fields) -> Flat {
    let mut flat = Flat::new();
    let Merge::Struct(r) = ty else { panic!("the root is a struct") };
    for (name, value) in object.iter().filter(|(name, _)| *name != "metadata") {
        flatten_into(&r.resolve().unwrap().field(name).unwrap().ty, value, format!(".{name}"), &mut flat);
    }
    flat
}

fn flatten_into(ty: &Merge, value: &Value, path: String, flat: &mut Flat) {
    match (ty, value) {
        (Merge::Struct(r), Value::Object(map)) if !r.is_atomic() => {
            for (name, value) in map {
                let field = r.resolve().unwrap().field(name).unwrap();
                flatten_into(&field.ty, value, format!("{path}.{name}"), flat);
            }
        }
        (Merge::Map { values, atomic: false }, Value::Object(map)) => {
            for (name, value) in map {
                let path = format!("{path}.{name}");
                flat.insert(path.clone(), Value::Null);
                flatten_into(values, value, path, flat);
            }
        }
        (Merge::List { list: List::Set, .. }, Value::Array(items)) => {
            for item in items {
                flat.insert(format!("{path}[={item}]"), Value::Null);
            }
        }
        (Merge::List { items: of, list: List::Map(_) }, Value::Array(items)) => {
            for item in items {
                let protocol = item.get("protocol").cloned().unwrap_or(json!("TCP"));
                let path = format!("{path}[port={},protocol={protocol}]", item["port"]);
                flat.insert(path.clone(), Value::Null);
                flatten_into(of, item, path, flat);
            }
        }
        _ => drop(flat.insert(path, value.clone())),
    }
}

#[derive(Default)]
struct Model {
    values: Flat,
    owners: BTreeMap<String, BTreeSet<String>>,
}

impl Model {
    /// Applies a patch; returns false if the patch conflicts with a different field manager.
    fn apply(&mut self, manager: &str, patch: Flat, force: bool) -> bool {
        let changed: BTreeSet<&String> = patch
            .iter()
            .filter(|(path, value)| self.values.get(*path) != Some(value))
            .map(|(path, _)| path)
            .collect();
        let others = || self.owners.iter().filter(|(name, _)| *name != manager).map(|(_, owned)| owned);
        if !force && others().any(|owned| owned.iter().any(|path| changed.contains(path))) {
            return false;
        }
        let removed: Vec<String> = self
            .owners
            .get(manager)
            .into_iter()
            .flatten()
            .filter(|path| !patch.contains_key(*path) && !others().any(|owned| owned.contains(*path)))
            .cloned()
            .collect();
        for path in removed {
            self.values.remove(&path);
        }
        for (name, owned) in &mut self.owners {
            if name != manager {
                owned.retain(|path| !changed.contains(path));
            }
        }
        self.owners.insert(manager.to_owned(), patch.keys().cloned().collect());
        self.values.extend(patch);
        self.owners.retain(|_, owned| !owned.is_empty());
        true
    }
}

// The implementation under test.

struct Server {
    versions: OneVersion,
    object: Object,
    second: i64,
}

impl Server {
    fn new(ty: &Merge) -> Self {
        let versions = OneVersion { api_version: "v1".to_owned(), merge: ty.clone() };
        Server { versions, object: Object::default(), second: 0 }
    }

    /// Applies a patch; returns false if the patch conflicts with a different field manager.
    fn apply(&mut self, manager: &str, patch: &Object, force: bool) -> bool {
        self.second += 1;
        let write = ManagedWrite {
            manager,
            api_version: "v1",
            subresource: "",
            now: Some(Timestamp::from_second(self.second).unwrap()),
            merge: &self.versions.merge,
            versions: &self.versions,
            ignored: &Set::default(),
            empty: &Object::default(),
            reset_then_track: false,
        };
        match (Apply { write, force, last_applied: None }).run(&self.object, patch) {
            Ok(applied) => self.object = applied.object,
            Err(ApplyError::Conflicts(_)) => return false,
            Err(other) => panic!("{other}"),
        }
        true
    }

    fn flat(&self) -> Flat {
        flatten(&self.versions.merge, &self.object.0)
    }

    fn owners(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut owners = BTreeMap::new();
        for entry in ManagedFields::of(&self.object).entries {
            let owned: &mut BTreeSet<String> = owners.entry(entry.manager).or_default();
            entry.fields.for_each(&mut |path| {
                owned.insert(path_text(path));
            });
        }
        owners
    }
}

#[test]
fn apply_agrees_with_reference_model() {
    cases(|rng| {
        let ty = root(rng);
        let (mut server, mut model) = (Server::new(&ty), Model::default());
        for _ in 0..8 {
            let manager = ["one", "two", "three"][rng.random_range(0..3)];
            let (patch, force) = (any_object(rng, &ty), rng.random_ratio(1, 3));
            let flat = flatten(&ty, &patch.0);
            assert_eq!(server.apply(manager, &patch, force), model.apply(manager, flat, force));
            assert_eq!(server.flat(), model.values);
            assert_eq!(server.owners(), model.owners);
        }
    });
}

#[test]
fn apply_is_idempotent() {
    cases(|rng| {
        let ty = root(rng);
        let mut server = Server::new(&ty);
        for manager in ["one", "two", "one"] {
            let patch = any_object(rng, &ty);
            server.apply(manager, &patch, true);
            let once = server.object.clone();
            assert!(server.apply(manager, &patch, false));
            assert_eq!(server.object, once);
        }
    });
}

#[test]
fn apply_of_equal_values_never_conflicts() {
    cases(|rng| {
        let ty = root(rng);
        let mut server = Server::new(&ty);
        let patch = any_object(rng, &ty);
        assert!(server.apply("one", &patch, false));
        let before = server.flat();
        assert!(server.apply("two", &patch, false));
        assert_eq!(server.flat(), before);
        let owners = server.owners();
        assert_eq!(owners["one"], owners["two"]);
    });
}

#[test]
fn applied_object_holds_only_owned_fields() {
    cases(|rng| {
        let ty = root(rng);
        let mut server = Server::new(&ty);
        for _ in 0..6 {
            let patch = any_object(rng, &ty);
            server.apply(["one", "two"][rng.random_range(0..2)], &patch, true);
            let owned: BTreeSet<String> = server.owners().into_values().flatten().collect();
            let found: BTreeSet<String> = server.flat().into_keys().collect();
            assert_eq!(found, owned);
        }
        for manager in ["one", "two"] {
            assert!(server.apply(manager, &Object::default(), false));
        }
        assert_eq!(server.object, Object::from_value(json!({"metadata": {}})).unwrap());
    });
}

#[test]
fn order_of_non_conflicting_applies_does_not_matter() {
    cases(|rng| {
        let ty = root(rng);
        let patches =
            [("one", any_object(rng, &ty)), ("two", any_object(rng, &ty)), ("three", any_object(rng, &ty))];
        let run = |order: [usize; 3]| {
            let mut server = Server::new(&ty);
            let all_applied = order.iter().all(|i| server.apply(patches[*i].0, &patches[*i].1, false));
            all_applied.then(|| (server.flat(), server.owners()))
        };
        let first = run([0, 1, 2]);
        for order in [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            assert_eq!(run(order), first);
        }
    });
}

#[test]
fn merge_agrees_with_flat_table_merge() {
    cases(|rng| {
        let ty = root(rng);
        let (under, over) = (any_object(rng, &ty), any_object(rng, &ty));
        let merged = merge(&ty, &under.0, &over.0);
        let mut expected = flatten(&ty, &under.0);
        expected.extend(flatten(&ty, &over.0));
        assert_eq!(flatten(&ty, &merged), expected);
        let compared = compare(&ty, &over.0, &merged);
        assert!(compared.modified.is_empty() && compared.removed.is_empty());
    });
}

#[test]
fn field_sets_round_trip_and_obey_set_laws() {
    cases(|rng| {
        let ty = root(rng);
        let sets = [field_set(&ty, &any_object(rng, &ty).0), field_set(&ty, &any_object(rng, &ty).0)];
        let [a, b] = &sets;
        let (mut difference, mut recursive_difference) = (a.clone(), a.clone());
        difference.subtract(b);
        recursive_difference.subtract_recursive(b);
        for set in [a, &a.union(b), &a.intersection(b), &difference, &recursive_difference] {
            assert_eq!(Set::from_value(&set.to_value()).unwrap(), *set);
        }
        assert_eq!(difference.union(&a.intersection(b)), *a);
        // A path remains exactly if the removed set contains neither the path nor a parent.
        let mut expected = Set::new();
        a.for_each(&mut |path| {
            if (1..=path.len()).all(|length| !b.contains(&path[..length])) {
                expected.insert(path);
            }
        });
        assert_eq!(recursive_difference, expected);
        assert!(a.is_subset(&a.union(b)) && difference.intersection(b).is_empty());
    });
}

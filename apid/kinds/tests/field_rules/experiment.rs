//! Comparison of validation with and without a value of a field.

use std::cmp::Reverse;
use std::fs;
use std::path::Path;

use apimachinery::clock::{ManualClock, SeededRng};
use apimachinery::codec::{Limits, yaml};
use apimachinery::field::{FieldErrorKind, FieldErrors};
use apimachinery::names::Names;
use apimachinery::object::Object;
use apimachinery::time;
use kinds::{Context, Kind};
use serde_json::{Value, json};

use super::fields::{Shape, Step, Types};
use super::values;

/// Maximum number of case objects in the experiments with one field.
const BASES: usize = 8;

/// Maximum number of items of a list in which the experiments change a field.
const ITEMS: usize = 3;

/// Errors without their messages, which contain values.
type Errors = Vec<(String, FieldErrorKind)>;

/// Experiments with the fields of a kind.
pub(super) struct Experiment<'a> {
    resource: &'a Kind,
    names: &'a Names,
    clock: ManualClock,
    rng: SeededRng,
    types: &'a Types,
    /// The objects of the cases of the kind.
    bases: Vec<Value>,
}

impl<'a> Experiment<'a> {
    pub(super) fn new(resource: &'a Kind, names: &'a Names, types: &'a Types) -> Self {
        let name = format!("testdata/{}.yaml", resource.plural());
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        let cases = yaml::decode(&fs::read(file).unwrap(), Limits::BODY).unwrap().value;
        let mut bases = Vec::new();
        for case in cases.as_array().unwrap() {
            for object in ["create", "old", "update"].map(|field| &case[field]) {
                if object.is_object() && !bases.contains(object) {
                    bases.push(object.clone());
                }
            }
        }
        for base in &mut bases {
            if base["metadata"]["name"].is_null() {
                base["metadata"]["name"] = json!("x");
            }
        }
        let clock = ManualClock::at(time::parse("2024-01-02T03:04:05Z").unwrap());
        Experiment { resource, names, clock, rng: SeededRng::new(1), types, bases }
    }

    /// Objects for the experiments with a field: a minimal object, and one with all fields of the struct that
    /// contains the field. The case objects with the most steps of the path follow.
    fn bases_for(&self, path: &[Step], owner: &str) -> Vec<Value> {
        let parent = path.split_last().map_or(path, |(_, parent)| parent);
        let minimal = json!({"metadata": {"name": "x"}});
        let mut bases = vec![minimal.clone()];
        if !parent.is_empty() {
            let mut filled = minimal;
            insert(&mut filled, parent, 0, Some(self.types.filled_struct(owner)));
            bases.push(filled);
        }
        let depth = |base: &&Value| {
            let is_present =
                |length: &usize| (0..ITEMS).any(|item| value_at(base, &path[..*length], item).is_some());
            (0..path.len()).take_while(is_present).count()
        };
        let mut cases: Vec<&Value> = self.bases.iter().collect();
        cases.sort_by_key(|base| Reverse(depth(base)));
        bases.extend(cases.into_iter().take(BASES).cloned());
        bases
    }

    /// Whether some value of the field changes the errors of some object.
    pub(super) fn has_rule(&self, path: &[Step], owner: &str, shape: &Shape) -> bool {
        let values = values::values_of_shape(shape, self.types);
        let subresources = self.resource.subresources.iter();
        let part_names = subresources.filter(|s| self.resource.is_part(s)).map(|s| s.name);
        let writes: Vec<&str> = [""].into_iter().chain(part_names).collect();
        let bases = self.bases_for(path, owner);
        let mut candidates =
            bases.iter().flat_map(|base| (0..item_count(base, path)).map(move |item| (base, item)));
        candidates.any(|(base, item)| {
            let mut object_without = base.clone();
            insert(&mut object_without, path, item, None);
            // An object that does not decode reaches no rule.
            let Some(object_without) = self.decode(&object_without) else { return false };
            let expected_on_creation = self.creation_errors(&object_without);
            let expected_on_updates: Vec<Errors> = writes
                .iter()
                .map(|write| self.update_errors(&object_without, &object_without, write))
                .collect();
            value_at(base, path, item).into_iter().chain(&values).any(|value| {
                let mut object_with = base.clone();
                insert(&mut object_with, path, item, Some(value.clone()));
                let Some(object_with) = self.decode(&object_with) else { return false };
                self.creation_errors(&object_with) != expected_on_creation
                    || writes.iter().zip(&expected_on_updates).any(|(write, expected)| {
                        self.update_errors(&object_with, &object_without, write) != *expected
                            || self.update_errors(&object_without, &object_with, write) != *expected
                    })
            })
        })
    }

    fn context<'c>(&'c self, subresource: &'c str) -> Context<'c> {
        Context { names: self.names, clock: &self.clock, rng: &self.rng, subresource }
    }

    fn decode(&self, value: &Value) -> Option<Object> {
        let mut object = Object::from_value(value.clone()).ok()?;
        object.set_type(&self.resource.api_version(), self.resource.name());
        self.resource.conform(&mut object).ok()?;
        if self.resource.namespaced {
            object.set_meta("namespace", "team");
        }
        self.resource.default(&mut object, &self.context(""));
        Some(object)
    }

    fn creation_errors(&self, object: &Object) -> Errors {
        let ctx = self.context("");
        let mut object = object.clone();
        self.resource.prepare_create(&mut object, "team", &ctx);
        self.resource.complete_new(&mut object, &ctx);
        self.resource.canonicalize(&mut object, &ctx);
        errors(&self.resource.validate_create(&object, &ctx))
    }

    fn update_errors(&self, new: &Object, old: &Object, subresource: &str) -> Errors {
        let ctx = self.context(subresource);
        let mut new = new.clone();
        self.resource.prepare_update(&mut new, old, &ctx);
        self.resource.canonicalize(&mut new, &ctx);
        errors(&self.resource.validate_update(&new, old, &ctx))
    }
}

fn errors(errors: &FieldErrors) -> Errors {
    errors.iter().map(|error| (error.path.to_string(), error.kind)).collect()
}

/// Number of items with which the experiments run: the length of the longest list on the path, at most [`ITEMS`].
fn item_count(base: &Value, path: &[Step]) -> usize {
    let lists = (0..path.len()).filter(|length| path[*length] == Step::Item);
    let lengths = lists.filter_map(|length| value_at(base, &path[..length], 0)?.as_array()).map(Vec::len);
    lengths.max().unwrap_or(1).clamp(1, ITEMS)
}

/// The value at a path, in the given item of each list or in the last one.
fn value_at<'v>(value: &'v Value, path: &[Step], item: usize) -> Option<&'v Value> {
    path.iter().try_fold(value, |value, step| match step {
        Step::Field(field) => value.get(field),
        Step::Item => value.as_array()?.get(item).or_else(|| value.as_array()?.last()),
        Step::Entry => value.as_object()?.values().next(),
    })
}

/// Sets or removes a value, in the given item of each list or in the last one. Adds missing parents.
fn insert(value: &mut Value, path: &[Step], item: usize, new: Option<Value>) {
    let Some((step, rest)) = path.split_first() else { return };
    match step {
        Step::Field(field) => {
            if !value.is_object() {
                *value = json!({});
            }
            let map = value.as_object_mut().unwrap();
            match (rest.is_empty(), new) {
                (true, Some(new)) => drop(map.insert(field.clone(), new)),
                (true, None) => drop(map.remove(field)),
                (false, new) => insert(map.entry(field.as_str()).or_insert(Value::Null), rest, item, new),
            }
        }
        Step::Item => {
            if value.as_array().is_none_or(Vec::is_empty) {
                *value = json!([null]);
            }
            let last = value.as_array().unwrap().len() - 1;
            let value = &mut value[item.min(last)];
            match (rest.is_empty(), new) {
                (true, new) => *value = new.unwrap_or_default(),
                (false, new) => insert(value, rest, item, new),
            }
        }
        Step::Entry => {
            if value.as_object().is_none_or(serde_json::Map::is_empty) {
                *value = json!({"a": null});
            }
            let first = value.as_object_mut().unwrap().values_mut().next().unwrap();
            match (rest.is_empty(), new) {
                (true, new) => *first = new.unwrap_or_default(),
                (false, new) => insert(first, rest, item, new),
            }
        }
    }
}

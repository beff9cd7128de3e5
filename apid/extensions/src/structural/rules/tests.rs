//! Tests of the numeric cost budgets, each with a cost at the limit and the next one above it (requirement
//! D-CCOST-12).

use apimachinery::field::{FieldErrors, FieldPath};
use apimachinery::names::{DEFAULT_API_DOMAIN, Names, Preset};
use apimachinery::object::Object;
use expressions::{Cost, Environment, Type, Value as CelValue};
use serde_json::{Value, json};

use super::super::{Schema, StoredRules};

const CALL: usize = 1_000_000;
const OBJECT: usize = 10_000_000;
const RULE_ESTIMATE: usize = 10_000_000;

/// A rule with a cost that grows with its list.
const RULE: &str = "self.all(x, x > 0)";
/// Estimated cost of the rule of each item: one variable and one comparison.
const ITEM_RULE: &str = "self > 0";
const ITEM_COST: usize = 2;

fn texts(errors: &FieldErrors) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

/// Schema of an object with these properties of `spec`.
fn schema(properties: &Value) -> Schema {
    let spec = json!({"type": "object", "properties": properties});
    Schema::compile(&json!({"type": "object", "properties": {"spec": spec}})).unwrap()
}

/// Cost of [`RULE`] without items and for each item.
fn rule_cost() -> (usize, usize) {
    let list = Type::list(Type::Int);
    let program = Environment::new().variable("self", list.clone()).compile(RULE).unwrap();
    let cost = |items: usize| {
        let items = json!(vec![1; items]);
        let mut cost = Cost::limit(u64::MAX);
        program.evaluate(&[("self", CelValue::of(&items, &list).unwrap())], &mut cost).unwrap();
        usize::try_from(cost.used()).unwrap()
    };
    (cost(0), cost(1) - cost(0))
}

/// Number of items with which [`RULE`] costs at most this number of units.
fn items_within(units: usize) -> usize {
    let (base, item) = rule_cost();
    (units - base) / item
}

/// Errors of an object with one list under [`RULE`] for each length.
fn errors_of_lists(lengths: &[usize]) -> Vec<String> {
    let rules = json!([{"rule": RULE}]);
    let list = json!({"type": "array", "items": {"type": "integer"}, "x-kubernetes-validations": rules});
    let named = || lengths.iter().enumerate().map(|(i, length)| (format!("l{i:02}"), *length));
    let properties: Value = named().map(|(name, _)| (name, list.clone())).collect();
    let spec: Value = named().map(|(name, length)| (name, json!(vec![1; length]))).collect();
    let object = Object::from_value(json!({"spec": spec})).unwrap();
    texts(&schema(&properties).validate(&object, None, FieldErrors::new(), &|_, _| FieldErrors::new()).errors)
}

/// Errors of a definition with one list for each maximum number of items, and [`ITEM_RULE`] on the items.
fn errors_of_definition(maximums: &[usize]) -> Vec<String> {
    let items = json!({"type": "integer", "x-kubernetes-validations": [{"rule": ITEM_RULE}]});
    let list = |maximum: usize| json!({"type": "array", "maxItems": maximum, "items": items});
    let properties = maximums.iter().enumerate().map(|(i, maximum)| (format!("l{i:02}"), list(*maximum)));
    let names = Names::new(Preset::Kubernetes, DEFAULT_API_DOMAIN).unwrap();
    let schema = schema(&properties.collect());
    texts(&schema.check_rules(&FieldPath::new("schema"), &StoredRules::default(), &names, &|_| false))
}

/// Checks that the size `greatest` has no errors, and that the next size has one error with `text`.
#[track_caller]
fn check_limit(errors_of: impl Fn(usize) -> Vec<String>, greatest: usize, text: &str) {
    assert_eq!(errors_of(greatest), [""; 0]);
    let errors = errors_of(greatest + 1);
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].contains(text), "{errors:?}");
}

#[test]
fn evaluation_above_a_million_units_is_rejected() {
    check_limit(|items| errors_of_lists(&[items]), items_within(CALL), "call cost exceeds limit for rule");
}

#[test]
fn rules_of_object_above_ten_million_units_are_rejected() {
    let (base, item) = rule_cost();
    let items = items_within(CALL);
    let used = 10 * (base + item * items);
    let errors_of = |last: usize| errors_of_lists(&[vec![items; 10], vec![last]].concat());
    check_limit(errors_of, items_within(OBJECT - used), "running out of cost budget");
}

#[test]
fn estimate_of_rule_above_ten_million_units_is_rejected() {
    let text = "estimated rule cost exceeds budget by factor of 1.000000x";
    check_limit(|items| errors_of_definition(&[items]), RULE_ESTIMATE / ITEM_COST, text);
}

#[test]
fn estimates_of_definition_above_a_hundred_million_units_are_rejected() {
    let items = RULE_ESTIMATE / ITEM_COST;
    assert_eq!(errors_of_definition(&[items; 10]), [""; 0]);
    let errors = errors_of_definition(&[&[items; 10][..], &[1]].concat()).join("\n");
    let total = "estimated rule cost total for entire OpenAPIv3 schema exceeds budget by factor of 1.000000x";
    assert!(errors.contains(total) && !errors.contains("estimated rule cost exceeds"), "{errors}");
}

#[test]
fn rules_of_skipped_part_have_no_errors_and_no_estimate() {
    let list = json!({"type": "array", "items": {"type": "integer"}});
    let rules = json!([{"rule": "self.l.all(x, self.l.all(y, x == y))"}, {"rule": "self.missing"}]);
    let part = json!({"type": "object", "properties": {"l": list}, "x-kubernetes-validations": rules});
    let schema = schema(&json!({"a": part, "b": part}));
    let names = Names::new(Preset::Kubernetes, DEFAULT_API_DOMAIN).unwrap();
    let errors = |skipped: &[&str]| {
        let is_skipped = |path: &FieldPath| skipped.iter().any(|part| path.as_str().ends_with(part));
        texts(&schema.check_rules(&FieldPath::new("schema"), &StoredRules::default(), &names, &is_skipped))
    };
    let all = errors(&[]);
    let remaining = errors(&["[a]"]);
    assert!(all.iter().any(|error| error.contains("properties[a]")), "{all:?}");
    assert!(remaining.iter().any(|error| error.contains("properties[b]")), "{remaining:?}");
    assert!(!remaining.iter().any(|error| error.contains("properties[a]")), "{remaining:?}");
    assert_eq!(errors(&["[a]", "[b]"]), [""; 0]);
}

//! Table tests of validation rules on data with a schema.
//!
//! The tables are data, so that tests of a server with custom kinds can use them, too.
//!
//! A file of `testdata/rules` has groups with a schema, an object, an optional old object (`old`) and rows.
//! The root of the schema is the root of a kind; without a schema `self` is dynamic. A row has the id
//! of a requirement, the rule, its outcome as in `testdata/language`, and optionally its cost.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use crate::json_schema::JsonSchema;
use expressions::{
    Bounds, Cost, Dialect, Environment, EstimateSum, Occurrences, Program, Schema, Type, Value, excess,
    limits,
};
use serde_json::{Value as Json, json};

fn read(file: &str) -> Json {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(file);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Runs a table and checks that it has a row for each of these requirements.
fn check(file: &str, required_rows: impl IntoIterator<Item = String>) {
    let table = read(&format!("rules/{file}.json"));
    let mut failures = Vec::new();
    let mut tested_rows = BTreeSet::new();
    for group in table["groups"].as_array().unwrap() {
        let ty = match group.get("schema") {
            Some(schema) => Type::of_schema(&JsonSchema::new(schema, "x-svc", true), "root").unwrap(),
            None => Type::Dyn,
        };
        let mut environment =
            if group["stored"] == json!(true) { Environment::stored() } else { Environment::new() };
        environment = environment.with_dialect(Dialect::SPECIFICATION).variable("self", ty.clone());
        if group.get("old").is_some() {
            environment = environment.variable("oldSelf", ty.clone());
        }
        for row in group["rows"].as_array().unwrap() {
            let part = |at: usize| row[at].as_str().unwrap();
            tested_rows.insert(part(0).to_owned());
            let (outcome, cost) = match environment.compile(part(1)) {
                Err(error) => (format!("compile: {}", error.issues[0].message), 0),
                Ok(program) => {
                    let mut variables = vec![("self", Value::of(&group["object"], &ty).unwrap())];
                    if let Some(old) = group.get("old") {
                        variables.push(("oldSelf", Value::of(old, &ty).unwrap()));
                    }
                    let mut cost = Cost::limit(limits::CALL);
                    let outcome = match program.evaluate(&variables, &mut cost) {
                        Ok(value) => format!("{value:?}"),
                        Err(error) => format!("error: {error}"),
                    };
                    (outcome, cost.used())
                }
            };
            let is_expected = outcome == part(2)
                || (part(2) == "compile: Syntax error" && outcome.starts_with("compile: Syntax error"));
            if !is_expected || row.get(3).is_some_and(|units| units.as_u64() != Some(cost)) {
                failures.push(format!("{row}\n   got {outcome}, {cost} units"));
            }
        }
    }
    assert!(failures.is_empty(), "{file}:\n{}", failures.join("\n"));
    let missing: Vec<String> = required_rows.into_iter().filter(|row| !tested_rows.contains(row)).collect();
    assert!(missing.is_empty(), "{file} has no row for {missing:?}");
}

fn rows(section: &str, numbers: impl IntoIterator<Item = u32>) -> Vec<String> {
    numbers.into_iter().map(|number| format!("{section}-{number}")).collect()
}

#[test]
fn schema_type_rules_match_table() {
    check("types", rows("D-CEL", (1..=4).chain(8..=18).chain(22..=30).chain([42])));
}

#[test]
fn property_name_rules_match_table() {
    check("names", rows("D-CEL", 34..=41));
}

#[test]
fn set_and_map_list_rules_match_table() {
    check("lists", rows("D-CEL", [5, 19, 20, 31, 32, 33]));
}

#[test]
fn dynamic_variable_rules_match_table() {
    check("dynamic", rows("D-CEL", [43, 44]));
}

#[test]
fn library_rules_match_table() {
    let numbers = (1..=16).chain(18..=83).chain(86..=89);
    check("libraries", rows("D-CLIB", numbers).into_iter().chain(rows("D-CEL", [45])));
}

#[test]
fn rule_costs_match_table() {
    check("costs", rows("D-CCOST", 2..=4));
}

/// `optionalOldSelf`: rules that also run without an old value.
#[test]
fn optional_old_self_rule_runs_on_creation() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string", "maxLength": 10}}});
    let schema = JsonSchema::new(&schema, "x-svc", false);
    let ty = Type::of_schema(&schema, "self").unwrap();
    let bounds = Bounds::of_schema(&schema).unwrap();
    let (old, new) = (json!({"n": 1, "s": "a"}), json!({"n": 2, "s": "b"}));
    let environment =
        Environment::new().variable("self", ty.clone()).variable("oldSelf", Type::optional(ty.clone()));
    for (rule, created, updated) in [
        ("oldSelf.hasValue()", "false", "true"),
        ("!oldSelf.hasValue() || self.n >= oldSelf.value().n", "true", "true"),
        ("oldSelf.n.orValue(5) < self.n", "false", "true"),
        ("oldSelf.?s.orValue('none')", "\"none\"", "\"a\""),
        ("oldSelf.optMap(o, o.n + self.n).orValue(0)", "0", "3"),
        ("oldSelf.value() == self", "error: optional.none() dereference", "false"),
    ] {
        let program = environment.compile(rule).unwrap_or_else(|error| panic!("{rule}: {error}"));
        for (before, expected) in [(None, created), (Some(&old), updated)] {
            let before = before.map(|old| Arc::new(Value::of(old, &ty).unwrap()));
            let variables = [("self", Value::of(&new, &ty).unwrap()), ("oldSelf", Value::Optional(before))];
            let outcome = match program.evaluate(&variables, &mut Cost::limit(limits::CALL)) {
                Ok(value) => format!("{value:?}"),
                Err(error) => format!("error: {error}"),
            };
            assert_eq!(outcome, expected, "{rule}");
        }
        let estimate = program.estimate(&[("self", &bounds), ("oldSelf", &bounds)]);
        assert!(estimate.max < 50, "{rule}: {estimate:?}");
    }
}

/// Estimate of a rule on the root of a schema, with the size limits of the data.
fn max_estimate(schema: &JsonSchema, rule: &str) -> u64 {
    let ty = Type::of_schema(schema, "root").unwrap();
    let bounds = Bounds::of_schema(schema).unwrap();
    let environment = Environment::new().with_dialect(Dialect::SPECIFICATION).variable("self", ty);
    environment.compile(rule).unwrap().estimate(&[("self", &bounds)]).max
}

#[test]
fn rule_estimates_match_table() {
    let table = read("estimates.json");
    let schema = JsonSchema::new(&table["schema"], "x-svc", true);
    let mut failures = Vec::new();
    for row in table["estimates"].as_array().unwrap() {
        let units = max_estimate(&schema, row[1].as_str().unwrap());
        if row[2].as_u64() != Some(units) {
            failures.push(format!("{row}: {units}"));
        }
    }
    for row in table["excess"].as_array().unwrap() {
        let message = excess(
            "estimated rule cost",
            max_estimate(&schema, row[1].as_str().unwrap()),
            limits::RULE_ESTIMATE,
        );
        let factor = row[2].as_str().unwrap();
        let is_expected = match &message {
            None => factor.is_empty(),
            Some(message) => {
                !factor.is_empty()
                    && message
                        .starts_with(&format!("estimated rule cost exceeds budget by factor of {factor} "))
            }
        };
        if !is_expected {
            failures.push(format!("{row}: {message:?}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Each additional list literal adds 40 to the estimate, until the limit rejects the rule.
#[test]
fn list_literal_adds_40_to_estimate() {
    let schema =
        json!({"type": "object", "properties": {"l": {"type": "array", "items": {"type": "integer"}}}});
    let schema = JsonSchema::new(&schema, "x-svc", true);
    let rule = |literals: usize| format!("[{}].size() >= 0", vec!["[1]"; literals].join(", "));
    let costs: Vec<u64> = (1..6).map(|literals| max_estimate(&schema, &rule(literals))).collect();
    assert!(costs.windows(2).all(|pair| pair[1] - pair[0] == 40), "{costs:?}");
    // 1,572,863 elements, each with one literal and the cost of two comparisons for `all` and `size`.
    let rule_in_a_list = |literals: usize| {
        let sum = vec!["[x].size()"; literals].join(" + ");
        excess(
            "estimated rule cost",
            max_estimate(&schema, &format!("self.l.all(x, {sum} > 0)")),
            limits::RULE_ESTIMATE,
        )
    };
    assert!(
        rule_in_a_list(1).is_some_and(|message| message.contains("factor of 7.2x")),
        "{:?}",
        rule_in_a_list(1)
    );
}

/// The estimate of a rule inside lists and maps is multiplied by the occurrences of its part of the schema.
#[test]
fn element_rule_estimate_is_multiplied_by_occurrences() {
    let bounded = json!({"type": "integer"});
    let bounds = Bounds::of_schema(&JsonSchema::new(&bounded, "x-svc", false)).unwrap();
    let once = Occurrences::ONCE;
    assert_eq!(once.count(&bounds), 1);
    assert_eq!(once.of_each(Some(10)).of_each(Some(7)).count(&bounds), 70);
    // Without a limit, the estimate uses the number of minimal values that fit into a request.
    assert_eq!(once.of_each(Some(10)).of_each(None).count(&bounds), (3 * 1024 * 1024 - 2) / 2);
    assert_eq!(once.of_each(Some(u64::MAX)).of_each(Some(2)).count(&bounds), u64::MAX);

    let mut sum = EstimateSum::default();
    for place in 0..11 {
        sum.add(format!("rules[{place}]"), 9_999_999);
    }
    assert!(excess("estimated rule cost total", sum.total(), limits::SCHEMA_ESTIMATE).is_some());
    assert_eq!(sum.highest().count(), 4);
}

/// Property test of costs on random data within the size limits of a schema. The cost of an evaluation exceeds
/// the estimate only by the parts that kube-apiserver's estimate omits: comparisons of numbers, and map keys.
#[test]
fn evaluation_cost_is_near_or_below_estimate() {
    let schema = json!({"type": "object", "properties": {
        "i": {"type": "integer"}, "s": {"type": "string", "maxLength": 30},
        "l": {"type": "array", "maxItems": 8, "items": {"type": "integer"}},
        "t": {"type": "array", "maxItems": 6, "items": {"type": "string", "maxLength": 25}},
        "m": {"type": "object", "maxProperties": 5, "additionalProperties": {"type": "string", "maxLength": 15}},
        "b": {"type": "string", "format": "byte", "maxLength": 40},
    }});
    let schema = JsonSchema::new(&schema, "x-svc", true);
    let ty = Type::of_schema(&schema, "root").unwrap();
    let bounds = Bounds::of_schema(&schema).unwrap();
    let environment = Environment::new().variable("self", ty.clone());
    let programs: Vec<(&str, Program)> = [
        "self.i == 1 && self.s == 'x' || self.l == self.l",
        "self.s + self.s < self.s",
        "self.l.all(x, self.l.exists(y, x <= y))",
        "self.l.exists_one(x, x == 3) && self.l.map(x, x > 2, x * 2).filter(y, y > 1).size() > 0",
        "self.t.all(x, x.matches('^a+b*$') || x.startsWith(self.s))",
        "self.t.map(x, x.upperAscii()).join(', ').contains('AB')",
        "self.t.exists(x, x.split('').size() > 3 && x.replace('a', 'bb').size() > 2)",
        "self.t.isSorted() && self.t.indexOf('a') < self.t.lastIndexOf('a') && self.t.min() < self.t.max()",
        "self.m.all(k, v, v.substring(0).trim().lowerAscii() != 'x')",
        "self.m.exists(k, self.m[k].size() > 2) && has(self.m.a)",
        "self.m.transformMap(k, v, v + '!').exists(k, v, v == 'a!')",
        "self.l.sum() > 2 && self.i in self.l && self.l.min() == 1",
        "sets.contains(self.t, self.t) && sets.equivalent(self.l, [1, 2])",
        "self.?s.orValue('abc').find('[a-b]+') == 'ab' || self.t[?0].optMap(x, x + x).orValue('') == ''",
        "bytes(self.s) == self.b || string(self.b) == 'x' || self.b.size() > 2",
        "format.dns1123Label().validate(self.s).hasValue() ? isURL(self.s) : isQuantity(self.s)",
        "isIP(self.s) || isCIDR(self.s) || self.s.charAt(0) == 'a' || strings.quote(self.s) == 'x'",
        "[self.i, 2, 3].map(x, [x, x]).all(p, p[0] == p[1]) && {'a': self.s}.a == self.s",
        "timestamp('2024-01-01T00:00:00Z') + duration('1h') > timestamp(self.i) && type(self.i) == int",
    ]
    .into_iter()
    .map(|rule| (rule, environment.compile(rule).unwrap_or_else(|error| panic!("{rule}: {error}"))))
    .collect();
    let mut state = 42_u64;
    let mut below = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    for _ in 0..300 {
        let mut text = |most: u64| -> String {
            (0..below(most + 1)).map(|_| ["a", "b", "é", "1", "."][below(5) as usize]).collect()
        };
        let strings: Vec<String> = (0..6).map(|_| text(25)).collect();
        let s = text(30);
        let map: serde_json::Map<String, Json> =
            ["a", "b", "c", "d"].iter().map(|key| ((*key).to_owned(), json!(text(15)))).collect();
        let ints: Vec<u64> = (0..below(9)).map(|_| below(5)).collect();
        let kept = below(7) as usize;
        let bytes = ["", "YWJj", "YWJjZGVmZ2hpamtsbW5vcA=="][below(3) as usize];
        let data = json!({
            "i": below(4), "s": s, "l": ints, "t": strings[..kept], "m": map,
            "b": bytes,
        });
        for (rule, program) in &programs {
            let mut cost = Cost::limit(limits::CALL);
            let _ = program.evaluate(&[("self", Value::of(&data, &ty).unwrap())], &mut cost);
            let estimate = program.estimate(&[("self", &bounds)]);
            assert!(
                cost.used() <= estimate.max.saturating_mul(2).saturating_add(32),
                "{rule}: {} units, estimate {estimate:?}: {data}",
                cost.used()
            );
        }
    }
}

#[test]
fn every_rule_table_has_a_test() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/rules");
    let files: BTreeSet<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    let run = ["types", "names", "lists", "dynamic", "libraries", "costs"].map(str::to_owned);
    assert_eq!(files, run.into());
}

#[test]
fn schema_without_type_has_no_cel_type_and_no_bounds() {
    let schema = json!({"x-svc-preserve-unknown-fields": true});
    let schema = JsonSchema::new(&schema, "x-svc", false);
    assert!(Type::of_schema(&schema, "root").is_none() && Bounds::of_schema(&schema).is_none());
    assert!(schema.items().is_none());
}

//! Compares compilation, estimates, values, errors and costs with recordings of Kubernetes' own libraries.
//!
//! The recordings are in the folder `cel` beside the recorded exchanges. `testdata/kubernetes.json` lists the
//! rows that differ: `intended` with the reason, `open` without. `UPDATE=1` rewrites `open`.
//! `SHOW=CATEGORY` prints the first 50 differences of a category; `DUMP=FILE` writes all outcomes as JSON lines.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use expressions::{Bounds, CompileError, Cost, Environment, Program, Schema, Type, Value, limits};
use serde_json::{Value as Json, json};

use crate::json_schema::JsonSchema;

const PREFIX: &str = "x-kubernetes";

/// Smallest share of rows that must be equal.
const REQUIRED_SHARE: f64 = 0.997;

fn rows(folder: &Path, file: &str) -> Vec<Json> {
    let text = std::fs::read_to_string(folder.join(file)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Differences of one row: category, recorded and found outcome.
type Differences = Vec<(&'static str, Json, Json)>;

/// Compares the parts of a recorded row with the outcome.
fn differences(recorded: &Json, found: &Json) -> Differences {
    let mut differences = Vec::new();
    for category in ["compile", "plan", "type", "estimate", "elements", "value", "error", "errors", "cost"] {
        let (expected, actual) = (&recorded[category], &found[category]);
        if expected != actual {
            differences.push((category, expected.clone(), actual.clone()));
        }
    }
    differences
}

/// The recorded form of a value.
fn value_json(value: &Value<'_>) -> Json {
    match value {
        Value::Null => json!({"null": null}),
        Value::Bool(b) => json!({"bool": b}),
        Value::Int(i) => json!({"int": i.to_string()}),
        Value::Uint(u) => json!({"uint": u.to_string()}),
        Value::Double(d) => json!({"double": expressions::general_text(*d)}),
        Value::String(s) => json!({"string": s.as_str()}),
        Value::Bytes(b) => json!({"bytes": STANDARD.encode(b)}),
        Value::Timestamp(t) => json!({"timestamp": t.to_string()}),
        Value::Duration(d) => json!({"duration": format!("{d}ns")}),
        Value::List(list) => {
            json!({"list": list.iter().map(|item| value_json(&item.unwrap())).collect::<Vec<_>>()})
        }
        Value::Map(map) => {
            let entries: Vec<Json> = map
                .entries()
                .unwrap()
                .iter()
                .map(|(key, value)| json!([value_json(key), value_json(value)]))
                .collect();
            json!({"map": entries})
        }
        Value::Optional(None) => json!({"optional": "none"}),
        Value::Optional(Some(inner)) => json!({"optional": [value_json(inner)]}),
        Value::Type(name) => json!({"type": name.as_str()}),
        Value::Opaque(opaque) => {
            let name = match opaque.type_name() {
                "net.IP" => "ip",
                "net.CIDR" => "cidr",
                "kubernetes.Quantity" => "quantity",
                name => name,
            };
            json!({name: opaque.text()})
        }
    }
}

/// Sorts the entries of maps, whose order is not part of their value.
fn with_sorted_maps(value: &Json) -> Json {
    match value {
        Json::Array(items) => items.iter().map(with_sorted_maps).collect(),
        Json::Object(fields) => fields
            .iter()
            .map(|(name, part)| {
                let mut part = with_sorted_maps(part);
                if let ("map", Json::Array(entries)) = (name.as_str(), &mut part) {
                    entries.sort_by_key(Json::to_string);
                }
                (name.clone(), part)
            })
            .collect(),
        other => other.clone(),
    }
}

fn compile_json(error: &CompileError) -> Json {
    match &error.plan {
        Some(reason) => json!({"plan": reason}),
        None => json!({"compile": error.issues.iter().map(|i| i.message.clone()).collect::<Vec<_>>()}),
    }
}

/// The outcome of a row of `values.jsonl`.
fn value_outcome(environment: &Environment, variable: (&Json, &Type), source: &str) -> Json {
    let program = match environment.compile(source) {
        Ok(program) => program,
        Err(error) => return compile_json(&error),
    };
    let estimate = program.estimate(&[]);
    let mut cost = Cost::limit(u64::MAX);
    let outcome = program.evaluate(&[("v", Value::of(variable.0, variable.1).unwrap())], &mut cost);
    let mut found = json!({
        "type": program.result_type().to_string(),
        "estimate": [estimate.min, estimate.max],
        "cost": cost.charged(),
    });
    match outcome {
        Ok(value) => found["value"] = value_json(&value),
        Err(error) => found["error"] = error.to_string().into(),
    }
    found
}

/// A recorded type with the names that messages use.
fn type_text(recorded: &str) -> String {
    recorded
        .replace("google.protobuf.Timestamp", "timestamp")
        .replace("google.protobuf.Duration", "duration")
        .replace("null_type", "null")
}

/// Compiles a rule and returns the program, or the outcome of a rejection.
fn compile_rule(ty: &Type, rule: &str) -> Result<Program, Json> {
    let mut environment = Environment::new().variable("self", ty.clone());
    if rule.contains("oldSelf") {
        environment = environment.variable("oldSelf", ty.clone());
    }
    environment.compile(rule).map_err(|error| json!({"compile": error.reason()}))
}

/// The outcome of a rule on one value.
fn rule_outcome(program: &Program, bounds: &Bounds, new: Value<'_>, old: Value<'_>, path: &str) -> Json {
    let estimate = program.estimate(&[("self", bounds), ("oldSelf", bounds)]).max;
    let mut cost = Cost::limit(limits::CALL);
    let uses_old = program.uses("oldSelf");
    let variables = if uses_old { vec![("self", new), ("oldSelf", old)] } else { vec![("self", new)] };
    let outcome = program.evaluate(&variables, &mut cost);
    let mut found = json!({"estimate": estimate, "cost": cost.charged()});
    let error = match outcome {
        Ok(Value::Bool(true)) => return found,
        Ok(_) => "m".to_owned(),
        Err(error) => format!("{error} evaluating rule: m"),
    };
    found["errors"] = json!([format!("{path}: {error}")]);
    found
}

/// The recorded errors without the shown value, whose form belongs to the caller of the library.
fn without_shown_value(recorded: &Json) -> Json {
    let strip = |error: &Json| {
        let error = error.as_str().unwrap();
        let (path, rest) = error.split_once(": Invalid value: ").unwrap();
        let detail = rest.split_once("\": ").map_or(rest, |(_, detail)| detail);
        Json::from(format!("{path}: {detail}"))
    };
    recorded.as_array().map_or(Json::Null, |errors| errors.iter().map(strip).collect())
}

/// Compares a row of `rules.jsonl`.
fn compare_rule(row: &Json, schema: &JsonSchema, object: &Json) -> (Json, Json) {
    let ty = Type::of_schema(schema, "self").unwrap();
    let bounds = Bounds::of_schema(schema).unwrap();
    let mut recorded = row.clone();
    recorded["errors"] = without_shown_value(&row["errors"]);
    let found = match compile_rule(&ty, row["rule"].as_str().unwrap()) {
        Err(rejection) => rejection,
        Ok(program) => {
            let value = || Value::of(object, &ty).unwrap();
            rule_outcome(&program, &bounds, value(), value(), "<nil>")
        }
    };
    (recorded, found)
}

/// The rule of a row of `nested.jsonl`, with its schema, its first value and the path of the value.
struct NestedRule {
    schema: Json,
    rule: String,
    value: Json,
    old: Json,
    path: String,
    occurs: expressions::Occurrences,
}

/// Finds the only rule below a schema, along the first element of each list and map.
fn nested_rule(
    schema: &Json,
    value: &Json,
    old: &Json,
    path: &str,
    occurs: expressions::Occurrences,
) -> Option<NestedRule> {
    if let Some(rule) = schema[format!("{PREFIX}-validations")][0]["rule"].as_str() {
        return Some(NestedRule {
            schema: schema.clone(),
            rule: rule.to_owned(),
            value: value.clone(),
            old: old.clone(),
            path: path.to_owned(),
            occurs,
        });
    }
    if schema["items"].is_object() {
        let occurs = occurs.of_each(schema["maxItems"].as_u64());
        return nested_rule(&schema["items"], &value[0], &old[0], &format!("{path}[0]"), occurs);
    }
    if schema["additionalProperties"].is_object() {
        let occurs = occurs.of_each(schema["maxProperties"].as_u64());
        let key = value.as_object().and_then(|fields| fields.keys().next()).cloned().unwrap_or_default();
        let values = &schema["additionalProperties"];
        return nested_rule(values, &value[&key], &old[&key], &format!("{path}[{key}]"), occurs);
    }
    schema["properties"].as_object()?.iter().find_map(|(name, part)| {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        nested_rule(part, &value[name], &old[name], &path, occurs)
    })
}

fn compare_nested(row: &Json) -> (Json, Json) {
    let once = expressions::Occurrences::ONCE;
    let nested = nested_rule(&row["schema"], &row["object"], &row["old"], "", once).unwrap();
    let schema = JsonSchema::new(&nested.schema, PREFIX, false);
    let ty = Type::of_schema(&schema as &dyn Schema, "self").unwrap();
    let bounds = Bounds::of_schema(&schema).unwrap();
    let mut recorded = row.clone();
    recorded["errors"] = without_shown_value(&row["errors"]);
    // The elements of a list without a list type have no old value.
    let is_uncorrelated = nested.path.contains("[0]") && nested.rule.contains("oldSelf");
    let mut found = match compile_rule(&ty, &nested.rule) {
        Err(rejection) => rejection,
        Ok(program) if is_uncorrelated => {
            json!({"estimate": program.estimate(&[("self", &bounds)]).max, "cost": 0})
        }
        Ok(program) => {
            let value = |json| Value::of(json, &ty).unwrap();
            rule_outcome(&program, &bounds, value(&nested.value), value(&nested.old), &nested.path)
        }
    };
    found["elements"] = nested.occurs.count(&bounds).into();
    (recorded, found)
}

#[test]
fn outcomes_match_recordings_of_kubernetes() {
    let Some(folder) = prerequisites::expressions() else { return };
    let mut compared: Vec<(String, Json, Json)> = Vec::new();

    let variables: Json =
        serde_json::from_str(&std::fs::read_to_string(folder.join("variables.json")).unwrap()).unwrap();
    let dynamic = Type::Dyn;
    let (environment, empty) = (Environment::new().variable("v", Type::Dyn), Environment::new());
    for mut row in rows(&folder, "values.jsonl") {
        let source = row["expr"].as_str().unwrap().to_owned();
        if row.get("plan").is_some() {
            // A server refuses the expression, so its type and estimate do not matter.
            row = json!({"plan": row["plan"]});
        }
        if let Some(ty) = row.get_mut("type") {
            *ty = type_text(ty.as_str().unwrap()).into();
        }
        // Rows without the variable were recorded without a declaration.
        let environment = if source.contains("v.") { &environment } else { &empty };
        let found = value_outcome(environment, (&variables["v"], &dynamic), &source);
        compared.push((source, with_sorted_maps(&row), with_sorted_maps(&found)));
    }

    let rules: Json =
        serde_json::from_str(&std::fs::read_to_string(folder.join("rules.json")).unwrap()).unwrap();
    let schema = JsonSchema::new(&rules["schema"], PREFIX, true);
    for row in rows(&folder, "rules.jsonl") {
        let (recorded, found) = compare_rule(&row, &schema, &rules["object"]);
        compared.push((format!("rule {}", row["rule"].as_str().unwrap()), recorded, found));
    }
    for row in rows(&folder, "nested.jsonl") {
        let (recorded, found) = compare_nested(&row);
        compared.push((format!("nested {}", row["schema"]["properties"]), recorded, found));
    }
    report(&compared);
}

fn report(compared: &[(String, Json, Json)]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/kubernetes.json");
    let golden: Json = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let intended = golden["intended"].as_object().unwrap();
    let show = std::env::var("SHOW").ok();
    let mut dump = String::new();
    let mut open: BTreeSet<String> = BTreeSet::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (row, recorded, found) in compared {
        let differences = differences(recorded, found);
        for (category, expected, actual) in &differences {
            let count = counts.entry(category).or_default();
            *count += 1;
            if show.as_deref() == Some(*category) && *count <= 50 {
                println!("{row}\n   recorded {expected}\n   found    {actual}");
            }
            dump.push_str(
                &json!({"row": row, "category": category, "recorded": expected, "found": actual}).to_string(),
            );
            dump.push('\n');
        }
        if !differences.is_empty() && !intended.contains_key(row) {
            open.insert(row.clone());
        }
    }
    if let Some(file) = std::env::var_os("DUMP") {
        std::fs::write(file, dump).unwrap();
    }
    let differing = open.len() + intended.len();
    #[expect(clippy::cast_precision_loss, reason = "counts of rows")]
    let share = 1.0 - differing as f64 / compared.len() as f64;
    println!(
        "{} rows, {} open, {} intended, share {share:.5}, differences {counts:?}",
        compared.len(),
        open.len(),
        intended.len()
    );
    if std::env::var_os("UPDATE").is_some() {
        let updated = json!({"intended": intended, "open": open});
        std::fs::write(&path, format!("{}\n", serde_json::to_string_pretty(&updated).unwrap())).unwrap();
        return;
    }
    let listed: BTreeSet<String> =
        golden["open"].as_array().unwrap().iter().map(|row| row.as_str().unwrap().to_owned()).collect();
    let new: Vec<&String> = open.difference(&listed).take(20).collect();
    assert!(new.is_empty(), "rows that differ and are not listed: {new:#?}");
    let equal: Vec<&String> = listed.difference(&open).take(20).collect();
    assert!(equal.is_empty(), "listed rows that are equal now; run with UPDATE=1: {equal:#?}");
    assert!(share >= REQUIRED_SHARE, "only {share:.5} of the rows are equal");
}

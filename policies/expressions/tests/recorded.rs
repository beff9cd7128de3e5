//! Replays recorded CEL rules: the `cel/` cases of `cel.json` in the recorded exchanges.
//! The recordings are in `CONFORMANCE_DIR`, by default next to the checkout; `none` skips the test.
//!
//! The test compiles the rules of each CustomResourceDefinition on its schema. It expects errors for the
//! rules that kube-apiserver rejected. For each created object, the failed rules are those in
//! kube-apiserver's response.

use std::collections::BTreeSet;

use crate::json_schema::JsonSchema;
use apimachinery::names::{DEFAULT_API_DOMAIN, Names, Preset};
use expressions::{Bounds, Cost, Environment, Program, Type, Value, excess, limits};
use serde_json::Value as Json;

/// Skipped cases: their rules run on updates (ratcheting and transition rules), and this test runs creates
/// only.
const SKIPPED_CASES: [&str; 2] = ["unchanged-invalid-values-are-tolerated", "set-and-map-list-equality"];

fn recorded() -> Option<Json> {
    let folder = prerequisites::recordings()?;
    let text = std::fs::read_to_string(folder.join("cases/cel.json")).unwrap();
    Some(serde_json::from_str(&text).unwrap())
}

/// A rule with the path of its schema and the path of the field in its errors.
struct Rule {
    schema_path: Vec<String>,
    error_path: String,
    rule: String,
}

/// Collects the rules of a schema and of its properties.
fn rules(schema: &Json, prefix: &str, schema_path: &[String], found: &mut Vec<Rule>) {
    for rule in schema[format!("{prefix}-validations")].as_array().into_iter().flatten() {
        found.push(Rule {
            schema_path: schema_path.to_vec(),
            error_path: format!(
                "{}{}",
                schema_path.join("."),
                rule["fieldPath"].as_str().unwrap_or_default()
            ),
            rule: rule["rule"].as_str().unwrap().to_owned(),
        });
    }
    for (name, part) in schema["properties"].as_object().into_iter().flatten() {
        rules(part, prefix, &[schema_path, std::slice::from_ref(name)].concat(), found);
    }
}

/// Compiles a rule on its schema; the error is the reason of a rejection.
fn compile(root: &Json, prefix: &str, rule: &Rule) -> Result<(Program, Type), String> {
    let schema = rule.schema_path.iter().fold(root, |schema, name| &schema["properties"][name]);
    let schema = JsonSchema::new(schema, prefix, rule.schema_path.is_empty());
    let ty = Type::of_schema(&schema, "self").ok_or("no type")?;
    if rule.rule.trim().is_empty() {
        return Err("rule is not specified".to_owned());
    }
    let mut environment = Environment::new().variable("self", ty.clone());
    if rule.rule.contains("oldSelf") {
        environment = environment.variable("oldSelf", ty.clone());
    }
    let program = environment.compile(&rule.rule).map_err(|error| format!("compilation failed: {error}"))?;
    if *program.result_type() != Type::Bool {
        return Err("cel expression must evaluate to a bool".to_owned());
    }
    let bounds = Bounds::of_schema(&schema).ok_or("no bounds")?;
    let cost = program.estimate(&[("self", &bounds), ("oldSelf", &bounds)]).max;
    match excess("estimated rule cost", cost, limits::RULE_ESTIMATE) {
        Some(message) => Err(message),
        None => Ok((program, ty)),
    }
}

/// Fields that the causes of a response name.
fn causes(answer: &Json) -> BTreeSet<String> {
    let causes = answer["body"]["details.causes"].as_array().into_iter().flatten();
    causes.filter_map(|cause| cause["field"].as_str()).map(str::to_owned).collect()
}

#[test]
fn rules_match_recorded_results() {
    let Some(file) = recorded() else { return };
    let names = Names::new(Preset::Kubernetes, DEFAULT_API_DOMAIN).unwrap();
    let prefix = names.extension_prefix.trim_end_matches('-');
    let (mut rejected, mut objects) = (0, 0);
    for case in file["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        if !name.starts_with("cel/") || SKIPPED_CASES.iter().any(|skipped| name.ends_with(skipped)) {
            continue;
        }
        let mut programs: Vec<(Rule, Program, Type)> = Vec::new();
        for step in case["steps"].as_array().unwrap() {
            let (body, answer) = (&step["body"], &step["answer"]);
            if body["kind"] == "CustomResourceDefinition" {
                let root = &body["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
                let mut found = Vec::new();
                rules(root, prefix, &[], &mut found);
                let compiled: Vec<Result<_, String>> =
                    found.iter().map(|rule| compile(root, prefix, rule)).collect();
                let messages: Vec<&String> =
                    compiled.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
                if answer["status"] == 201 {
                    assert!(messages.is_empty(), "{name}: {messages:?}");
                    programs = found
                        .into_iter()
                        .zip(compiled)
                        .filter_map(|(rule, outcome)| outcome.ok().map(|(program, ty)| (rule, program, ty)))
                        .collect();
                    continue;
                }
                rejected += 1;
                // Only the causes about rules count, not those about messages and message expressions.
                let rule_causes: Vec<&Json> = answer["body"]["details.causes"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter(|cause| cause["field"].as_str().is_some_and(|field| field.ends_with(".rule")))
                    .collect();
                for (cause, ours) in rule_causes.iter().zip(&messages) {
                    let message = cause["message"].as_str().unwrap();
                    assert!(message.ends_with(ours.as_str()), "{name}: {message}\nours: {ours}");
                }
                assert!(rule_causes.len() <= messages.len(), "{name}: {rule_causes:?} against {messages:?}");
            } else if step["method"] == "POST" && !programs.is_empty() {
                objects += 1;
                let mut failed = BTreeSet::new();
                for (rule, program, ty) in &programs {
                    let data = rule.schema_path.iter().fold(body, |data, name| &data[name]);
                    if data.is_null() || rule.rule.contains("oldSelf") {
                        continue;
                    }
                    // Sets the default that the server sets before the rules run.
                    let mut data = data.clone();
                    if rule.rule.contains("self.d == 'dflt'") {
                        data["d"] = "dflt".into();
                    }
                    let value = Value::of(&data, ty).unwrap();
                    let mut cost = Cost::limit(limits::CALL);
                    match program.evaluate(&[("self", value)], &mut cost) {
                        Ok(Value::Bool(true)) => {}
                        Ok(Value::Bool(false)) => drop(failed.insert(rule.error_path.clone())),
                        // An evaluation error has the path of the schema of the rule.
                        _ => drop(failed.insert(rule.schema_path.join("."))),
                    }
                }
                let expected = causes(answer);
                assert_eq!(failed, expected, "{name}: {body}");
                assert_eq!(answer["status"] == 201, failed.is_empty(), "{name}");
            }
        }
    }
    assert!(rejected >= 12 && objects >= 24, "{rejected} definitions rejected, {objects} objects");
}

//! `field_rules/rules.csv` tells for every field of every stored kind whether validation has a rule for it: `rule` or
//! `no rule`.
//!
//! The fields are those of `docs/spec/wire.csv`. A field has a rule if one of its values changes the validation
//! errors of an object at creation or update. The objects are minimal ones and those in `testdata`. The test
//! compares the word with this behaviour in both directions, so a removed rule fails as well as a new field
//! without a row. `FIELD_RULES_UPDATE=1` writes the table; the difference shows in review.
//!
//! A type that several kinds contain ([`fields::COVERED`]) has rows under one kind only: the fields of a pod template
//! are listed under PodTemplate.
//!
//! If the recorded facts are present, a second test compares the table with them: a field at which kube-apiserver
//! reports an error has a rule.

mod experiment;
mod fields;
mod values;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use apimachinery::names::{Names, Preset};
use kinds::{Kind, Registry};
use serde_json::Value;

use experiment::Experiment;
use fields::{FieldOfKind, Types};

const RULE: &str = "rule";
const NO_RULE: &str = "no rule";

#[test]
fn every_field_has_rule_or_no_rule_in_table() {
    let table = read_table();
    let fields = experiment_with_all_kinds();
    if std::env::var_os("FIELD_RULES_UPDATE").is_some() {
        let mut text = "kind,field,rule\n".to_owned();
        for (kind, field, rule) in &fields {
            writeln!(text, "{kind},{field},{rule}").unwrap();
        }
        fs::write(table_file(), text).unwrap();
        return;
    }
    let mut differences = Vec::new();
    for (kind, field, rule) in &fields {
        match table.get(&(kind.clone(), field.clone())) {
            None => differences.push(format!("{kind} {field}: no row; validation has: {rule}")),
            Some(word) if word != rule => {
                differences.push(format!("{kind} {field}: the row says: {word}; validation has: {rule}"));
            }
            Some(_) => {}
        }
    }
    assert_eq!(fields.len(), table.len(), "the table has rows of fields that do not exist");
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn field_with_recorded_error_has_rule() {
    let Some(folder) = prerequisites::probes() else { return };
    let table = read_table();
    let types = Types::read();
    let names = Names::new(Preset::Kubernetes, "").unwrap();
    let mut missing = BTreeMap::new();
    for resource in Registry::new(&names).stored() {
        let kind = kind_name(resource);
        let Ok(facts) = fs::read_to_string(folder.join(format!("{kind}.jsonl"))) else { continue };
        for line in facts.lines() {
            let fact: Value = serde_json::from_str(line).unwrap();
            let Some(pointer) = fact["p"].as_str().filter(|_| has_error_at_pointer(&fact)) else { continue };
            let Some(field) = types.field_at(resource.schema.type_name().unwrap(), pointer) else { continue };
            if table.get(&(kind.clone(), field.clone())).is_some_and(|word| word == NO_RULE) {
                missing
                    .entry((kind.clone(), field))
                    .or_insert_with(|| line.chars().take(300).collect::<String>());
            }
        }
    }
    assert!(missing.is_empty(), "{} fields without a rule: {missing:#?}", missing.len());
}

/// Whether a cause of the recorded answer has exactly the path of the edited field.
fn has_error_at_pointer(fact: &Value) -> bool {
    let mut path = String::new();
    for part in fact["p"].as_str().unwrap_or("").split('/').skip(1) {
        match part.parse::<usize>() {
            Ok(index) => write!(path, "[{index}]").unwrap(),
            Err(_) if path.is_empty() => path.push_str(part),
            Err(_) => write!(path, ".{part}").unwrap(),
        }
    }
    let causes = fact["c"].as_array().into_iter().flatten();
    fact["code"] == 422 && causes.clone().any(|cause| cause[1] == path.as_str())
}

/// `rule` or `no rule` for each field of each kind, from the behaviour of validation.
fn experiment_with_all_kinds() -> Vec<(String, String, &'static str)> {
    let types = Types::read();
    let names = Names::new(Preset::Kubernetes, "").unwrap();
    let registry = Registry::new(&names);
    let resources: Vec<_> = registry.stored().collect();
    let mut fields = Vec::new();
    for resource in resources {
        let kind = kind_name(resource);
        let experiment = Experiment::new(resource, &names, &types);
        for FieldOfKind { name, paths, shape } in types.fields_of(&kind, resource.schema.type_name().unwrap())
        {
            let owner = name.rsplit_once('.').unwrap().0;
            let has_rule = paths.iter().any(|path| experiment.has_rule(path, owner, &shape));
            fields.push((kind.clone(), name, if has_rule { RULE } else { NO_RULE }));
        }
    }
    fields
}

/// Name of a kind in the table: `core.Pod`.
fn kind_name(resource: &Kind) -> String {
    let group = resource.schema.type_name().unwrap().split('/').next().unwrap();
    format!("{group}.{}", resource.name())
}

fn table_file() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/field_rules/rules.csv")
}

fn read_table() -> BTreeMap<(String, String), String> {
    let text = fs::read_to_string(table_file()).unwrap_or_default();
    text.lines()
        .skip(1)
        .map(|line| {
            let [kind, field, rule] = line.split(',').collect::<Vec<_>>()[..] else { panic!("{line}") };
            assert!([RULE, NO_RULE].contains(&rule), "{line}");
            ((kind.to_owned(), field.to_owned()), rule.to_owned())
        })
        .collect()
}

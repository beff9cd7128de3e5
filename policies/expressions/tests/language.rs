//! Table tests of the language and its libraries: one file and one test per subject.
//! The files are in `testdata/language`.
//!
//! A row is `EXPRESSION ==> OUTCOME`. The outcome is a value, `compile: ` with the first error, `plan: ` with the
//! error of a constant part, or `error: ` with the evaluation error. Of a syntax error the first words are enough. A suffix `@ UNITS` is the cost of
//! the evaluation. `var NAME = JSON` declares a variable of dynamic type for the following rows. `stored`
//! uses the environment for stored expressions in the whole file.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use expressions::{Cost, Environment, Type, Value};
use serde_json::Value as Json;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/language")
}

/// Outcome and cost of an expression.
fn outcome(environment: &Environment, variables: &[(String, Json)], source: &str) -> (String, u64) {
    let program = match environment.compile(source) {
        Ok(program) => program,
        Err(expressions::CompileError { plan: Some(reason), .. }) => return (format!("plan: {reason}"), 0),
        Err(error) => {
            let first = error.issues.first().map(|issue| issue.message.clone()).unwrap_or_default();
            return (format!("compile: {first}"), 0);
        }
    };
    let dynamic = Type::Dyn;
    let variables: Vec<(&str, Value<'_>)> =
        variables.iter().map(|(name, json)| (name.as_str(), Value::of(json, &dynamic).unwrap())).collect();
    let mut cost = Cost::limit(1_000_000);
    let actual = match program.evaluate(&variables, &mut cost) {
        Ok(value) => format!("{value:?}"),
        Err(error) => format!("error: {error}"),
    };
    (actual, cost.used())
}

fn check(file: &str) {
    let text = std::fs::read_to_string(folder().join(file).with_extension("txt")).unwrap();
    let mut environment = Environment::new();
    let mut variables: Vec<(String, Json)> = Vec::new();
    let (mut rows, mut failures) = (0, Vec::new());
    for (number, line) in text.lines().enumerate() {
        if line == "stored" {
            environment = Environment::stored();
        } else if let Some((name, json)) = line.strip_prefix("var ").and_then(|rest| rest.split_once(" = ")) {
            environment = environment.variable(name, Type::Dyn);
            variables.push((name.to_owned(), serde_json::from_str(json).unwrap()));
        } else if let Some((source, expected)) = line.split_once(" ==> ") {
            rows += 1;
            let (expected, units) = match expected.rsplit_once(" @ ") {
                Some((expected, units)) => (expected, Some(units.parse::<u64>().unwrap())),
                None => (expected, None),
            };
            let (actual, cost) = outcome(&environment, &variables, source);
            let is_expected = actual == expected
                || (expected == "compile: Syntax error" && actual.starts_with("compile: Syntax error"));
            if !is_expected {
                failures
                    .push(format!("{}: {source}\n   expected {expected}\n   got      {actual}", number + 1));
            } else if units.is_some_and(|units| units != cost) {
                failures.push(format!("{}: {source}\n   expected {units:?} units, got {cost}", number + 1));
            }
        } else if !line.is_empty() && !line.starts_with('#') {
            failures.push(format!("{}: `{line}` is not a row", number + 1));
        }
    }
    assert!(rows > 5, "{file} has only {rows} rows");
    assert!(failures.is_empty(), "{file}:\n{}", failures.join("\n"));
}

/// Generates one test for each file.
macro_rules! tables {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            check(stringify!($name));
        })*

        #[test]
        fn every_language_table_has_a_test() {
            let run: BTreeSet<String> = [$(stringify!($name)),*].map(str::to_owned).into();
            let files: BTreeSet<String> = std::fs::read_dir(folder())
                .unwrap()
                .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
                .collect();
            assert_eq!(run, files);
        }
    };
}

tables! {
    basic parse comparisons integer_math fp_math logic conversions fields namespace lists macros macros2 string
    string_ext timestamps optionals extensions_not_offered costs regex sets url ip quantity semver format
}

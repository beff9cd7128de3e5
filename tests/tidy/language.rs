//! Language rules: no private vocabulary in names, no comment that begins with a relative clause.
//!
//! # Reference
//!
//! `docs/glossary.md` has the vocabulary. The style rules are subject, verb, object for sentences, noun phrases for types,
//! verb phrases for functions, and `subject_condition_result` for tests.

use super::{Source, report, rust_sources};

/// First words of a comment that make its first sentence a relative clause or a question.
const RELATIVE_WORDS: [&str; 9] =
    ["Who", "Whoever", "Whom", "Whose", "What", "Whatever", "Which", "How", "Why"];

/// Words that a test name must not contain: pronouns, question words and private verbs.
const TEST_WORDS: [&str; 20] = [
    "who",
    "whom",
    "whose",
    "whoever",
    "what",
    "whatever",
    "somebody",
    "someone",
    "nobody",
    "anybody",
    "everybody",
    "everyone",
    "they",
    "them",
    "he",
    "she",
    "told",
    "asked",
    "shown",
    "refused",
];

/// Names that the project no longer uses, with the present name. See `docs/glossary.md`.
const RETIRED_NAMES: [(&str, &str); 20] = [
    ("Tenure", "Validity"),
    ("Foundations", "IdentityDependencies"),
    ("Errand", "WriterCommand"),
    ("Stretch", "RevisionRange"),
    ("InForce", "ActiveConfig"),
    ("Chance", "Rng"),
    ("PieceMaker", "ChunkProducer"),
    ("Wishes", "ResponseOptions"),
    ("Exchange", "RequestContext"),
    ("Surroundings", "AdmissionBackend"),
    ("Refusal", "Rejection"),
    ("Wanted", "a noun phrase"),
    ("Shown", "ResponseObject"),
    ("Asked", "a noun phrase"),
    ("Told", "a noun phrase"),
    ("Undecided", "AuthdError"),
    ("Sortie", "AttackRun"),
    ("Campaign", "AttackSuite"),
    ("Polite", "ReferenceClient"),
    ("Everyone", "InsecureSkipVerify"),
];

/// Line number and word of each comment that begins with a relative clause.
fn relative_clauses(source: &Source) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut continues = false;
    for (index, line) in source.text.lines().enumerate() {
        let comment = line.trim_start().strip_prefix("//").map(|rest| rest.trim_start_matches(['/', '!']));
        let Some(text) = comment else {
            continues = false;
            continue;
        };
        let word: String = text.trim_start().chars().take_while(|c| c.is_alphanumeric()).collect();
        if !continues && RELATIVE_WORDS.contains(&word.as_str()) {
            found.push((index + 1, word));
        }
        // The next comment line continues the sentence of this line, unless this line is empty.
        continues = !text.trim().is_empty();
    }
    found
}

/// Line number and name of each test function with a banned word.
fn private_test_names(source: &Source) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut is_test = false;
    for (index, line) in source.text.lines().enumerate() {
        let line = line.trim_start();
        if line.starts_with("#[test") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some(name) = function_name(line).filter(|_| is_test) {
            is_test = false;
            if name.split('_').any(|word| TEST_WORDS.contains(&word)) {
                found.push((index + 1, name.to_owned()));
            }
        }
    }
    found
}

/// The name of the function that a line declares.
fn function_name(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ")?;
    rest.split(['(', '<']).next()
}

/// Line number and name of each declaration of a type with a retired name.
fn retired_types(source: &Source) -> Vec<(usize, &'static str, &'static str)> {
    let mut found = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        let words: Vec<&str> = line.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
        for pair in words.windows(2) {
            let [keyword, name] = pair else { continue };
            let declares = matches!(*keyword, "struct" | "enum" | "trait" | "type");
            let retired = RETIRED_NAMES.iter().find(|(retired, _)| retired == name).filter(|_| declares);
            found.extend(retired.map(|(retired, present)| (index + 1, *retired, *present)));
        }
    }
    found
}

#[test]
fn comments_begin_with_subject() {
    let violations: Vec<String> = rust_sources()
        .iter()
        .flat_map(|source| {
            relative_clauses(source)
                .into_iter()
                .map(|(line, word)| format!("{}:{line}: the comment begins with `{word}`", source.path))
        })
        .collect();
    report(&violations, "begin a comment with its subject, not with a relative clause");
}

#[test]
fn test_names_use_standard_words() {
    let violations: Vec<String> = rust_sources()
        .iter()
        .flat_map(|source| {
            private_test_names(source)
                .into_iter()
                .map(|(line, name)| format!("{}:{line}: {name}", source.path))
        })
        .collect();
    report(&violations, "name tests subject_condition_result, without pronouns and question words");
}

#[test]
fn retired_names_do_not_return() {
    // The samples of this file are violations.
    let violations: Vec<String> = rust_sources()
        .iter()
        .filter(|source| !source.path.starts_with("tests/tidy/"))
        .flat_map(|source| {
            retired_types(source)
                .into_iter()
                .map(|(line, name, present)| format!("{}:{line}: `{name}`: use {present}", source.path))
        })
        .collect();
    report(&violations, "use the names of docs/glossary.md");
}

/// Tests the language rules on sample lines.
#[test]
fn language_rules_detect_sample_violations() {
    let sample = |text: &str| Source { path: "x.rs".to_owned(), text: text.to_owned() };
    let comments = sample(
        "//! Who asks.\n\n/// The authorizer.\n/// What goes on here is no beginning.\nfn f() {}\n// What is left.",
    );
    assert_eq!(relative_clauses(&comments), [(1, "Who".to_owned()), (6, "What".to_owned())]);
    let tests = sample(
        "#[test]\nfn what_is_wrong_is_told() {}\nfn asked() {}\n#[tokio::test(flavor = \"x\")]\nasync fn watch_returns_410() {}",
    );
    assert_eq!(private_test_names(&tests), [(2, "what_is_wrong_is_told".to_owned())]);
    assert_eq!(
        retired_types(&sample("pub(crate) struct Tenure {\nlet x: Tenure;")),
        [(1, "Tenure", "Validity")]
    );
}

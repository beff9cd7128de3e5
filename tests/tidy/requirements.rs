//! Validates `requirements.csv`: one line per row of the requirements register, and existing tests only.
//!
//! # Contract
//!
//! A line is `ID,HOW` without quotes; HOW has no comma and is one of
//!
//! - `PATH::TEST`, several joined by ` + `: tests that cover the row, the path from the root of the
//!   repository;
//! - `later: issue NUMBER (FEATURE)`: the issue that builds the feature;
//! - `does not hold: REASON`;
//! - `not testable: REASON`.
//!
//! The register is `docs/spec/requirements.md`. This file repeats its sections and their numbers of rows, so that a row
//! that disappears is noticed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::root;

/// Sections of the register in order; the rows of each are numbered from 1 without gaps.
#[rustfmt::skip]
const SECTIONS: [(&str, usize); 68] = [
    ("D-NOTE", 11), ("D-SVC", 30), ("D-TERM", 8), ("D-NAME", 21), ("D-META", 39), ("D-MF", 12), ("D-LIST", 13),
    ("D-WEV", 9), ("D-TBL", 16), ("D-PB", 12), ("D-DELOPT", 12), ("D-MRG", 24), ("D-CEL", 46), ("D-CLIB", 89),
    ("D-CCOST", 12), ("D-DEL", 23), ("D-LIFE", 10), ("D-FGL", 11), ("D-EP", 50), ("D-QP", 49), ("D-HDR", 16),
    ("D-MT", 33), ("D-UPD", 14), ("D-SSA", 44), ("D-RV", 62), ("D-PAGE", 12), ("D-DRY", 22), ("D-FV", 18),
    ("D-GZIP", 9), ("D-HEALTH", 30), ("D-WATCH", 35), ("D-METRIC", 30), ("D-ERR", 39), ("D-LIM", 15), ("D-VER", 26),
    ("D-DEP", 43), ("D-GATE", 29), ("D-RM132", 6), ("D-RM129", 5), ("D-RM127", 2), ("D-RM126", 4), ("D-RM125", 38),
    ("D-RM122", 62), ("D-RM116", 26), ("D-MIG", 15), ("D-CRD", 11), ("A-PRIN", 27), ("A-BEAR", 4), ("A-X509", 8),
    ("A-TOKF", 9), ("A-BOOT", 30), ("A-SIGN", 14), ("A-SA", 26), ("A-OIDC", 49), ("A-JWT", 70), ("A-TWH", 32),
    ("A-PROXY", 21), ("A-EXEC", 33), ("A-SSR", 11), ("A-IMP", 5), ("A-AZD", 51), ("A-MODE", 16), ("A-AZC", 49),
    ("A-AZW", 12), ("A-NODE", 35), ("A-RBAC", 71), ("A-DEF", 69), ("A-REV", 25),
];

/// States of rows without a test, with a reason after the colon.
const STATES: [&str; 3] = ["later", "does not hold", "not testable"];

fn expected_ids() -> Vec<String> {
    SECTIONS
        .iter()
        .flat_map(|(section, rows)| (1..=*rows).map(move |row| format!("{section}-{row}")))
        .collect()
}

/// Lines of the file after its header: (line number, id, how).
fn rows() -> Vec<(usize, String, String)> {
    let file = root().join("tests/requirements.csv");
    let text = fs::read_to_string(&file).unwrap_or_else(|e| unreachable!("{}: {e}", file.display()));
    text.lines()
        .enumerate()
        .skip(1)
        .map(|(index, line)| {
            let (id, how) = line.split_once(',').unwrap_or((line, ""));
            (index + 1, id.to_owned(), how.to_owned())
        })
        .collect()
}

/// Ids of the register: the first cell of the rows of its tables.
fn register() -> Vec<String> {
    let text = fs::read_to_string(root().join("docs/spec/requirements.md")).unwrap_or_default();
    let ids = text.lines().filter_map(|line| {
        let id = line.strip_prefix("| ")?.split(" | ").next()?;
        let (section, number) = id.rsplit_once('-')?;
        let is_row =
            (section.starts_with("D-") || section.starts_with("A-")) && number.parse::<usize>().is_ok();
        is_row.then(|| id.to_owned())
    });
    ids.collect()
}

/// Returns the first problem with the tests of a line: each must be a function with a test attribute in its
/// file.
fn problem_with_tests(how: &str, sources: &mut BTreeMap<String, String>) -> Option<String> {
    how.split(" + ").find_map(|reference| {
        let Some((path, name)) = reference.split_once("::") else {
            return Some(format!(
                "`{reference}` is neither `PATH::TEST` nor one of {STATES:?} with a reason"
            ));
        };
        let source = sources
            .entry(path.to_owned())
            .or_insert_with(|| fs::read_to_string(root().join(path)).unwrap_or_default());
        if source.is_empty() {
            return Some(format!("`{path}` does not exist"));
        }
        (!has_test(source, name)).then(|| format!("`{path}` has no test `{name}`"))
    })
}

/// Whether the source has a function with this name and a test attribute above it.
///
/// A name in the list of a macro counts if the macro generates tests: `#[test]` above `fn $`.
fn has_test(source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let generates = lines
        .windows(2)
        .any(|pair| matches!(pair, [above, line] if above.ends_with("#[test]") && line.starts_with("fn $")));
    if generates && is_in_macro_list(&lines, name) {
        return true;
    }
    let starts = [format!("fn {name}("), format!("async fn {name}(")];
    lines.iter().enumerate().any(|(index, line)| {
        starts.iter().any(|start| line.starts_with(start.as_str()))
            && lines
                .iter()
                .take(index)
                .rev()
                .take_while(|above| above.starts_with("#[") || above.starts_with("//"))
                .any(|above| above.starts_with("#[test]") || above.starts_with("#[tokio::test"))
    })
}

/// Whether a macro call with a list of names contains the name: `NAME! {`, the names, `}`.
fn is_in_macro_list(lines: &[&str], name: &str) -> bool {
    let calls =
        lines.iter().enumerate().filter(|(_, line)| line.ends_with("! {") && line.split(' ').count() == 2);
    calls.into_iter().any(|(at, _)| {
        let list = lines.iter().skip(at + 1).take_while(|line| **line != "}");
        list.flat_map(|line| line.split([' ', ','])).any(|word| word == name)
    })
}

/// Returns the problem with the reason of a state.
fn problem_with_reason(state: &str, reason: &str) -> Option<String> {
    if state != "later" {
        return (reason.trim().len() < 10).then(|| format!("`{state}` needs a reason"));
    }
    let issue = reason.trim().strip_prefix("issue ").and_then(|rest| rest.split_once(" ("));
    let is_named = issue.is_some_and(|(number, feature)| {
        number.parse::<u32>().is_ok() && feature.len() > 3 && feature.ends_with(')')
    });
    (!is_named).then(|| "write `later: issue NUMBER (FEATURE)`".to_owned())
}

#[test]
fn every_requirement_has_one_csv_line() {
    let expected = expected_ids();
    assert_eq!(register(), expected, "the register and the sections in tests/tidy/requirements.rs differ");
    let ids: Vec<String> = rows().into_iter().map(|(_, id, _)| id).collect();
    let (have, want): (BTreeSet<&String>, BTreeSet<&String>) =
        (ids.iter().collect(), expected.iter().collect());
    let missing: Vec<_> = want.difference(&have).collect();
    let unknown: Vec<_> = have.difference(&want).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "missing: {missing:?}, unknown: {unknown:?}");
    assert_eq!(ids, expected, "duplicate line, or not in the order of the register");
}

#[test]
fn every_csv_line_names_existing_tests_or_reason() {
    let mut sources = BTreeMap::new();
    let mut problems = Vec::new();
    for (number, id, how) in rows() {
        let problem = match how.split_once(':') {
            Some((state, reason)) if STATES.contains(&state) => problem_with_reason(state, reason),
            _ => problem_with_tests(&how, &mut sources),
        };
        let problem =
            problem.or_else(|| how.contains([',', '"']).then(|| "remove commas and quotes".to_owned()));
        problems.extend(problem.map(|problem| format!("requirements.csv:{number}: {id}: {problem}")));
    }
    assert!(problems.is_empty(), "\n  {}", problems.join("\n  "));
}

/// Prints the number of rows by state; `cargo test -p tidy requirements -- --nocapture` shows it.
#[test]
fn requirements_are_counted_by_state() {
    let mut counts: BTreeMap<&str, BTreeMap<String, usize>> = BTreeMap::new();
    for (_, id, how) in rows() {
        let state = STATES.iter().find(|state| how.starts_with(&format!("{state}:"))).unwrap_or(&"shown");
        let section = id.rsplit_once('-').map_or(id.as_str(), |(section, _)| section).to_owned();
        *counts.entry(*state).or_default().entry(section).or_default() += 1;
    }
    let mut total = 0;
    for (state, sections) in &counts {
        let count: usize = sections.values().sum();
        total += count;
        println!("{state}: {count} rows");
    }
    for (section, count) in counts.get("shown").into_iter().flatten() {
        println!("  covered in {section}: {count}");
    }
    assert_eq!(total, expected_ids().len());
}

#[test]
fn test_function_is_found_by_attribute() {
    let source = "#[test]\nfn a() {}\n\n    /// x\n    #[tokio::test(flavor = \"multi_thread\")]\n    // y\n    async fn b() {}\nfn c() {}\n";
    assert!(has_test(source, "a") && has_test(source, "b"));
    assert!(!has_test(source, "c") && !has_test(source, "d"));
    let mut sources = BTreeMap::from([("x.rs".to_owned(), source.to_owned())]);
    assert_eq!(problem_with_tests("x.rs::a + x.rs::b", &mut sources), None);
    assert!(problem_with_tests("x.rs::a + x.rs::c", &mut sources).is_some());
    assert!(problem_with_tests("tests/none.rs::a", &mut sources).is_some());
    assert!(problem_with_tests("some day", &mut sources).is_some());
}

#[test]
fn test_function_is_found_in_list_of_test_macro() {
    let list = "tables! {\n    a b\n    c\n}\n";
    let generator = "macro_rules! tables {\n  $(#[test]\n  fn $name() {})*\n}\n";
    let source = format!("{generator}{list}");
    assert!(["a", "b", "c"].iter().all(|name| has_test(&source, name)));
    assert!(!has_test(&source, "d"));
    assert!(!has_test(list, "a"), "the macro generates no tests");
}

#[test]
fn reason_of_later_row_names_issue() {
    assert_eq!(problem_with_reason("later", " issue 18 (custom kinds)"), None);
    assert_eq!(problem_with_reason("not testable", " a duty of clients"), None);
    for reason in [" custom kinds", " issue 18", " issue x (custom kinds)", " issue 18 ()"] {
        assert!(problem_with_reason("later", reason).is_some(), "{reason}");
    }
    assert!(problem_with_reason("does not hold", " ").is_some());
}

//! Cargo compiles and runs every test, and skips the test programs of targets without tests.
//!
//! # Contract
//!
//! Cargo compiles a file only if `mod` lines lead from the root of a target to it. With
//! `test = false`, Cargo links no test program for a target without tests. With `doctest = false`, rustdoc does not run
//! for a library without doc tests.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::licenses::metadata;
use super::{report, root, rust_sources};

/// Folders of packages that are workspaces of their own.
const OTHER_WORKSPACES: [&str; 1] = ["tests/e2e/kube-rs/"];

/// Words after the fence of a code block that rustdoc compiles.
const DOC_TEST_FENCES: [&str; 5] = ["", "rust", "no_run", "should_panic", "compile_fail"];

/// A target of a member: root file relative to the repository, kind, whether its tests and its doc tests run.
struct Target {
    file: String,
    kind: String,
    test: bool,
    doctest: bool,
}

fn targets(metadata: &Value) -> Vec<Target> {
    let folder = format!("{}/", root().display());
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let members = packages.filter(|package| package["source"].is_null());
    let targets = members.flat_map(|package| package["targets"].as_array().into_iter().flatten());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    targets
        .map(|target| Target {
            file: text(&target["src_path"]).replacen(&folder, "", 1),
            kind: text(target.pointer("/kind/0").unwrap_or(&Value::Null)),
            test: target["test"] == true,
            doctest: target["doctest"] == true,
        })
        .collect()
}

/// Paths of the modules that a file declares with `mod NAME;`. Both forms of a path are in the result.
fn modules(file: &str, is_root: bool, text: &str) -> Vec<String> {
    let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
    let own_folder = match name.strip_suffix(".rs") {
        Some(stem) if !is_root && stem != "mod" => format!("{folder}/{stem}"),
        _ => folder.to_owned(),
    };
    let mut modules = Vec::new();
    let mut path = None;
    for line in text.lines() {
        if let Some(value) = line.strip_prefix("#[path = \"").and_then(|rest| rest.strip_suffix("\"]")) {
            path = Some(normalized(&format!("{folder}/{value}")));
            continue;
        }
        let declaration = line.strip_suffix(';').and_then(|line| match line.strip_prefix("mod ") {
            Some(name) => Some(name),
            None => line.strip_prefix("pub").and_then(|rest| rest.split_once(" mod ")).map(|(_, name)| name),
        });
        let Some(module) = declaration else { continue };
        match path.take() {
            Some(path) => modules.push(path),
            None => {
                modules.extend([format!("{own_folder}/{module}.rs"), format!("{own_folder}/{module}/mod.rs")])
            }
        }
    }
    modules
}

/// Removes each `FOLDER/..` from a path.
fn normalized(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Files of a target: its root, and all modules below the root.
fn files_of<'s>(root: &'s str, sources: &'s BTreeMap<String, String>) -> BTreeSet<&'s str> {
    let mut files = BTreeSet::new();
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        let Some((file, text)) = sources.get_key_value(&path) else { continue };
        if files.insert(file.as_str()) {
            pending.extend(modules(file, file == root, text));
        }
    }
    files
}

fn has_test(text: &str) -> bool {
    text.lines().map(str::trim).any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"))
}

fn has_doc_test(text: &str) -> bool {
    let comments = text.lines().filter_map(|line| {
        let line = line.trim_start();
        line.strip_prefix("//!").or_else(|| line.strip_prefix("///"))
    });
    let mut is_open = false;
    let mut found = false;
    for fence in comments.filter_map(|comment| comment.trim().strip_prefix("```")) {
        is_open = !is_open;
        found |= is_open && DOC_TEST_FENCES.contains(&fence);
    }
    found
}

#[test]
fn every_source_file_belongs_to_target() {
    let sources: BTreeMap<_, _> = rust_sources().into_iter().map(|file| (file.path, file.text)).collect();
    let targets = targets(&metadata());
    let used: BTreeSet<&str> = targets.iter().flat_map(|target| files_of(&target.file, &sources)).collect();
    let violations: Vec<String> = sources
        .keys()
        .filter(|path| !used.contains(path.as_str()))
        .filter(|path| !OTHER_WORKSPACES.iter().any(|folder| path.starts_with(folder)))
        .cloned()
        .collect();
    report(&violations, "no `mod` line leads to the file, so that it is not compiled");
}

#[test]
fn target_settings_match_tests_in_sources() {
    let sources: BTreeMap<_, _> = rust_sources().into_iter().map(|file| (file.path, file.text)).collect();
    let mut violations = Vec::new();
    for target in targets(&metadata()) {
        let files = files_of(&target.file, &sources);
        let any = |rule: fn(&str) -> bool| {
            files.iter().any(|file| sources.get(*file).is_some_and(|text| rule(text)))
        };
        let is_program = ["lib", "bin", "test"].contains(&target.kind.as_str());
        if is_program && target.test != any(has_test) {
            violations.push(format!("{}: `test = {}`", target.file, !target.test));
        }
        if target.kind == "lib" && target.doctest != any(has_doc_test) {
            violations.push(format!("{}: `doctest = {}`", target.file, !target.doctest));
        }
    }
    report(&violations, "write the setting to the section of the target in the manifest");
}

#[test]
fn target_rules_parse_sample_files() {
    let text = "#[path = \"../x/y.rs\"]\nmod y;\nmod a;\npub mod b;\npub(crate) mod c;\nmod inline {\n}\n    mod d;\n";
    let of = |module: &str| [format!("p/{module}.rs"), format!("p/{module}/mod.rs")];
    let expected = [vec!["x/y.rs".to_owned()], of("a").into(), of("b").into(), of("c").into()].concat();
    assert_eq!(modules("p/lib.rs", true, text), expected);
    assert_eq!(modules("p/s.rs", false, "mod a;\n"), ["p/s/a.rs", "p/s/a/mod.rs"]);
    assert_eq!(modules("p/mod.rs", false, "mod a;\n"), ["p/a.rs", "p/a/mod.rs"]);
    assert!(has_test("    #[tokio::test(flavor = \"x\")]\n") && !has_test("// #[test]\n"));
    assert!(has_doc_test("//! ```\n//! f();\n//! ```\n") && has_doc_test("    /// ```no_run\n"));
    assert!(!has_doc_test("//! ```text\n//! f\n//! ```\n//! g\n"));
}

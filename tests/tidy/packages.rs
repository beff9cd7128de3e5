//! Rules on dependencies: one list of versions, each with its reason, and no declaration without use.
//!
//! # Contract
//!
//! The manifest of the workspace has a comment above each external package: the reason for it. The table in
//! `docs/architecture.md` is generated from these comments and from the manifests of the members; `UPDATE=1` rewrites it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::{Member, Source, files, manifest_entries, members, report, root};

const DOCUMENT: &str = "docs/architecture.md";

/// First lines of the table in the document.
const TABLE_HEAD: &str = "| Package | Purpose | Used in |\n|---|---|---|\n";

/// Packages whose library has another name.
const LIBRARY_NAMES: [(&str, &str); 1] = [("rustls-webpki", "webpki")];

/// Packages that must have an exact version, with the reason.
const EXACT_VERSIONS: [(&str, &str); 4] = [
    ("fjall", "durability depends on its behaviour"),
    ("lsm-tree", "the store reads files of fjall without fjall"),
    ("sfa", "the format of the files that lsm-tree writes"),
    ("xxhash-rust", "the checksums of the files that lsm-tree writes"),
];

fn is_dependency_section(section: &str) -> bool {
    ["dependencies", "dev-dependencies", "build-dependencies"].contains(&section)
}

/// Section and package of each dependency of a member.
fn dependencies((_, entries): &Member) -> Vec<(&str, &str)> {
    let declared = entries.iter().filter(|(section, _, _)| is_dependency_section(section));
    declared.map(|(section, key, _)| (section.as_str(), key.split('.').next().unwrap_or_default())).collect()
}

/// Name and reason of each external package of the workspace; the reason is the comment above the package.
fn workspace_packages(manifest: &str) -> Vec<(String, String)> {
    let mut packages = Vec::new();
    let (mut is_inside, mut reason) = (false, Vec::new());
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            is_inside = line == "[workspace.dependencies]";
        } else if let Some(comment) = line.strip_prefix('#') {
            reason.push(comment.trim());
            continue;
        } else if let Some((name, value)) = line.split_once('=').filter(|_| is_inside)
            && !value.contains("path =")
        {
            packages.push((name.trim().to_owned(), reason.join(" ")));
        }
        reason.clear();
    }
    packages
}

/// Members that use a package: ordinary use first, then build scripts "(b)", then tests "(t)".
fn users(package: &str, members: &BTreeMap<String, Member>) -> String {
    let mut users = BTreeSet::new();
    for (name, member) in members {
        let sections: Vec<&str> = dependencies(member)
            .into_iter()
            .filter(|(_, used)| *used == package)
            .map(|(section, _)| section)
            .collect();
        let mark = match sections.as_slice() {
            [] => continue,
            sections if sections.contains(&"dependencies") => "",
            sections if sections.contains(&"build-dependencies") => " (b)",
            _ => " (t)",
        };
        users.insert((mark, name));
    }
    let texts: Vec<String> = users.into_iter().map(|(mark, name)| format!("{name}{mark}")).collect();
    texts.join(", ")
}

fn package_table(manifest: &str, members: &BTreeMap<String, Member>) -> String {
    let mut packages = workspace_packages(manifest);
    packages.sort();
    let rows =
        packages.iter().map(|(name, reason)| format!("| `{name}` | {reason} | {} |\n", users(name, members)));
    rows.collect()
}

/// Whether a line mentions a library: its name as a whole word, followed by `::`, `;`, `,`, `}` or ` as `.
fn mentions(line: &str, library: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(library).any(|(at, _)| {
        let (before, after) =
            (line.get(..at).unwrap_or_default(), line.get(at + library.len()..).unwrap_or_default());
        !before.ends_with(is_word) && [":", ";", ",", "}", " as "].iter().any(|end| after.starts_with(end))
    })
}

fn library_name(package: &str) -> String {
    let renamed = LIBRARY_NAMES.iter().find(|(name, _)| *name == package);
    renamed.map_or_else(|| package.replace('-', "_"), |(_, library)| (*library).to_owned())
}

/// Sources of a member, without those of members below its folder.
fn sources_of<'f>(path: &str, files: &'f [Source], members: &BTreeMap<String, Member>) -> Vec<&'f Source> {
    let folder = |manifest: &str| manifest.trim_end_matches("Cargo.toml").to_owned();
    let own = folder(path);
    let nested: Vec<String> =
        members.values().map(|(path, _)| folder(path)).filter(|other| other.len() > own.len()).collect();
    let sources = files.iter().filter(|file| file.path.ends_with(".rs") && file.path.starts_with(&own));
    sources.filter(|file| !nested.iter().any(|folder| file.path.starts_with(folder))).collect()
}

/// Whether the sources of a member use a package. Only product code can use an ordinary dependency.
fn is_used(section: &str, package: &str, sources: &[&Source]) -> bool {
    let library = library_name(package);
    sources.iter().any(|source| {
        // The crates below `tests` have no product code.
        let everywhere = section == "dev-dependencies" || source.path.starts_with("tests/");
        match everywhere {
            true => source.text.lines().any(|line| mentions(line, &library)),
            false => source.product_lines().iter().any(|(_, line)| mentions(line, &library)),
        }
    })
}

/// Versions, features and lints have one place: the manifest of the workspace.
#[test]
fn members_inherit_versions_and_lints() {
    let mut violations = Vec::new();
    for (_, (path, entries)) in members() {
        for (section, key, value) in &entries {
            if is_dependency_section(section) && !(key.ends_with(".workspace") && value == "true") {
                violations.push(format!("{path}: `{key} = {value}` (write `NAME.workspace = true`)"));
            }
        }
        let inherits = entries.iter().any(|(section, key, _)| section == "lints" && key == "workspace");
        if !inherits {
            violations.push(format!("{path}: no `[lints] workspace = true`"));
        }
    }
    report(&violations, "members inherit from the workspace");
}

#[test]
fn members_use_every_declared_dependency() {
    let (files, members) = (files(), members());
    let mut violations = Vec::new();
    let mut declared = BTreeSet::new();
    for (name, member) in &members {
        let sources = sources_of(&member.0, &files, &members);
        for (section, package) in dependencies(member) {
            declared.insert(package);
            if !is_used(section, package, &sources) {
                violations.push(format!("{}: {name} does not use `{package}` of [{section}]", member.0));
            }
        }
    }
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap_or_default();
    let packages = workspace_packages(&manifest);
    let undeclared = packages.iter().filter(|(name, _)| !declared.contains(name.as_str()));
    violations.extend(undeclared.map(|(name, _)| format!("Cargo.toml: no member declares `{name}`")));
    report(&violations, "remove dependencies without use");
}

#[test]
fn architecture_document_lists_packages_with_reasons_and_users() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap_or_default();
    let without_reason: Vec<String> = workspace_packages(&manifest)
        .into_iter()
        .filter(|(_, reason)| reason.len() < 3)
        .map(|(name, _)| format!("Cargo.toml: `{name}` has no comment above it with the reason for it"))
        .collect();
    report(&without_reason, "give the reason for each package in Cargo.toml");
    let file = root().join(DOCUMENT);
    let document = fs::read_to_string(&file).unwrap_or_default();
    let Some((before, rest)) = document.split_once(TABLE_HEAD) else {
        return report(&[format!("{DOCUMENT} has no table of packages")], "add the head of the table");
    };
    let end = rest.lines().take_while(|line| line.starts_with('|')).map(|line| line.len() + 1).sum();
    let after = rest.get(end..).unwrap_or_default();
    let expected = format!("{before}{TABLE_HEAD}{}{after}", package_table(&manifest, &members()));
    if std::env::var_os("UPDATE").is_some() && document != expected {
        assert!(fs::write(&file, &expected).is_ok(), "{DOCUMENT} is writable");
        return;
    }
    assert!(
        document == expected,
        "the table of packages differs; run `UPDATE=1 cargo test -p tidy packages`"
    );
}

#[test]
fn packages_that_define_file_formats_have_exact_versions() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap_or_default();
    let entries = manifest_entries(&manifest);
    let violations: Vec<String> = EXACT_VERSIONS
        .iter()
        .filter(|(name, _)| !entries.iter().any(|(_, key, value)| key == name && value.contains("\"=")))
        .map(|(name, reason)| format!("`{name}`: {reason}"))
        .collect();
    report(&violations, "write an exact version: \"=X.Y.Z\"");
}

#[test]
fn package_rules_parse_sample_manifests() {
    let manifest = "[workspace.dependencies]\nown = { path = \"x\" }\n\n# first\n# line\na-b = \"1\"\nc = \"2\"\n[x]\n# no\nd = 1\n";
    let reasons = workspace_packages(manifest);
    assert_eq!(reasons, [("a-b".to_owned(), "first line".to_owned()), ("c".to_owned(), String::new())]);
    for (line, is_mentioned) in [
        ("use a_b::c;", true),
        ("use {x, a_b};", true),
        ("use a_b as y;", true),
        ("#[derive(a_b::Message)]", true),
        ("use a_b_c::d;", false),
        ("let a_b = 1;", false),
        ("xa_b::c", false),
    ] {
        assert_eq!(mentions(line, "a_b"), is_mentioned, "{line}");
    }
    let member = |path: &str, text: &str| (path.to_owned(), manifest_entries(text));
    let members = BTreeMap::from([
        ("m".to_owned(), member("m/Cargo.toml", "[dependencies]\na-b.workspace = true\n")),
        ("k".to_owned(), member("k/Cargo.toml", "[dev-dependencies]\na-b.workspace = true\n")),
    ]);
    assert_eq!(users("a-b", &members), "m, k (t)");
    let source = |text: &str| Source { path: "m/src/lib.rs".to_owned(), text: text.to_owned() };
    let test_only = source("//! x\n#[cfg(test)]\nmod t {\n    use a_b::C;\n}\n");
    assert!(
        !is_used("dependencies", "a-b", &[&test_only]) && is_used("dev-dependencies", "a-b", &[&test_only])
    );
    assert!(is_used("dependencies", "a-b", &[&source("use a_b::C;\n")]));
}

//! Repository rules without compiler support.
//!
//! The rules cover file headers and sizes, names, imports between crates, forbidden text, and documents that
//! must be up to date.
//!
//! # Contract
//!
//! Each test collects all violations and prints them with the file and the remedy. Exceptions are listed in
//! this file with a reason. An unused exception is itself a violation, so that the lists only shrink.

#![expect(clippy::panic, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

mod ci;
mod circles;
mod language;
mod licenses;
mod monitoring;
mod packages;
mod requirements;
mod targets;

/// Maximum number of lines of a source file, including tests.
const MAX_LINES: usize = 1_000;

/// Folders of generated code. A test of its crate generates the code again and compares it.
const GENERATED: [&str; 1] = ["proto/authproto/src/generated/"];

/// Module names without meaning.
const MEANINGLESS_NAMES: [&str; 8] =
    ["utils", "util", "common", "helpers", "helper", "manager", "misc", "shared"];

/// Names with the domain or the vendor of a preset. Only `apimachinery::names` may contain them.
const PRESET_NAMES: [&str; 10] = [
    "k8s.io",
    "kubernetes.io",
    "kube-system",
    "kube-public",
    "kube-node-lease",
    "svc-system",
    "svc-public",
    "svc-node-lease",
    "x-kubernetes-",
    "vnd.kubernetes",
];

/// Exceptions for preset names: file, name, reason.
const PRESET_NAMES_ALLOWED: &[(&str, &str, &str)] = &[
    (
        "authd/src/config/authentication/validate.rs",
        "k8s.io",
        "reserved under either preset (requirement A-JWT-55)",
    ),
    ("authd/src/config/authentication/validate.rs", "kubernetes.io", "reserved under either preset"),
    ("apid/kinds/src/volume_sources.rs", "k8s.io", "reserved under either preset"),
    ("apid/kinds/src/volume_sources.rs", "kubernetes.io", "reserved under either preset"),
];

/// Files that may query the preset, with the reason: all other files read a field of `Names`.
const PRESET_QUERIES: &[(&str, &str)] = &[
    ("apid/src/server_source.rs", "variables of credential plugins"),
    ("apid/src/up/mod.rs", "default of a flag"),
    ("apid/src/up/next_steps.rs", "commands for the names of the server"),
    ("proto/processflags/src/both_processes.rs", "the default of `--names`"),
    ("apid/src/migration_commands/mod.rs", "the default of `--names`"),
    ("apid/src/etcd_store.rs", "only the names of Kubernetes fit objects of a kube-apiserver"),
    ("authd/src/config/mod.rs", "further validation when `--names` is invalid"),
    ("authd/src/inspect/audit_roles/mod.rs", "the preset of an audit log follows from its domain"),
    ("authd/src/inspect/connection.rs", "the environment of credential plugins is that of Kubernetes"),
    ("authd/src/inspect/matrix/mod.rs", "the default policy of both presets"),
    ("authd/src/inspect/policy.rs", "names of messages that no command prints"),
    ("authd/src/webhook/mock.rs", "a service of the unit tests"),
    ("policies/expressions/src/dialect.rs", "the dialect of expressions of each preset"),
    ("proto/authproto/src/peer.rs", "the names of Kubernetes depend on no API domain"),
];

/// Crates of the workspace that each crate may import.
const CRATES: &[(&str, &[&str])] = &[
    ("prerequisites", &[]),
    ("fuzzing", &[]),
    ("testenv", &[]),
    ("tidy", &[]),
    ("backends", &["forwarding", "serving"]),
    ("apimachinery", &[]),
    ("authproto", &["apimachinery"]),
    ("serving", &["apimachinery"]),
    ("processflags", &["apimachinery", "serving"]),
    ("bootstrap", &["apimachinery"]),
    ("expressions", &["apimachinery"]),
    ("schema", &["apimachinery"]),
    ("storage", &["apimachinery"]),
    ("encryption", &["storage", "serving", "apimachinery"]),
    ("apply", &["schema", "apimachinery"]),
    ("extensions", &["schema", "expressions", "apimachinery"]),
    ("kinds", &["schema", "extensions", "apply", "storage", "expressions", "apimachinery"]),
    ("migration", &["kinds", "schema", "apimachinery"]),
    ("forwarding", &["serving", "apimachinery"]),
    ("webhooks", &["forwarding", "serving", "apimachinery"]),
    (
        "admission",
        &[
            "kinds",
            "webhooks",
            "forwarding",
            "serving",
            "schema",
            "apply",
            "storage",
            "expressions",
            "apimachinery",
        ],
    ),
    ("authclient", &["kinds", "storage", "authproto", "serving", "apimachinery"]),
    ("flowcontrol", &["serving", "apimachinery"]),
    ("audit", &["admission", "serving", "apimachinery"]),
    ("discovery", &["kinds", "schema", "serving", "apimachinery"]),
    ("aggregation", &["discovery", "forwarding", "kinds", "serving", "apimachinery"]),
    (
        "verbs",
        &[
            "authclient",
            "admission",
            "webhooks",
            "forwarding",
            "kinds",
            "schema",
            "extensions",
            "apply",
            "storage",
            "expressions",
            "authproto",
            "serving",
            "apimachinery",
        ],
    ),
    (
        "controllers",
        &[
            "verbs",
            "aggregation",
            "forwarding",
            "audit",
            "authclient",
            "admission",
            "kinds",
            "extensions",
            "storage",
            "authproto",
            "flowcontrol",
            "serving",
            "apimachinery",
        ],
    ),
    (
        "httpapi",
        &[
            "verbs",
            "flowcontrol",
            "aggregation",
            "forwarding",
            "discovery",
            "authclient",
            "audit",
            "admission",
            "kinds",
            "schema",
            "storage",
            "authproto",
            "serving",
            "apimachinery",
        ],
    ),
    (
        "apid",
        &[
            "httpapi",
            "aggregation",
            "controllers",
            "verbs",
            "discovery",
            "authclient",
            "audit",
            "admission",
            "forwarding",
            "migration",
            "kinds",
            "encryption",
            "storage",
            "processflags",
            "serving",
            "apimachinery",
        ],
    ),
    ("authd", &["bootstrap", "expressions", "authproto", "processflags", "serving", "apimachinery"]),
    (
        "bench",
        &[
            "admission",
            "apimachinery",
            "apply",
            "authclient",
            "authd",
            "authproto",
            "controllers",
            "discovery",
            "expressions",
            "extensions",
            "kinds",
            "schema",
            "serving",
            "storage",
            "verbs",
            "webhooks",
        ],
    ),
    (
        "tests",
        &[
            "apimachinery",
            "authproto",
            "kinds",
            "schema",
            "serving",
            "encryption",
            "storage",
            "bootstrap",
            "bench",
            "backends",
            "prerequisites",
            "testenv",
        ],
    ),
];

/// External packages that a crate must not use, with the reason.
const BANNED_PACKAGES: [(&str, &[&str], &str); 5] = [
    ("apimachinery", &["tokio", "hyper", "tonic", "fjall"], "it does no I/O"),
    ("schema", &["tokio", "hyper", "tonic", "fjall"], "a schema uses neither the network nor the disk"),
    (
        "extensions",
        &["tokio", "hyper", "tonic", "fjall"],
        "rules of custom kinds use neither the network nor the disk",
    ),
    ("storage", &["hyper", "http"], "the store is independent of clients"),
    ("kinds", &["hyper", "tonic", "http", "fjall"], "kinds use neither HTTP nor the disk"),
];

/// Modules of the two processes in layers: a module imports only from layers below its own.
const LAYERS: [(&str, &[&[&str]]); 2] = [
    (
        "apid/src",
        &[
            &["build_info", "caller_flags", "command_list"],
            &["config"],
            &["console", "server_source", "spawn", "stored_keys", "stored_values"],
            &["parent_death"],
            &["etcd_store"],
            &["process", "certs", "store_commands", "migration_commands", "audit_tail"],
            &["env_test", "up"],
            &["commands"],
        ],
    ),
    (
        "authd/src",
        &[
            &["build_info", "command_list", "config_error", "rules", "single_flight_cache", "tokens"],
            &["mirror", "webhook"],
            &["authn", "authz", "controllers"],
            &["active_config", "config"],
            &["command_line", "reload", "review", "token_input"],
            &["check", "grpc", "inspect", "monitoring"],
            &["commands"],
        ],
    ),
];

/// Files of a crate that are outside the layers: its entry points.
const ENTRY_POINTS: [&str; 2] = ["lib", "main"];

/// Kind names that the code of the store must not contain.
const KIND_WORDS: [&str; 10] = [
    "ConfigMap",
    "configmaps",
    "ServiceAccount",
    "serviceaccounts",
    "ClusterRole",
    "clusterroles",
    "RoleBinding",
    "namespaces",
    "Secret",
    "secrets",
];

/// One file of the repository.
struct Source {
    /// Relative to the root, with `/`.
    path: String,
    text: String,
}

impl Source {
    /// Returns the lines of product code: without comments and tests. Empty for test files.
    fn product_lines(&self) -> Vec<(usize, &str)> {
        let test_file =
            self.path.split('/').any(|part| ["tests", "benches", "examples", "testdata"].contains(&part))
                || self.path.ends_with("/tests.rs");
        if test_file { Vec::new() } else { self.lines_outside_tests() }
    }

    /// Returns the lines without comments and without test code.
    fn lines_outside_tests(&self) -> Vec<(usize, &str)> {
        // Test code is an item under `#[cfg(test)]` or, for tests of other crates, `#[cfg(any(test, debug_assertions))]`:
        // formatted, it ends with `}` or `;` at its own
        // indentation.
        let mut tests_at = None;
        let mut lines = Vec::new();
        for (index, line) in self.text.lines().enumerate() {
            let indentation = line.len() - line.trim_start().len();
            if tests_at.is_none()
                && ["#[cfg(test)]", "#[cfg(any(test, debug_assertions))]"].contains(&line.trim())
            {
                tests_at = Some(indentation);
            } else if let Some(outer) = tests_at {
                if indentation == outer && line.ends_with(['}', ';']) {
                    tests_at = None;
                }
            } else if !line.trim_start().starts_with("//") {
                lines.push((index + 1, line.split_once(" // ").map_or(line, |(code, _)| code)));
            }
        }
        lines
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).map(Path::to_path_buf).unwrap_or_default()
}

/// All text files of the repository.
fn files() -> Vec<Source> {
    let mut files = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        for entry in entries.flatten() {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if ["target", ".git", "node_modules"].contains(&name.as_str()) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(text) = fs::read_to_string(&path) {
                let path = path.strip_prefix(root()).unwrap_or(&path).to_string_lossy().replace('\\', "/");
                files.push(Source { path, text });
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

/// All Rust files, without generated code.
fn rust_sources() -> Vec<Source> {
    let is_generated = |file: &Source| GENERATED.iter().any(|folder| file.path.starts_with(folder));
    files().into_iter().filter(|file| file.path.ends_with(".rs") && !is_generated(file)).collect()
}

fn report(violations: &[String], rule: &str) {
    assert!(violations.is_empty(), "{rule}\n  {}", violations.join("\n  "));
}

/// One entry of a manifest: section, key, rest of the line.
type Entry = (String, String, String);

/// Workspace member: path and entries of its manifest.
type Member = (String, Vec<Entry>);

fn manifest_entries(text: &str) -> Vec<Entry> {
    let mut section = String::new();
    let mut entries = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']').trim_matches('[').to_owned();
        } else if let Some((key, value)) = line.split_once('=') {
            entries.push((section.clone(), key.trim().to_owned(), value.trim().to_owned()));
        }
    }
    entries
}

/// Manifests of the members by package name, without packages that are their own workspace.
fn members() -> BTreeMap<String, Member> {
    files()
        .into_iter()
        .filter(|file| file.path.ends_with("/Cargo.toml"))
        .filter(|file| !file.text.lines().any(|line| line == "[workspace]"))
        .filter_map(|file| {
            let entries = manifest_entries(&file.text);
            let name = entries.iter().find(|(section, key, _)| section == "package" && key == "name")?;
            Some((name.2.trim_matches('"').to_owned(), (file.path, entries.clone())))
        })
        .collect()
}

/// Modules that a line imports from its own crate: `use crate::a::b`, `crate::a::f()`, `use crate::{a, b}`.
fn crate_imports(line: &str) -> Vec<&str> {
    let ident = |text: &str| text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    line.split("crate::")
        .skip(1)
        .flat_map(|rest| match rest.strip_prefix('{') {
            Some(group) => group.trim_end_matches([';', '}']).split(',').map(str::trim).collect::<Vec<_>>(),
            None => vec![rest],
        })
        .filter_map(|name| name.get(..ident(name)))
        .filter(|name| !name.is_empty())
        .collect()
}

#[test]
fn every_source_file_begins_with_module_doc() {
    let violations: Vec<String> = rust_sources()
        .into_iter()
        .filter(|file| !file.text.starts_with("//! "))
        .map(|file| file.path)
        .collect();
    report(&violations, "begin each source file with a `//!` sentence that describes its content");
}

#[test]
fn no_source_file_exceeds_1000_lines() {
    let violations: Vec<String> = rust_sources()
        .into_iter()
        .map(|file| (file.text.lines().count(), file.path))
        .filter(|(lines, _)| *lines > MAX_LINES)
        .map(|(lines, path)| format!("{path}: {lines} lines"))
        .collect();
    report(&violations, "split files with more than 1,000 lines (aim at 500)");
}

#[test]
fn no_module_has_meaningless_name() {
    let violations: Vec<String> = files()
        .into_iter()
        .map(|file| file.path)
        .filter(|path| {
            path.split('/')
                .any(|part| MEANINGLESS_NAMES.contains(&part.split_once('.').map_or(part, |(stem, _)| stem)))
        })
        .collect();
    report(&violations, "name a module after its content");
}

/// INVARIANT (names are a preset), of `apimachinery::names`.
#[test]
fn preset_names_are_defined_in_one_file() {
    let mut violations = Vec::new();
    let mut used = BTreeSet::new();
    for file in rust_sources() {
        if file.path == "proto/apimachinery/src/names.rs" {
            continue;
        }
        for (number, line) in file.product_lines() {
            for name in PRESET_NAMES.iter().filter(|name| line.contains(*name)) {
                match PRESET_NAMES_ALLOWED
                    .iter()
                    .find(|(path, allowed, _)| *path == file.path && allowed == name)
                {
                    Some(exception) => drop(used.insert(*exception)),
                    None => violations.push(format!("{}:{number}: `{name}`", file.path)),
                }
            }
            if ["Preset::Svc", "Preset::Kubernetes"].iter().any(|preset| line.contains(preset)) {
                match PRESET_QUERIES.iter().find(|(path, _)| *path == file.path) {
                    Some((path, reason)) => drop(used.insert((path, "Preset::", reason))),
                    None => violations.push(format!("{}:{number}: queries the preset", file.path)),
                }
            }
        }
    }
    let listed = PRESET_NAMES_ALLOWED.iter().copied();
    let listed = listed.chain(PRESET_QUERIES.iter().map(|(path, reason)| (*path, "Preset::", *reason)));
    violations.extend(
        listed
            .filter(|exception| !used.contains(exception))
            .map(|(path, name, _)| format!("{path}: the exception for `{name}` is unused; remove it")),
    );
    report(&violations, "names with a domain or a vendor, and what depends on the preset, come from `Names`");
}

/// Import rules between crates, read from the manifests.
#[test]
fn crates_import_only_permitted_crates() {
    let members = members();
    let mut violations = Vec::new();
    for (name, (path, entries)) in &members {
        let Some((_, allowed)) = CRATES.iter().find(|(known, _)| known == name) else {
            violations.push(format!("{path}: `{name}` is missing in the table of crates in tests/tidy"));
            continue;
        };
        for (section, key, _) in entries {
            let package = key.split_once('.').map_or(key.as_str(), |(package, _)| package);
            let shipped = section == "dependencies" || section == "build-dependencies";
            if shipped && members.contains_key(package) && !allowed.contains(&package) {
                violations.push(format!("{path}: {name} must not import {package}"));
            }
            for (banned_in, banned, reason) in &BANNED_PACKAGES {
                if shipped && banned_in == name && banned.contains(&package) {
                    violations.push(format!("{path}: {name} must not use {package}: {reason}"));
                }
            }
        }
    }
    report(&violations, "import only the crates that the table in tests/tidy/main.rs permits");
}

#[test]
fn modules_import_only_from_lower_layers() {
    let mut violations = Vec::new();
    for file in rust_sources() {
        for (root, layers) in LAYERS {
            let Some(inside) = file.path.strip_prefix(root).and_then(|rest| rest.strip_prefix('/')) else {
                continue;
            };
            let module = inside.split(['/', '.']).next().unwrap_or_default();
            let layer_of = |module: &str| layers.iter().position(|layer| layer.contains(&module));
            let Some(layer) = layer_of(module) else {
                if !ENTRY_POINTS.contains(&module) {
                    violations.push(format!("{}: `{module}` is in no layer", file.path));
                }
                continue;
            };
            for (number, line) in file.product_lines() {
                for imported in crate_imports(line).into_iter().filter(|imported| *imported != module) {
                    let below = layer_of(imported).is_none_or(|other| other < layer);
                    if !below {
                        violations.push(format!("{}:{number}: `{module}` imports `{imported}`", file.path));
                    }
                }
            }
        }
    }
    report(&violations, "modules import from layers below their own");
}

#[test]
fn store_names_no_kinds_and_pure_crates_do_no_io() {
    let mut violations = Vec::new();
    for file in rust_sources() {
        let store = file.path.starts_with("apid/storage/src/");
        let pure = ["apid/schema/src/", "apid/apply/src/", "apid/kinds/src/", "proto/apimachinery/src/"]
            .iter()
            .any(|folder| file.path.starts_with(folder));
        for (number, line) in file.product_lines() {
            for word in KIND_WORDS.iter().filter(|word| store && line.contains(*word)) {
                violations.push(format!("{}:{number}: the store names `{word}`", file.path));
            }
            for io in ["std::fs", "std::net", "tokio::"].iter().filter(|io| pure && line.contains(*io)) {
                violations.push(format!("{}:{number}: `{io}` in a crate without I/O", file.path));
            }
        }
    }
    report(&violations, "the store must not name kinds, and pure crates must not do I/O");
}

#[test]
fn lint_exceptions_have_reasons() {
    let mut violations = Vec::new();
    for file in rust_sources() {
        let lines: Vec<&str> = file.text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let opens = ["allow", "expect"].iter().any(|kind| {
                let line = line.trim_start();
                line.starts_with(&format!("#[{kind}(")) || line.starts_with(&format!("#![{kind}("))
            });
            // An attribute may span several lines; it ends at the first line that closes it.
            let length = lines.iter().skip(index).position(|line| line.contains(")]")).unwrap_or(0);
            let attribute = lines.iter().skip(index).take(length + 1).copied().collect::<String>();
            if opens && !attribute.contains("reason = ") {
                violations.push(format!("{}:{}: {}", file.path, index + 1, line.trim()));
            }
        }
    }
    report(&violations, "give a reason for each lint exception");
}

#[test]
fn no_file_contains_local_paths() {
    // The test assembles the texts, so that this file does not violate the rule itself.
    let folders = ["work", "home", "root", "Users"].map(|folder| format!("/{folder}/"));
    let violations: Vec<String> = files()
        .into_iter()
        .flat_map(|file| {
            let mut found = Vec::new();
            for (index, line) in file.text.lines().enumerate() {
                for folder in folders.iter().filter(|folder| starts_a_path(line, folder)) {
                    found.push(format!("{}:{}: `{folder}`", file.path, index + 1));
                }
            }
            found
        })
        .collect();
    report(&violations, "remove paths of a local machine");
}

/// Whether the folder is the start of a path, not the middle of a longer one.
fn starts_a_path(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        line.get(..at).and_then(|before| before.chars().next_back()).is_none_or(|before| {
            !before.is_alphanumeric() && !['_', '-', '.', '/', '}', '>', '*'].contains(&before)
        })
    })
}

/// `docs/decisions/0017-jose-packages.md` excludes two packages and their cryptography: aws-lc-rs verifies
/// all tokens.
#[test]
fn token_crypto_has_one_stack() {
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap_or_default();
    assert!(lock.contains("name = \"aws-lc-rs\""), "Cargo.lock is not readable");
    let banned = ["jsonwebtoken", "openidconnect", "rsa", "p256", "p384"];
    let violations: Vec<String> = banned
        .iter()
        .filter(|name| lock.contains(&format!("name = \"{name}\"\n")))
        .map(|name| format!("Cargo.lock contains `{name}`"))
        .collect();
    report(&violations, "see docs/decisions/0017-jose-packages.md");
}

/// Tests the parsers of this file on sample lines.
#[test]
fn tidy_parsers_parse_sample_lines() {
    assert_eq!(crate_imports("use crate::verbs::create;"), ["verbs"]);
    assert_eq!(crate_imports("use crate::{auth, verbs::list};"), ["auth", "verbs"]);
    assert_eq!(crate_imports("let x = crate::http::f(crate::auth::G);"), ["http", "auth"]);
    assert_eq!(crate_imports("use kinds::Registry;"), [""; 0]);
    let home = format!("/{}/", "home");
    assert!(starts_a_path(&format!("see {home}me/x"), &home) && starts_a_path(&format!("{home}x"), &home));
    assert!(!starts_a_path(&format!("tests{home}x"), &home));
    let source = Source {
        path: "apid/src/x.rs".to_owned(),
        text: "//! x\nlet a = 1; // b\n#[cfg(test)]\nmod t {\n  c();\n}\n#[cfg(test)]\nmod u;\nlet d = 2;\n"
            .to_owned(),
    };
    assert_eq!(source.product_lines(), [(2, "let a = 1;"), (9, "let d = 2;")]);
    assert_eq!(
        manifest_entries("[package]\nname = \"x\"\n# no\n[dependencies]\na.workspace = true\n"),
        [("package", "name", "\"x\""), ("dependencies", "a.workspace", "true")]
            .map(|(section, key, value)| (section.to_owned(), key.to_owned(), value.to_owned()))
    );
}

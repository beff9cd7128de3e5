//! `docs/flags.md`: the help texts of both programs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::program;

/// The help text of a program.
fn help(name: &str) -> String {
    let output = Command::new(program(name)).arg("--help").output().expect("the program starts");
    assert!(output.status.success(), "{name}: {output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

#[test]
fn flag_reference_equals_help_of_both_programs() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/flags.md");
    let current = format!(
        "# Flags\n\nThe output of `--help`. `UPDATE=1 cargo test -p tests --test e2e flag_reference` writes this file.\n\n\
         ## apid\n\n```text\n{}```\n\n## authd\n\nWith `--spawn-authd`, apid passes these flags on.\n\n```text\n{}```\n",
        help("apid"),
        help("authd"),
    );
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&file, &current).expect("docs can be written");
    }
    assert_eq!(
        fs::read_to_string(&file).unwrap_or_default(),
        current,
        "docs/flags.md is outdated: run the test with UPDATE=1"
    );
}

/// The long flags of a help text, with the heading of each.
fn flags(help: &str) -> BTreeSet<(String, String)> {
    let mut heading = String::new();
    let mut flags = BTreeSet::new();
    for line in help.lines() {
        if !line.starts_with(' ') && line.ends_with(':') {
            heading = line.trim_end_matches(':').to_owned();
        }
        let line = line.trim_start();
        let long = line.strip_prefix("--").or_else(|| line.strip_prefix('-')?.get(1..)?.strip_prefix(", --"));
        if let Some(long) = long {
            let end = long.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(long.len());
            flags.insert((long[..end].to_owned(), heading.clone()));
        }
    }
    flags
}

/// apid declares the flags that it passes on; this test keeps them equal to those of authd.
#[test]
fn flags_passed_to_authd_equal_flags_of_authd() {
    /// Flags that only a spawning process sets.
    const INTERNAL: [&str; 3] = ["socket", "exit-on-stdin-eof", "generated-key-file"];
    let (apid, authd) = (flags(&help("apid")), flags(&help("authd")));
    let authd: BTreeSet<&str> = authd.iter().map(|(name, _)| name.as_str()).collect();
    assert!(authd.len() > 40 && apid.len() > 80, "{authd:?} {apid:?}");
    let missing: Vec<&&str> = authd
        .iter()
        .filter(|name| !INTERNAL.contains(name) && !apid.iter().any(|(flag, _)| flag == *name))
        .collect();
    assert!(missing.is_empty(), "apid does not pass on {missing:?}: see apid/src/config/declared_flags.rs");
    let unknown: Vec<_> = apid
        .iter()
        .filter(|(name, heading)| heading.ends_with("passed to authd") && !authd.contains(name.as_str()))
        .collect();
    assert!(unknown.is_empty(), "authd has no flag {unknown:?}");
}

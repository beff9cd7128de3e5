//! `docs/flags.md`: the help texts of both programs.

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
         ## apid\n\n```text\n{}```\n\n## authd\n\nWith `--spawn-authd`, apid passes these flags on, except `--socket`, `--exit-on-stdin-eof` and\n`--generated-key-file`, which it sets itself.\n\n```text\n{}```\n",
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

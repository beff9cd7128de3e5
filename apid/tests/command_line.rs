//! Tests of the apid binary: help and command line errors.
//!
//! The end-to-end tests use the binary that this test builds.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, Output};

fn apid(flags: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_apid")).args(flags).output().unwrap()
}

#[test]
fn help_lists_flags_and_unimplemented_flags() {
    let output = apid(&["--help"]);
    assert!(output.status.success(), "{output:?}");
    let help = String::from_utf8(output.stdout).unwrap();
    for flag in ["--names", "--data-dir", "--spawn-authd", "--token-auth-file", "--authorization-mode"] {
        assert!(help.contains(flag), "{flag}:\n{help}");
    }
    let (_, unimplemented) = help.split_once("Flags that are not implemented yet: rejected:").unwrap();
    assert!(unimplemented.contains("--tls-min-version"), "{help}");
}

#[test]
fn unknown_command_is_named_with_a_similar_command() {
    for (command, expected) in [
        ("cert", "`cert` is not a command of apid; a similar command is `certs`"),
        ("foo", "`foo` is not a command of apid; the commands are up, test-server, "),
    ] {
        let output = apid(&[command]);
        assert_eq!(output.status.code(), Some(64), "{output:?}");
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn help_command_prints_help_of_apid_and_of_commands() {
    let text = |words: &[&str]| {
        let output = apid(words);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(text(&["help"]), text(&["--help"]));
    for command in ["certs", "store", "convert", "deprecations"] {
        assert_eq!(text(&["help", command]), text(&[command, "--help"]), "{command}");
    }
    assert_eq!(apid(&["help", "nothing"]).status.code(), Some(64));
}

#[test]
fn misspelled_admission_plugin_is_reported_with_a_similar_plugin() {
    let folder = tempfile::tempdir().unwrap();
    let data_dir = format!("--data-dir={}", folder.path().join("data").display());
    let output = apid(&[&data_dir, "--authd-socket=/none", "--enable-admission-plugins=NodeRestrictions"]);
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        message.contains("`NodeRestrictions` is unknown; a similar plugin is `NodeRestriction`"),
        "{message}"
    );
}

#[test]
fn convert_rejects_input_above_64_mib_and_deprecations_rejects_other_text_as_metrics() {
    let folder = tempfile::tempdir().unwrap();
    let large = folder.path().join("large.yaml");
    std::fs::File::create(&large).unwrap().set_len((64 << 20) + 1).unwrap();
    let output = apid(&["convert", "-f", large.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("large.yaml") && message.contains("64 MiB"), "{message}");

    let metrics = folder.path().join("metrics");
    for (text, code) in [
        ("# HELP up x\n# TYPE up gauge\nup{a=\"b c\"} 1\nother_total 2.5e3 1700000000\nnan NaN\n", 0),
        ("<html><body>404</body></html>\n", 1),
        ("{\"kind\": \"Status\"}\n", 1),
        ("ok", 1),
        ("", 1),
    ] {
        std::fs::write(&metrics, text).unwrap();
        let output = apid(&["deprecations", "--metrics", metrics.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(code), "{text}: {output:?}");
    }
}

#[test]
fn command_line_errors_exit_with_64() {
    let output = apid(&["--names=other", "--no-such-flag"]);
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("no-such-flag") && message.contains("--names"), "{message}");
}

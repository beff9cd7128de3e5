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
    assert!(unimplemented.contains("--encryption-provider-config"), "{help}");
}

#[test]
fn command_line_errors_exit_with_64() {
    let output = apid(&["--names=other", "--no-such-flag"]);
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("no-such-flag") && message.contains("--names"), "{message}");
}

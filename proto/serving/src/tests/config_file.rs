//! Tests of configuration files.

use super::*;
use apimachinery::names::Preset;
use clap::{Arg, ArgAction, Command};

fn read_text(text: &str) -> (tempfile::TempDir, Result<ServerConfiguration, Vec<String>>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.yaml");
    fs::write(&path, text).unwrap();
    let read = ServerConfiguration::read(&path);
    (dir, read)
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

const FILE: &str = "apiVersion: config.svc.internal/v1alpha1
kind: ServerConfiguration
apid:
  data-dir: /d
  secure-port: 0
  spawn-authd: true
  feature-gates: {WatchList: true, DryRun: false}
authd:
  authorization-mode: [Node, RBAC]
";

#[test]
fn sections_become_flags_and_command_line_wins() {
    let (_dir, read) = read_text(FILE);
    let config = read.unwrap();
    let mut arguments: Vec<String> = config.apid.iter().flat_map(FlagValues::arguments).collect();
    arguments.sort();
    assert_eq!(
        arguments,
        [
            "--data-dir=/d",
            "--feature-gates=DryRun=false",
            "--feature-gates=WatchList=true",
            "--secure-port=0",
            "--spawn-authd=true",
        ]
    );
    assert_eq!(
        merge(&config.apid, words(&["--secure-port", "6443", "--feature-gates=A=true"])),
        ["--data-dir=/d", "--spawn-authd=true", "--secure-port", "6443", "--feature-gates=A=true"]
    );
    assert_eq!(
        merge(&config.authd, words(&["--authorization-mode-x"])),
        ["--authorization-mode=Node", "--authorization-mode=RBAC", "--authorization-mode-x"]
    );
    let verbosity = [FlagValues::single("v", "2")];
    assert_eq!(merge(&verbosity, words(&["-v4"])), ["-v4"]);
    assert_eq!(merge(&verbosity, words(&["--v", "4"])), ["--v", "4"]);
    assert_eq!(merge(&verbosity, words(&["--verify"])), ["--v=2", "--verify"]);
}

#[test]
fn file_is_found_in_both_forms_of_the_flag() {
    let (dir, _) = read_text(FILE);
    let path = dir.path().join("config.yaml").display().to_string();
    for arguments in [words(&["--v=2", "--config", &path]), words(&[&format!("--config={path}")])] {
        assert!(ServerConfiguration::from_arguments(&arguments).unwrap().is_some(), "{arguments:?}");
    }
    assert_eq!(ServerConfiguration::from_arguments(&words(&["--configuration=x"])), Ok(None));
    let errors = ServerConfiguration::from_arguments(&words(&["--config=/no/file"])).unwrap_err();
    assert!(errors[0].contains("/no/file"), "{errors:?}");
}

#[test]
fn version_follows_names_preset() {
    let (_dir, read) = read_text(FILE);
    let config = read.unwrap();
    config.check_version(&Names::new(Preset::Svc, "svc.internal").unwrap()).unwrap();
    for names in [Names::new(Preset::Svc, "other.test"), Names::new(Preset::Kubernetes, "svc.internal")] {
        let names = names.unwrap();
        let error = config.check_version(&names).unwrap_err().to_string();
        assert!(error.contains(&format!("{}/v1alpha1", names.group("config"))), "{error}");
    }
}

#[test]
fn errors_of_a_file_are_reported_together() {
    let (_dir, read) =
        read_text("kind: Other\nflags: {}\napid: {a: {b: [1]}, names: svc}\nauthd: {names: kubernetes}\n");
    let errors = read.unwrap_err();
    for text in [
        "line 1: kind: Unsupported value: \"Other\"",
        "line 2: strict decoding error: unknown field \"flags\"",
        "line 3: apid.a: must be a string",
        "line 4: authd.names: differs",
    ] {
        assert!(errors.iter().any(|error| error.contains(text)), "{text} in {errors:#?}");
    }
    assert_eq!(errors.len(), 4, "{errors:#?}");
    for (text, problem) in
        [("- a", "must be an object"), ("kind: ServerConfiguration\napid: 3", "line 2: apid: Invalid value")]
    {
        let (_dir, read) = read_text(text);
        let errors = read.unwrap_err();
        assert!(errors[0].contains(problem), "{errors:?}");
    }
    let (_dir, read) = read_text("kind: ServerConfiguration\napid:\n  v: 1\n  v: 2\n");
    assert!(read.unwrap_err()[0].contains("duplicate"), "a duplicate field is an error");
}

#[test]
fn unknown_flag_of_a_file_is_rejected_with_the_nearest() {
    let command = Command::new("x").args([
        Arg::new("data-dir").long("data-dir"),
        Arg::new("list").long("list").action(ArgAction::Append),
    ]);
    let (_dir, read) = read_text(
        "kind: ServerConfiguration\napid: {dta-dir: /d, nothing-similar: 1, data-dir: [a], list: [a, b], config: /c}\n",
    );
    let config = read.unwrap();
    let errors = config.check_flags(&config.apid, &command);
    assert_eq!(errors.len(), 4, "{errors:#?}");
    for text in [
        "unknown flag `dta-dir`; a similar flag is `data-dir`",
        "unknown flag `nothing-similar`",
        "`data-dir` takes one value",
        "further file",
    ] {
        assert!(errors.iter().any(|error| error.contains(text)), "{text} in {errors:#?}");
    }
    assert!(!errors.iter().any(|error| error.contains("nothing-similar`;")), "{errors:#?}");
}

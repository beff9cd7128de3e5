//! `docs/flags.md`: the help texts of both programs and the table of the flags of kube-apiserver.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use tests::harness::program;

/// The help text of a program.
fn help(name: &str) -> String {
    let output = Command::new(program(name)).arg("--help").output().expect("the program starts");
    assert!(output.status.success(), "{name}: {output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// The flags of kube-apiserver 1.33, from its reference documentation and its help.
const REFERENCE: &str = include_str!("flags/kube-apiserver-1.33.txt");

/// A flag of a help text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Flag {
    name: String,
    heading: String,
    help: String,
}

impl Flag {
    /// The state in the table, from the heading.
    fn state(&self) -> &'static str {
        if self.heading.ends_with("rejected") {
            "rejected"
        } else if self.heading.starts_with("Flags that are not needed") {
            "not needed"
        } else if self.heading.ends_with("accepted without an effect") {
            "not implemented"
        } else {
            "implemented"
        }
    }
}

/// The table of the flags of kube-apiserver.
fn reference_table(apid: &str) -> String {
    let flags = flags(apid);
    let mut table = String::from("| Flag | State | Meaning or reason |\n|---|---|---|\n");
    for name in REFERENCE.lines() {
        let flag = flags.iter().find(|flag| flag.name == name);
        let flag = flag
            .unwrap_or_else(|| panic!("apid has no flag --{name}: declare it with its effect or its reason"));
        table.push_str(&format!("| `--{name}` | {} | {} |\n", flag.state(), flag.help.replace('|', "\\|")));
    }
    table
}

#[test]
fn flag_reference_equals_help_of_both_programs() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/flags.md");
    let current = format!(
        "# Flags\n\nThe output of `--help`, and the flags of kube-apiserver 1.33. `UPDATE=1 cargo test -p tests --test system \
         flag_reference` writes this file.\n\n\
         ## Configuration file\n\n`--config FILE` reads flags of both processes from a file. The command line replaces a flag of \
         the file with all its\nvalues. An unknown field or flag is an error. A flag has its name without dashes; a flag of several \
         values takes a list.\nThe API group is `config.` with the API domain (`config.k8s.io` under `--names kubernetes`). A \
         separate authd reads the\nsection `authd` of the same file with `authd --config FILE`.\n\n\
         ```yaml\napiVersion: config.svc.internal/v1alpha1\nkind: ServerConfiguration\napid:\n  data-dir: /var/lib/apid\n  \
         spawn-authd: true\n  feature-gates: {{WatchList: true}}\nauthd:\n  authorization-mode: [Node, RBAC]\n```\n\n\
         ## Flags of kube-apiserver 1.33\n\napid accepts a flag that is not needed, or not implemented, with a log line. A rejected \
         flag is not\nimplemented, and ignoring it would be unsafe: apid does not start.\n\n{}\n\
         ## apid\n\n```text\n{}```\n\n## authd\n\nWith `--spawn-authd`, apid passes these flags on, except `--socket`, `--exit-on-stdin-eof` and\n`--generated-key-file`, which it sets itself.\n\n```text\n{}```\n",
        reference_table(&help("apid")),
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

/// The long flags of a help text.
fn flags(help: &str) -> BTreeSet<Flag> {
    let mut heading = String::new();
    let mut flags: Vec<Flag> = Vec::new();
    let mut is_entry = false;
    for line in help.lines() {
        if !line.starts_with(' ') {
            heading = line.trim_end_matches(':').to_owned();
            is_entry = false;
            continue;
        }
        let line = line.trim();
        let long = line.strip_prefix("--").or_else(|| line.strip_prefix('-')?.get(1..)?.strip_prefix(", --"));
        match (long, flags.last_mut()) {
            (Some(long), _) => {
                let end = long.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(long.len());
                let text = long.split_once("  ").map(|(_, text)| text.trim().to_owned());
                let help = text.unwrap_or_default();
                flags.push(Flag { name: long[..end].to_owned(), heading: heading.clone(), help });
                is_entry = true;
            }
            (None, Some(flag)) if is_entry && flag.help.is_empty() => flag.help = line.to_owned(),
            (None, _) => {}
        }
    }
    flags.into_iter().collect()
}

#[test]
fn table_of_flags_names_state_and_reason() {
    let table = reference_table(&help("apid"));
    for row in [
        "| `--secure-port` | implemented |",
        "| `--kubelet-timeout` | implemented |",
        "| `--allow-privileged` | not needed | Allow privileged containers; apid runs no containers and always stores them |",
        "| `--emulated-version` | implemented |",
        "| `--disable-http2-serving` | rejected |",
    ] {
        assert!(table.contains(row), "{row} in\n{table}");
    }
    assert!(!table.contains("| |"), "a flag without a reason:\n{table}");
}

#[test]
fn version_command_of_both_programs_names_commit_date_and_compiler() {
    for name in ["apid", "authd"] {
        let output = Command::new(program(name)).arg("version").output().expect("the program starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && text.starts_with(&format!("{name} {}", env!("CARGO_PKG_VERSION"))),
            "{text}"
        );
        for fact in ["commit: ", "build date: ", "compiler: rustc "] {
            assert!(text.contains(fact), "{fact} in {text}");
        }
    }
}

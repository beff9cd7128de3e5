//! Private control planes for tests: the programs of env tests, and `apid test-server`.
//!
//! # Contract
//!
//! controller-runtime's env tests start `kube-apiserver` and `etcd` from one folder. apid takes both roles: by its
//! program name, or as `apid env-test ROLE`. [`etcd`] answers `/health` and knows the folder in which the server
//! keeps its objects. [`kube_apiserver`] serves with the names preset `kubernetes` and an authd of its own.
//! [`test_server`] needs no flags and prints the path of a kubeconfig when it is ready.
//!
//! # Invariants
//!
//! INVARIANT (no orphan): a process of a role ends with its parent, also after SIGKILL of the parent.

use std::process::ExitCode;
use std::time::Duration;

use crate::config::EXIT_USAGE;

mod etcd;
mod kube_apiserver;
mod test_server;

pub use test_server::run as run_test_server;

/// Interval of the check whether the parent still exists.
const PARENT_CHECK: Duration = Duration::from_millis(100);

/// A program that an env test starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The API server.
    KubeApiserver,
    /// The server of the storage folder.
    Etcd,
}

impl Role {
    /// The role of a program name or path.
    pub fn of_program(program: &str) -> Option<Self> {
        match std::path::Path::new(program).file_name()?.to_str()? {
            "kube-apiserver" => Some(Role::KubeApiserver),
            "etcd" => Some(Role::Etcd),
            _ => None,
        }
    }

    /// Runs the program with its arguments, without the program name.
    pub fn run(self, arguments: impl IntoIterator<Item = String>) -> ExitCode {
        let arguments: Vec<String> = arguments.into_iter().collect();
        let result = match self {
            Role::KubeApiserver => kube_apiserver::run(arguments),
            Role::Etcd => etcd::run(&arguments),
        };
        result.unwrap_or_else(|mistakes| print_mistakes(self.name(), &mistakes))
    }

    fn name(self) -> &'static str {
        match self {
            Role::KubeApiserver => "kube-apiserver",
            Role::Etcd => "etcd",
        }
    }
}

/// Runs `apid env-test ROLE` with the arguments after `env-test`.
pub fn run(arguments: impl IntoIterator<Item = String>) -> ExitCode {
    let mut arguments = arguments.into_iter();
    let role = arguments.next().unwrap_or_default();
    match Role::of_program(&role) {
        Some(role) => role.run(arguments),
        None => print_mistakes("apid", &[format!("`env-test {role}`: the role is kube-apiserver or etcd")]),
    }
}

fn print_mistakes(program: &str, mistakes: &[String]) -> ExitCode {
    mistakes.iter().for_each(|mistake| eprintln!("{program}: {mistake}"));
    ExitCode::from(EXIT_USAGE)
}

/// The process id of the parent.
fn parent() -> u32 {
    std::os::unix::process::parent_id()
}

/// The last value of a flag in the forms `--name=value` and `--name value`.
fn flag_value(arguments: &[String], name: &str) -> Option<String> {
    let mut value = None;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.strip_prefix("--").and_then(|word| word.strip_prefix(name)) {
            Some("") => value = rest.next().cloned(),
            Some(attached) => value = attached.strip_prefix('=').map(str::to_owned).or(value),
            None => {}
        }
    }
    value
}

/// Removes a flag with its value from the arguments.
fn without_flag(arguments: Vec<String>, name: &str) -> Vec<String> {
    let mut kept = Vec::new();
    let mut rest = arguments.into_iter();
    while let Some(argument) = rest.next() {
        match argument.strip_prefix("--").and_then(|word| word.strip_prefix(name)) {
            Some("") => drop(rest.next()),
            Some(attached) if attached.starts_with('=') => {}
            Some(_) | None => kept.push(argument),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn role_follows_program_name() {
        assert_eq!(Role::of_program("/a/b/kube-apiserver"), Some(Role::KubeApiserver));
        assert_eq!(Role::of_program("etcd"), Some(Role::Etcd));
        assert_eq!(Role::of_program("/usr/bin/apid"), None);
    }

    #[test]
    fn flag_values_are_found_and_removed_in_both_forms() {
        let line =
            words(&["--etcd-servers=a", "--etcd-servers-overrides=o", "--v=1", "--etcd-servers", "b", "--x"]);
        assert_eq!(flag_value(&line, "etcd-servers").as_deref(), Some("b"));
        assert_eq!(flag_value(&line, "etcd"), None);
        assert_eq!(without_flag(line, "etcd-servers"), ["--etcd-servers-overrides=o", "--v=1", "--x"]);
    }
}

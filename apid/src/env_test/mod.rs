//! Private control planes for tests: the programs of env tests, and `apid test-server`.
//!
//! # Contract
//!
//! controller-runtime's env tests start `kube-apiserver` and `etcd` from one folder. apid takes both roles: by its
//! program name, or as `apid env-test --parent-id=PID ROLE`. [`etcd`] answers `/health` and reports the directory in
//! which the server stores its objects. [`kube_apiserver`] serves with the names preset `kubernetes` and its own authd.
//! [`test_server`] needs no flags and prints the path of a kubeconfig when it is ready.
//!
//! # Invariants
//!
//! INVARIANT (no orphan): a process of a role ends with its parent, even after SIGKILL of the parent. The
//! process also ends if the parent ended before the process started to run, except in the cases that [`parent`]
//! lists.

use std::process::ExitCode;

use serving::arguments::{flag_value, has_flag};
use serving::config_file::{FlagValues, ServerConfiguration, merge};

use crate::console::report_errors;

mod etcd;
mod kube_apiserver;
mod parent;
mod test_server;

pub use test_server::run as run_test_server;

/// A program that an env test starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The API server.
    KubeApiserver,
    /// The replacement of etcd, which only reports the data directory.
    Etcd,
}

impl Role {
    /// Returns the role that the file name of a program path names; None for any other name.
    pub fn of_program(program: &str) -> Option<Self> {
        match std::path::Path::new(program).file_name()?.to_str()? {
            "kube-apiserver" => Some(Role::KubeApiserver),
            "etcd" => Some(Role::Etcd),
            _ => None,
        }
    }

    /// Runs the program with its arguments, without the program name.
    ///
    /// `expected_parent_id` is the parent id that a script of `deploy/envtest` read at its start; None without a
    /// script.
    pub fn run(
        self,
        arguments: impl IntoIterator<Item = String>,
        expected_parent_id: Option<u32>,
    ) -> ExitCode {
        let arguments: Vec<String> = arguments.into_iter().collect();
        let result = parent::running_parent_id(expected_parent_id).and_then(|parent_id| match self {
            Role::KubeApiserver => kube_apiserver::run(arguments, parent_id),
            Role::Etcd => etcd::run(&arguments, parent_id),
        });
        result.unwrap_or_else(|errors| report_errors(self.name(), &errors))
    }

    fn name(self) -> &'static str {
        match self {
            Role::KubeApiserver => "kube-apiserver",
            Role::Etcd => "etcd",
        }
    }
}

/// Runs `apid env-test --parent-id=PID ROLE FLAGS…` with the arguments after `env-test`.
pub fn run(arguments: impl IntoIterator<Item = String>) -> ExitCode {
    let mut arguments = arguments.into_iter();
    let argument = arguments.next().unwrap_or_default();
    let Some(parent_id) = argument.strip_prefix("--parent-id=").and_then(|id| id.parse().ok()) else {
        let error =
            format!("`env-test {argument}`: the first argument must be `--parent-id=PID`, then the role");
        return report_errors("apid", &[error]);
    };
    let role = arguments.next().unwrap_or_default();
    match Role::of_program(&role) {
        Some(role) => role.run(arguments, Some(parent_id)),
        None => report_errors("apid", &[format!("`env-test {role}`: the role is kube-apiserver or etcd")]),
    }
}

/// The flags that the caller sets, on the command line or in the file of `--config`.
struct CallerFlags {
    arguments: Vec<String>,
    file: Option<ServerConfiguration>,
}

impl CallerFlags {
    /// Reads the file of `--config`, if the command line names one.
    ///
    /// # Errors
    ///
    /// All errors of the file.
    fn read(arguments: Vec<String>) -> Result<Self, Vec<String>> {
        let file = ServerConfiguration::from_arguments(&arguments)?;
        Ok(CallerFlags { arguments, file })
    }

    /// Returns the last value of a flag. The command line takes precedence over the file.
    fn value(&self, name: &str) -> Option<String> {
        let from_file = || self.file.as_ref()?.flag_value(name).map(str::to_owned);
        flag_value(&self.arguments, name).or_else(from_file)
    }

    /// Whether the caller sets a flag.
    fn has(&self, name: &str) -> bool {
        has_flag(&self.arguments, name) || self.file.as_ref().is_some_and(|file| file.has_flag(name))
    }

    /// Returns a command line with the defaults that the caller does not replace.
    fn with_defaults(self, mut defaults: Vec<FlagValues>) -> Vec<String> {
        defaults.retain(|flag| !self.has(&flag.name));
        merge(&defaults, self.arguments)
    }
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
    fn defaults_yield_to_the_command_line_and_to_the_configuration_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.yaml");
        let text = "apiVersion: config.svc.internal/v1alpha1\nkind: ServerConfiguration\n\
                    apid: {names: svc, data-dir: /d}\nauthd: {authorization-mode: [RBAC]}\n";
        std::fs::write(&file, text).unwrap();
        let config = format!("--config={}", file.display());
        let flags = CallerFlags::read(words(&[&config, "--secure-port", "1", "--data-dir=/e"])).unwrap();
        assert_eq!(flags.value("data-dir").as_deref(), Some("/e"));
        assert_eq!(flags.value("names").as_deref(), Some("svc"));
        assert!(flags.has("authorization-mode") && !flags.has("spawn-authd"));
        let names = ["names", "data-dir", "secure-port", "authorization-mode", "spawn-authd"];
        let defaults = names.map(|name| FlagValues::single(name, "x")).to_vec();
        let line = flags.with_defaults(defaults);
        assert_eq!(line, ["--spawn-authd=x", &config, "--secure-port", "1", "--data-dir=/e"]);
        assert!(CallerFlags::read(words(&["--config=/no/file"])).is_err());
    }
}

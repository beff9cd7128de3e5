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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn role_follows_program_name() {
        assert_eq!(Role::of_program("/a/b/kube-apiserver"), Some(Role::KubeApiserver));
        assert_eq!(Role::of_program("etcd"), Some(Role::Etcd));
        assert_eq!(Role::of_program("/usr/bin/apid"), None);
    }
}

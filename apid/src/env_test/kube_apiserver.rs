//! The `kube-apiserver` of env tests: apid with the names of Kubernetes and its own authd.
//!
//! # Contract
//!
//! The flags are the flags of apid with other defaults: `--names=kubernetes`, `--spawn-authd`, and a
//! `--data-dir` in the data directory of the etcd of `--etcd-servers`, and an empty `--controllers`. The command
//! line and the file of `--config` replace the defaults. The process ends with its parent.
//!
//! No controller of kube-controller-manager runs unless `--controllers` names it, as in an env test of
//! Kubernetes. Terminating namespaces wait for `PUT /finalize`, and no object is garbage-collected. Namespaces
//! get neither a ServiceAccount nor a CA bundle, quotas and policies get no status, and roles are not
//! aggregated.

use std::process::ExitCode;

use serving::arguments::{flag_value, without_flag};
use serving::config_file::FlagValues;

use super::etcd;
use crate::caller_flags::CallerFlags;
use crate::config::{Command, Config};
use crate::console::print;
use crate::process::{self, RunOptions, StopCondition};

/// Default of `--controllers`: an empty value enables no controller of kube-controller-manager.
const CONTROLLERS: &str = "";
/// The subdirectory of etcd's data directory in which apid stores the objects.
const SUBDIRECTORY: &str = "apid";

/// Serves until a termination signal, or until the parent process ends.
///
/// # Errors
///
/// All errors of the command line.
pub(super) fn run(arguments: Vec<String>, parent_id: u32) -> Result<ExitCode, Vec<String>> {
    let servers = flag_value(&arguments, "etcd-servers");
    let flags = CallerFlags::read(without_flag(arguments, "etcd-servers"))?;
    let mut defaults = vec![
        FlagValues::single("names", "kubernetes"),
        FlagValues::single("spawn-authd", "true"),
        FlagValues::single("controllers", CONTROLLERS),
    ];
    let mut errors = Vec::new();
    if let Some(servers) = servers
        && !flags.has("data-dir")
    {
        match etcd::data_dir(&servers) {
            Ok(dir) => {
                defaults.push(FlagValues::single("data-dir", dir.join(SUBDIRECTORY).display().to_string()))
            }
            Err(error) => errors.push(error.to_string()),
        }
    }
    let is_help = flags.arguments.iter().any(|argument| argument == "--help" || argument == "-h");
    if !is_help && !errors.is_empty() {
        return Err(errors);
    }
    match Config::read(flags.with_defaults(defaults))? {
        Command::Serve(config) => {
            let stop = StopCondition::ParentExit(parent_id);
            Ok(process::run_with(*config, RunOptions { stop, ..RunOptions::default() }))
        }
        Command::Print(text) => Ok(print(text)),
    }
}

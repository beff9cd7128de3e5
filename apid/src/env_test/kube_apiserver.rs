//! The `kube-apiserver` of env tests: apid with the names of Kubernetes and an authd of its own.
//!
//! # Contract
//!
//! The flags are those of apid, with other defaults: `--names=kubernetes`, `--spawn-authd`, and a `--data-dir` in
//! the folder of the etcd of `--etcd-servers`. As in an env test without a controller manager, no ConfigMap
//! `kube-root-ca.crt` appears. The process ends with its parent.

use std::io::Write as _;
use std::process::ExitCode;

use serving::config_file::{FlagValues, merge};

use super::{etcd, flag_value, parent, without_flag};
use crate::config::{Command, Config};
use crate::process::{self, RunOptions, StopCondition};

/// The folder of the objects in the folder of etcd.
const FOLDER: &str = "apid";

/// Serves until a signal, or until the parent ends.
///
/// # Errors
///
/// All mistakes of the command line.
pub(super) fn run(arguments: Vec<String>) -> Result<ExitCode, Vec<String>> {
    let parent = parent();
    let mut defaults = vec![
        FlagValues::single("names", "kubernetes"),
        FlagValues::single("spawn-authd", "true"),
        FlagValues::single("controllers", "*,-root-ca-certificate-publisher-controller"),
    ];
    let mut mistakes = Vec::new();
    let has_data_dir = flag_value(&arguments, "data-dir").is_some();
    if let Some(servers) = flag_value(&arguments, "etcd-servers")
        && !has_data_dir
    {
        match etcd::data_dir(&servers) {
            Ok(dir) => defaults.push(FlagValues::single("data-dir", dir.join(FOLDER).display().to_string())),
            Err(mistake) => mistakes.push(mistake),
        }
    }
    let is_help = arguments.iter().any(|argument| argument == "--help" || argument == "-h");
    if !is_help && !mistakes.is_empty() {
        return Err(mistakes);
    }
    match Config::read(merge(&defaults, without_flag(arguments, "etcd-servers")))? {
        Command::Serve(config) => {
            let stop = StopCondition::ParentExit(parent);
            Ok(process::run_with(*config, RunOptions { stop, ..RunOptions::default() }))
        }
        Command::Print(text) => {
            let _ = std::io::stdout().write_all(text.as_bytes());
            Ok(ExitCode::SUCCESS)
        }
    }
}

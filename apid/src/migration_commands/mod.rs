//! `apid convert` and `apid deprecations`: migration from deprecated and removed API versions.
//!
//! # Contract
//!
//! Both commands need no server, except for `--metrics URL`. Results go to standard output, warnings and errors to
//! standard error. The exit codes are:
//!
//! - 0: success;
//! - 1: the operation failed;
//! - 2: `deprecations` found uses of removed versions, or of versions that a later release removes;
//! - 64: invalid command line.

pub mod convert;
pub mod deprecations;

use std::io::{self, Read as _};
use std::path::Path;
use std::process::ExitCode;

use apimachinery::names::{DEFAULT_API_DOMAIN, Names, Preset};
use clap::{Args, Command, FromArgMatches};

use crate::console::{print, report_errors};
use processflags::command_line::{self, ParsedLine};

/// Flags of the names preset.
#[derive(Debug, Args)]
struct PresetFlags {
    /// Names of groups and labels: svc or kubernetes
    #[arg(long, value_name = "PRESET", default_value_t = Preset::Svc)]
    names: Preset,
    /// Domain of the svc preset
    #[arg(long, value_name = "DOMAIN", default_value = DEFAULT_API_DOMAIN)]
    api_domain: String,
}

impl PresetFlags {
    fn names(&self) -> Result<Names, String> {
        Names::new(self.names, &self.api_domain)
            .map_err(|error| format!("`--api-domain={}`: {error}", self.api_domain))
    }
}

/// Format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// YAML.
    Yaml,
    /// JSON.
    Json,
}

/// Parses the flags of a command and calls `run`, which returns the exit code or all errors of the command
/// line.
fn run_command<F: FromArgMatches>(
    command: Command,
    arguments: impl IntoIterator<Item = String>,
    run: impl FnOnce(F) -> Result<ExitCode, Vec<String>>,
) -> ExitCode {
    let result = match command_line::parse(command, arguments) {
        Ok(ParsedLine::Text(text)) => {
            return print(text);
        }
        Ok(ParsedLine::Flags { matches, errors }) if errors.is_empty() => {
            F::from_arg_matches(&matches).map_err(|error| vec![error.to_string()]).and_then(run)
        }
        Ok(ParsedLine::Flags { errors, .. }) | Err(errors) => Err(errors),
    };
    result.unwrap_or_else(|errors| report_errors("apid", &errors))
}

/// Maximum size in bytes of a file with manifests or metrics.
const MAX_INPUT: u64 = 64 << 20;
/// Maximum size in bytes of an audit log.
const MAX_AUDIT_LOG: u64 = 1 << 30;

/// Reads a file of at most `max` bytes, or standard input for `-`.
fn read(path: &Path, max: u64) -> Result<String, String> {
    let read = |input: &mut dyn io::Read| {
        let mut text = String::new();
        let bytes = input.take(max + 1).read_to_string(&mut text)?;
        if bytes as u64 > max {
            return Err(io::Error::other(format!("larger than {} MiB", max >> 20)));
        }
        Ok(text)
    };
    let result = if path == Path::new("-") {
        read(&mut io::stdin())
    } else {
        std::fs::File::open(path).and_then(|mut file| read(&mut file))
    };
    result.map_err(|error| format!("`{}`: {error}", path.display()))
}

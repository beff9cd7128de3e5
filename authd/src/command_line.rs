//! The begin and the end of a command line: the configuration file, help, version, usage errors and exit codes.

use std::ffi::OsString;
use std::fmt::Display;
use std::process::ExitCode;

use clap::CommandFactory as _;
use clap::error::ErrorKind;
use serving::config_file::{self, ServerConfiguration};

use crate::config::Flags;

/// Exit code for an invalid command line (`EX_USAGE` of sysexits).
pub(crate) const USAGE: u8 = 64;

/// Prints help, version or the errors of a command line, and returns the exit code.
pub(crate) fn print_parse_result(error: &clap::Error) -> ExitCode {
    drop(error.print());
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ => ExitCode::from(USAGE),
    }
}

/// Prints mistakes, one line each, and returns the exit code of an invalid command line.
pub(crate) fn print_mistakes(mistakes: impl IntoIterator<Item = impl Display>) -> ExitCode {
    for mistake in mistakes {
        eprintln!("authd: {mistake}");
    }
    ExitCode::from(USAGE)
}

/// Adds the flags of the file of `--config` to a command line with the program name.
///
/// # Errors
///
/// All mistakes of the file.
pub(crate) fn with_configuration_file(
    arguments: Vec<OsString>,
) -> Result<(Vec<OsString>, Option<ServerConfiguration>), Vec<String>> {
    let words = arguments.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>();
    let Some(file) = ServerConfiguration::from_arguments(&words)? else { return Ok((arguments, None)) };
    let mistakes = file.check_flags(&file.authd, &Flags::command());
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let merged = config_file::merge(&file.authd, words).into_iter().map(OsString::from);
    Ok((arguments.into_iter().take(1).chain(merged).collect(), Some(file)))
}

//! Reads the command line of authd: flags, the file of `--config`, help, version, usage errors and exit
//! codes.

use std::fmt::Display;
use std::io::Write as _;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _};
use processflags::command_line::{self, ParsedLine};
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

/// Prints errors to standard error, one line each, and returns the exit code [`USAGE`].
pub(crate) fn print_errors(errors: impl IntoIterator<Item = impl Display>) -> ExitCode {
    for error in errors {
        eprintln!("authd: {error}");
    }
    ExitCode::from(USAGE)
}

/// Parses the flags of the server, without the program name.
/// Returns the valid flags, and the errors in the other flags.
///
/// # Errors
///
/// The exit code, after help, the version, or errors without any usable flags were printed.
pub(crate) fn parse(words: impl IntoIterator<Item = String>) -> Result<(Flags, Vec<String>), ExitCode> {
    let (matches, errors) = match command_line::parse(Flags::command(), words) {
        Ok(ParsedLine::Flags { matches, errors }) => (matches, errors),
        Ok(ParsedLine::Text(text)) => {
            let _ = write!(std::io::stdout(), "{text}");
            return Err(ExitCode::SUCCESS);
        }
        Err(errors) => return Err(print_errors(errors)),
    };
    match Flags::from_arg_matches(&matches) {
        Ok(flags) => Ok((flags, errors)),
        Err(error) => Err(print_parse_result(&error)),
    }
}

/// Adds the flags in the file of `--config` to a command line without program name.
/// Returns all flags and the file; None if there is no `--config`.
///
/// # Errors
///
/// All errors of the file.
pub(crate) fn with_configuration_file(
    words: Vec<String>,
) -> Result<(Vec<String>, Option<ServerConfiguration>), Vec<String>> {
    let Some(file) = ServerConfiguration::from_arguments(&words)? else { return Ok((words, None)) };
    let errors = file.check_flags(&file.authd, &Flags::command());
    if !errors.is_empty() {
        return Err(errors);
    }
    Ok((config_file::merge(&file.authd, words), Some(file)))
}

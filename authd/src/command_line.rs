//! The end of a command line: help, version or usage errors, and their exit codes.

use std::process::ExitCode;

use clap::error::ErrorKind;

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

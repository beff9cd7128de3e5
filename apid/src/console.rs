//! Output of the commands of apid: results on standard output, errors on standard error.

use std::fmt::Display;
use std::io::Write as _;
use std::process::ExitCode;

use crate::config::EXIT_USAGE;

/// Prints to standard output and ignores errors, such as a reader that has closed its end of the pipe. Returns
/// the exit code 0.
pub fn print(text: impl AsRef<[u8]>) -> ExitCode {
    let _ = std::io::stdout().write_all(text.as_ref());
    ExitCode::SUCCESS
}

/// Prints an error. Returns the exit code 1.
pub fn fail(error: impl Display) -> ExitCode {
    eprintln!("apid: {error}");
    ExitCode::FAILURE
}

/// Prints the errors of a command line. Returns the exit code 64.
pub fn report_errors(program: &str, errors: &[String]) -> ExitCode {
    errors.iter().for_each(|error| eprintln!("{program}: {error}"));
    ExitCode::from(EXIT_USAGE)
}

//! Shell completions and the manual page of apid, generated from its command line.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::ValueEnum as _;
use clap_complete::Shell;

use crate::config::command;
use crate::console::{fail, report_errors};

/// Runs `apid completion SHELL`: prints the completions of a shell.
pub fn run_completion(arguments: impl IntoIterator<Item = String>) -> ExitCode {
    let shells = || {
        let names = Shell::value_variants().iter().filter_map(|shell| shell.to_possible_value());
        names.map(|name| name.get_name().to_owned()).collect::<Vec<_>>().join(", ")
    };
    let shell = arguments.into_iter().next().unwrap_or_default();
    match Shell::from_str(&shell, false) {
        Ok(shell) => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command(), "apid", &mut script);
            print(&script)
        }
        Err(_) => {
            let error = format!("`completion {shell}`: the shell must be one of {}", shells());
            report_errors("apid", &[error])
        }
    }
}

/// Runs `apid man`: prints the manual page in roff.
pub fn run_man() -> ExitCode {
    let mut page = Vec::new();
    match clap_mangen::Man::new(command()).render(&mut page) {
        Ok(()) => print(&page),
        Err(error) => fail(format_args!("the manual page cannot be generated: {error}")),
    }
}

/// Prints to standard output. A reader that has closed its end of the pipe is not an error.
fn print(text: &[u8]) -> ExitCode {
    match io::stdout().write_all(text) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        Ok(()) | Err(_) => ExitCode::SUCCESS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_and_manual_page_contain_own_flags_and_those_of_authd() {
        for shell in Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut command(), "apid", &mut script);
            let script = String::from_utf8(script).unwrap();
            for flag in ["storage-quota", "token-auth-file"] {
                assert!(script.contains(flag), "{shell}: {flag}");
            }
        }
        let mut page = Vec::new();
        clap_mangen::Man::new(command()).render(&mut page).unwrap();
        let page = String::from_utf8(page).unwrap().replace("\\-", "-");
        assert!(page.contains("--storage-quota") && page.contains("--token-auth-file"), "{page}");
    }
}

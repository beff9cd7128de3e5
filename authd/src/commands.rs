//! The subcommands of authd: their functions, their help, the shell completions and the manual pages.
//!
//! # Contract
//!
//! [`run`] runs a subcommand by its name. An unknown name is an error that names the nearest subcommand.

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use clap::{Arg, Command, CommandFactory as _};
use processflags::documentation;

use crate::command_line::{parse, print_errors};
use crate::command_list::SUBCOMMANDS;
use crate::config::Flags;
use crate::{build_info, check, inspect};

/// Runs the subcommand that the first of the arguments names. `arguments` are those after the program name.
pub(crate) fn run(arguments: Vec<OsString>) -> ExitCode {
    let (name, rest) = match arguments.split_first() {
        Some((name, rest)) => (name.to_string_lossy().into_owned(), rest),
        None => return print_errors([unknown("")]),
    };
    let first = rest.first().map(|word| word.to_string_lossy().into_owned());
    match name.as_str() {
        "check" => check::run(rest.iter().cloned()),
        "why" | "why-token" | "who-can" | "matrix" | "audit-roles" => inspect::run(arguments),
        "completion" => match documentation::completions(command_line(), &first.unwrap_or_default()) {
            Ok(script) => print(script),
            Err(error) => print_errors([error]),
        },
        "man" => manual_page(first.as_deref()),
        "help" => help(first.as_deref()),
        "version" => print(format!("authd {}", build_info::BUILD_INFO.text())),
        other => print_errors([unknown(other)]),
    }
}

/// Returns the error message for an unknown subcommand.
fn unknown(name: &str) -> String {
    documentation::unknown_subcommand("authd", name, SUBCOMMANDS.iter().map(|(name, _)| *name))
}

/// Returns the subcommands with their flags.
fn definitions() -> Vec<Command> {
    let inspect = inspect::command();
    let described = |(name, about): (&'static str, &'static str)| {
        let command = match name {
            "check" => check::command(),
            "completion" => Command::new(name)
                .arg(Arg::new("shell").value_name("SHELL").value_parser(documentation::shells())),
            "man" | "help" => Command::new(name).arg(
                Arg::new("command").value_name("COMMAND").value_parser(SUBCOMMANDS.map(|(name, _)| name)),
            ),
            _ => inspect.find_subcommand(name).cloned().unwrap_or_else(|| Command::new(name)),
        };
        let command = command.name(name);
        if command.get_about().is_none() { command.about(about) } else { command }
    };
    SUBCOMMANDS.into_iter().map(described).collect()
}

/// Returns the whole command line of authd, for completions and manual pages.
fn command_line() -> Command {
    let command = Flags::command().disable_help_subcommand(true).subcommands(definitions());
    documentation::with_value_hints(command)
}

/// Runs `authd man [COMMAND]`.
fn manual_page(name: Option<&str>) -> ExitCode {
    if let Some(name) = name
        && !SUBCOMMANDS.iter().any(|(other, _)| *other == name)
    {
        return print_errors([unknown(name)]);
    }
    match documentation::manual_page(command_line(), name) {
        Ok(page) => print(page),
        Err(error) => {
            eprintln!("authd: the manual page cannot be generated: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs `authd help [COMMAND]`: prints the text of `--help`.
fn help(name: Option<&str>) -> ExitCode {
    let flag = || "--help".to_owned();
    let Some(name) = name else { return parse([flag()]).err().unwrap_or(ExitCode::FAILURE) };
    if matches!(name, "check" | "why" | "why-token" | "who-can" | "matrix" | "audit-roles") {
        return run(vec![name.into(), flag().into()]);
    }
    match definitions().into_iter().find(|definition| definition.get_name() == name) {
        Some(command) => print(command.bin_name(format!("authd {name}")).render_long_help().to_string()),
        None => print_errors([unknown(name)]),
    }
}

/// Prints to standard output. A reader that has closed its end of the pipe is not an error.
fn print(text: impl AsRef<[u8]>) -> ExitCode {
    let _ = std::io::stdout().write_all(text.as_ref());
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_and_manual_pages_contain_subcommands_and_flags() {
        for shell in documentation::shells() {
            let script = documentation::completions(command_line(), shell).unwrap();
            let script = String::from_utf8(script).unwrap();
            for word in ["token-auth-file", "who-can", "kubeconfig"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
        for (name, _) in SUBCOMMANDS {
            let page = documentation::manual_page(command_line(), Some(name)).unwrap();
            let page = String::from_utf8(page).unwrap().replace("\\-", "-");
            assert!(page.contains(&format!("authd-{name}")), "{page}");
        }
    }

    #[test]
    fn help_lists_each_subcommand_with_a_line() {
        let text = Flags::command().render_long_help().to_string();
        for (name, about) in SUBCOMMANDS {
            assert!(text.contains(&format!("  {name:<13} {about}\n")), "{name} in {text}");
        }
        assert_eq!(definitions().len(), SUBCOMMANDS.len());
    }

    #[test]
    fn error_of_unknown_subcommand_suggests_nearest_name() {
        assert_eq!(
            unknown("whocan"),
            "`whocan` is not a command of authd; a similar command is `who-can` (`authd help` lists all)"
        );
    }
}

//! The subcommands of apid: their functions, their help, the shell completions and the manual pages.
//!
//! # Contract
//!
//! [`run`] runs a subcommand by its name. An unknown name is an error that names the nearest subcommand.

use std::process::ExitCode;

use clap::{Arg, Command};
use processflags::documentation;

use crate::command_list::SUBCOMMANDS;
use crate::config::{self, Config};
use crate::console::{fail, print, report_errors};
use crate::{audit_tail, build_info, certs, env_test, migration_commands, parent_death, store_commands, up};

/// Runs the subcommand `name`. `arguments` are those after the name.
pub fn run(name: &str, arguments: impl IntoIterator<Item = String>) -> ExitCode {
    let arguments: Vec<String> = arguments.into_iter().collect();
    match name {
        "up" => up::run(arguments),
        "test-server" => env_test::run_test_server(arguments),
        "env-test" => env_test::run(arguments),
        "certs" => {
            certs::run(arguments).map_or_else(|errors| report_errors("apid", &errors), |()| ExitCode::SUCCESS)
        }
        "store" => store_commands::run(arguments),
        "audit-tail" => audit_tail::run(arguments),
        "convert" => migration_commands::convert::run(arguments),
        "deprecations" => migration_commands::deprecations::run(arguments),
        "completion" => completion(&arguments),
        "man" => manual_page(&arguments),
        "help" => help(&arguments),
        parent_death::COMMAND => parent_death::run(arguments),
        "version" => print(format!("apid {}", build_info::BUILD_INFO.text())),
        other => report_errors("apid", &[unknown(other)]),
    }
}

/// Returns the error message for an unknown subcommand.
fn unknown(name: &str) -> String {
    documentation::unknown_subcommand("apid", name, SUBCOMMANDS.iter().map(|(name, _)| *name))
}

/// Returns the subcommands with their flags.
fn definitions() -> Vec<Command> {
    let page = Arg::new("command").value_name("COMMAND").value_parser(SUBCOMMANDS.map(|(name, _)| name));
    let shell = Arg::new("shell").value_name("SHELL").value_parser(documentation::shells());
    let plain = |name| Command::new(name);
    let definitions = [
        up::command(),
        plain("test-server"),
        plain("env-test"),
        certs::command(),
        store_commands::command(),
        audit_tail::command(),
        migration_commands::convert::command(),
        migration_commands::deprecations::command(),
        plain("completion").arg(shell),
        plain("man").arg(page.clone()),
        plain("help").arg(page),
        plain("version"),
    ];
    let described = |((name, about), command): ((&'static str, &'static str), Command)| {
        let command = command.name(name);
        if command.get_about().is_none() { command.about(about) } else { command }
    };
    SUBCOMMANDS.into_iter().zip(definitions).map(described).collect()
}

/// Returns the whole command line of apid, for completions and manual pages.
fn command_line() -> Command {
    documentation::with_value_hints(config::command().subcommands(definitions()))
}

/// Runs `apid completion SHELL`.
fn completion(arguments: &[String]) -> ExitCode {
    let shell = arguments.first().map(String::as_str).unwrap_or_default();
    match documentation::completions(command_line(), shell) {
        Ok(script) => print(script),
        Err(error) => report_errors("apid", &[error]),
    }
}

/// Runs `apid man [COMMAND]`.
fn manual_page(arguments: &[String]) -> ExitCode {
    let page = match arguments.first() {
        Some(name) if !SUBCOMMANDS.iter().any(|(other, _)| other == name) => {
            return report_errors("apid", &[unknown(name)]);
        }
        name => documentation::manual_page(command_line(), name.map(String::as_str)),
    };
    match page {
        Ok(page) => print(page),
        Err(error) => fail(format_args!("the manual page cannot be generated: {error}")),
    }
}

/// Runs `apid help [COMMAND]`: prints the text of `--help`.
fn help(arguments: &[String]) -> ExitCode {
    let flag = ["--help".to_owned()];
    match arguments.first().map(String::as_str) {
        None => match Config::read(flag) {
            Ok(config::Command::Print(text)) => print(text),
            Ok(config::Command::Serve(_)) => ExitCode::FAILURE,
            Err(errors) => report_errors("apid", &errors),
        },
        Some("help" | "version") => print("`apid help` and `apid version` have no flags\n"),
        Some(name @ ("completion" | "man")) => match definitions().into_iter().find(|c| c.get_name() == name)
        {
            Some(command) => print(command.bin_name(format!("apid {name}")).render_help().to_string()),
            None => report_errors("apid", &[unknown(name)]),
        },
        Some(name) => run(name, flag),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completions(shell: &str) -> String {
        String::from_utf8(documentation::completions(command_line(), shell).unwrap()).unwrap()
    }

    #[test]
    fn completions_contain_subcommands_flags_and_values() {
        for shell in documentation::shells() {
            let script = completions(shell);
            for word in ["storage-quota", "token-auth-file", "audit-tail", "repair", "demo"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
        let script = completions("bash");
        assert!(script.contains("svc kubernetes"), "values of --names");
        assert!(script.contains("compgen -d") || script.contains("plusdirs"), "directories are completed");
    }

    #[test]
    fn manual_pages_contain_flags_of_both_programs_and_subcommands() {
        let page = |name| {
            let page = documentation::manual_page(command_line(), name).unwrap();
            String::from_utf8(page).unwrap().replace("\\-", "-")
        };
        let text = page(None);
        assert!(text.contains("--storage-quota") && text.contains("--token-auth-file"), "{text}");
        for (name, about) in SUBCOMMANDS.into_iter().filter(|(name, _)| *name != "help") {
            assert!(text.contains(name), "{name}");
            assert!(page(Some(name)).contains(&format!("apid-{name}")), "{name}: {about}");
        }
        assert!(page(Some("up")).contains("--demo"));
    }

    #[test]
    fn help_lists_each_subcommand_with_a_line() {
        let Ok(config::Command::Print(text)) = Config::read(["--help".to_owned()]) else { panic!("no text") };
        for (name, about) in SUBCOMMANDS {
            assert!(text.contains(&format!("  {name:<13} {about}\n")), "{name} in {text}");
            assert!(about.len() <= 90, "{about}");
        }
        for definition in definitions() {
            assert!(definition.get_about().is_some(), "{}", definition.get_name());
        }
    }

    #[test]
    fn error_of_unknown_subcommand_suggests_nearest_name() {
        assert_eq!(
            unknown("stor"),
            "`stor` is not a command of apid; a similar command is `store` (`apid help` lists all)"
        );
        assert!(unknown("xyzzy").contains("the commands are up, test-server, "), "{}", unknown("xyzzy"));
    }
}

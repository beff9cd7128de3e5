//! The entry point of apid: selects the subcommand by program name or first argument and maps its result to
//! an exit code.

use std::process::ExitCode;

use apid::config::{Command, Config};
use apid::console::{print, report_errors};
use processflags::command_line::text_arguments;
use serving::arguments::most_similar;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let arguments = match text_arguments(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(errors) => return report_errors("apid", &errors),
    };
    let mut arguments = arguments.into_iter().peekable();
    let program = arguments.next().unwrap_or_default();
    if let Some(role) = apid::env_test::Role::of_program(&program) {
        return role.run(arguments, None);
    }
    if arguments.next_if(|word| word == "env-test").is_some() {
        return apid::env_test::run(arguments);
    }
    if arguments.next_if(|word| word == "test-server").is_some() {
        return apid::env_test::run_test_server(arguments);
    }
    if arguments.next_if(|word| word == "version").is_some() {
        return print(format!("apid {}", apid::build_info::BUILD_INFO.text()));
    }
    if arguments.next_if(|word| word == "certs").is_some() {
        let result = apid::certs::run(arguments);
        return result.map_or_else(|errors| report_errors("apid", &errors), |()| ExitCode::SUCCESS);
    }
    if arguments.next_if(|word| word == "store").is_some() {
        return apid::store_commands::run(arguments);
    }
    if arguments.next_if(|word| word == "audit-tail").is_some() {
        return apid::audit_tail::run(arguments);
    }
    if arguments.next_if(|word| word == "convert").is_some() {
        return apid::migration_commands::convert::run(arguments);
    }
    if arguments.next_if(|word| word == "deprecations").is_some() {
        return apid::migration_commands::deprecations::run(arguments);
    }
    if arguments.next_if(|word| word == "completion").is_some() {
        return apid::completions::run_completion(arguments);
    }
    if arguments.next_if(|word| word == "man").is_some() {
        return apid::completions::run_man();
    }
    if let Some(command) = arguments.next_if(|word| !word.is_empty() && !word.starts_with('-')) {
        return if command == "help" { help(arguments) } else { report_errors("apid", &[unknown(&command)]) };
    }
    match Config::read(arguments) {
        Ok(Command::Serve(config)) => apid::process::run(*config),
        Ok(Command::Print(text)) => print(text),
        Err(errors) => report_errors("apid", &errors),
    }
}

/// Names of the commands, which precede all flags.
const COMMANDS: [&str; 11] = [
    "audit-tail",
    "certs",
    "completion",
    "convert",
    "deprecations",
    "env-test",
    "help",
    "man",
    "store",
    "test-server",
    "version",
];

/// Returns the error message for an unknown command.
fn unknown(command: &str) -> String {
    let hint = match most_similar(command, COMMANDS) {
        Some(similar) => format!("a similar command is `{similar}`"),
        None => format!("the commands are {}", COMMANDS.join(", ")),
    };
    format!("`{command}` is not a command of apid; {hint} (`apid help`)")
}

/// Runs `apid help` and `apid help COMMAND`: the text of `--help`.
fn help(arguments: impl Iterator<Item = String>) -> ExitCode {
    let flag = ["--help".to_owned()];
    match arguments.into_iter().next().as_deref() {
        None => match Config::read(flag) {
            Ok(Command::Print(text)) => print(text),
            Ok(Command::Serve(_)) => ExitCode::FAILURE,
            Err(errors) => report_errors("apid", &errors),
        },
        Some("certs") => {
            let result = apid::certs::run(flag);
            result.map_or_else(|errors| report_errors("apid", &errors), |()| ExitCode::SUCCESS)
        }
        Some("audit-tail") => apid::audit_tail::run(flag),
        Some("store") => apid::store_commands::run(flag),
        Some("convert") => apid::migration_commands::convert::run(flag),
        Some("deprecations") => apid::migration_commands::deprecations::run(flag),
        Some("test-server") => apid::env_test::run_test_server(flag),
        Some("env-test") => apid::env_test::run(flag),
        Some(command @ ("completion" | "man" | "version" | "help")) => {
            print(format!("`apid {command}` has no flags; `apid help` lists the commands\n"))
        }
        Some(command) => report_errors("apid", &[unknown(command)]),
    }
}

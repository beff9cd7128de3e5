//! The entry point of apid: selects the subcommand by program name or first argument and maps its result to
//! an exit code.

use std::process::ExitCode;

use apid::config::{Command, Config};
use apid::console::{print, report_errors};
use processflags::command_line::text_arguments;

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
    if let Some(command) = arguments.next_if(|word| !word.is_empty() && !word.starts_with('-')) {
        return apid::commands::run(&command, arguments);
    }
    match Config::read(arguments) {
        Ok(Command::Serve(config)) => apid::process::run(*config),
        Ok(Command::Print(text)) => print(text),
        Err(errors) => report_errors("apid", &errors),
    }
}

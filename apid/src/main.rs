//! The entry point of apid: selects the subcommand by program name or first argument and maps its result to
//! an exit code.

use std::io::Write as _;
use std::process::ExitCode;

use apid::config::{Command, Config, EXIT_USAGE};
use processflags::command_line::text_arguments;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let arguments = match text_arguments(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(mistakes) => return report_usage_mistakes(mistakes),
    };
    let mut arguments = arguments.into_iter().peekable();
    let program = arguments.next().unwrap_or_default();
    if let Some(role) = apid::env_test::Role::of_program(&program) {
        return role.run(arguments);
    }
    if arguments.next_if(|word| word == "env-test").is_some() {
        return apid::env_test::run(arguments);
    }
    if arguments.next_if(|word| word == "test-server").is_some() {
        return apid::env_test::run_test_server(arguments);
    }
    if arguments.next_if(|word| word == "version").is_some() {
        let _ = write!(std::io::stdout(), "apid {}", serving::build::INFO.text());
        return ExitCode::SUCCESS;
    }
    if arguments.next_if(|word| word == "certs").is_some() {
        return apid::certs::run(arguments).map_or_else(report_usage_mistakes, |()| ExitCode::SUCCESS);
    }
    if arguments.next_if(|word| word == "store").is_some() {
        return apid::store_commands::run(arguments);
    }
    if arguments.next_if(|word| word == "convert").is_some() {
        return apid::migration_commands::convert::run(arguments);
    }
    if arguments.next_if(|word| word == "deprecations").is_some() {
        return apid::migration_commands::deprecations::run(arguments);
    }
    if arguments.next_if(|word| word == "completion").is_some() {
        return apid::reference::run_completion(arguments);
    }
    if arguments.next_if(|word| word == "man").is_some() {
        return apid::reference::run_man();
    }
    match Config::read(arguments) {
        Ok(Command::Serve(config)) => apid::process::run(*config),
        Ok(Command::Print(text)) => {
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(mistakes) => report_usage_mistakes(mistakes),
    }
}

fn report_usage_mistakes(mistakes: Vec<String>) -> ExitCode {
    for mistake in mistakes {
        eprintln!("apid: {mistake}");
    }
    ExitCode::from(EXIT_USAGE)
}

//! `apid run-with-parent PID PROGRAM ARGUMENTS…`: replaces this process by a program that ends with its parent.
//!
//! # Contract
//!
//! `apid up --etcd` starts its processes with this command. The program gets SIGTERM when the thread that started it ends,
//! so that a killed `apid up` leaves no process. Systems other than Linux send no such signal.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use crate::console::report_errors;

/// The name of the command, which the help text leaves out.
pub(crate) const COMMAND: &str = "run-with-parent";

/// Runs the command; returns only after an error.
pub(crate) fn run(arguments: Vec<String>) -> ExitCode {
    let mut words = arguments.into_iter();
    let parent = words.next().and_then(|word| word.parse::<u32>().ok());
    let (Some(parent), Some(program)) = (parent, words.next()) else {
        return report_errors("apid", &[format!("`{COMMAND}` needs the id of its parent and a program")]);
    };
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
    {
        return report_errors(
            "apid",
            &[format!("the signal at the end of the parent cannot be set: {error}")],
        );
    }
    if std::os::unix::process::parent_id() != parent {
        return report_errors("apid", &["the parent ended before the start".to_owned()]);
    }
    let error = Command::new(&program).args(words).exec();
    report_errors("apid", &[format!("cannot start {program}: {error}")])
}

//! Shell completions and manual pages of both programs, and the message for an unknown subcommand.

use std::io;

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, ValueEnum as _, ValueHint};
use clap_complete::Shell;
use serving::arguments::most_similar;

/// The shells that [`completions`] knows.
pub fn shells() -> Vec<&'static str> {
    vec!["bash", "elvish", "fish", "powershell", "zsh"]
}

/// Returns the error message for an unknown subcommand of a program.
pub fn unknown_subcommand<'n>(
    program: &str,
    name: &str,
    subcommands: impl IntoIterator<Item = &'n str>,
) -> String {
    let subcommands: Vec<&str> = subcommands.into_iter().collect();
    let hint = match most_similar(name, subcommands.iter().copied()) {
        Some(similar) => format!("a similar command is `{similar}`"),
        None => format!("the commands are {}", subcommands.join(", ")),
    };
    format!("`{name}` is not a command of {program}; {hint} (`{program} help` lists all)")
}

/// Adds the possible values that the names of the values say: files, directories, booleans, presets and formats.
#[must_use]
pub fn with_value_hints(command: Command) -> Command {
    command
        .mut_args(with_value_hint)
        .mut_subcommands(|subcommand| subcommand.mut_args(with_value_hint).mut_subcommands(with_value_hints))
}

fn with_value_hint(arg: Arg) -> Arg {
    let values = |values: &'static [&'static str]| PossibleValuesParser::new(values);
    let value_name = arg.get_value_names().and_then(<[_]>::first).map(|name| name.as_str().to_owned());
    let id = arg.get_id().as_str().to_owned();
    match (value_name.as_deref(), id.as_str()) {
        (Some("FILE"), _) => arg.value_hint(ValueHint::FilePath),
        (Some("DIR"), _) => arg.value_hint(ValueHint::DirPath),
        (Some("BOOL"), _) => arg.value_parser(values(&["true", "false"])),
        (Some("PRESET"), _) => arg.value_parser(values(&["svc", "kubernetes"])),
        (Some("FORMAT"), "logging_format") => arg.value_parser(values(&["text", "json"])),
        (Some("LEVEL"), "verbosity") => arg.value_parser(values(&["0", "2", "4", "6", "8"])),
        _ => arg,
    }
}

/// Returns the completions of a shell for a command line. The name of the command is that of the program.
///
/// # Errors
///
/// The shell is unknown; the message names the known ones.
pub fn completions(mut command: Command, shell: &str) -> Result<Vec<u8>, String> {
    let Ok(parsed) = Shell::from_str(shell, false) else {
        return Err(format!("`completion {shell}`: the shell must be one of {}", shells().join(", ")));
    };
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(parsed, &mut command, name, &mut script);
    Ok(script)
}

/// Returns the manual page of a program, or of one of its subcommands, in roff.
///
/// # Errors
///
/// The page cannot be rendered, or the subcommand does not exist.
pub fn manual_page(mut command: Command, subcommand: Option<&str>) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    command.build();
    let Some(name) = subcommand else {
        clap_mangen::Man::new(command).render(&mut page)?;
        return Ok(page);
    };
    let title = format!("{}-{name}", command.get_name());
    let unknown = || io::Error::new(io::ErrorKind::NotFound, format!("`{name}` is not a command"));
    let found = command.find_subcommand(name).ok_or_else(unknown)?;
    clap_mangen::Man::new(found.clone().name(title)).render(&mut page)?;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_shell_names_the_known_shells() {
        for shell in shells() {
            assert!(completions(Command::new("x"), shell).is_ok(), "{shell}");
        }
        let error = completions(Command::new("x"), "csh").unwrap_err();
        assert_eq!(error, "`completion csh`: the shell must be one of bash, elvish, fish, powershell, zsh");
    }

    #[test]
    fn value_names_determine_the_possible_values() {
        let command = Command::new("x")
            .arg(Arg::new("names").long("names").value_name("PRESET"))
            .subcommand(Command::new("y").arg(Arg::new("to").long("to").value_name("FILE")));
        let command = with_value_hints(command);
        let names = command.get_arguments().find(|arg| arg.get_id() == "names").unwrap();
        let values: Vec<_> = names.get_possible_values().iter().map(|v| v.get_name().to_owned()).collect();
        assert_eq!(values, ["svc", "kubernetes"]);
        let to = command.find_subcommand("y").unwrap().get_arguments().next().unwrap().clone();
        assert_eq!(to.get_value_hint(), ValueHint::FilePath);
        let page = String::from_utf8(manual_page(command.clone(), Some("y")).unwrap()).unwrap();
        assert!(page.contains("x-y") || page.contains("x\\-y"), "{page}");
        assert!(manual_page(command, Some("z")).is_err());
    }
}

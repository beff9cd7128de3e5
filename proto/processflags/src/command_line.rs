//! Command lines: clap parses them, and all errors are reported together.
//!
//! # Contract
//!
//! clap stops at the first error. [`parse`] records the error, removes its arguments and parses the rest,
//! until no error remains. Parsing ends at a missing required argument: callers that check required flags
//! themselves report them together with invalid ones.

use std::error::Error as _;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Command};

/// The result of parsing a command line.
#[derive(Debug)]
pub enum ParsedLine {
    /// The valid flags, and the errors in the other arguments.
    Flags {
        /// The values of the valid flags.
        matches: ArgMatches,
        /// One line for each error.
        errors: Vec<String>,
    },
    /// The text of `--help` or `--version`.
    Text(String),
}

/// Returns the arguments as text.
///
/// # Errors
///
/// One line for each argument that is not UTF-8.
pub fn text_arguments(arguments: impl IntoIterator<Item = OsString>) -> Result<Vec<String>, Vec<String>> {
    let (mut texts, mut errors) = (Vec::new(), Vec::new());
    for argument in arguments {
        match argument.into_string() {
            Ok(text) => texts.push(text),
            Err(argument) => errors.push(format!("argument `{}` is not valid UTF-8", argument.display())),
        }
    }
    if errors.is_empty() { Ok(texts) } else { Err(errors) }
}

/// Parses the arguments, without the program name.
///
/// # Errors
///
/// One line for each error. This is the result only if the last error has no argument that can be
/// removed, such as a missing required argument; otherwise [`ParsedLine::Flags`] has the errors.
pub fn parse(
    command: Command,
    arguments: impl IntoIterator<Item = String>,
) -> Result<ParsedLine, Vec<String>> {
    let mut command = command.no_binary_name(true).args_override_self(true);
    let mut arguments: Vec<String> = arguments.into_iter().collect();
    let mut errors = Vec::new();
    loop {
        let error = match command.try_get_matches_from_mut(&arguments) {
            Ok(matches) => return Ok(ParsedLine::Flags { matches, errors }),
            Err(error) => error,
        };
        if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
            return Ok(ParsedLine::Text(error.render().to_string()));
        }
        let error = FlagError::new(&error);
        errors.push(error.text.clone());
        let Some(range) = error.find_argument(&arguments, &command) else { return Err(errors) };
        arguments.drain(range);
    }
}

/// An error and its argument, as clap names it.
struct FlagError {
    text: String,
    /// The flag with its dashes, or a word that is not a flag.
    name: String,
    /// The invalid value; None for an unknown argument, empty for a missing value.
    value: Option<String>,
}

impl FlagError {
    fn new(error: &clap::Error) -> Self {
        let context = |kind| match error.get(kind) {
            Some(ContextValue::String(text)) => Some(text.as_str()),
            Some(_) | None => None,
        };
        let displayed = context(ContextKind::InvalidArg).or_else(|| context(ContextKind::InvalidSubcommand));
        // clap appends the name of the value: `--data-dir <DIR>` or `--spawn-authd[=<BOOL>]`.
        let name = displayed.unwrap_or("").split([' ', '[', '=']).next().unwrap_or("").to_owned();
        let value = context(ContextKind::InvalidValue).map(str::to_owned);
        let text = match (error.kind(), &value) {
            (ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand, _) if !name.starts_with('-') => {
                format!("`{name}` is not a flag")
            }
            (ErrorKind::UnknownArgument, _) => match context(ContextKind::SuggestedArg) {
                Some(similar) => format!("unknown flag `{name}`; a similar flag is `{similar}`"),
                None => format!("unknown flag `{name}`"),
            },
            (ErrorKind::MissingRequiredArgument, _) => match error.get(ContextKind::InvalidArg) {
                Some(ContextValue::Strings(flags)) => format!("missing flag `{}`", flags.join("`, `")),
                Some(_) | None => "missing flag".to_owned(),
            },
            (_, Some(value)) if value.is_empty() => format!("`{name}` needs a value"),
            (_, Some(value)) => {
                let reason = match (error.source(), error.get(ContextKind::ValidValue)) {
                    (Some(source), _) => source.to_string(),
                    (None, Some(ContextValue::Strings(values))) => {
                        format!("use one of {}", values.join(", "))
                    }
                    (None, _) => "the value is invalid".to_owned(),
                };
                format!("`{name}={value}`: {reason}")
            }
            (_, None) => error.render().to_string().lines().next().unwrap_or_default().to_owned(),
        };
        FlagError { text, name, value }
    }

    /// Returns the range of the flag and its value among the arguments; None if they are not there.
    fn find_argument(&self, arguments: &[String], command: &Command) -> Option<std::ops::Range<usize>> {
        let short = command
            .get_arguments()
            .find(|arg| arg.get_long().is_some_and(|long| self.name.strip_prefix("--") == Some(long)))
            .and_then(clap::Arg::get_short)
            .map(|short| format!("-{short}"));
        let names = [Some(&self.name), short.as_ref()];
        for (index, argument) in arguments.iter().enumerate() {
            for name in names.into_iter().flatten() {
                let Some(rest) = argument.strip_prefix(name.as_str()) else { continue };
                let attached = rest.strip_prefix('=').or_else(|| (name.len() == 2).then_some(rest));
                let next = arguments.get(index + 1);
                match (&self.value, rest.is_empty()) {
                    (None, true) => return Some(index..index + 1),
                    (None, false) if attached.is_some() => return Some(index..index + 1),
                    (Some(value), true) if value.is_empty() => {
                        // The missing value may be given as an empty argument.
                        let end = if next.is_some_and(String::is_empty) { index + 2 } else { index + 1 };
                        return Some(index..end);
                    }
                    (Some(value), true) if next == Some(value) => return Some(index..index + 2),
                    (Some(value), false) if attached == Some(value) => return Some(index..index + 1),
                    (None, false) | (Some(_), _) => {}
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use clap::{Arg, ArgAction, value_parser};

    use super::*;

    fn command() -> Command {
        Command::new("x").args([
            Arg::new("port").long("port").value_name("PORT").value_parser(value_parser!(u16)),
            Arg::new("level").short('l').long("level").value_parser(value_parser!(u8)),
            Arg::new("dir").long("dir").value_name("DIR"),
            Arg::new("list").long("list").action(ArgAction::Append),
            Arg::new("switch")
                .long("switch")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .value_parser(serving::flags::boolean),
        ])
    }

    fn parse_words(words: &[&str]) -> (ArgMatches, Vec<String>) {
        match parse(command(), words.iter().map(|word| (*word).to_owned())) {
            Ok(ParsedLine::Flags { matches, errors }) => (matches, errors),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn arguments_that_are_not_utf_8_are_reported_together() {
        use std::os::unix::ffi::OsStringExt as _;
        let invalid = |byte| OsString::from_vec(vec![b'a', byte]);
        let errors = text_arguments([invalid(0xff), "--port".into(), invalid(0x80)]).unwrap_err();
        assert_eq!(errors, ["argument `a\u{fffd}` is not valid UTF-8"; 2]);
        assert_eq!(text_arguments(["--port".into(), "é".into()]).unwrap(), ["--port", "é"]);
    }

    #[test]
    fn missing_required_flags_are_named() {
        let required = |name| Arg::new(name).long(name).value_name("PATH").required(true);
        let command = Command::new("x").args([required("socket"), required("dir")]);
        let errors = parse(command, []).unwrap_err();
        assert_eq!(errors, ["missing flag `--socket <PATH>`, `--dir <PATH>`"]);
    }

    #[test]
    fn all_errors_are_reported_and_valid_flags_are_kept() {
        let (matches, errors) = parse_words(&[
            "--nope",
            "--port=70000",
            "--unknown=5",
            "--port",
            "x",
            "-l",
            "300",
            "-l=y",
            "--switch=maybe",
            "stray",
            "-z",
            "--list=a",
            "--list",
            "b",
            "--switch",
            "--dir",
        ]);
        let prefixes = [
            "unknown flag `--nope`",
            "`--port=70000`: ",
            "unknown flag `--unknown`",
            "`--port=x`: ",
            "`--level=300`: ",
            "`--level=y`: ",
            "`--switch=maybe`: ",
            "`stray` is not a flag",
            "unknown flag `-z`",
            "`--dir` needs a value",
        ];
        assert_eq!(errors.len(), prefixes.len(), "{errors:#?}");
        for prefix in prefixes {
            assert!(errors.iter().any(|error| error.starts_with(prefix)), "{prefix} in {errors:#?}");
        }
        let list: Vec<&String> = matches.get_many("list").unwrap().collect();
        assert_eq!(list, ["a", "b"]);
        assert_eq!(matches.get_one::<bool>("switch"), Some(&true));
    }

    #[test]
    fn last_value_of_repeated_flag_wins() {
        let (matches, errors) = parse_words(&["--port=1", "--port", "2", "-l", "3", "--level=4", "-l5"]);
        assert_eq!(errors, Vec::<String>::new());
        assert_eq!((matches.get_one::<u16>("port"), matches.get_one::<u8>("level")), (Some(&2), Some(&5)));
    }

    #[test]
    fn help_is_printed_although_other_flags_are_invalid() {
        let line = parse(command(), ["--nope", "--port=x", "--help"].map(str::to_owned));
        assert!(matches!(line, Ok(ParsedLine::Text(text)) if text.contains("--port <PORT>")));
    }
}

//! Parser of the command line: `--name value`, `--name=value`, `-v 5`, switches without a value.

use std::collections::BTreeMap;

use super::table::{Flag, FlagValue, find};

/// The parsed command line and its errors.
#[derive(Debug, Default)]
pub(super) struct CommandLine {
    /// The values of each flag, in order.
    values: BTreeMap<&'static str, Vec<String>>,
    /// Whether `--help` was given.
    pub(super) help: bool,
    /// Whether `--version` was given.
    pub(super) version: bool,
    /// The errors, in the order found.
    pub(super) errors: Vec<String>,
}

impl CommandLine {
    /// Parses the arguments, without the program name.
    pub(super) fn parse(arguments: impl IntoIterator<Item = String>) -> Self {
        let mut line = CommandLine::default();
        let mut rest = arguments.into_iter().peekable();
        while let Some(argument) = rest.next() {
            let Some(name) =
                argument.strip_prefix("--").or_else(|| argument.strip_prefix('-')).filter(|n| !n.is_empty())
            else {
                line.errors.push(format!("`{argument}` is not a flag"));
                continue;
            };
            let (name, value) = match name.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (name, None),
            };
            match name {
                "help" | "h" => line.help = true,
                "version" => line.version = true,
                _ => match find(name) {
                    None => line.errors.push(format!("unknown flag `--{name}`")),
                    Some(flag) => {
                        let value = value.or_else(|| match flag.takes {
                            FlagValue::Switch => Some("true".to_owned()),
                            FlagValue::Value(_) | FlagValue::List(_) | FlagValue::JoinedList(_) => {
                                rest.next_if(|next| !next.starts_with("--"))
                            }
                        });
                        line.take(flag, value);
                    }
                },
            }
        }
        line
    }

    fn take(&mut self, flag: &'static Flag, value: Option<String>) {
        match (value, flag.takes) {
            (None, _) => self.errors.push(format!("`--{}` needs a value", flag.name)),
            (Some(value), FlagValue::Switch) if !matches!(value.as_str(), "true" | "false") => {
                self.errors.push(format!("`--{}={value}`: use true or false", flag.name));
            }
            (Some(value), _) => self.values.entry(flag.name).or_default().push(value),
        }
    }

    /// Returns the last value of a flag.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.values.get(name)?.last().map(String::as_str)
    }

    /// Returns the values of a list flag, split at commas.
    pub(super) fn list(&self, name: &str) -> Vec<String> {
        let all = self.values.get(name).into_iter().flatten();
        all.flat_map(|value| value.split(','))
            .map(str::trim)
            .filter(|v| !v.is_empty())
            .map(str::to_owned)
            .collect()
    }

    /// Returns whether a switch is on.
    pub(super) fn switch(&self, name: &str) -> bool {
        self.value(name) == Some("true")
    }

    /// Parses the value of a flag; an invalid value is recorded as an error.
    pub(super) fn read<T>(&mut self, name: &str, read: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let value = self.value(name)?.to_owned();
        match read(&value) {
            Ok(read) => Some(read),
            Err(why) => {
                self.errors.push(format!("`--{name}={value}`: {why}"));
                None
            }
        }
    }

    /// Returns the flags that were given.
    pub(super) fn given(&self) -> impl Iterator<Item = (&'static Flag, &[String])> {
        self.values.iter().filter_map(|(name, values)| Some((find(name)?, values.as_slice())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(arguments: &[&str]) -> CommandLine {
        CommandLine::parse(arguments.iter().map(|a| (*a).to_owned()))
    }

    #[test]
    fn flag_value_parses_after_space_or_equals_sign() {
        let parsed = line(&[
            "--data-dir",
            "/d",
            "--secure-port=0",
            "-v",
            "5",
            "--authorization-mode=Node,RBAC",
            "--spawn-authd",
        ]);
        assert_eq!(parsed.errors, Vec::<String>::new());
        assert_eq!(parsed.value("data-dir"), Some("/d"));
        assert_eq!(parsed.value("secure-port"), Some("0"));
        assert_eq!(parsed.value("v"), Some("5"));
        assert_eq!(parsed.list("authorization-mode"), ["Node", "RBAC"]);
        assert!(parsed.switch("spawn-authd") && !parsed.switch("anonymous-auth"));
        assert!(!line(&["--spawn-authd=false"]).switch("spawn-authd"));
    }

    #[test]
    fn command_line_errors_are_reported_together() {
        let parsed = line(&["--nope", "--spawn-authd=maybe", "stray", "--data-dir", "--secure-port"]);
        assert_eq!(
            parsed.errors,
            [
                "unknown flag `--nope`",
                "`--spawn-authd=maybe`: use true or false",
                "`stray` is not a flag",
                "`--data-dir` needs a value",
                "`--secure-port` needs a value",
            ]
        );
    }
}

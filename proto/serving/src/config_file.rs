//! `--config`: flags of both processes in one versioned file.
//!
//! # Contract
//!
//! The file is a `ServerConfiguration` in YAML or JSON with the sections `apid` and `authd`. A key of a section is
//! a flag without its dashes; its value is a string, number, boolean, list of these, or an object, which stands
//! for a list of `key=value`. A flag of the command line replaces the flag of the file with all its values.
//!
//! # Invariants
//!
//! INVARIANT (strict): an unknown field, an unknown flag, a duplicate field and a list for a flag with one value
//! are errors.

use std::fs;
use std::path::{Path, PathBuf};

use apimachinery::codec::{Limits, yaml};
use apimachinery::names::Names;
use apimachinery::object::{Map, Value};

/// The kind of the file.
pub const KIND: &str = "ServerConfiguration";
/// The stem of the API group of the file.
const GROUP: &str = "config";
/// The only version.
const VERSION: &str = "v1alpha1";
/// The flag that names the file.
const FLAG: &str = "config";

/// A flag with its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlagValues {
    /// The name, without dashes.
    pub name: String,
    /// The values, each as on a command line.
    pub values: Vec<String>,
    /// Whether the value is a list or an object.
    pub is_list: bool,
}

impl FlagValues {
    /// A flag with one value.
    pub fn single(name: &str, value: impl Into<String>) -> Self {
        FlagValues { name: name.to_owned(), values: vec![value.into()], is_list: false }
    }

    /// The arguments of a command line.
    pub fn arguments(&self) -> impl Iterator<Item = String> {
        self.values.iter().map(|value| format!("--{}={value}", self.name))
    }
}

/// A configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfiguration {
    /// The file.
    pub path: PathBuf,
    /// The API version as given.
    api_version: String,
    /// The flags of apid.
    pub apid: Vec<FlagValues>,
    /// The flags of authd.
    pub authd: Vec<FlagValues>,
}

impl ServerConfiguration {
    /// Reads the file that `--config` names among the arguments, if any.
    ///
    /// # Errors
    ///
    /// All errors of the file, one line each.
    pub fn from_arguments(arguments: &[String]) -> Result<Option<Self>, Vec<String>> {
        let mut path = None;
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match argument.strip_prefix("--").and_then(|word| word.strip_prefix(FLAG)) {
                Some("") => path = rest.next().map(PathBuf::from),
                Some(value) => path = value.strip_prefix('=').map(PathBuf::from).or(path),
                None => {}
            }
        }
        path.map(|path| Self::read(&path)).transpose()
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// All errors of the file, one line each.
    pub fn read(path: &Path) -> Result<Self, Vec<String>> {
        let failed = |problem: String| vec![format!("`--config`: file `{}`: {problem}", path.display())];
        let bytes = fs::read(path).map_err(|error| failed(error.to_string()))?;
        let decoded = yaml::decode(&bytes, Limits::BODY).map_err(|error| failed(error.to_string()))?;
        let mut errors: Vec<String> = Vec::new();
        errors.extend(decoded.duplicates.iter().map(|path| format!("duplicate field `{path}`")));
        let Value::Object(mut fields) = decoded.value else {
            return Err(failed("must be an object".to_owned()));
        };
        let api_version = text(fields.remove("apiVersion"));
        let kind = text(fields.remove("kind"));
        if kind != KIND {
            errors.push(format!("kind: `{kind}` must be `{KIND}`"));
        }
        let apid = section("apid", fields.remove("apid"), &mut errors);
        let authd = section("authd", fields.remove("authd"), &mut errors);
        for name in fields.keys() {
            errors.push(format!("unknown field `{name}`; flags stand in the sections `apid` and `authd`"));
        }
        for flag in &apid {
            if authd.iter().any(|other| other.name == flag.name && other.values != flag.values) {
                errors.push(format!("`{}` has different values in `apid` and `authd`", flag.name));
            }
        }
        if errors.is_empty() {
            Ok(ServerConfiguration { path: path.to_owned(), api_version, apid, authd })
        } else {
            Err(errors.into_iter().flat_map(failed).collect())
        }
    }

    /// Checks the API version against the names preset, which flags decide.
    ///
    /// # Errors
    ///
    /// The version is not that of the preset.
    pub fn check_version(&self, names: &Names) -> Result<(), String> {
        let expected = format!("{}/{VERSION}", names.group(GROUP));
        if self.api_version == expected {
            return Ok(());
        }
        Err(self.error(format_args!(
            "apiVersion: `{}` must be `{expected}` with --names={}",
            self.api_version,
            names.preset()
        )))
    }

    /// Formats an error of this file.
    pub fn error(&self, problem: impl std::fmt::Display) -> String {
        format!("`--config`: file `{}`: {problem}", self.path.display())
    }

    /// Checks that a section holds flags of a command, and lists only for flags with several values.
    ///
    /// Returns one line for each mistake. clap checks the values.
    pub fn check_flags(&self, flags: &[FlagValues], command: &clap::Command) -> Vec<String> {
        let mut errors = Vec::new();
        for flag in flags {
            let declared = command.get_arguments().find(|arg| arg.get_long() == Some(flag.name.as_str()));
            match declared {
                _ if flag.name == FLAG => errors.push(self.error("`config` must not name a further file")),
                None => {
                    let similar = similar(&flag.name, command);
                    let hint =
                        similar.map(|name| format!("; a similar flag is `{name}`")).unwrap_or_default();
                    errors.push(self.error(format_args!("unknown flag `{}`{hint}", flag.name)));
                }
                Some(arg) if flag.is_list && !matches!(arg.get_action(), clap::ArgAction::Append) => {
                    errors.push(self.error(format_args!("`{}` has one value, not a list", flag.name)));
                }
                Some(_) => {}
            }
        }
        errors
    }
}

/// Puts flags before a command line that does not give them.
pub fn merge(defaults: &[FlagValues], given: Vec<String>) -> Vec<String> {
    let is_given = |name: &str| {
        given.iter().any(|argument| {
            let long = argument.strip_prefix("--").and_then(|word| word.strip_prefix(name));
            let is_short = name.len() == 1
                && !argument.starts_with("--")
                && argument.strip_prefix('-').is_some_and(|word| word.starts_with(name));
            is_short || long.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        })
    };
    let mut arguments: Vec<String> =
        defaults.iter().filter(|flag| !is_given(&flag.name)).flat_map(FlagValues::arguments).collect();
    arguments.extend(given);
    arguments
}

/// The flags of a section.
fn section(name: &str, value: Option<Value>, errors: &mut Vec<String>) -> Vec<FlagValues> {
    let fields = match value {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(fields)) => fields,
        Some(_) => {
            errors.push(format!("`{name}` must be an object of flags"));
            return Vec::new();
        }
    };
    let mut flags = Vec::new();
    for (flag, value) in fields {
        match values(&value) {
            Some((values, is_list)) => flags.push(FlagValues { name: flag, values, is_list }),
            None => errors.push(format!(
                "`{name}.{flag}` must be a string, a number, a boolean, a list of these, or an object of these"
            )),
        }
    }
    flags
}

/// The values of a flag, and whether they are a list.
fn values(value: &Value) -> Option<(Vec<String>, bool)> {
    match value {
        Value::Array(items) => Some((items.iter().map(scalar).collect::<Option<_>>()?, true)),
        Value::Object(fields) => {
            let pairs = fields.iter().map(|(key, value)| Some(format!("{key}={}", scalar(value)?)));
            Some((pairs.collect::<Option<_>>()?, true))
        }
        single => Some((vec![scalar(single)?], false)),
    }
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.to_string()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(boolean) => Some(boolean.to_string()),
        _ => None,
    }
}

fn text(value: Option<Value>) -> String {
    value.as_ref().and_then(scalar).unwrap_or_default()
}

/// The flag of a command with the least edit distance, if it is close.
fn similar(name: &str, command: &clap::Command) -> Option<String> {
    let longs = command.get_arguments().filter_map(clap::Arg::get_long);
    let (distance, nearest) = longs.map(|long| (edit_distance(name, long), long)).min()?;
    (distance <= name.len() / 3).then(|| nearest.to_owned())
}

/// The Levenshtein distance of two names.
fn edit_distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (line, letter) in from.chars().enumerate() {
        let mut next = vec![line + 1];
        let cells = row.iter().zip(row.iter().skip(1)).zip(&to);
        for ((&diagonal, &above), other) in cells {
            let left = next.last().copied().unwrap_or(line + 1);
            let replaced = diagonal + usize::from(letter != *other);
            next.push(replaced.min(above + 1).min(left + 1));
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
#[path = "tests/config_file.rs"]
mod tests;

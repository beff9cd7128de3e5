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

use apimachinery::document::{Document, Fields};
use apimachinery::names::Names;
use apimachinery::object::Value;

use crate::arguments::{flag_value, has_flag, most_similar};

/// The kind of the file.
pub const KIND: &str = "ServerConfiguration";
/// The stem of the API group of the file.
const GROUP: &str = "config";
/// The only version of the API group of the file.
const VERSION: &str = "v1alpha1";
/// The flag that names the file.
const FLAG: &str = "config";

/// A flag with its values, from the file.
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

    /// The flag as arguments of a command line, `--name=value` for each value.
    pub fn arguments(&self) -> impl Iterator<Item = String> {
        self.values.iter().map(|value| format!("--{}={value}", self.name))
    }
}

/// A configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfiguration {
    /// The path of the file.
    pub path: PathBuf,
    /// The API version as given.
    api_version: String,
    /// The flags of apid.
    pub apid: Vec<FlagValues>,
    /// The flags of authd.
    pub authd: Vec<FlagValues>,
}

/// The beginning of each error of a file.
fn error_prefix(path: &Path) -> String {
    format!("`--config`: file `{}`", path.display())
}

impl ServerConfiguration {
    /// Reads the file that `--config` names among the arguments, if any.
    ///
    /// # Errors
    ///
    /// All errors of the file, one line each.
    pub fn from_arguments(arguments: &[String]) -> Result<Option<Self>, Vec<String>> {
        flag_value(arguments, FLAG).map(|path| Self::read(Path::new(&path))).transpose()
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// All errors of the file, one line each.
    pub fn read(path: &Path) -> Result<Self, Vec<String>> {
        let file_error = |problem: String| format!("{}: {problem}", error_prefix(path));
        let bytes = fs::read(path).map_err(|error| vec![file_error(error.to_string())])?;
        let document = Document::read(&bytes).map_err(|error| vec![file_error(error.to_string())])?;
        let api_version = document.api_version().to_owned();
        // Any version is accepted here: flags determine the valid one, which `check_version` checks.
        let decoded = document.decode(KIND, std::slice::from_ref(&api_version), |fields| {
            let (apid, authd) = (read_section(fields, "apid"), read_section(fields, "authd"));
            for flag in &apid {
                if authd.iter().any(|other| other.name == flag.name && other.values != flag.values) {
                    let path = fields.path().child("authd").child(&flag.name);
                    fields.errors().add_text(&path, "differs from the value in the section `apid`");
                }
            }
            (apid, authd)
        });
        let (apid, authd) = decoded.map_err(|errors| {
            errors.into_iter().map(|error| file_error(error.to_string())).collect::<Vec<_>>()
        })?;
        Ok(ServerConfiguration { path: path.to_owned(), api_version, apid, authd })
    }

    /// Whether a section of the file has a flag.
    pub fn has_flag(&self, name: &str) -> bool {
        self.apid.iter().chain(&self.authd).any(|flag| flag.name == name)
    }

    /// The last value of a flag in the section `apid`; if that section lacks the flag, in the section
    /// `authd`.
    pub fn flag_value(&self, name: &str) -> Option<&str> {
        let flag = self.apid.iter().chain(&self.authd).find(|flag| flag.name == name)?;
        flag.values.last().map(String::as_str)
    }

    /// Checks the API version of the file against the names preset, which is known only from the flags.
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
        format!("{}: {problem}", error_prefix(&self.path))
    }

    /// Checks that the flags of a section belong to a command, and that lists are only for flags with several
    /// values.
    ///
    /// The flag `config` is an error, too. Returns one line for each error. clap checks the values.
    pub fn check_flags(&self, flags: &[FlagValues], command: &clap::Command) -> Vec<String> {
        let mut errors = Vec::new();
        for flag in flags {
            let declared = command.get_arguments().find(|arg| arg.get_long() == Some(flag.name.as_str()));
            match declared {
                _ if flag.name == FLAG => errors.push(self.error("`config` must not name a further file")),
                None => {
                    let flags = command.get_arguments().filter_map(clap::Arg::get_long);
                    let similar = most_similar(&flag.name, flags);
                    let hint =
                        similar.map(|name| format!("; a similar flag is `{name}`")).unwrap_or_default();
                    errors.push(self.error(format_args!("unknown flag `{}`{hint}", flag.name)));
                }
                Some(arg) if flag.is_list && !matches!(arg.get_action(), clap::ArgAction::Append) => {
                    errors.push(self.error(format_args!("`{}` takes one value, not a list", flag.name)));
                }
                Some(_) => {}
            }
        }
        errors
    }
}

/// Returns the arguments of a command line, preceded by those flags of `defaults` that the command line
/// lacks.
pub fn merge(defaults: &[FlagValues], arguments: Vec<String>) -> Vec<String> {
    let missing = defaults.iter().filter(|flag| !has_flag(&arguments, &flag.name));
    let mut merged: Vec<String> = missing.flat_map(FlagValues::arguments).collect();
    merged.extend(arguments);
    merged
}

/// Reads the flags of a section.
fn read_section(fields: &mut Fields<'_>, name: &'static str) -> Vec<FlagValues> {
    let flags = fields.object(name, |fields| {
        let mut flags = Vec::new();
        for (flag, value) in fields.entries().filter(|(_, value)| !value.is_null()) {
            match flag_values(value) {
                Some((values, is_list)) => {
                    flags.push(FlagValues { name: flag.to_owned(), values, is_list });
                }
                None => fields.errors().add_text(
                    &fields.path().child(flag),
                    "must be a string, a number, a boolean, a list of these, or an object of these",
                ),
            }
        }
        flags
    });
    flags.unwrap_or_default()
}

/// Returns the values of a flag, and whether the file gives several (a list or an object) instead of one. None
/// if a value is not a string, number or boolean.
fn flag_values(value: &Value) -> Option<(Vec<String>, bool)> {
    match value {
        Value::Array(items) => Some((items.iter().map(scalar_text).collect::<Option<_>>()?, true)),
        Value::Object(fields) => {
            let pairs = fields.iter().map(|(key, value)| Some(format!("{key}={}", scalar_text(value)?)));
            Some((pairs.collect::<Option<_>>()?, true))
        }
        single => Some((vec![scalar_text(single)?], false)),
    }
}

/// Returns a string, number or boolean as text; None for other types.
fn scalar_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.to_string()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(boolean) => Some(boolean.to_string()),
        _ => None,
    }
}

#[cfg(test)]
#[path = "tests/config_file.rs"]
mod tests;

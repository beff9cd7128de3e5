//! Errors of the configuration: flags, and the files that flags name.
//!
//! # Contract
//!
//! Functions that check the configuration return several errors as a list of [`ConfigError`]. The text of an
//! error begins with the flag or the file, so that an operator finds the place to change.

use std::path::{Path, PathBuf};

/// One error of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The value of a flag is invalid, or a required flag is missing.
    #[error("{flag}: {problem}")]
    Flag {
        /// The flag with its leading dashes.
        flag: String,
        /// The error text after the flag.
        problem: String,
    },
    /// A file that a flag names cannot be used.
    #[error("{flag}: {}: {problem}", path.display())]
    FlagFile {
        /// The flag with its leading dashes.
        flag: String,
        /// The path of the file.
        path: PathBuf,
        /// The error text after the flag and the path.
        problem: String,
    },
    /// A configuration file is invalid; the problem begins with the line and the field.
    #[error("{}: {problem}", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The error text after the path.
        problem: String,
    },
    /// Flags contradict each other, one flag requires another, or an error text already names its file.
    #[error("{0}")]
    Combination(String),
    /// A webhook cannot be set up from its client configuration.
    #[error("webhook `{name}`: {problem}")]
    Webhook {
        /// The name of the webhook authorizer.
        name: String,
        /// The error text after the name.
        problem: String,
    },
}

impl ConfigError {
    /// Creates the error of a flag.
    pub fn flag(flag: impl Into<String>, problem: impl Into<String>) -> Self {
        ConfigError::Flag { flag: flag.into(), problem: problem.into() }
    }

    /// Creates the error of a file that a flag names.
    pub fn flag_file(flag: impl Into<String>, path: &Path, problem: impl Into<String>) -> Self {
        ConfigError::FlagFile { flag: flag.into(), path: path.to_owned(), problem: problem.into() }
    }

    /// Creates the error of a configuration file.
    pub fn file(path: &Path, problem: impl Into<String>) -> Self {
        ConfigError::File { path: path.to_owned(), problem: problem.into() }
    }
}

/// Returns the texts of errors, for tests.
#[cfg(test)]
pub(crate) fn error_texts(errors: Vec<ConfigError>) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

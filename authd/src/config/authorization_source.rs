//! The source of the authorizers: a hot-reloaded file, or the flags.
//!
//! # Contract
//!
//! The file excludes `--authorization-mode` and the `--authorization-webhook-*` flags (requirements
//! A-MODE-14, 15). A changed file is checked as at start. It must also have the authorizer types that were
//! configured at start ([`missing_types`]), and must not add AlwaysAllow while anonymous access is on by
//! default.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use apimachinery::document::Document;
use apimachinery::names::Names;
use processflags::AuthorizationFlags;
use serving::reload::Snapshot;

use super::authorization::{missing_types, read as read_modes};
use super::file;
use crate::authz::Modes;
use crate::config_error::ConfigError;

/// The source of the authorizers: a file, or the flags.
#[derive(Debug)]
pub struct AuthorizationSource {
    names: Arc<Names>,
    /// Whether `--anonymous-auth` is unset: AlwaysAllow at start then turns anonymous access off.
    is_anonymous_auth_unset: bool,
    /// The file, and its snapshot before the first read, which [`AuthorizationSource::take_file`] takes.
    /// None if only flags configure authorizers.
    file: Option<(PathBuf, Option<Snapshot>)>,
}

impl AuthorizationSource {
    /// Reads flags and file at start, and adds errors to `errors`; the modes are then None.
    ///
    /// `webhook_flags`: whether a webhook flag is set.
    pub fn open(
        flags: &AuthorizationFlags,
        webhook_flags: bool,
        is_anonymous_auth_unset: bool,
        names: Arc<Names>,
        errors: &mut Vec<ConfigError>,
    ) -> (Self, Option<Modes>) {
        let path = flags.authorization_config.clone().filter(|path| !path.as_os_str().is_empty());
        let file = path.map(|path| (path.clone(), Some(Snapshot::new([path]))));
        let source = AuthorizationSource { names, is_anonymous_auth_unset, file };
        let modes = match &source.file {
            None => Modes::parse(flags.modes().as_deref()),
            Some(_) if !flags.authorization_mode.is_empty() || webhook_flags => {
                let problem = "--authorization-config can not be specified when --authorization-mode or \
                               --authorization-webhook-* flags are defined";
                Err(vec![ConfigError::Combination(problem.to_owned())])
            }
            Some((path, _)) => {
                let content = file::read(path).map_err(|error| vec![error]);
                let modes = content.and_then(|content| source.decode(path, &content));
                modes.map_err(|problems| {
                    let flag_error =
                        |error: &ConfigError| ConfigError::flag("--authorization-config", error.to_string());
                    problems.iter().map(flag_error).collect()
                })
            }
        };
        (source, modes.map_err(|problems| errors.extend(problems)).ok())
    }

    /// Decodes the content of the file; errors name the path.
    fn decode(&self, path: &Path, content: &[u8]) -> Result<Modes, Vec<ConfigError>> {
        let document = Document::read(content).map_err(|error| vec![error]);
        let modes = document.and_then(|document| read_modes(&document, &self.names));
        modes
            .map_err(|errors| errors.iter().map(|error| ConfigError::file(path, error.to_string())).collect())
    }

    /// Decodes a changed file; `initial` are the authorizers at start.
    ///
    /// # Errors
    ///
    /// All errors of the file, or the first change that needs a restart.
    pub fn decode_reload(
        &self,
        path: &Path,
        content: &[u8],
        initial: &Modes,
    ) -> Result<Modes, Vec<ConfigError>> {
        let modes = self.decode(path, content)?;
        let missing = missing_types(initial, &modes);
        if !missing.is_empty() {
            let problem = format!(
                "authorizers: a reload cannot remove the authorizer types of the start, and {} is missing: add it, \
                 or restart the server",
                missing.join(", ")
            );
            return Err(vec![ConfigError::file(path, problem)]);
        }
        if self.is_anonymous_auth_unset && modes.has_always_allow() && !initial.has_always_allow() {
            let problem = "authorizers: with AlwaysAllow anonymous requests could do everything: set --anonymous-auth, \
                           or restart the server, which then turns anonymous access off";
            return Err(vec![ConfigError::file(path, problem)]);
        }
        Ok(modes)
    }

    /// Takes the path of the file and its snapshot, for a watch; None without a file.
    pub fn take_file(&mut self) -> Option<(PathBuf, Snapshot)> {
        self.file.as_mut().and_then(|(path, snapshot)| Some((path.clone(), snapshot.take()?)))
    }
}

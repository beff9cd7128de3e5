//! The source of the authentication configuration: a hot-reloaded file, or the flags.
//!
//! # Contract
//!
//! File and `oidc-*` flags exclude each other (requirement A-OIDC-46), and so do `--anonymous-auth` and the
//! section `anonymous` of the file. [`AuthenticationSource::decode`] checks a changed file as at start, so
//! the next start accepts each file that a reload accepts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use processflags::OidcFlags;
use serving::reload::Snapshot;

use super::authentication::{Configuration, Context, read};
use super::{file, oidc};
use crate::authn::Anonymous;
use crate::authn::jwt::validated::ValidatedAuthenticator;
use crate::config_error::ConfigError;

/// The flag that names the file.
const FLAG: &str = "--authentication-config";

/// The source of the authentication configuration.
#[derive(Debug)]
pub struct AuthenticationSource {
    context: Context,
    /// The file; None if only flags configure authentication.
    path: Option<PathBuf>,
    /// The value of `--anonymous-auth`; None if the flag is not set.
    anonymous_flag: Option<bool>,
    /// Whether anonymous access is on if neither flag nor file set it.
    anonymous_default: bool,
    /// The snapshot of the file before its first read; None after [`AuthenticationSource::take_file`].
    snapshot: Option<Snapshot>,
}

/// The authenticators and anonymous access that the file or the flags configure.
#[derive(Debug, Default)]
pub struct LoadedConfiguration {
    /// The JWT authenticators, in order.
    pub authenticators: Vec<Arc<ValidatedAuthenticator>>,
    /// Anonymous access, from file or flag.
    pub anonymous: Anonymous,
}

impl AuthenticationSource {
    /// Reads flags and file at start, and adds errors to `errors`.
    ///
    /// `file` is `--authentication-config`. `gate`: whether the feature gate
    /// `StructuredAuthenticationConfiguration` is on. `anonymous` is the value of `--anonymous-auth` and its
    /// default.
    pub fn open(
        file: Option<PathBuf>,
        oidc_flags: &OidcFlags,
        gate: bool,
        anonymous: (Option<bool>, bool),
        context: Context,
        errors: &mut Vec<ConfigError>,
    ) -> (Self, LoadedConfiguration) {
        let path = file.filter(|path| !path.as_os_str().is_empty());
        let (anonymous_flag, anonymous_default) = anonymous;
        let snapshot = path.clone().map(|path| Snapshot::new([path]));
        let source = AuthenticationSource { context, path, anonymous_flag, anonymous_default, snapshot };
        let mut first =
            LoadedConfiguration { anonymous: source.anonymous(None), ..LoadedConfiguration::default() };
        match &source.path {
            None => first.authenticators.extend(oidc::read(oidc_flags, &source.context, errors)),
            Some(_) if oidc_flags.is_any_set() => {
                let problem = "--authentication-config and the oidc flags exclude each other";
                errors.push(ConfigError::Combination(problem.to_owned()));
            }
            Some(_) if !gate => errors.push(ConfigError::flag(
                FLAG,
                "needs --feature-gates=StructuredAuthenticationConfiguration=true",
            )),
            Some(path) => match file::read(path)
                .map_err(|error| vec![error])
                .and_then(|content| source.decode(&content))
            {
                Ok(loaded) => first = loaded,
                Err(problems) => {
                    errors.extend(problems.iter().map(|error| ConfigError::flag(FLAG, error.to_string())))
                }
            },
        }
        (source, first)
    }

    fn anonymous(&self, section: Option<Anonymous>) -> Anonymous {
        let enabled = self.anonymous_flag.unwrap_or(self.anonymous_default);
        section.unwrap_or(Anonymous { enabled, paths: Vec::new() })
    }

    /// Decodes the content of the file.
    ///
    /// # Errors
    ///
    /// All errors, with the path of the file.
    pub fn decode(&self, content: &[u8]) -> Result<LoadedConfiguration, Vec<ConfigError>> {
        let file = self.path.as_deref().unwrap_or(Path::new("-"));
        let error = |problem: String| ConfigError::file(file, problem);
        let Configuration { jwt, anonymous } = read(content, &self.context).map_err(|errors| {
            errors.iter().map(|document_error| error(document_error.to_string())).collect::<Vec<_>>()
        })?;
        if anonymous.is_some() && self.anonymous_flag.is_some() {
            let problem = "anonymous: excludes the flag --anonymous-auth, which is set";
            return Err(vec![error(problem.to_owned())]);
        }
        Ok(LoadedConfiguration { authenticators: jwt, anonymous: self.anonymous(anonymous) })
    }

    /// Takes the path of the file and its snapshot, for a watch; None without a file.
    pub fn take_file(&mut self) -> Option<(PathBuf, Snapshot)> {
        Some((self.path.clone()?, self.snapshot.take()?))
    }
}

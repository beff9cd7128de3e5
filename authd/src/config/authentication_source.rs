//! The source of the authentication configuration: a hot-reloaded file, or the flags.
//!
//! # Contract
//!
//! File and `oidc-*` flags exclude each other (requirement A-OIDC-46), and so do `--anonymous-auth` and the
//! section `anonymous` of the file. [`Source::decode`] applies the rules of the start to a changed file, so
//! that a file accepted by a reload is also accepted by the next start.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serving::reload::Snapshot;

use super::authentication::{Configuration, Context, read};
use super::{document, oidc};
use crate::authn::Anonymous;
use crate::authn::jwt::validated::ValidatedAuthenticator;

/// The flags as written.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Flags {
    /// File with JWT authenticators and the paths of anonymous requests; reloaded when it changes.
    #[arg(long, value_name = "FILE")]
    pub authentication_config: Option<PathBuf>,
    /// One JWT authenticator without a file.
    #[command(flatten)]
    pub oidc: oidc::Flags,
}

/// The source of the authentication configuration.
#[derive(Debug)]
pub struct Source {
    context: Context,
    /// None: flags only.
    path: Option<PathBuf>,
    /// `--anonymous-auth`, if set.
    anonymous_flag: Option<bool>,
    /// Whether anonymous access is on by default.
    anonymous_default: bool,
    /// A snapshot of the file, taken before its first read.
    snapshot: Option<Snapshot>,
}

/// The decoded authenticator configuration.
#[derive(Debug, Default)]
pub struct LoadedConfiguration {
    /// The authenticators.
    pub authenticators: Vec<Arc<ValidatedAuthenticator>>,
    /// Anonymous access.
    pub anonymous: Anonymous,
}

impl Source {
    /// Reads flags and file at start. `gate` is `StructuredAuthenticationConfiguration`.
    pub fn open(
        flags: Flags,
        gate: bool,
        anonymous: (Option<bool>, bool),
        context: Context,
        mistakes: &mut Vec<String>,
    ) -> (Self, LoadedConfiguration) {
        let path = flags.authentication_config.filter(|path| !path.as_os_str().is_empty());
        let (anonymous_flag, anonymous_default) = anonymous;
        let snapshot = path.clone().map(|path| Snapshot::new([path]));
        let source = Source { context, path, anonymous_flag, anonymous_default, snapshot };
        let mut first =
            LoadedConfiguration { anonymous: source.anonymous(None), ..LoadedConfiguration::default() };
        match &source.path {
            None => first.authenticators.extend(flags.oidc.read(&source.context, mistakes)),
            Some(_) if flags.oidc.any() => {
                mistakes.push("--authentication-config and the oidc flags exclude each other".to_owned());
            }
            Some(_) if !gate => mistakes.push(
                "--authentication-config: needs --feature-gates=StructuredAuthenticationConfiguration=true"
                    .to_owned(),
            ),
            Some(path) => {
                let content = document::read_file(path).map_err(|error| vec![error.to_string()]);
                match content.and_then(|content| source.decode(&content)) {
                    Ok(read) => first = read,
                    Err(faults) => mistakes
                        .extend(faults.into_iter().map(|fault| format!("--authentication-config: {fault}"))),
                }
            }
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
    pub fn decode(&self, content: &[u8]) -> Result<LoadedConfiguration, Vec<String>> {
        let file = self.path.as_deref().unwrap_or(Path::new("-")).display();
        let Configuration { jwt, anonymous } = read(content, &self.context)
            .map_err(|faults| faults.iter().map(|fault| format!("{file}: {fault}")).collect::<Vec<_>>())?;
        if anonymous.is_some() && self.anonymous_flag.is_some() {
            return Err(vec![format!("{file}: anonymous: excludes the flag --anonymous-auth, which is set")]);
        }
        Ok(LoadedConfiguration { authenticators: jwt, anonymous: self.anonymous(anonymous) })
    }

    /// Takes the path of the file and the snapshot before its first read; None without a file.
    pub fn take_file(&mut self) -> Option<(PathBuf, Snapshot)> {
        Some((self.path.clone()?, self.snapshot.take()?))
    }
}

//! The source of the authorizers: a hot-reloaded file, or the flags.
//!
//! # Contract
//!
//! The file excludes `--authorization-mode` and the `--authorization-webhook-*` flags (requirements
//! A-MODE-14, 15). A changed file has the same rules as at start, and must keep the authorizer types of the
//! start ([`super::missing`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use apimachinery::clock::Clock;
use apimachinery::names::Names;
use serving::reload::{Snapshot, Watch};

use super::{missing, read as read_modes};
use crate::authz::{self, Modes, Settings};
use crate::config::document::Document;
use crate::config::hot_reload;
use crate::live::Live;
use crate::meters::Meters;
use crate::mirror::Mirror;

/// The subject of notes on the file.
const SUBJECT: &str = "authorization configuration";

/// The flags as written.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Flags {
    /// File with the ordered authorizers and their webhooks, instead of --authorization-mode; reloaded when
    /// it changes.
    #[arg(long, value_name = "FILE")]
    pub authorization_config: Option<PathBuf>,
    /// Ordered list of modes. AlwaysAllow (every request is allowed) and AlwaysDeny are for testing only.
    /// Default: AlwaysAllow.
    #[arg(long, value_name = "MODE,...")]
    pub authorization_mode: Option<String>,
}

/// The source of the authorizers.
#[derive(Debug)]
pub struct Source {
    names: Arc<Names>,
    /// Whether AlwaysAllow turns anonymous access off: `--anonymous-auth` is unset.
    anonymous_follows: bool,
    /// The file, and a snapshot taken before its first read; None: flags only.
    file: Option<(PathBuf, Snapshot)>,
}

impl Source {
    /// Reads flags and file at start. `webhook_flags`: whether a webhook flag is set. `anonymous_follows`:
    /// whether `--anonymous-auth` is unset. An empty list of authorizers is accompanied by mistakes.
    pub fn open(
        flags: &Flags,
        webhook_flags: bool,
        anonymous_follows: bool,
        names: Arc<Names>,
        mistakes: &mut Vec<String>,
    ) -> (Self, Option<Modes>) {
        let path = flags.authorization_config.clone().filter(|path| !path.as_os_str().is_empty());
        let file = path.map(|path| (path.clone(), Snapshot::new([path])));
        let source = Source { names, anonymous_follows, file };
        let modes = match &source.file {
            None => Modes::parse(flags.authorization_mode.as_deref()),
            Some(_) if flags.authorization_mode.is_some() || webhook_flags => Err(vec![
                "--authorization-config can not be specified when --authorization-mode or \
                 --authorization-webhook-* flags are defined"
                    .to_owned(),
            ]),
            Some((path, _)) => {
                let content = hot_reload::read(path).map_err(|fault| vec![fault]);
                let modes = content.and_then(|content| source.modes(path, &content));
                modes.map_err(|faults| {
                    faults.into_iter().map(|fault| format!("--authorization-config: {fault}")).collect()
                })
            }
        };
        (source, modes.map_err(|wrong| mistakes.extend(wrong)).ok())
    }

    /// Decodes the content of the file.
    fn modes(&self, path: &Path, content: &[u8]) -> Result<Modes, Vec<String>> {
        let read = Document::read(content).map_err(|fault| vec![fault]);
        let read = read.and_then(|document| read_modes(&document, &self.names));
        read.map_err(|faults| faults.iter().map(|fault| format!("{}: {fault}", path.display())).collect())
    }

    /// Watches the file until the returned value is dropped.
    /// Needs a runtime. `first` are the authorizers of the start.
    pub fn follow(
        mut self,
        first: &Modes,
        settings: &Settings,
        mirror: &Arc<Mirror>,
        meters: &Arc<Meters>,
        live: &Arc<Live>,
        clock: &Arc<dyn Clock>,
    ) -> Option<Watch> {
        let (path, before) = self.file.take()?;
        let file =
            hot_reload::File { subject: SUBJECT, path: path.clone(), meters: meters.authz_reloads.clone() };
        let (first, settings, mirror) = (first.clone(), settings.clone(), Arc::clone(mirror));
        let (meters, replaced) = (Arc::clone(meters), Arc::clone(live));
        Some(hot_reload::watch(file, before, Arc::clone(live), Arc::clone(clock), move |content| {
            let modes = self.modes(&path, content)?;
            let gone = missing(&first, &modes);
            if !gone.is_empty() {
                return Err(vec![format!(
                    "{}: authorizers: a reload cannot remove the authorizer types of the start, and {} is missing: add it, \
                     or restart the server",
                    path.display(),
                    gone.join(", ")
                )]);
            }
            if self.anonymous_follows && modes.has_always_allow() && !first.has_always_allow() {
                return Err(vec![format!(
                    "{}: authorizers: AlwaysAllow would allow anonymous requests everything: set --anonymous-auth, or \
                     restart the server, which then turns anonymous access off",
                    path.display()
                )]);
            }
            replaced.replace_authz(authz::Union::build(&modes, &settings, &mirror, &meters)?);
            Ok(())
        }))
    }
}

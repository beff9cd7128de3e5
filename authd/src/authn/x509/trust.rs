//! The active CA bundles and revocation lists for client certificates and proxies.
//!
//! # Contract
//!
//! [`Trust::load`] reads the CAs of clients (`--client-ca-file`), those of authenticating proxies
//! (`--requestheader-client-ca-file`) and the revocation lists (`--client-crl-file`), which apply to both
//! bundles.
//! [`Trust::reload`] reads all files again and activates them together, or leaves everything unchanged.
//! A file of revocation lists may be empty at the start, when the CA has not issued a list yet. A file that
//! becomes empty later is an error.
//! An outdated revocation list does not replace the active list of the same issuer key; both lists are then
//! active.
//!
//! # Invariants
//!
//! INVARIANT (one snapshot): a verification uses CAs and lists that were activated together.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use jiff::Timestamp;

use super::chain::{Authorities, ChainError, VerifiedChain};
use super::revocation::{IssuerKey, RevocationLists};
use crate::config_error::ConfigError;

/// The paths of the CA bundles and of the revocation lists.
#[derive(Clone, Debug, Default)]
pub struct TrustFiles {
    /// The file of `--client-ca-file`.
    pub client_ca: Option<PathBuf>,
    /// The file of `--client-crl-file`.
    pub client_crl: Option<PathBuf>,
    /// The file of `--requestheader-client-ca-file`.
    pub proxy_ca: Option<PathBuf>,
}

impl TrustFiles {
    /// Returns all configured paths.
    pub fn paths(&self) -> Vec<PathBuf> {
        let TrustFiles { client_ca, client_crl, proxy_ca } = self;
        [client_ca, client_crl, proxy_ca].into_iter().flatten().cloned().collect()
    }
}

/// The kind of peer that sends a certificate chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::authn) enum PeerKind {
    /// A client with its own certificate.
    Client,
    /// An authenticating proxy.
    Proxy,
}

/// The active CAs and revocation lists.
#[derive(Debug, Default)]
pub struct Trust {
    files: TrustFiles,
    /// `--requestheader-allowed-names` is empty: a proxy may have any name.
    any_proxy_name: bool,
    current: ArcSwap<TrustSnapshot>,
}

/// CAs and revocation lists that are activated together.
#[derive(Debug, Default)]
struct TrustSnapshot {
    clients: Option<Authorities>,
    proxies: Option<Authorities>,
    revocation_lists: RevocationLists,
    /// Remarks on the revocation lists for operators.
    remarks: Vec<String>,
    /// Lists of an earlier file are active beside those of the present file.
    keeps_outdated_lists: bool,
}

impl Trust {
    /// Reads the files.
    /// `any_proxy_name`: `--requestheader-allowed-names` is empty. `now` determines which lists are outdated.
    ///
    /// # Errors
    ///
    /// All errors, each with its flag and file.
    pub fn load(
        files: TrustFiles,
        any_proxy_name: bool,
        now: Timestamp,
    ) -> Result<Arc<Self>, Vec<ConfigError>> {
        let snapshot = TrustSnapshot::read(&files, any_proxy_name, now, &RevocationLists::default())?;
        Ok(Arc::new(Trust { files, any_proxy_name, current: ArcSwap::from_pointee(snapshot) }))
    }

    /// Reads the files again.
    ///
    /// # Errors
    ///
    /// All errors; the active files stay.
    pub fn reload(&self, now: Timestamp) -> Result<(), Vec<ConfigError>> {
        let active = self.current.load();
        let next = TrustSnapshot::read(&self.files, self.any_proxy_name, now, &active.revocation_lists)?;
        self.current.store(Arc::new(next));
        Ok(())
    }

    /// Returns remarks for operators on the active revocation lists: which are outdated or of an unknown CA,
    /// and which CA keys have none. None means no remarks.
    pub fn remarks(&self) -> Option<String> {
        let remarks = self.current.load().remarks.join("; ");
        (!remarks.is_empty()).then_some(remarks)
    }

    /// Whether lists of an earlier file stay active because the present file has an outdated list.
    pub fn keeps_outdated_lists(&self) -> bool {
        self.current.load().keeps_outdated_lists
    }

    /// Whether a CA for this kind of peer is configured.
    pub(in crate::authn) fn trusts(&self, peer: PeerKind) -> bool {
        self.current.load().authorities(peer).is_some()
    }

    /// Verifies a chain, leaf first.
    ///
    /// # Errors
    ///
    /// [`ChainError`]: the check that failed.
    pub(in crate::authn) fn verify<'c>(
        &self,
        peer: PeerKind,
        chain: &'c [Vec<u8>],
        now: Timestamp,
    ) -> Result<VerifiedChain<'c>, ChainError> {
        let snapshot = self.current.load();
        let authorities = snapshot.authorities(peer).ok_or(ChainError::NoAuthority)?;
        authorities.verify(chain, &snapshot.revocation_lists, now)
    }
}

impl TrustSnapshot {
    fn authorities(&self, peer: PeerKind) -> Option<&Authorities> {
        match peer {
            PeerKind::Client => self.clients.as_ref(),
            PeerKind::Proxy => self.proxies.as_ref(),
        }
    }

    /// Reads the files, checks them against each other, and logs warnings about the CA bundles.
    fn read(
        files: &TrustFiles,
        any_proxy_name: bool,
        now: Timestamp,
        active: &RevocationLists,
    ) -> Result<Self, Vec<ConfigError>> {
        let mut errors = Vec::new();
        let TrustFiles { client_ca, client_crl, proxy_ca } = files;
        let clients = read_part(client_ca, "--client-ca-file", Authorities::read, &mut errors);
        let proxies = read_part(proxy_ca, "--requestheader-client-ca-file", Authorities::read, &mut errors);
        let revocation_lists = read_part(client_crl, "--client-crl-file", RevocationLists::read, &mut errors);
        if !errors.is_empty() {
            return Err(errors);
        }
        let mut revocation_lists = revocation_lists.unwrap_or_default();
        // An empty file that replaces lists would lift every revocation.
        if let Some(path) =
            client_crl.as_deref().filter(|_| revocation_lists.is_empty() && !active.is_empty())
        {
            let problem = "the file is empty; the active lists stay".to_owned();
            return Err(vec![ConfigError::flag_file("--client-crl-file", path, problem)]);
        }
        let authorities: Vec<IssuerKey<'_>> =
            clients.iter().chain(&proxies).flat_map(Authorities::issuer_keys).collect();
        let mut remarks = revocation_lists.check_signers(&authorities, now).map_err(|error| {
            let path = files.client_crl.as_deref().unwrap_or(Path::new(""));
            vec![ConfigError::flag_file("--client-crl-file", path, error.to_string())]
        })?;
        if client_crl.is_some() && revocation_lists.is_empty() {
            remarks.push("the file has no list: no certificate is revoked".to_owned());
        }
        if let (Some(clients), Some(proxies)) = (&clients, &proxies)
            && any_proxy_name
            && clients.overlap(proxies)
        {
            tracing::warn!(
                "--requestheader-client-ca-file contains a CA of --client-ca-file and --requestheader-allowed-names is \
                 empty: any client certificate holder can impersonate any user"
            );
        }
        if files.client_crl.is_some() {
            tracing::info!(revoked = revocation_lists.len(), "revocation lists loaded");
        }
        let kept = revocation_lists.keep_from(active, &authorities, now);
        let keeps_outdated_lists = !kept.is_empty();
        remarks.extend(kept);
        Ok(TrustSnapshot { clients, proxies, revocation_lists, remarks, keeps_outdated_lists })
    }
}

/// Reads one file if it is configured; errors are recorded with the flag.
fn read_part<T, E: std::fmt::Display>(
    path: &Option<PathBuf>,
    flag: &str,
    read: impl Fn(&[u8]) -> Result<T, E>,
    errors: &mut Vec<ConfigError>,
) -> Option<T> {
    let path = path.as_deref()?;
    let content = std::fs::read(path).map_err(|error| error.to_string());
    let part = content.and_then(|content| read(&content).map_err(|error| error.to_string()));
    part.map_err(|error| errors.push(ConfigError::flag_file(flag, path, error))).ok()
}

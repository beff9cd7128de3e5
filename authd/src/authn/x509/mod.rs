//! The X.509 client certificate authenticator (requirements A-X509).
//!
//! # Contract
//!
//! The chain must lead to a CA of `--client-ca-file` ([`chain`], [`trust`]). No certificate of the chain may
//! be on a revocation list of `--client-crl-file` ([`revocation`]); this also holds for members of
//! `system:masters`. The last common name of the subject is the user, each organization a group, the
//! attribute 1.3.6.1.4.1.57683.2 the uid ([`subject`]), if the feature gate allows uids.
//! The extra key `credential-id` identifies the certificate by its SHA-256.
//!
//! # Reference
//!
//! Like Kubernetes, but stricter. A certificate without a common name is rejected; Kubernetes ignores such a
//! certificate, so the request may be anonymous. X.509 version 1 certificates are not accepted, nor is
//! `anyExtendedKeyUsage` in place of clientAuth. [`subject`] limits the names in a certificate.

pub(super) mod chain;
pub(super) mod description;
mod revocation;
pub(super) mod subject;
pub(super) mod trust;

use std::sync::Arc;

use apimachinery::names::Names;
use apimachinery::user::UserInfo;
use async_trait::async_trait;
use jiff::Timestamp;

use super::{AuthenticatedIdentity, Authenticator, AuthnContext, AuthnSettings, Credentials, Outcome};
use crate::mirror::MirrorNotReady;
use crate::tokens::sha256_hex;
use subject::CertificateSubject;
use trust::{PeerKind, Trust};

struct ClientCertificates {
    names: Arc<Names>,
    allows_uids: bool,
    trust: Arc<Trust>,
}

pub(super) fn build(settings: &AuthnSettings) -> Option<Arc<dyn Authenticator>> {
    if !settings.trust.trusts(PeerKind::Client) {
        return None;
    }
    Some(Arc::new(ClientCertificates {
        names: Arc::clone(&settings.names),
        allows_uids: settings.certificate_uids,
        trust: Arc::clone(&settings.trust),
    }))
}

#[async_trait]
impl Authenticator for ClientCertificates {
    async fn authenticate(
        &self,
        credentials: Credentials<'_>,
        context: AuthnContext<'_>,
    ) -> Result<Outcome, MirrorNotReady> {
        if credentials.certificates.is_empty() {
            return Ok(Outcome::NotApplicable);
        }
        let identity = self.verify(credentials.certificates, context.now);
        Ok(identity.map_err(|cause| with_description(credentials.certificates, &cause)).into())
    }
}

/// Adds the description of the leaf certificate to the cause of its rejection.
pub(super) fn with_description(chain: &[Vec<u8>], cause: &str) -> String {
    match chain.first() {
        Some(leaf) => format!("{}: {cause}", description::describe(leaf)),
        None => cause.to_owned(),
    }
}

impl ClientCertificates {
    fn verify(&self, chain: &[Vec<u8>], now: Timestamp) -> Result<AuthenticatedIdentity, String> {
        let verified = self.trust.verify(PeerKind::Client, chain, now).map_err(|error| error.to_string())?;
        let user = self.user(verified.leaf)?;
        Ok(AuthenticatedIdentity {
            user,
            not_before: verified.starts,
            expires_at: verified.ends,
            ..AuthenticatedIdentity::default()
        })
    }

    /// Returns the user that the subject of a verified leaf certificate names.
    fn user(&self, leaf: &[u8]) -> Result<UserInfo, String> {
        let CertificateSubject { common_name, organizations, mut uids } =
            CertificateSubject::read(leaf).map_err(|error| error.to_string())?;
        if common_name.is_empty() {
            return Err("the subject has no common name".to_owned());
        }
        let mut user = UserInfo { name: common_name, groups: organizations, ..UserInfo::default() };
        if self.allows_uids {
            if uids.len() > 1 {
                return Err("the subject has more than one uid".to_owned());
            }
            if let Some(uid) = uids.pop() {
                if uid.is_empty() {
                    return Err("the subject's uid is empty".to_owned());
                }
                user.uid = uid;
            }
        }
        let credential_id = format!("X509SHA256={}", sha256_hex(leaf));
        user.extra.insert(self.names.credential_id_extra(), vec![credential_id]);
        Ok(user)
    }
}

#[cfg(test)]
mod tests;

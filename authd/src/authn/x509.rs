//! X.509 client certificates (requirements A-X509).
//!
//! # Contract
//!
//! The chain must lead to an authority of `--client-ca-file`, through the intermediates that the peer sent; every
//! certificate and the authority must be valid now, and fit for client authentication. The subject's last common name
//! is the user, each organization a group, the attribute 1.3.6.1.4.1.57683.2 the uid; the extra key `credential-id`
//! names the certificate by its SHA-256.
//!
//! # Invariants
//!
//! INVARIANT (verify before reading): nothing of a certificate is believed, and its subject not even parsed, before the
//! chain is verified. Path building is bounded by webpki's budgets, the chain by [`MOST_CERTIFICATES`] and
//! [`MOST_BYTES`].
//! INVARIANT (no half identity): a subject attribute that cannot be read rejects the certificate; it is not left out.
//!
//! # Reference
//!
//! As Kubernetes, but: a certificate without a common name is rejected (there it is ignored, and the request may be
//! anonymous); X.509 version 1 certificates are not accepted, nor is `anyExtendedKeyUsage` in place of clientAuth.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::names::Names;
use apimachinery::user::UserInfo;
use aws_lc_rs::digest;
use jiff::Timestamp;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, KeyUsage};
use x509_parser::prelude::{FromDer, X509Certificate};

use async_trait::async_trait;

use super::{Accepted, Authenticator, Credentials, Moment, Outcome, Settings};
use crate::mirror::{Mirror, NotYet};

/// Certificates in a chain.
const MOST_CERTIFICATES: usize = 16;
/// Bytes of a chain.
const MOST_BYTES: usize = 128 * 1024;
/// The subject attribute that holds the uid.
const UID_ATTRIBUTE: &str = "1.3.6.1.4.1.57683.2";

struct ClientCertificates {
    names: Arc<Names>,
    uids: bool,
    authorities: Vec<Authority>,
}

struct Authority {
    anchor: TrustAnchor<'static>,
    from: i64,
    until: i64,
}

pub(super) fn build(settings: &Settings, _: &Arc<Mirror>) -> Result<Option<Box<dyn Authenticator>>, String> {
    let Some(path) = &settings.client_ca_file else { return Ok(None) };
    let named = |mistake: String| format!("--client-ca-file: {}: {mistake}", path.display());
    let bytes = std::fs::read(path).map_err(|error| named(error.to_string()))?;
    let authorities = authorities(&bytes).map_err(named)?;
    Ok(Some(Box::new(ClientCertificates {
        names: Arc::clone(&settings.names),
        uids: settings.certificate_uids,
        authorities,
    })))
}

fn authorities(pem: &[u8]) -> Result<Vec<Authority>, String> {
    let mut found = Vec::new();
    for (at, certificate) in CertificateDer::pem_slice_iter(pem).enumerate() {
        let certificate = certificate.map_err(|error| format!("certificate {}: {error}", at + 1))?;
        let anchor = webpki::anchor_from_trusted_cert(&certificate)
            .map_err(|error| format!("certificate {}: {error}", at + 1))?
            .to_owned();
        let (from, until) =
            validity(&certificate).ok_or_else(|| format!("certificate {} cannot be parsed", at + 1))?;
        found.push(Authority { anchor, from, until });
    }
    if found.is_empty() { Err("no certificate in the file".to_owned()) } else { Ok(found) }
}

/// Seconds since 1970 from which and until which a certificate is valid.
fn validity(der: &[u8]) -> Option<(i64, i64)> {
    let (_, parsed) = X509Certificate::from_der(der).ok()?;
    Some((parsed.validity.not_before.timestamp(), parsed.validity.not_after.timestamp()))
}

#[async_trait]
impl Authenticator for ClientCertificates {
    async fn authenticate(&self, credentials: Credentials<'_>, at: Moment) -> Result<Outcome, NotYet> {
        if credentials.certificates.is_empty() {
            return Ok(Outcome::NotMine);
        }
        Ok(match self.verify(credentials.certificates, at.now) {
            Ok(accepted) => Outcome::Accepted(Box::new(accepted)),
            Err(check) => Outcome::Rejected(check),
        })
    }
}

impl ClientCertificates {
    fn verify(&self, chain: &[Vec<u8>], now: Timestamp) -> Result<Accepted, String> {
        let bytes: usize = chain.iter().map(Vec::len).sum();
        if chain.len() > MOST_CERTIFICATES || bytes > MOST_BYTES {
            return Err(format!("the chain is too long: {} certificates, {bytes} bytes", chain.len()));
        }
        let (leaf, intermediates) = chain.split_first().ok_or("the chain is empty")?;
        let leaf = CertificateDer::from(leaf.as_slice());
        let intermediates: Vec<CertificateDer<'_>> =
            intermediates.iter().map(|der| CertificateDer::from(der.as_slice())).collect();
        let seconds = now.as_second();
        let valid =
            self.authorities.iter().filter(|authority| (authority.from..=authority.until).contains(&seconds));
        let anchors: Vec<TrustAnchor<'_>> = valid.map(|authority| authority.anchor.clone()).collect();
        let at = UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));

        let certificate = EndEntityCert::try_from(&leaf)
            .map_err(|error| format!("the certificate is malformed: {error}"))?;
        let usage = KeyUsage::client_auth();
        let path = certificate
            .verify_for_usage(webpki::ALL_VERIFICATION_ALGS, &anchors, &intermediates, at, usage, None, None)
            .map_err(|error| format!("the chain is not valid: {error}"))?;

        let mut expires = validity(&leaf).ok_or("the certificate cannot be parsed")?.1;
        for certificate in path.intermediate_certificates() {
            expires = expires.min(validity(&certificate.der()).ok_or("an intermediate cannot be parsed")?.1);
        }
        let used = self.authorities.iter().filter(|authority| authority.anchor == *path.anchor());
        expires = used.map(|authority| authority.until).max().map_or(expires, |until| expires.min(until));
        let user = self.user(&leaf)?;
        // The last second of a certificate is still valid.
        let expires_at = Timestamp::from_second(expires.saturating_add(1)).ok();
        Ok(Accepted { user, expires_at, ..Accepted::default() })
    }

    /// The user that a verified certificate names.
    fn user(&self, leaf: &CertificateDer<'_>) -> Result<UserInfo, String> {
        let (_, parsed) = X509Certificate::from_der(leaf).map_err(|_| "the certificate cannot be parsed")?;
        let mut user = UserInfo::default();
        let mut uids = 0;
        for attribute in parsed.subject().iter_attributes() {
            let id = attribute.attr_type().to_id_string();
            let text = || {
                attribute
                    .as_str()
                    .map(str::to_owned)
                    .map_err(|_| format!("subject attribute {id} is not text"))
            };
            match id.as_str() {
                "2.5.4.3" => user.name = text()?,
                "2.5.4.10" => user.groups.push(text()?),
                UID_ATTRIBUTE if self.uids => {
                    user.uid = text()?;
                    uids += 1;
                    if user.uid.is_empty() {
                        return Err("the subject's uid is empty".to_owned());
                    }
                }
                _ => (),
            }
        }
        if user.name.is_empty() {
            return Err("the subject has no common name".to_owned());
        }
        if uids > 1 {
            return Err("the subject has more than one uid".to_owned());
        }
        let digest = digest::digest(&digest::SHA256, leaf);
        let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        user.extra.insert(self.names.credential_id_extra(), vec![format!("X509SHA256={hex}")]);
        Ok(user)
    }
}

#[cfg(test)]
mod tests;

//! Verification of certificate chains against trusted CAs.
//!
//! # Contract
//!
//! A chain is valid if its leaf leads to a CA through the sent intermediates, in any order. Each certificate
//! and the CA must be valid now. Each certificate must be fit for client authentication and not revoked. The
//! result contains the validity period of the whole chain.
//!
//! # Invariants
//!
//! INVARIANT (verify before reading): no part of a certificate is trusted, and no identity is read from the
//! subject, before the chain is verified. Descriptions for the log are the only use of an unverified subject.
//! webpki limits the search for a path; [`MAX_CERTIFICATES`] and [`MAX_CHAIN_BYTES`] limit the received chain.

use std::time::Duration;

use jiff::Timestamp;
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, KeyUsage, VerifiedPath};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::description;
use super::revocation::{IssuerKey, RevocationLists, der_contents};

/// The maximum number of certificates in a chain, including the leaf; a longer chain is rejected.
/// In the worst case webpki tries some thousand paths through 8 certificates.
pub(super) const MAX_CERTIFICATES: usize = 8;
/// Limit in bytes of all certificates of a chain together; a larger chain is rejected.
pub(super) const MAX_CHAIN_BYTES: usize = 128 * 1024;

/// The failed check of a certificate chain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChainError {
    /// No CA is configured for this kind of peer.
    #[error("no CA is configured")]
    NoAuthority,
    /// The chain has no certificate.
    #[error("the chain is empty")]
    Empty,
    /// The chain exceeds [`MAX_CERTIFICATES`] or [`MAX_CHAIN_BYTES`].
    #[error("the chain is too long: {certificates} certificates, {bytes} bytes")]
    TooLong {
        /// Number of certificates, including the leaf.
        certificates: usize,
        /// Size of all certificates in bytes.
        bytes: usize,
    },
    /// A certificate cannot be parsed; contains `the certificate` (the leaf) or `an intermediate`.
    #[error("{0} cannot be parsed")]
    Unparsable(&'static str),
    /// A certificate of the chain is on a revocation list of its issuer.
    #[error("a certificate of the chain is revoked")]
    Revoked,
    /// The leaf is malformed, the chain leads to no CA, or a certificate is not valid now or for clients.
    #[error("{0}")]
    Invalid(String),
}

/// The error of an invalid CA bundle. Certificates are counted from 1.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BundleError {
    /// The PEM of a certificate is malformed.
    #[error("certificate {0}: {1}")]
    Pem(usize, pem::Error),
    /// webpki cannot use a certificate as a trust anchor.
    #[error("certificate {0}: {1}")]
    NotAnAuthority(usize, webpki::Error),
    /// A certificate cannot be parsed.
    #[error("certificate {0}: cannot be parsed")]
    Unparsable(usize),
    /// A certificate is not one of a CA, so that it cannot issue client certificates.
    #[error("certificate {0}: not the certificate of a CA")]
    EndEntity(usize),
    /// The bundle contains no certificate.
    #[error("no certificate in the file")]
    Empty,
}

/// The CAs of a PEM bundle.
pub(crate) struct Authorities(Vec<Authority>);

/// A CA with its validity period in Unix seconds.
struct Authority {
    anchor: TrustAnchor<'static>,
    /// `notBefore`.
    from: i64,
    /// `notAfter`.
    until: i64,
}

/// The leaf of a verified chain, with the validity period of the chain.
#[derive(Debug)]
pub(crate) struct VerifiedChain<'c> {
    /// The leaf certificate in DER.
    pub(crate) leaf: &'c [u8],
    /// The first moment at which the whole chain is valid.
    pub(crate) starts: Option<Timestamp>,
    /// The first moment at which the chain is no longer valid.
    pub(crate) ends: Option<Timestamp>,
}

impl std::fmt::Debug for Authorities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} authorities", self.0.len())
    }
}

impl Authorities {
    /// Reads the certificates of a PEM bundle.
    ///
    /// # Errors
    ///
    /// See [`BundleError`].
    pub(crate) fn read(pem: &[u8]) -> Result<Self, BundleError> {
        let mut authorities = Vec::new();
        for (number, certificate) in (1..).zip(CertificateDer::pem_slice_iter(pem)) {
            let certificate = certificate.map_err(|error| BundleError::Pem(number, error))?;
            let anchor = webpki::anchor_from_trusted_cert(&certificate)
                .map_err(|error| BundleError::NotAnAuthority(number, error))?
                .to_owned();
            let (_, parsed) =
                X509Certificate::from_der(&certificate).map_err(|_| BundleError::Unparsable(number))?;
            if !serving::certs::is_authority(&parsed) {
                return Err(BundleError::EndEntity(number));
            }
            let (from, until) =
                (parsed.validity.not_before.timestamp(), parsed.validity.not_after.timestamp());
            authorities.push(Authority { anchor, from, until });
        }
        if authorities.is_empty() { Err(BundleError::Empty) } else { Ok(Authorities(authorities)) }
    }

    /// The name and the public key of each CA.
    pub(super) fn issuer_keys(&self) -> impl Iterator<Item = IssuerKey<'_>> {
        self.0.iter().map(|authority| key_of(&authority.anchor))
    }

    /// Whether a CA with the same name and public key is in both sets.
    pub(super) fn overlap(&self, others: &Authorities) -> bool {
        let is_same_key = |left: &IssuerKey<'_>, right: &IssuerKey<'_>| {
            left.subject == right.subject && left.public_key == right.public_key
        };
        self.issuer_keys().any(|key| others.issuer_keys().any(|other| is_same_key(&key, &other)))
    }

    /// Verifies a chain, leaf first.
    ///
    /// # Errors
    ///
    /// [`ChainError`]: the check that failed.
    pub(super) fn verify<'c>(
        &self,
        chain: &'c [Vec<u8>],
        lists: &RevocationLists,
        now: Timestamp,
    ) -> Result<VerifiedChain<'c>, ChainError> {
        let bytes: usize = chain.iter().map(Vec::len).sum();
        if chain.len() > MAX_CERTIFICATES || bytes > MAX_CHAIN_BYTES {
            return Err(ChainError::TooLong { certificates: chain.len(), bytes });
        }
        let (leaf, intermediates) = chain.split_first().ok_or(ChainError::Empty)?;
        let certificate = CertificateDer::from(leaf.as_slice());
        let intermediates: Vec<CertificateDer<'_>> =
            intermediates.iter().map(|der| CertificateDer::from(der.as_slice())).collect();
        let seconds = now.as_second();
        let valid_authorities =
            self.0.iter().filter(|authority| (authority.from..=authority.until).contains(&seconds));
        let anchors: Vec<TrustAnchor<'_>> =
            valid_authorities.map(|authority| authority.anchor.clone()).collect();
        let time = UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));

        let end_entity = EndEntityCert::try_from(&certificate)
            .map_err(|error| ChainError::Invalid(description::describe_failure(&error)))?;
        let usage = KeyUsage::client_auth();
        let check_revocation = |path: &VerifiedPath<'_>| {
            if has_revoked_certificate(path, lists) { Err(webpki::Error::CertRevoked) } else { Ok(()) }
        };
        let path = end_entity
            .verify_for_usage(
                webpki::ALL_VERIFICATION_ALGS,
                &anchors,
                &intermediates,
                time,
                usage,
                None,
                Some(&check_revocation),
            )
            .map_err(|error| match error {
                webpki::Error::CertRevoked => ChainError::Revoked,
                error => ChainError::Invalid(self.describe_failure(&error, chain, seconds)),
            })?;

        let (mut not_before, mut not_after) =
            validity(&certificate).ok_or(ChainError::Unparsable("the certificate"))?;
        for certificate in path.intermediate_certificates() {
            let (from, until) =
                validity(&certificate.der()).ok_or(ChainError::Unparsable("an intermediate"))?;
            (not_before, not_after) = (not_before.max(from), not_after.min(until));
        }
        let matching_authorities = || self.0.iter().filter(|authority| authority.anchor == *path.anchor());
        not_before = matching_authorities()
            .map(|authority| authority.from)
            .min()
            .map_or(not_before, |from| not_before.max(from));
        not_after = matching_authorities()
            .map(|authority| authority.until)
            .max()
            .map_or(not_after, |until| not_after.min(until));
        // The chain is still valid during the second that `notAfter` names.
        let ends = Timestamp::from_second(not_after.saturating_add(1)).ok();
        Ok(VerifiedChain { leaf, starts: Timestamp::from_second(not_before).ok(), ends })
    }
}

impl Authorities {
    /// States in words why webpki rejected a chain, and which certificate of the chain is the cause if it is not
    /// the leaf.
    fn describe_failure(&self, error: &webpki::Error, chain: &[Vec<u8>], now: i64) -> String {
        let text = description::describe_failure(error);
        match error {
            webpki::Error::CertExpired { .. } | webpki::Error::CertNotValidYet { .. } => {
                let is_valid =
                    |der: &&Vec<u8>| validity(der).is_some_and(|(from, until)| (from..=until).contains(&now));
                match chain.split_first() {
                    Some((leaf, intermediates)) if is_valid(&leaf) => {
                        let cause = intermediates.iter().find(|der| !is_valid(der));
                        let cause = cause.map_or_else(String::new, |der| description::describe(der));
                        format!("its issuer, the {cause}: {text}")
                    }
                    _ => text,
                }
            }
            webpki::Error::UnknownIssuer => self.describe_invalid_authority(chain, now).unwrap_or(text),
            _ => text,
        }
    }

    /// Names a configured CA that issued a certificate of the chain and is not valid now.
    fn describe_invalid_authority(&self, chain: &[Vec<u8>], now: i64) -> Option<String> {
        let seconds = |time: i64| UnixTime::since_unix_epoch(Duration::from_secs(time.unsigned_abs()));
        chain.iter().find_map(|der| {
            let (_, certificate) = X509Certificate::from_der(der).ok()?;
            let issuer = der_contents(certificate.issuer().as_raw())?;
            let authority = self.0.iter().find(|authority| {
                authority.anchor.subject.as_ref() == issuer
                    && !(authority.from..=authority.until).contains(&now)
            })?;
            let name = description::name_text(certificate.issuer());
            Some(if now > authority.until {
                format!("its CA {name} expired on {}", description::date(seconds(authority.until)))
            } else {
                format!("its CA {name} is not valid before {}", description::date(seconds(authority.from)))
            })
        })
    }
}

/// Whether a certificate of the path is on a revocation list that its issuer signed.
fn has_revoked_certificate(path: &VerifiedPath<'_>, lists: &RevocationLists) -> bool {
    if lists.is_empty() {
        return false;
    }
    let intermediates: Vec<_> = path
        .intermediate_certificates()
        .map(|cert| (cert.subject().to_vec(), cert.subject_public_key_info(), cert.issuer(), cert.serial()))
        .collect();
    let end_entity = path.end_entity();
    let mut certificates = std::iter::once((end_entity.issuer(), end_entity.serial()))
        .chain(intermediates.iter().map(|(_, _, issuer, serial)| (*issuer, *serial)));
    let issuers: Vec<IssuerKey<'_>> = intermediates
        .iter()
        .filter_map(|(subject, info, ..)| Some(IssuerKey { subject, public_key: der_contents(info)? }))
        .chain([key_of(path.anchor())])
        .collect();
    certificates.any(|(issuer, serial)| {
        issuers.iter().filter(|known| known.subject == issuer).any(|known| lists.is_revoked(*known, serial))
    })
}

fn key_of<'a>(anchor: &'a TrustAnchor<'_>) -> IssuerKey<'a> {
    IssuerKey { subject: &anchor.subject, public_key: &anchor.subject_public_key_info }
}

/// Returns `notBefore` and `notAfter` of a certificate in Unix seconds.
fn validity(der: &[u8]) -> Option<(i64, i64)> {
    let (_, parsed) = X509Certificate::from_der(der).ok()?;
    Some((parsed.validity.not_before.timestamp(), parsed.validity.not_after.timestamp()))
}

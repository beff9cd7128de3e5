//! Certificate revocation lists (CRLs): the file of `--client-crl-file`.
//!
//! # Contract
//!
//! [`RevocationLists::read`] reads all lists of a PEM file, or the list of a DER file (RFC 5280, section 5).
//! [`RevocationLists::is_revoked`] returns whether a list revokes a certificate, by serial number and issuer.
//! The list must have the issuer's name and be signed with the issuer's key. A list past its next update
//! still counts: revoked certificates stay revoked. [`RevocationLists::keep_from`] keeps an active list if
//! the new list of the same issuer key is outdated: only a valid new list removes a revocation.
//! Two keys with one issuer name, as in a CA rotation, are two issuers.
//!
//! # Invariants
//!
//! INVARIANT (only the issuer revokes): a list that is not signed with the key of the certificate's issuer
//! does not revoke the certificate.
//! A list with the name of a trusted CA and a foreign signature is an error of the file.
//!
//! # Reference
//!
//! Kubernetes has no such flag. Delta lists, indirect lists and lists with critical extensions unknown to
//! webpki are rejected. A certificate that such a list does not name may still be revoked.

use std::collections::HashSet;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use rustls_pki_types::CertificateRevocationListDer;
use rustls_pki_types::pem::{self, PemObject};
use webpki::BorrowedCertRevocationList;
use x509_parser::asn1_rs::Any;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::{CertificateRevocationList, FromDer};

use crate::tokens::jwk::der;
use crate::tokens::keys::without_leading_zeros;
use crate::tokens::sha256_hex;

/// The error of an invalid file. Lists are counted from 1.
#[derive(Debug, thiserror::Error)]
pub(super) enum ListsError {
    /// The PEM of a list is malformed.
    #[error("list {0}: {1}")]
    Pem(usize, pem::Error),
    /// A list of a PEM file is invalid.
    #[error("list {0}: {1}")]
    List(usize, ListError),
    /// The list of a DER file is invalid.
    #[error(transparent)]
    Der(#[from] ListError),
    /// The file contains no list.
    #[error("no revocation list in the file")]
    Empty,
}

/// The error of an invalid list.
#[derive(Debug, thiserror::Error)]
pub(super) enum ListError {
    /// webpki rejects the list, for example because of an unknown critical extension.
    #[error("not a list that can be used: {0}")]
    Unusable(webpki::Error),
    /// The list cannot be parsed.
    #[error("the list cannot be parsed")]
    Unparsable,
    /// The name of the issuer cannot be parsed.
    #[error("the issuer cannot be parsed")]
    Issuer,
}

/// The error of a list whose issuer is the name of a trusted CA that did not sign the list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the list of `{issuer}` is not signed by the CA of that name")]
pub(super) struct ForeignSignature {
    issuer: String,
}

/// The revocation lists of a file, and active lists that [`RevocationLists::keep_from`] added.
#[derive(Debug, Default)]
pub(super) struct RevocationLists(Vec<Arc<RevocationList>>);

/// One decoded revocation list.
struct RevocationList {
    /// The issuer's name: the contents of its DER value.
    issuer: Vec<u8>,
    /// The issuer's name as text.
    issuer_text: String,
    /// The key identifier of the extension `authorityKeyIdentifier`.
    authority_key_id: Option<Vec<u8>>,
    this_update: i64,
    next_update: Option<i64>,
    serials: HashSet<Vec<u8>>,
    signed: SignedList,
    /// Public keys checked so far, and whether each verifies the signature.
    /// A list may be long, so repeated use of a revoked certificate must not verify the signature again.
    keys: Mutex<Vec<(Vec<u8>, bool)>>,
}

/// Seconds that the clock of an issuer may be ahead of the local clock.
const CLOCK_SKEW: i64 = 300;
/// Maximum number of entries in [`RevocationList::keys`]; results for further keys are not cached.
const MAX_KEYS: usize = 16;

impl std::fmt::Debug for RevocationList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let revoked = self.serials.len();
        f.debug_struct("RevocationList")
            .field("issuer", &self.issuer_text)
            .field("revoked", &revoked)
            .finish_non_exhaustive()
    }
}

/// The signed part of a revocation list, the signature algorithm, and the signature.
struct SignedList {
    message: Vec<u8>,
    /// The signature algorithm: the contents of the DER value of its identifier.
    algorithm: Vec<u8>,
    signature: Vec<u8>,
}

/// A possible issuer of a certificate or of a revocation list.
#[derive(Clone, Copy)]
pub(super) struct IssuerKey<'a> {
    /// The contents of the DER value of the name.
    pub(super) subject: &'a [u8],
    /// The contents of the DER value of the SubjectPublicKeyInfo.
    pub(super) public_key: &'a [u8],
}

impl RevocationLists {
    /// Reads the content of a file in PEM or DER. An empty file has no list.
    ///
    /// # Errors
    ///
    /// See [`ListsError`].
    pub(super) fn read(content: &[u8]) -> Result<Self, ListsError> {
        if content.trim_ascii().is_empty() {
            return Ok(RevocationLists::default());
        }
        if content.first() == Some(&0x30) {
            return Ok(RevocationLists(vec![Arc::new(RevocationList::read(content)?)]));
        }
        let mut lists = Vec::new();
        for (number, list) in (1..).zip(CertificateRevocationListDer::pem_slice_iter(content)) {
            let list = list.map_err(|error| ListsError::Pem(number, error))?;
            lists.push(Arc::new(
                RevocationList::read(&list).map_err(|error| ListsError::List(number, error))?,
            ));
        }
        if lists.is_empty() { Err(ListsError::Empty) } else { Ok(RevocationLists(lists)) }
    }

    /// Checks that each list with the name of a CA in `authorities` is signed by a CA of that name.
    /// Returns remarks for operators: lists of other issuers, CA keys without a list, and lists past their
    /// next update.
    ///
    /// # Errors
    ///
    /// The first list with the name of a CA in `authorities` that no CA of this name signed.
    pub(super) fn check_signers(
        &self,
        authorities: &[IssuerKey<'_>],
        now: Timestamp,
    ) -> Result<Vec<String>, ForeignSignature> {
        let mut remarks = Vec::new();
        for list in &self.0 {
            let RevocationList { issuer, issuer_text, next_update, .. } = &**list;
            let named_authorities: Vec<_> =
                authorities.iter().filter(|authority| authority.subject == issuer.as_slice()).collect();
            if named_authorities.is_empty() {
                remarks.push(format!(
                    "the list of `{issuer_text}` is not of a trusted CA: it applies to intermediates only"
                ));
            } else if !named_authorities.iter().any(|authority| list.is_signed_by(authority.public_key)) {
                return Err(ForeignSignature { issuer: issuer_text.clone() });
            }
            // After a CA key rotation two keys have this name, and each key needs a list of its own.
            for authority in named_authorities {
                let covers_key =
                    |list: &RevocationList| list.issuer == *issuer && list.is_signed_by(authority.public_key);
                let remark = format!(
                    "no list of `{issuer_text}` is signed with its key {}: no certificate signed by this key is revoked",
                    key_fingerprint(authority.public_key)
                );
                if !self.0.iter().any(|list| covers_key(list)) && !remarks.contains(&remark) {
                    remarks.push(remark);
                }
            }
            if next_update.is_some_and(|next| next < now.as_second()) {
                remarks.push(format!("the list of `{issuer_text}` is past its next update"));
            }
        }
        Ok(remarks)
    }

    /// Adds to the new lists (`self`) each active list whose issuer key has an outdated new list. A new list is
    /// outdated past its next update, with a `thisUpdate` more than `CLOCK_SKEW` ahead, or beside a newer valid
    /// list of the key. Returns remarks for operators on the kept lists. `authorities` are the trusted CAs.
    pub(super) fn keep_from(
        &mut self,
        active: &RevocationLists,
        authorities: &[IssuerKey<'_>],
        now: Timestamp,
    ) -> Vec<String> {
        let is_superseded = |list: &RevocationList| {
            active.0.iter().any(|old| {
                list.this_update < old.this_update
                    && !old.is_outdated(now)
                    && list.has_issuer_key_of(old, authorities)
            })
        };
        let is_outdated_or_superseded = |list: &RevocationList| list.is_outdated(now) || is_superseded(list);
        let is_kept = |old: &Arc<RevocationList>| {
            let is_same = |list: &Arc<RevocationList>| list.signed.message == old.signed.message;
            !self.0.iter().any(is_same)
                && self
                    .0
                    .iter()
                    .any(|list| is_outdated_or_superseded(list) && list.has_issuer_key_of(old, authorities))
        };
        let kept: Vec<Arc<RevocationList>> = active.0.iter().filter(|old| is_kept(old)).cloned().collect();
        let remark = |list: &Arc<RevocationList>| {
            format!(
                "the new list of `{}` is expired, of the future or older than the active list: revoked certificates \
                 stay revoked until a valid list arrives",
                list.issuer_text
            )
        };
        let mut remarks: Vec<String> = kept.iter().map(remark).collect();
        remarks.dedup();
        self.0.extend(kept);
        remarks
    }

    /// Whether a list that `issuer` signed revokes the certificate with this serial number.
    pub(super) fn is_revoked(&self, issuer: IssuerKey<'_>, serial: &[u8]) -> bool {
        // The slow signature check comes last: it runs only for a list with this serial number.
        self.0.iter().any(|list| {
            list.issuer == issuer.subject
                && list.serials.contains(without_leading_zeros(serial))
                && list.is_signed_by(issuer.public_key)
        })
    }

    /// Whether there is no list.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of revoked certificates in all lists.
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|list| list.serials.len()).sum()
    }
}

impl RevocationList {
    fn read(der: &[u8]) -> Result<Self, ListError> {
        // webpki rejects delta lists, indirect lists, and lists with unknown critical extensions.
        BorrowedCertRevocationList::from_der(der).map_err(ListError::Unusable)?;
        let (_, parsed) = CertificateRevocationList::from_der(der).map_err(|_| ListError::Unparsable)?;
        let signed = SignedList::parse(der).ok_or(ListError::Unparsable)?;
        let issuer = der_contents(parsed.issuer().as_raw()).ok_or(ListError::Issuer)?;
        // Some encoders write leading zeros.
        let serials = parsed
            .iter_revoked_certificates()
            .map(|entry| without_leading_zeros(entry.raw_serial()).to_vec());
        Ok(RevocationList {
            issuer: issuer.to_vec(),
            issuer_text: parsed.issuer().to_string(),
            authority_key_id: authority_key_id(&parsed),
            this_update: parsed.last_update().timestamp(),
            next_update: parsed.next_update().map(|time| time.timestamp()),
            serials: serials.collect(),
            signed,
            keys: Mutex::default(),
        })
    }

    /// Whether the list is past its next update, or its `thisUpdate` is more than [`CLOCK_SKEW`] ahead.
    fn is_outdated(&self, now: Timestamp) -> bool {
        let now = now.as_second();
        self.next_update.is_some_and(|next| next < now) || self.this_update > now.saturating_add(CLOCK_SKEW)
    }

    /// Whether two lists have the same issuer name and, as far as known, the same issuer key.
    /// If a key of `authorities` signed this list, the signatures decide, else the authority key identifiers.
    /// Lists without an identifier count as lists of one key, so that no revocation is lost.
    fn has_issuer_key_of(&self, other: &RevocationList, authorities: &[IssuerKey<'_>]) -> bool {
        if self.issuer != other.issuer {
            return false;
        }
        let mut issuer_candidates =
            authorities.iter().filter(|authority| authority.subject == self.issuer.as_slice());
        if let Some(signer) = issuer_candidates.find(|authority| self.is_signed_by(authority.public_key)) {
            return other.is_signed_by(signer.public_key);
        }
        match (&self.authority_key_id, &other.authority_key_id) {
            (Some(id), Some(other_id)) => id == other_id,
            _ => true,
        }
    }

    /// Whether the public key verifies the signature of the list; the result is cached.
    fn is_signed_by(&self, public_key: &[u8]) -> bool {
        let find_cached = |keys: &[(Vec<u8>, bool)]| {
            keys.iter().find(|(key, _)| key == public_key).map(|(_, valid)| *valid)
        };
        if let Some(is_valid) = find_cached(&self.keys.lock()) {
            return is_valid;
        }
        let is_valid = self.signed.is_signed_by(public_key);
        let mut keys = self.keys.lock();
        if keys.len() < MAX_KEYS && find_cached(&keys).is_none() {
            keys.push((public_key.to_vec(), is_valid));
        }
        is_valid
    }
}

impl SignedList {
    /// Splits `SEQUENCE { tbsCertList, signatureAlgorithm, signatureValue }`.
    fn parse(der: &[u8]) -> Option<Self> {
        let inner = der_contents(der)?;
        let (rest, _) = Any::from_der(inner).ok()?;
        let message = inner.get(..inner.len().checked_sub(rest.len())?)?;
        let (rest, algorithm) = Any::from_der(rest).ok()?;
        let (_, signature) = Any::from_der(rest).ok()?;
        Some(SignedList {
            message: message.to_vec(),
            algorithm: algorithm.data.to_vec(),
            signature: bits(signature.data)?.to_vec(),
        })
    }

    /// Whether a public key verifies the signature. `public_key` is the contents of a SubjectPublicKeyInfo.
    fn is_signed_by(&self, public_key: &[u8]) -> bool {
        let Ok((rest, algorithm)) = Any::from_der(public_key) else { return false };
        let Ok((_, key)) = Any::from_der(rest) else { return false };
        let Some(key) = bits(key.data) else { return false };
        webpki::ALL_VERIFICATION_ALGS.iter().any(|known| {
            known.signature_alg_id().as_ref() == self.algorithm.as_slice()
                && known.public_key_alg_id().as_ref() == algorithm.data
                && known.verify_signature(key, &self.message, &self.signature).is_ok()
        })
    }
}

/// Returns the key identifier of the issuer in the extension `authorityKeyIdentifier` of a list.
fn authority_key_id(list: &CertificateRevocationList<'_>) -> Option<Vec<u8>> {
    list.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(identifier) => {
            identifier.key_identifier.as_ref().map(|id| id.0.to_vec())
        }
        _ => None,
    })
}

/// Returns the first 8 bytes, in hexadecimal, of the SHA-256 of a SubjectPublicKeyInfo in DER.
/// `public_key` is its contents, without tag and length.
fn key_fingerprint(public_key: &[u8]) -> String {
    sha256_hex(&der(0x30, public_key)).chars().take(16).collect()
}

/// Returns the contents of a DER value, without tag and length.
pub(super) fn der_contents(der: &[u8]) -> Option<&[u8]> {
    Any::from_der(der).ok().map(|(_, any)| any.data)
}

/// Returns the bytes of a BIT STRING; None if it has unused bits. `content` includes their number.
fn bits(content: &[u8]) -> Option<&[u8]> {
    match content.split_first() {
        Some((0, bytes)) => Some(bytes),
        _ => None,
    }
}

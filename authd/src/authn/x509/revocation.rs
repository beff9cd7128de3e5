//! Certificate revocation lists (CRLs): the file of `--client-crl-file`.
//!
//! # Contract
//!
//! [`Lists::read`] reads all lists of a PEM file, or one in DER (RFC 5280, section 5). [`Lists::revoke`]
//! returns whether a list revokes a certificate, by serial number and issuer. The list must have the issuer's
//! name and be signed with the issuer's key. A list past its next update still counts: revoked certificates
//! stay revoked. [`Lists::keep_from`] keeps active lists beside an outdated list of the same issuer: only a
//! valid list removes a revocation.
//!
//! # Invariants
//!
//! INVARIANT (only the issuer revokes): a list that is not signed with the key of the certificate's issuer
//! does not revoke the certificate. A list with the name of a trusted CA and another signature is an error of
//! the file.
//!
//! # Reference
//!
//! Kubernetes has no such flag. Delta lists, indirect lists and lists with critical extensions unknown to
//! webpki are rejected, because their omissions would count as not revoked.

use std::collections::HashSet;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use rustls_pki_types::CertificateRevocationListDer;
use rustls_pki_types::pem::PemObject;
use webpki::BorrowedCertRevocationList;
use x509_parser::asn1_rs::Any;
use x509_parser::prelude::{CertificateRevocationList, FromDer};

/// The revocation lists of a file.
#[derive(Debug, Default)]
pub(super) struct Lists(Vec<Arc<List>>);

/// One revocation list.
struct List {
    /// Contents of the DER value of the issuer's name.
    issuer: Vec<u8>,
    /// The issuer as text.
    shown: String,
    this_update: i64,
    next_update: Option<i64>,
    serials: HashSet<Vec<u8>>,
    signed: Signed,
    /// Public keys checked so far, and whether each verifies the signature.
    /// A list may be long, so repeated use of a revoked certificate must not verify the signature again.
    keys: Mutex<Vec<(Vec<u8>, bool)>>,
}

/// Seconds that the clock of an issuer may be ahead of the local clock.
const CLOCK_SKEW: i64 = 300;
/// Limit of cached keys of a list; few issuers share a name.
const MAX_KEYS: usize = 16;

impl std::fmt::Debug for List {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let revoked = self.serials.len();
        f.debug_struct("List").field("issuer", &self.shown).field("revoked", &revoked).finish_non_exhaustive()
    }
}

/// The signed message, the signature algorithm, and the signature.
struct Signed {
    message: Vec<u8>,
    /// Contents of the DER value of the algorithm identifier.
    algorithm: Vec<u8>,
    signature: Vec<u8>,
}

/// A possible issuer of a certificate: the contents of its name and of its public key info.
#[derive(Clone, Copy)]
pub(super) struct IssuerKey<'a> {
    /// The name.
    pub(super) subject: &'a [u8],
    /// The key.
    pub(super) public_key: &'a [u8],
}

impl Lists {
    /// Reads the content of a file.
    ///
    /// # Errors
    ///
    /// The list that is invalid and why.
    pub(super) fn read(content: &[u8]) -> Result<Self, String> {
        if content.first() == Some(&0x30) {
            return Ok(Lists(vec![Arc::new(List::read(content)?)]));
        }
        let mut lists = Vec::new();
        for (at, list) in CertificateRevocationListDer::pem_slice_iter(content).enumerate() {
            let wrong = |error: String| format!("list {}: {error}", at + 1);
            let list = list.map_err(|error| wrong(error.to_string()))?;
            lists.push(Arc::new(List::read(&list).map_err(wrong)?));
        }
        if lists.is_empty() { Err("no revocation list in the file".to_owned()) } else { Ok(Lists(lists)) }
    }

    /// Checks that each list with the name of a CA is signed by that CA.
    /// Returns remarks for operators on the other lists.
    ///
    /// # Errors
    ///
    /// The first list whose signer does not match its name.
    pub(super) fn check_signers(
        &self,
        authorities: &[IssuerKey<'_>],
        now: Timestamp,
    ) -> Result<Vec<String>, String> {
        let mut remarks = Vec::new();
        for list in &self.0 {
            let List { issuer, shown, next_update, .. } = &**list;
            let mut of_name =
                authorities.iter().filter(|authority| authority.subject == issuer.as_slice()).peekable();
            if of_name.peek().is_none() {
                remarks.push(format!(
                    "the list of `{shown}` is not of a trusted CA: it applies to intermediates only"
                ));
            } else if !of_name.any(|authority| list.is_by(authority.public_key)) {
                return Err(format!("the list of `{shown}` is not signed by the CA of that name"));
            }
            // After a CA key rotation: the list of the new key does not cover certificates of the old key.
            for authority in authorities.iter().filter(|authority| authority.subject == issuer.as_slice()) {
                let listed = |list: &List| list.issuer == *issuer && list.is_by(authority.public_key);
                let remark = format!(
                    "no list of `{shown}` is signed with its key {}: no certificate signed by this key is revoked",
                    key_fingerprint(authority.public_key)
                );
                if !self.0.iter().any(|list| listed(list)) && !remarks.contains(&remark) {
                    remarks.push(remark);
                }
            }
            if next_update.is_some_and(|next| next < now.as_second()) {
                remarks.push(format!("the list of `{shown}` is past its next update"));
            }
        }
        Ok(remarks)
    }

    /// Keeps each active list whose issuer has an outdated list here.
    /// Outdated means past its next update, of the future, or older than a valid active list. Returns a
    /// remark for operators on each.
    pub(super) fn keep_from(&mut self, in_force: &Lists, now: Timestamp) -> Vec<String> {
        let is_older = |list: &List, old: &List| {
            old.issuer == list.issuer && list.this_update < old.this_update && !old.is_outdated(now)
        };
        let is_bad = |list: &List| list.is_outdated(now) || in_force.0.iter().any(|old| is_older(list, old));
        let is_kept = |old: &Arc<List>| {
            let is_same = |list: &Arc<List>| list.signed.message == old.signed.message;
            let mut of_issuer = self.0.iter().filter(|list| list.issuer == old.issuer);
            !self.0.iter().any(is_same) && of_issuer.any(|list| is_bad(list))
        };
        let kept: Vec<Arc<List>> = in_force.0.iter().filter(|old| is_kept(old)).cloned().collect();
        let remark = |list: &Arc<List>| {
            format!(
                "the new list of `{}` is expired, of the future or older than the active list: revoked certificates \
                 stay revoked until a valid list arrives",
                list.shown
            )
        };
        let mut remarks: Vec<String> = kept.iter().map(remark).collect();
        remarks.dedup();
        self.0.extend(kept);
        remarks
    }

    /// Whether an issuer has revoked the certificate with a serial number.
    pub(super) fn revoke(&self, issuer: IssuerKey<'_>, serial: &[u8]) -> bool {
        // The signature check comes last: only for a list that names the certificate.
        self.0.iter().any(|list| {
            list.issuer == issuer.subject
                && list.serials.contains(serial_digits(serial))
                && list.is_by(issuer.public_key)
        })
    }

    /// The number of revoked certificates.
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|list| list.serials.len()).sum()
    }
}

impl List {
    fn read(der: &[u8]) -> Result<Self, String> {
        // webpki rejects lists with extensions that a reader must not ignore.
        BorrowedCertRevocationList::from_der(der)
            .map_err(|error| format!("not a list that can be used: {error}"))?;
        let (_, parsed) =
            CertificateRevocationList::from_der(der).map_err(|_| "the list cannot be parsed".to_owned())?;
        let signed = Signed::of(der).ok_or("the list cannot be parsed")?;
        let issuer = der_contents(parsed.issuer().as_raw()).ok_or("the issuer cannot be parsed")?;
        let serials =
            parsed.iter_revoked_certificates().map(|entry| serial_digits(entry.raw_serial()).to_vec());
        Ok(List {
            issuer: issuer.to_vec(),
            shown: parsed.issuer().to_string(),
            this_update: parsed.last_update().timestamp(),
            next_update: parsed.next_update().map(|at| at.timestamp()),
            serials: serials.collect(),
            signed,
            keys: Mutex::default(),
        })
    }

    /// Whether the list is past its next update or from the future.
    fn is_outdated(&self, now: Timestamp) -> bool {
        let now = now.as_second();
        self.next_update.is_some_and(|next| next < now) || self.this_update > now.saturating_add(CLOCK_SKEW)
    }

    /// Whether the holder of a public key signed the list.
    fn is_by(&self, public_key: &[u8]) -> bool {
        let known =
            |keys: &[(Vec<u8>, bool)]| keys.iter().find(|(key, _)| key == public_key).map(|(_, by)| *by);
        if let Some(by) = known(&self.keys.lock()) {
            return by;
        }
        let by = self.signed.is_by(public_key);
        let mut keys = self.keys.lock();
        if keys.len() < MAX_KEYS && known(&keys).is_none() {
            keys.push((public_key.to_vec(), by));
        }
        by
    }
}

impl Signed {
    /// Splits `SEQUENCE { tbsCertList, signatureAlgorithm, signatureValue }`.
    fn of(der: &[u8]) -> Option<Self> {
        let inner = der_contents(der)?;
        let (rest, _) = Any::from_der(inner).ok()?;
        let message = inner.get(..inner.len().checked_sub(rest.len())?)?;
        let (rest, algorithm) = Any::from_der(rest).ok()?;
        let (_, signature) = Any::from_der(rest).ok()?;
        Some(Signed {
            message: message.to_vec(),
            algorithm: algorithm.data.to_vec(),
            signature: bits(signature.data)?.to_vec(),
        })
    }

    /// Whether a public key verifies the signature.
    fn is_by(&self, public_key: &[u8]) -> bool {
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

/// The first bytes of the SHA-256 of a public key info, as `openssl pkey -pubin` encodes it.
fn key_fingerprint(public_key: &[u8]) -> String {
    let mut whole = match u16::try_from(public_key.len()) {
        Ok(length @ 0..=0x7f) => vec![0x30, length.to_be_bytes()[1]],
        Ok(length @ 0x80..=0xff) => vec![0x30, 0x81, length.to_be_bytes()[1]],
        Ok(length) => [&[0x30, 0x82], length.to_be_bytes().as_slice()].concat(),
        Err(_) => Vec::new(),
    };
    whole.extend(public_key);
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &whole);
    digest.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// The contents of a DER value.
pub(super) fn der_contents(der: &[u8]) -> Option<&[u8]> {
    Any::from_der(der).ok().map(|(_, any)| any.data)
}

/// The bytes of a BIT STRING without unused bits.
fn bits(content: &[u8]) -> Option<&[u8]> {
    match content.split_first() {
        Some((0, bytes)) => Some(bytes),
        _ => None,
    }
}

/// A serial number without the leading zeros that some encoders write.
fn serial_digits(bytes: &[u8]) -> &[u8] {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    bytes.get(zeros..).unwrap_or_default()
}

//! The file of revocation lists (CRLs) of an authority: `ca.crl`.
//!
//! # Contract
//!
//! The file has one list of the authority, in PEM. Lists of other authorities, such as the previous one during a
//! rotation, stay when the list of the authority changes. A list names revoked certificates forever and has the end of
//! the authority as its next update: the list changes only when a certificate is revoked.
//!
//! # Invariants
//!
//! INVARIANT (revocations stay): no function removes a serial number from a list, and a file that cannot be parsed is
//! never replaced.

use std::path::Path;

use jiff::Timestamp;
use rcgen::{CertificateRevocationListParams, KeyIdMethod, RevokedCertParams, SerialNumber};
use rustls_pki_types::CertificateRevocationListDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};
use x509_parser::x509::SubjectPublicKeyInfo;

use super::facts::{CertificateFacts, without_leading_zeros};
use super::{Authority, CertError, pem_block, since_epoch, subject, write};

/// Label of the PEM block of a list.
const LABEL: &str = "X509 CRL";

/// The lists of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RevocationFile {
    /// Lists, DER.
    lists: Vec<Vec<u8>>,
}

/// A certificate that a list revokes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Revoked {
    /// Serial number without leading zeros.
    serial: Vec<u8>,
    /// Time of the revocation in seconds since 1970.
    time: i64,
}

impl RevocationFile {
    /// Reads a file. An absent or empty file has no list.
    ///
    /// # Errors
    ///
    /// The file is unreadable, or one of its lists is malformed.
    pub fn read(path: &Path) -> Result<Self, CertError> {
        let content = match std::fs::read(path) {
            Ok(content) => content,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(CertError::unusable(path, error)),
        };
        let mut lists = Vec::new();
        for list in CertificateRevocationListDer::pem_slice_iter(&content) {
            let list = list.map_err(|error| CertError::unusable(path, error))?;
            CertificateRevocationList::from_der(&list)
                .map_err(|_| CertError::unusable(path, "a revocation list cannot be parsed"))?;
            lists.push(list.as_ref().to_vec());
        }
        if lists.is_empty() && !content.trim_ascii().is_empty() {
            return Err(CertError::unusable(path, "has no revocation list in PEM"));
        }
        Ok(RevocationFile { lists })
    }

    /// Whether the file has no list.
    pub fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    /// Whether a list of the issuer of a certificate revokes the certificate. `authorities` are possible issuers.
    pub fn is_revoked(&self, certificate: &CertificateFacts, authorities: &[CertificateFacts]) -> bool {
        let serial = without_leading_zeros(&certificate.serial);
        let issuers = authorities.iter().filter(|authority| certificate.is_issued_by(authority));
        let mut lists = issuers.filter_map(|issuer| {
            let (_, issuer) = X509Certificate::from_der(&issuer.der).ok()?;
            self.list_of(issuer.subject().as_raw(), issuer.public_key().raw)
        });
        lists.any(|list| revoked(&list).iter().any(|revoked| revoked.serial == serial))
    }

    /// Adds serial numbers to the list of an authority. Creates the list if the file has none.
    ///
    /// # Errors
    ///
    /// The authority may not sign lists, or has expired.
    pub fn revoke(
        &mut self,
        authority: &Authority,
        serials: &[Vec<u8>],
        now: Timestamp,
    ) -> Result<(), CertError> {
        let present = self.list_of(&authority.subject, &authority.public_key);
        let mut entries = present.as_ref().map(revoked).unwrap_or_default();
        let number = present.as_ref().map_or(0, number).saturating_add(1);
        for serial in serials {
            let serial = without_leading_zeros(serial).to_vec();
            if !entries.iter().any(|entry| entry.serial == serial) {
                entries.push(Revoked { serial, time: now.as_second() });
            }
        }
        let new = authority.sign_revocation_list(&entries, number, now)?;
        let replaced = present.map(|list| list.as_raw().to_vec());
        match self.lists.iter_mut().find(|list| Some(list.as_slice()) == replaced.as_deref()) {
            Some(list) => *list = new,
            None => self.lists.push(new),
        }
        Ok(())
    }

    /// Writes the file; readers see the old or the new content.
    ///
    /// # Errors
    ///
    /// [`CertError::Unusable`].
    pub fn write(&self, path: &Path) -> Result<(), CertError> {
        let content: String = self.lists.iter().map(|list| pem_block(LABEL, list)).collect();
        write(path, content.as_bytes(), 0o644)
    }

    /// Returns the list that the authority with this name and this key signed. Both are in DER.
    fn list_of(&self, subject: &[u8], public_key: &[u8]) -> Option<CertificateRevocationList<'_>> {
        let (_, key) = SubjectPublicKeyInfo::from_der(public_key).ok()?;
        let lists = self.lists.iter().filter_map(|der| CertificateRevocationList::from_der(der).ok());
        lists
            .map(|(_, list)| list)
            .find(|list| list.issuer().as_raw() == subject && list.verify_signature(&key).is_ok())
    }
}

fn revoked(list: &CertificateRevocationList<'_>) -> Vec<Revoked> {
    let entries = list.iter_revoked_certificates();
    let entry = |entry: &x509_parser::revocation_list::RevokedCertificate<'_>| Revoked {
        serial: without_leading_zeros(entry.raw_serial()).to_vec(),
        time: entry.revocation_date.timestamp(),
    };
    entries.map(entry).collect()
}

/// The number of a list; later lists have larger numbers.
fn number(list: &CertificateRevocationList<'_>) -> u64 {
    list.crl_number().and_then(|number| number.to_u64_digits().first().copied()).unwrap_or_default()
}

impl Authority {
    /// Signs a list, and returns its DER form.
    fn sign_revocation_list(
        &self,
        revoked: &[Revoked],
        number: u64,
        now: Timestamp,
    ) -> Result<Vec<u8>, CertError> {
        if self.not_after <= now {
            return Err(CertError::ExpiredAuthority(self.not_after));
        }
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        let at = |time| epoch + since_epoch(time);
        let entry = |revoked: &Revoked| RevokedCertParams {
            serial_number: SerialNumber::from_slice(&revoked.serial),
            revocation_time: at(Timestamp::from_second(revoked.time).unwrap_or_default()),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: at(now),
            next_update: at(self.not_after),
            crl_number: SerialNumber::from(number),
            issuing_distribution_point: None,
            revoked_certs: revoked.iter().map(entry).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = params.signed_by(&self.issuer)?;
        let issuer = (subject::ISSUER_OF_LIST, self.subject.as_slice());
        subject::replace_names(list.der(), &[issuer], self.issuer.key())
            .ok_or_else(|| CertError::Generate("the issuer of a revocation list could not be set".to_owned()))
    }
}

#[cfg(test)]
#[path = "../tests/revocation.rs"]
mod tests;

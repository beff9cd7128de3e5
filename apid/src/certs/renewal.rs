//! `apid certs --renew`: reissues certificates that end soon or are of an earlier authority.

use std::time::Duration;

use apimachinery::printable::escape;
use jiff::Timestamp;
use serving::certs::facts::CertificateFacts;
use serving::certs::revocation::RevocationFile;
use serving::certs::{Authority, EarlyRenewal, ServingPolicy, ensure_serving_pair_with};

use super::folder::{ClientFiles, Folder};
use super::{CertsError, reserved_name};
use crate::console::print;

/// The certificates to renew.
pub(super) struct Request<'a> {
    /// The only client whose certificate is renewed; None for the server and all clients.
    pub(super) client: Option<&'a str>,
    /// Further names of the server.
    pub(super) hosts: &'a [String],
    /// Lifetime of new certificates; None keeps that of the renewed certificate.
    pub(super) validity: Option<Duration>,
    /// Renews certificates that do not end soon, too.
    pub(super) force: bool,
}

/// Renews certificates and prints a line for each certificate.
pub(super) fn renew(folder: &Folder, request: &Request<'_>, now: Timestamp) -> Result<(), CertsError> {
    let authority = folder.authority()?;
    let revocations = folder.revocations()?;
    let renewal =
        Renewal { folder, request, authority, revocations, authorities: folder.authorities()?, now };
    match request.client {
        Some(user) => {
            let files = folder.client_files(user);
            if !files.cert.exists() {
                return Err(CertsError::NothingToRenew(files.cert));
            }
            renewal.renew_client(&files)
        }
        None => {
            renewal.renew_server()?;
            folder.ensure_revocation_list(now)?;
            for user in renewal.clients()? {
                renewal.renew_client(&folder.client_files(&user))?;
            }
            Ok(())
        }
    }
}

struct Renewal<'a> {
    folder: &'a Folder,
    request: &'a Request<'a>,
    authority: Authority,
    revocations: RevocationFile,
    authorities: Vec<CertificateFacts>,
    now: Timestamp,
}

impl Renewal<'_> {
    fn early(&self) -> EarlyRenewal {
        if self.request.force { EarlyRenewal::Always } else { EarlyRenewal::EarlierAuthority }
    }

    fn renew_server(&self) -> Result<(), CertsError> {
        let serial = || {
            let certificates = CertificateFacts::read_all(&self.folder.pair.cert).ok()?;
            certificates.first().map(|certificate| (certificate.serial.clone(), certificate.not_after))
        };
        let before = serial();
        let policy = ServingPolicy { validity: self.request.validity, early: self.early() };
        ensure_serving_pair_with(&self.folder.dir, self.request.hosts, policy, self.now)?;
        let after = serial();
        let action = if before == after { "kept" } else { "renewed" };
        let end = after.map_or_else(|| "an unknown time".to_owned(), |(_, not_after)| not_after.to_string());
        print(format!("{action}: {}, valid until {end}\n", self.folder.pair.cert.display()));
        Ok(())
    }

    /// Returns the names of the files of clients, without their ending.
    fn clients(&self) -> Result<Vec<String>, CertsError> {
        let known = self.folder.certificates()?;
        let names =
            known.iter().filter(|known| known.facts.is_client).filter_map(|known| known.file.as_deref());
        let names = names.filter_map(|file| file.strip_suffix(".crt"));
        Ok(names.filter(|name| reserved_name(name).is_none()).map(str::to_owned).collect())
    }

    fn renew_client(&self, files: &ClientFiles) -> Result<(), CertsError> {
        let path = files.cert.display();
        let Some(certificate) = CertificateFacts::read_all(&files.cert)?.into_iter().next() else {
            print(format!("kept: {path}: no certificate in PEM\n"));
            return Ok(());
        };
        if let Some(reason) = self.reason_to_keep(files, &certificate) {
            print(format!("kept: {path}: {}\n", escape(&reason)));
            return Ok(());
        }
        let validity = self.request.validity.unwrap_or_else(|| self.authority.renewed_lifetime(&certificate));
        let issued = self.authority.client_with_subject(&certificate.subject_der, validity, self.now)?;
        self.folder.store_client(files, &issued, self.now)?;
        let end = serving::certs::not_after(issued.cert.as_bytes()).unwrap_or_default();
        print(format!("renewed: {path}, valid until {end}, with a new key\n"));
        Ok(())
    }

    /// Returns why a certificate is not renewed; None if it is.
    fn reason_to_keep(&self, files: &ClientFiles, certificate: &CertificateFacts) -> Option<String> {
        if !self.authority.is_in_bundle_of(certificate) {
            return Some(format!("issued by {}, which is not in ca.crt", certificate.issuer));
        }
        if !files.key.exists() {
            return Some(format!("{} is not in the folder", files.key.display()));
        }
        if self.revocations.is_revoked(certificate, &self.authorities) {
            return Some("revoked; `--client USER --force` issues another certificate".to_owned());
        }
        let is_current_issuer = self.authority.is_issuer_of(certificate);
        let is_kept = !certificate.is_renewal_due(self.now) && !self.early().applies(is_current_issuer);
        is_kept.then(|| format!("valid until {}; --force renews it now", certificate.not_after))
    }
}

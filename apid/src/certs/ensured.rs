//! Client certificates for other subcommands: an existing one is used until its renewal is due.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use serving::certs::facts::CertificateFacts;
use serving::certs::{CertError, PemPair};
use serving::client::Identity;

use super::CertsError;
use super::folder::Folder;

/// Validity of a new certificate.
const VALIDITY: Duration = Duration::from_secs(365 * 24 * 3600);

/// The folder of an authority, for the certificates of several clients.
pub(crate) struct ClientCertificates {
    folder: Folder,
}

impl ClientCertificates {
    /// Opens the folder of a serving certificate, and makes the revocation list that servers read, with its public copy.
    pub(crate) fn open(dir: &Path, now: Timestamp) -> Result<Self, CertsError> {
        let folder = Folder::create(dir)?;
        folder.ensure_revocation_list(now)?;
        folder.publish()?;
        Ok(ClientCertificates { folder })
    }

    /// The revocation list, if the authority can sign one.
    pub(crate) fn revocation_list(&self) -> Option<PathBuf> {
        Some(self.folder.lists.clone()).filter(|lists| lists.exists())
    }

    /// Returns the certificate of a client. A certificate that ends soon, is revoked, is of another authority or does not
    /// belong to its key is replaced.
    pub(crate) fn ensure(&self, user: &str, groups: &[&str], now: Timestamp) -> Result<PemPair, CertsError> {
        let files = self.folder.client_files(user);
        if files.cert.exists() && files.key.exists() && self.is_usable(&files.cert, now)? {
            let read =
                |path: &Path| std::fs::read_to_string(path).map_err(|error| CertError::unusable(path, error));
            let pair = PemPair { cert: read(&files.cert)?, key: read(&files.key)? };
            // An end of the process between the writes of both files leaves a new key with an old certificate.
            if Identity::from_pem(pair.cert.as_bytes(), pair.key.as_bytes()).is_ok() {
                return Ok(pair);
            }
        }
        let groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
        let pair = self.folder.authority()?.client(user, &groups, VALIDITY, now)?;
        self.folder.store_client(&files, &pair, now)?;
        Ok(pair)
    }

    fn is_usable(&self, cert: &Path, now: Timestamp) -> Result<bool, CertsError> {
        let certificates = CertificateFacts::read_all(cert)?;
        let Some(certificate) = certificates.first() else { return Ok(false) };
        let authorities = self.folder.authorities()?;
        Ok(!certificate.is_renewal_due(now)
            && self.folder.authority()?.is_issuer_of(certificate)
            && !self.folder.revocations()?.is_revoked(certificate, &authorities))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::clock::{Clock as _, SystemClock};
    use serving::certs::ensure_serving_pair;

    #[test]
    fn client_certificate_is_kept_until_renewal_or_revocation() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemClock::new().now();
        ensure_serving_pair(dir.path(), &[], now).unwrap();
        std::fs::create_dir(dir.path().join("public")).unwrap();
        let certificates = ClientCertificates::open(dir.path(), now).unwrap();
        assert!(certificates.revocation_list().is_some());
        for name in ["ca.crt", "ca.crl"] {
            let copy = std::fs::read(dir.path().join("public").join(name)).unwrap();
            assert_eq!(copy, std::fs::read(dir.path().join(name)).unwrap(), "{name}");
        }
        let ensure = |now| certificates.ensure("admin", &["system:masters"], now).unwrap().cert;
        let first = ensure(now);
        assert_eq!(ensure(now), first);
        let key = dir.path().join("admin.key");
        std::fs::write(&key, certificates.ensure("other", &[], now).unwrap().key).unwrap();
        let repaired = certificates.ensure("admin", &["system:masters"], now).unwrap();
        assert_ne!(repaired.cert, first, "a key of another certificate");
        assert_eq!(std::fs::read_to_string(&key).unwrap(), repaired.key);
        let first = repaired.cert;
        let later = now + Duration::from_secs(360 * 24 * 3600);
        let second = ensure(later);
        assert_ne!(second, first);
        drop(certificates);
        let arguments = [format!("--cert-dir={}", dir.path().display()), "--revoke=admin".to_owned()];
        super::super::run(arguments).unwrap();
        let certificates = ClientCertificates::open(dir.path(), now).unwrap();
        assert_ne!(certificates.ensure("admin", &[], later).unwrap().cert, second);
    }
}

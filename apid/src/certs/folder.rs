//! The folder of `--cert-dir`: its files, its lock and the certificates in it.

use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serving::certs::facts::CertificateFacts;
use serving::certs::revocation::RevocationFile;
use serving::certs::{self, Authority, CertError, PemPair, ServingPair};

use super::{CertsError, reject_existing};

/// An existing folder, locked against other calls of `apid certs`.
pub(super) struct Folder {
    pub(super) dir: PathBuf,
    pub(super) pair: ServingPair,
    /// File of the revocation lists.
    pub(super) lists: PathBuf,
    /// File of the client certificates that were issued and have not expired, PEM.
    issued: PathBuf,
    /// Folder of the copies for processes that may not read keys.
    public: PathBuf,
    _lock: File,
}

/// A certificate of the folder.
pub(super) struct KnownCertificate {
    /// File name; None for a certificate that another one has replaced.
    pub(super) file: Option<String>,
    pub(super) facts: CertificateFacts,
}

/// Files of a client certificate and its key.
pub(super) struct ClientFiles {
    pub(super) cert: PathBuf,
    pub(super) key: PathBuf,
}

/// The CAs and the revocation lists of a folder.
pub(super) struct Trust {
    bundle: Vec<CertificateFacts>,
    revocations: RevocationFile,
}

impl Trust {
    /// Returns why a server with the files of the folder rejects a certificate; None if it does not.
    pub(super) fn problem(&self, certificate: &CertificateFacts, now: Timestamp) -> Option<&'static str> {
        let is_known = self.bundle.iter().any(|authority| {
            authority.fingerprint == certificate.fingerprint || certificate.is_issued_by(authority)
        });
        if !is_known {
            Some("unknown CA")
        } else if self.revocations.is_revoked(certificate, &self.bundle) {
            Some("revoked")
        } else {
            (certificate.not_after <= now).then_some("expired")
        }
    }
}

impl ClientFiles {
    /// Rejects existing files, and symbolic links without a target.
    pub(super) fn check_absent(&self) -> Result<(), CertsError> {
        reject_existing(&self.cert)?;
        reject_existing(&self.key)
    }
}

impl Folder {
    /// Makes the folder if it is absent.
    pub(super) fn create(dir: &Path) -> Result<Self, CertsError> {
        certs::make_dir(dir)?;
        Self::existing(dir)
    }

    /// Waits until no other call uses the folder.
    pub(super) fn existing(dir: &Path) -> Result<Self, CertsError> {
        let lock = File::open(dir).and_then(|folder| folder.lock().map(|()| folder));
        Ok(Folder {
            _lock: lock.map_err(|error| CertError::unusable(dir, error))?,
            dir: dir.to_owned(),
            pair: ServingPair::in_dir(dir),
            lists: dir.join("ca.crl"),
            issued: dir.join("issued.pem"),
            public: dir.join("public"),
        })
    }

    /// Makes the folder of the public copies, readable for all users.
    pub(super) fn make_public(&self) -> Result<(), CertsError> {
        certs::make_dir(&self.public)?;
        let mode = std::fs::Permissions::from_mode(0o755);
        let result = std::fs::set_permissions(&self.public, mode);
        Ok(result.map_err(|error| CertError::unusable(&self.public, error))?)
    }

    /// Copies the certificates and the revocation lists of the authorities to the folder of the public copies, if there is
    /// one.
    ///
    /// Each call that may change one of these files ends with this one: a copy without a revocation admits a revoked
    /// certificate.
    pub(super) fn publish(&self) -> Result<(), CertsError> {
        if !self.public.is_dir() {
            return Ok(());
        }
        for source in [&self.pair.ca, &self.lists] {
            let Some(name) = source.file_name().filter(|_| source.exists()) else { continue };
            let content = std::fs::read(source).map_err(|error| CertError::unusable(source, error))?;
            certs::write(&self.public.join(name), &content, 0o644)?;
        }
        Ok(())
    }

    pub(super) fn client_files(&self, user: &str) -> ClientFiles {
        let file = |ending: &str| self.dir.join(format!("{user}.{ending}"));
        ClientFiles { cert: file("crt"), key: file("key") }
    }

    /// Returns the authority that signs.
    ///
    /// # Errors
    ///
    /// The folder has none, or only its certificate.
    pub(super) fn authority(&self) -> Result<Authority, CertsError> {
        if !self.pair.ca.exists() || !self.pair.ca_key.exists() {
            return Err(CertsError::NoAuthority(self.dir.clone()));
        }
        Ok(Authority::load(&self.pair.ca, &self.pair.ca_key)?)
    }

    /// Returns the authorities of `ca.crt` whose keys are in `ca.key`: during a rotation both, and the new one is last.
    ///
    /// # Errors
    ///
    /// The folder has none, or a file is damaged.
    pub(super) fn authorities_with_keys(&self) -> Result<Vec<Authority>, CertsError> {
        self.authority()?;
        Ok(Authority::load_all(&self.pair.ca, &self.pair.ca_key)?)
    }

    /// Returns the certificates of `ca.crt`: the authority that signs, then earlier ones.
    pub(super) fn authorities(&self) -> Result<Vec<CertificateFacts>, CertsError> {
        if !self.pair.ca.exists() {
            return Ok(Vec::new());
        }
        Ok(CertificateFacts::read_all(&self.pair.ca)?)
    }

    /// Makes an empty revocation list, so that servers can start with `--client-crl-file`.
    ///
    /// An authority that signs no lists gets none: the first revocation says why.
    pub(super) fn ensure_revocation_list(&self, now: Timestamp) -> Result<(), CertsError> {
        if self.lists.symlink_metadata().is_ok() || !self.pair.ca_key.exists() || !self.pair.ca.exists() {
            return Ok(());
        }
        let mut file = RevocationFile::default();
        if file.revoke(&self.authority()?, &[], now).is_ok() {
            file.write(&self.lists)?;
        }
        Ok(())
    }

    /// Writes certificate and key of a client. A replaced certificate stays known.
    pub(super) fn store_client(
        &self,
        files: &ClientFiles,
        pair: &PemPair,
        now: Timestamp,
    ) -> Result<(), CertsError> {
        let mut issued = self.issued()?;
        let replaced =
            if files.cert.exists() { CertificateFacts::read_all(&files.cert)? } else { Vec::new() };
        issued.extend(replaced);
        // The certificate is recorded before its files exist, so that each certificate in use is known.
        issued.push(CertificateFacts::of_pem(&pair.cert)?);
        issued.retain(|certificate| certificate.not_after > now);
        issued.dedup_by(|next, certificate| next.fingerprint == certificate.fingerprint);
        let content: String = issued.iter().map(CertificateFacts::pem).collect();
        certs::write(&self.issued, content.as_bytes(), 0o644)?;
        certs::write(&files.key, pair.key.as_bytes(), 0o600)?;
        certs::write(&files.cert, pair.cert.as_bytes(), 0o644)?;
        Ok(())
    }

    fn issued(&self) -> Result<Vec<CertificateFacts>, CertsError> {
        if !self.issued.exists() {
            return Ok(Vec::new());
        }
        Ok(CertificateFacts::read_all(&self.issued)?)
    }

    /// Returns all certificates of the folder, each once: authorities, the server, files of clients by name, replaced
    /// certificates.
    pub(super) fn certificates(&self) -> Result<Vec<KnownCertificate>, CertsError> {
        let mut names: Vec<String> = std::fs::read_dir(&self.dir)
            .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.file_name())).collect())
            .map_err(|error| CertError::unusable(&self.dir, error))
            .map(|names: Vec<_>| names.into_iter().filter_map(|name| name.into_string().ok()).collect())?;
        names.retain(|name| name.ends_with(".crt"));
        names.sort_by_key(|name| (name != "ca.crt", name != "apiserver.crt", name.clone()));
        let mut known: Vec<KnownCertificate> = Vec::new();
        let mut add = |file: Option<&str>, certificates: Vec<CertificateFacts>| {
            for facts in certificates {
                if !known.iter().any(|known| known.facts.fingerprint == facts.fingerprint) {
                    known.push(KnownCertificate { file: file.map(str::to_owned), facts });
                }
            }
        };
        for name in &names {
            let mut certificates = CertificateFacts::read_all(&self.dir.join(name))?;
            if name != "ca.crt" {
                // The certificates after the first one are a chain.
                certificates.truncate(1);
            }
            add(Some(name), certificates);
        }
        add(None, self.issued()?);
        Ok(known)
    }

    /// Reads the CAs and the revocation lists.
    pub(super) fn trust(&self) -> Result<Trust, CertsError> {
        Ok(Trust { bundle: self.authorities()?, revocations: self.revocations()? })
    }

    /// Reads the revocation lists.
    pub(super) fn revocations(&self) -> Result<RevocationFile, CertsError> {
        Ok(RevocationFile::read(&self.lists)?)
    }
}

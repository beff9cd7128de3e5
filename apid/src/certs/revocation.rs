//! `apid certs --revoke`: adds certificates to the revocation list of the authority.

use std::path::Path;

use apimachinery::printable::escape;
use jiff::Timestamp;
use serving::certs::facts::{CertificateFacts, without_leading_zeros};
use serving::certs::{Authority, CertError};

use super::folder::Folder;
use super::{CertsError, reserved_name};
use crate::console::print;

/// Minimum number of hexadecimal digits of a serial number that no certificate of the folder has.
///
/// Shorter words can be names of users, such as `abe`.
const MIN_SERIAL_DIGITS: usize = 16;

/// The certificate or the user that a word of `--revoke` names.
struct Target {
    description: String,
    serial: Vec<u8>,
}

/// Revokes the certificates that the words name: all of them or, after an error, none.
pub(super) fn revoke(folder: &Folder, words: &[String], now: Timestamp) -> Result<(), CertsError> {
    let authority = folder.authority()?;
    let mut targets = Vec::new();
    for word in words {
        targets.extend(find_targets(folder, &authority, word)?);
    }
    let mut lists = folder.revocations()?;
    let serials: Vec<Vec<u8>> = targets.iter().map(|target| target.serial.clone()).collect();
    lists.revoke(&authority, &serials, now)?;
    lists.write(&folder.lists)?;
    for target in &targets {
        print(format!("revoked: {}\n", escape(&target.description)));
    }
    print(format!(
        "servers with `--client-crl-file {}` reject revoked certificates within 5 s, without a restart\n",
        folder.lists.display()
    ));
    Ok(())
}

fn find_targets(folder: &Folder, authority: &Authority, word: &str) -> Result<Vec<Target>, CertsError> {
    if word.contains('/') || word.ends_with(".crt") || word.ends_with(".pem") {
        let path = Path::new(word);
        let certificate = CertificateFacts::read_all(path)?.into_iter().next();
        let certificate =
            certificate.ok_or_else(|| CertError::unusable(path, "has no certificate in PEM"))?;
        return Ok(vec![target(authority, &certificate)?]);
    }
    if let Some(reserved) = reserved_name(word) {
        return Err(CertsError::NotRevocable {
            subject: format!("{reserved}.crt"),
            problem: "clients read no revocation list of the server; see the rotation of the CA in docs/operations.md"
                .to_owned(),
        });
    }
    let known = folder.certificates()?;
    let of_user: Vec<&CertificateFacts> = known
        .iter()
        .filter(|known| {
            known.facts.common_name == word || known.file.as_deref() == Some(&format!("{word}.crt"))
        })
        .map(|known| &known.facts)
        .filter(|facts| facts.is_client)
        .collect();
    let serial = parse_serial(word);
    let by_serial = known.iter().map(|known| &known.facts).filter(|facts| {
        serial.as_deref().is_some_and(|serial| serial == without_leading_zeros(&facts.serial))
    });
    let found: Vec<&CertificateFacts> = if of_user.is_empty() { by_serial.collect() } else { of_user };
    if !found.is_empty() {
        // A certificate of a CA that left the bundle is no longer trusted, unless the user has no other one.
        let trusted: Vec<_> =
            found.iter().copied().filter(|certificate| authority.is_in_bundle_of(certificate)).collect();
        let found = if trusted.is_empty() { found } else { trusted };
        return found.into_iter().map(|certificate| target(authority, certificate)).collect();
    }
    let digits = word.chars().filter(char::is_ascii_hexdigit).count();
    match serial.filter(|_| digits >= MIN_SERIAL_DIGITS) {
        Some(serial) => {
            let description = format!("serial {word} (no certificate of {})", folder.dir.display());
            Ok(vec![Target { description, serial }])
        }
        None => Err(CertsError::UnknownCertificate { word: word.to_owned(), dir: folder.dir.clone() }),
    }
}

/// Checks that the authority can revoke a certificate.
fn target(authority: &Authority, certificate: &CertificateFacts) -> Result<Target, CertsError> {
    let subject = certificate.subject.clone();
    let not_revocable = |problem: String| Err(CertsError::NotRevocable { subject: subject.clone(), problem });
    if certificate.is_authority {
        return not_revocable("the certificate of a CA; remove it from ca.crt instead".to_owned());
    }
    if !authority.is_issuer_of(certificate) {
        return not_revocable(format!(
            "issued by {}, and not with the key in ca.key; revoke it in the folder of that CA, or remove that CA \
             from the bundle of --client-ca-file",
            certificate.issuer
        ));
    }
    if !certificate.is_client {
        return not_revocable("not a client certificate; clients read no revocation list".to_owned());
    }
    Ok(Target {
        description: format!("{subject}, serial {}", certificate.serial_text()),
        serial: certificate.serial.clone(),
    })
}

/// Reads a serial number in hexadecimal digits, with or without colons, without leading zeros.
fn parse_serial(word: &str) -> Option<Vec<u8>> {
    let digits: String = word.chars().filter(|c| *c != ':').collect();
    if digits.is_empty() || !digits.chars().all(|c| c.is_ascii_hexdigit()) {
        return None;
    }
    let digits = if digits.len().is_multiple_of(2) { digits } else { format!("0{digits}") };
    let bytes: Option<Vec<u8>> = (0..digits.len())
        .step_by(2)
        .map(|at| digits.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok()))
        .collect();
    bytes.map(|bytes| without_leading_zeros(&bytes).to_vec())
}

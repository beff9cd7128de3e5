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

/// A certificate that a word of `--revoke` names.
struct Target {
    description: String,
    serial: Vec<u8>,
    /// Indexes of the authorities whose lists get the serial number.
    issuers: Vec<usize>,
}

/// The certificates of the words.
#[derive(Default)]
struct Targets {
    revocable: Vec<Target>,
    /// The certificates of users that no key of the folder can revoke, each with the reason.
    left: Vec<CertsError>,
}

/// Revokes the certificates that the words name, each in the list of its issuer.
///
/// # Errors
///
/// A word names no certificate, or a file whose certificate cannot be revoked: nothing is revoked. If a certificate of a
/// user cannot be revoked, the others are.
pub(super) fn revoke(folder: &Folder, words: &[String], now: Timestamp) -> Result<(), CertsError> {
    let authorities = folder.authorities_with_keys()?;
    let mut targets = Targets::default();
    for word in words {
        find_targets(folder, &authorities, word, &mut targets)?;
    }
    if !targets.revocable.is_empty() {
        let mut lists = folder.revocations()?;
        for (index, authority) in authorities.iter().enumerate() {
            let of_issuer = targets.revocable.iter().filter(|target| target.issuers.contains(&index));
            let serials: Vec<Vec<u8>> = of_issuer.map(|target| target.serial.clone()).collect();
            if !serials.is_empty() {
                lists.revoke(authority, &serials, now)?;
            }
        }
        lists.write(&folder.lists)?;
        for target in &targets.revocable {
            print(format!("revoked: {}\n", escape(&target.description)));
        }
        print(format!(
            "servers with `--client-crl-file {}` reject revoked certificates within 5 s, without a restart\n",
            folder.lists.display()
        ));
    }
    if targets.left.is_empty() { Ok(()) } else { Err(CertsError::NotAllRevoked(targets.left)) }
}

fn find_targets(
    folder: &Folder,
    authorities: &[Authority],
    word: &str,
    targets: &mut Targets,
) -> Result<(), CertsError> {
    if word.contains('/') || word.ends_with(".crt") || word.ends_with(".pem") {
        let path = Path::new(word);
        let certificate = CertificateFacts::read_all(path)?.into_iter().next();
        let certificate =
            certificate.ok_or_else(|| CertError::unusable(path, "has no certificate in PEM"))?;
        targets.revocable.push(target(authorities, &certificate)?);
        return Ok(());
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
        let bundle = folder.authority()?;
        let trusted: Vec<_> =
            found.iter().copied().filter(|certificate| bundle.is_in_bundle_of(certificate)).collect();
        let found = if trusted.is_empty() { found } else { trusted };
        for certificate in found {
            match target(authorities, certificate) {
                Ok(target) => targets.revocable.push(target),
                Err(error) => targets.left.push(error),
            }
        }
        return Ok(());
    }
    let digits = word.chars().filter(char::is_ascii_hexdigit).count();
    match serial.filter(|_| digits >= MIN_SERIAL_DIGITS) {
        Some(serial) => {
            let description = format!("serial {word} (no certificate of {})", folder.dir.display());
            // The issuer is unknown, and no two certificates have one random serial number.
            let issuers = (0..authorities.len()).collect();
            targets.revocable.push(Target { description, serial, issuers });
            Ok(())
        }
        None => Err(CertsError::UnknownCertificate { word: word.to_owned(), dir: folder.dir.clone() }),
    }
}

/// Checks that an authority with a key can revoke a certificate.
fn target(authorities: &[Authority], certificate: &CertificateFacts) -> Result<Target, CertsError> {
    let description = format!("{}, serial {}", certificate.subject, certificate.serial_text());
    let not_revocable =
        |problem: String| Err(CertsError::NotRevocable { subject: description.clone(), problem });
    if certificate.is_authority {
        return not_revocable("the certificate of a CA; remove it from ca.crt instead".to_owned());
    }
    let issuers = authorities.iter().enumerate().filter(|(_, authority)| authority.is_issuer_of(certificate));
    let issuers: Vec<usize> = issuers.map(|(index, _)| index).collect();
    if issuers.is_empty() {
        return not_revocable(format!(
            "not revoked: issued by {}, whose key is not in ca.key. Revoke it in the folder of that CA, append the key to \
             ca.key, or remove that CA from the bundle of --client-ca-file",
            certificate.issuer
        ));
    }
    if !certificate.is_client {
        return not_revocable("not a client certificate; clients read no revocation list".to_owned());
    }
    Ok(Target { description, serial: certificate.serial.clone(), issuers })
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

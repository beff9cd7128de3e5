//! The files of an authority during its rotation: the bundle `ca.crt` and the keys `ca.key`.
//!
//! # Contract
//!
//! [`add`] appends a new authority to the bundle and its key to the keys, [`switch`] lets it sign, and [`remove`] ends the
//! rotation. The last key is that of the new authority. The first certificate of the bundle decides which authority
//! signs, so that each step takes effect with one rename. A step that was interrupted can be repeated. Certificates of the
//! bundle without a key belong to no rotation and stay.
//!
//! # Invariants
//!
//! INVARIANT (the key that signs stays): only [`remove`] removes keys, and never that of the authority that signs.

use jiff::Timestamp;
use rcgen::PublicKeyData;
use rustls_pki_types::CertificateDer;

use super::{
    Authority, CertError, PrivateKey, ServingPair, authority_name, matches_key, pem, pem_block, read,
    read_certificates, read_private_keys, write,
};

/// Appends a new authority, which does not sign yet, and returns it.
///
/// # Errors
///
/// A rotation has begun already, or a file cannot be read or written.
pub fn add(pair: &ServingPair, now: Timestamp) -> Result<Authority, CertError> {
    Authority::load(&pair.ca, &pair.ca_key)?;
    if Authority::load_all(&pair.ca, &pair.ca_key)?.len() > 1 {
        let problem = "has keys of two CAs of ca.crt, so a rotation has begun; finish it with `--rotate-ca switch`, \
                       `--renew` and `--rotate-ca remove`";
        return Err(CertError::unusable(&pair.ca_key, problem));
    }
    let new = Authority::generate(&authority_name(now), now)?;
    let append = |path, text: &str, mode| {
        let present = read(path)?;
        write(path, format!("{}\n{text}", present.trim_end()).as_bytes(), mode)
    };
    // A key without its certificate has no effect, so the key comes first.
    append(&pair.ca_key, &new.key, 0o600)?;
    append(&pair.ca, &new.cert, 0o644)?;
    newest(pair)
}

/// Lets the new authority sign, and returns it.
///
/// # Errors
///
/// No rotation has begun, or a file cannot be read or written.
pub fn switch(pair: &ServingPair) -> Result<Authority, CertError> {
    begun(pair)?;
    let newest = newest(pair)?;
    let certificates = read_certificates(&pair.ca)?;
    let (new, others): (Vec<_>, Vec<_>) =
        certificates.into_iter().partition(|certificate| matches_key(certificate, newest.issuer.key()));
    write_certificates(pair, new.iter().chain(&others))?;
    Ok(newest)
}

/// Returns the authorities that [`remove`] removes.
///
/// # Errors
///
/// No rotation has begun, the new authority does not sign yet, or a file cannot be read.
pub fn removable(pair: &ServingPair) -> Result<Vec<Authority>, CertError> {
    begun(pair)?;
    let signing = Authority::load(&pair.ca, &pair.ca_key)?;
    let mut authorities = Authority::load_all(&pair.ca, &pair.ca_key)?;
    if authorities.last().is_none_or(|newest| newest.public_key != signing.public_key) {
        let problem = "the new CA does not sign yet; first use `--rotate-ca switch` and `--renew`";
        return Err(CertError::unusable(&pair.ca, problem));
    }
    authorities.pop();
    Ok(authorities)
}

/// Removes the authorities of the rotation that do not sign, and their keys.
///
/// # Errors
///
/// As [`removable`], or a file cannot be written.
pub fn remove(pair: &ServingPair) -> Result<(), CertError> {
    removable(pair)?;
    let signing = Authority::load(&pair.ca, &pair.ca_key)?;
    let (kept, removed): (Vec<PrivateKey>, Vec<PrivateKey>) = read_private_keys(&pair.ca_key)?
        .into_iter()
        .partition(|key| key.pair.subject_public_key_info() == signing.public_key);
    let mut certificates = read_certificates(&pair.ca)?;
    certificates.retain(|certificate| !removed.iter().any(|key| matches_key(certificate, &key.pair)));
    write_certificates(pair, certificates.iter())?;
    // A repeated key is written once.
    let keys = kept.first().map(|key| pem_block(key.block.tag(), key.block.contents()));
    write(&pair.ca_key, keys.unwrap_or_default().as_bytes(), 0o600)
}

/// Checks that a rotation has begun.
fn begun(pair: &ServingPair) -> Result<(), CertError> {
    if read_private_keys(&pair.ca_key)?.len() > 1 {
        return Ok(());
    }
    let problem = "has one key, so no rotation of the CA has begun; `--rotate-ca add` begins one";
    Err(CertError::unusable(&pair.ca_key, problem))
}

/// The authority of the last key.
fn newest(pair: &ServingPair) -> Result<Authority, CertError> {
    let newest = Authority::load_all(&pair.ca, &pair.ca_key)?.pop();
    newest.ok_or_else(|| CertError::unusable(&pair.ca_key, "has no key of a certificate of ca.crt"))
}

fn write_certificates<'c>(
    pair: &ServingPair,
    certificates: impl Iterator<Item = &'c CertificateDer<'static>>,
) -> Result<(), CertError> {
    let content: String = certificates.map(|certificate| pem(certificate)).collect();
    write(&pair.ca, content.as_bytes(), 0o644)
}

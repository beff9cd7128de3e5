//! Certificate subjects with several organizations.
//!
//! The certificate generator keeps one value per attribute type. This module therefore replaces the subject
//! of a generated certificate and signs the certificate again.

use rcgen::{KeyPair, SigningKey};

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const BIT_STRING: u8 = 0x03;
const ORGANIZATION: &[u8] = &[0x55, 0x04, 0x0a];
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// Encodes a name as DER: organizations in order, then the common name.
pub(super) fn name(organizations: &[String], common_name: &str) -> Vec<u8> {
    let attribute = |kind: &[u8], value: &str| {
        let pair = [wrap(OBJECT_IDENTIFIER, kind), wrap(UTF8_STRING, value.as_bytes())].concat();
        wrap(SET, &wrap(SEQUENCE, &pair))
    };
    let mut attributes: Vec<u8> =
        organizations.iter().flat_map(|organization| attribute(ORGANIZATION, organization)).collect();
    attributes.extend(attribute(COMMON_NAME, common_name));
    wrap(SEQUENCE, &attributes)
}

/// Replaces the subject of a certificate and signs it with the key of the issuer. None: the input is no
/// certificate.
pub(super) fn replace(certificate: &[u8], subject: &[u8], issuer: &KeyPair) -> Option<Vec<u8>> {
    let (_, outer, _) = element(certificate)?;
    let (_, fields, after) = element(outer)?;
    let (algorithm, _, _) = element(after)?;
    // Version, serial number, signature algorithm, issuer, validity; the subject follows.
    let mut rest = fields;
    for _ in 0..5 {
        rest = element(rest)?.2;
    }
    let before = fields.get(..fields.len() - rest.len())?;
    let (_, _, behind) = element(rest)?;
    let signed = wrap(SEQUENCE, &[before, subject, behind].concat());
    let mut signature = vec![0]; // no unused bits
    signature.extend(issuer.sign(&signed).ok()?);
    Some(wrap(SEQUENCE, &[signed.as_slice(), algorithm, &wrap(BIT_STRING, &signature)].concat()))
}

/// Encodes a DER element.
fn wrap(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    let length = content.len();
    if length < 0x80 {
        out.extend(u8::try_from(length));
    } else {
        let bytes = length.to_be_bytes();
        let used: Vec<u8> = bytes.into_iter().skip_while(|b| *b == 0).collect();
        out.extend(u8::try_from(used.len()).map(|n| 0x80 | n));
        out.extend(used);
    }
    out.extend_from_slice(content);
    out
}

/// Splits off the first element: the whole element, its content, and the rest of the input.
fn element(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let first = usize::from(*bytes.get(1)?);
    let (header, length) = if first < 0x80 {
        (2, first)
    } else {
        let count = first & 0x7f;
        let digits = bytes.get(2..2 + count).filter(|_| count <= 4)?;
        (2 + count, digits.iter().fold(0, |sum, digit| sum << 8 | usize::from(*digit)))
    };
    let (whole, rest) = bytes.split_at_checked(header.checked_add(length)?)?;
    Some((whole, whole.get(header..)?, rest))
}

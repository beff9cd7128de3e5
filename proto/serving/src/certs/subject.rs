//! Distinguished names with several values of one attribute type, such as several organizations.
//!
//! The certificate generator keeps one value per attribute type. This module therefore replaces the subject
//! and issuer names of a generated certificate and signs the certificate again.

use rcgen::{KeyPair, SigningKey};
use yasna::models::ObjectIdentifier;
use yasna::{DERWriterSeq, construct_der};

/// Object identifier of the common name.
pub(super) const COMMON_NAME: &[u64] = &[2, 5, 4, 3];
/// Object identifier of an organization.
pub(super) const ORGANIZATION: &[u64] = &[2, 5, 4, 10];
/// Types of the subject attributes that a certificate takes over from its request.
///
/// Common name, serial number, country, locality, province, street, organization, organizational unit and postal code.
pub(super) const ATTRIBUTE_TYPES: [&[u64]; 9] = [
    COMMON_NAME,
    &[2, 5, 4, 5],
    &[2, 5, 4, 6],
    &[2, 5, 4, 7],
    &[2, 5, 4, 8],
    &[2, 5, 4, 9],
    ORGANIZATION,
    &[2, 5, 4, 11],
    &[2, 5, 4, 17],
];

/// Object identifier and value of an attribute of a name.
pub(super) type Attribute<'a> = (&'static [u64], &'a str);

/// Index of the issuer in the signed part of a certificate, after version, serial number and algorithm.
pub(super) const ISSUER: usize = 3;
/// Index of the issuer in the signed part of a revocation list, after version and algorithm.
pub(super) const ISSUER_OF_LIST: usize = 2;
/// Index of the subject in the signed part of a certificate, after issuer and validity.
pub(super) const SUBJECT: usize = 5;

/// Encodes a name as DER: organizations in order, then the common name.
pub(super) fn encode_name(organizations: &[String], common_name: &str) -> Vec<u8> {
    let organizations = organizations.iter().map(|organization| (ORGANIZATION, organization.as_str()));
    encode(&organizations.chain([(COMMON_NAME, common_name)]).collect::<Vec<_>>())
}

/// Encodes the attributes of a name as DER, in order.
pub(super) fn encode(attributes: &[Attribute<'_>]) -> Vec<u8> {
    construct_sequence(|writer| {
        for (kind, value) in attributes {
            writer.next().write_set(|set| {
                set.next().write_sequence(|pair| {
                    pair.next().write_oid(&ObjectIdentifier::from_slice(kind));
                    pair.next().write_utf8_string(value);
                });
            });
        }
    })
}

/// Replaces elements of the signed part by index ([`ISSUER`], [`SUBJECT`]) and signs it with the key of the
/// issuer.
///
/// The input is a certificate, a revocation list, or a certificate request, in which the subject has the index 1.
/// Returns None if it is none of them.
pub(super) fn replace_names(
    certificate: &[u8],
    names: &[(usize, &[u8])],
    issuer: &KeyPair,
) -> Option<Vec<u8>> {
    let parts = elements(certificate)?;
    let [signed, algorithm, _signature] = parts.as_slice() else { return None };
    let mut fields = elements(signed)?;
    for (index, name) in names {
        *fields.get_mut(*index)? = name.to_vec();
    }
    let signed = encode_sequence(&fields);
    let signature = issuer.sign(&signed).ok()?;
    let signature = construct_der(|writer| writer.write_bitvec_bytes(&signature, signature.len() * 8));
    Some(encode_sequence(&[signed, algorithm.clone(), signature]))
}

/// Returns the DER of each element of a DER sequence.
fn elements(sequence: &[u8]) -> Option<Vec<Vec<u8>>> {
    yasna::parse_der(sequence, |reader| reader.collect_sequence_of(|element| element.read_der())).ok()
}

/// Encodes a DER sequence from the DER of its elements.
fn encode_sequence(elements: &[Vec<u8>]) -> Vec<u8> {
    construct_sequence(|writer| elements.iter().for_each(|element| writer.next().write_der(element)))
}

fn construct_sequence(write: impl FnOnce(&mut DERWriterSeq<'_>)) -> Vec<u8> {
    construct_der(|writer| writer.write_sequence(write))
}

//! Certificate subjects with several organizations.
//!
//! The certificate generator keeps one value per attribute type. This module therefore replaces the subject
//! of a generated certificate and signs the certificate again.

use rcgen::{KeyPair, SigningKey};
use yasna::models::ObjectIdentifier;
use yasna::{DERWriterSeq, construct_der};

const ORGANIZATION: &[u64] = &[2, 5, 4, 10];
const COMMON_NAME: &[u64] = &[2, 5, 4, 3];

/// Index of the subject in the signed part of a certificate.
///
/// Version, serial number, signature algorithm, issuer and validity precede it.
const SUBJECT: usize = 5;

/// Encodes a name as DER: organizations in order, then the common name.
pub(super) fn name(organizations: &[String], common_name: &str) -> Vec<u8> {
    let organizations = organizations.iter().map(|organization| (ORGANIZATION, organization.as_str()));
    construct_sequence(|attributes| {
        for (kind, value) in organizations.chain([(COMMON_NAME, common_name)]) {
            attributes.next().write_set(|set| {
                set.next().write_sequence(|pair| {
                    pair.next().write_oid(&ObjectIdentifier::from_slice(kind));
                    pair.next().write_utf8_string(value);
                });
            });
        }
    })
}

/// Replaces the subject of a certificate and signs it with the key of the issuer. None: the input is no
/// certificate.
pub(super) fn replace(certificate: &[u8], subject: &[u8], issuer: &KeyPair) -> Option<Vec<u8>> {
    let parts = elements(certificate)?;
    let [signed, algorithm, _signature] = parts.as_slice() else { return None };
    let mut fields = elements(signed)?;
    *fields.get_mut(SUBJECT)? = subject.to_vec();
    let signed = sequence(&fields);
    let signature = issuer.sign(&signed).ok()?;
    let signature = construct_der(|writer| writer.write_bitvec_bytes(&signature, signature.len() * 8));
    Some(sequence(&[signed, algorithm.clone(), signature]))
}

/// Returns the encoded elements of a sequence.
fn elements(sequence: &[u8]) -> Option<Vec<Vec<u8>>> {
    yasna::parse_der(sequence, |reader| reader.collect_sequence_of(|element| element.read_der())).ok()
}

/// Encodes a sequence of encoded elements.
fn sequence(elements: &[Vec<u8>]) -> Vec<u8> {
    construct_sequence(|writer| elements.iter().for_each(|element| writer.next().write_der(element)))
}

fn construct_sequence(write: impl FnOnce(&mut DERWriterSeq<'_>)) -> Vec<u8> {
    construct_der(|writer| writer.write_sequence(write))
}

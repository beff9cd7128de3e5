//! Tests of parsing certificate requests and of issuing certificates for them.

use rcgen::{DnType, KeyPair, PublicKeyData as _};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::prelude::X509Certificate;

use super::*;

fn now() -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap()
}

fn authority() -> Authority {
    let dir = tempfile::tempdir().unwrap();
    Authority::ensure(&dir.path().join("ca.crt"), &dir.path().join("ca.key"), "signer", now()).unwrap()
}

/// Returns a request with one name of each type, and with a requested key usage, which an authority ignores.
fn params() -> CertificateParams {
    let mut params =
        CertificateParams::new(vec!["n1.example.com".to_owned(), "10.0.0.1".to_owned()]).unwrap();
    params.subject_alt_names.push(SanType::Rfc822Name("a@example.com".try_into().unwrap()));
    params.subject_alt_names.push(SanType::URI("spiffe://example.com/a".try_into().unwrap()));
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, "system:node:n1");
    params.key_usages.push(KeyUsagePurpose::KeyCertSign);
    params
}

fn request_pem(key: &KeyPair) -> String {
    params().serialize_request(key).unwrap().pem().unwrap()
}

fn encoded(der: Vec<u8>) -> String {
    ::pem::encode(&::pem::Pem::new(LABEL, der))
}

/// Returns a signed request with this subject (DER), which is element 1 of the signed part.
fn request_with_subject(subject: &[u8]) -> String {
    let key = KeyPair::generate().unwrap();
    let request = params().serialize_request(&key).unwrap();
    encoded(subject::replace_names(request.der(), &[(1, subject)], &key).unwrap())
}

#[test]
fn certificate_request_has_subject_and_alternative_names() {
    let request =
        CertificateRequest::from_pem(request_pem(&KeyPair::generate().unwrap()).as_bytes()).unwrap();
    let expected = RequestedIdentity {
        common_name: "system:node:n1".to_owned(),
        organizations: vec!["system:nodes".to_owned()],
        other_attributes: Vec::new(),
        dns_names: vec!["n1.example.com".to_owned()],
        emails: vec!["a@example.com".to_owned()],
        addresses: vec![[10, 0, 0, 1].into()],
        uris: vec!["spiffe://example.com/a".to_owned()],
    };
    assert_eq!(request.identity(), &expected);
    let unverified =
        RequestedIdentity::from_pem(request_pem(&KeyPair::generate().unwrap()).as_bytes()).unwrap();
    assert_eq!(unverified, expected);
}

#[test]
fn request_with_changed_subject_is_rejected() {
    let key = KeyPair::generate().unwrap();
    let request = params().serialize_request(&key).unwrap();
    let mut der = request.der().to_vec();
    let start = der.windows(12).position(|window| window == b"system:node:").unwrap();
    der[start] = b'S';
    let text = encoded(der);
    let error = CertificateRequest::from_pem(text.as_bytes()).unwrap_err();
    assert!(matches!(error, RequestError::Signature(_)), "{error}");
}

#[test]
fn text_that_is_not_a_request_is_rejected() {
    let request = request_pem(&KeyPair::generate().unwrap());
    let certificate = "-----BEGIN CERTIFICATE-----\nbm8=\n-----END CERTIFICATE-----\n";
    for text in ["", certificate, &format!("{certificate}{request}")] {
        assert_eq!(CertificateRequest::from_pem(text.as_bytes()).unwrap_err(), RequestError::Block);
    }
    let trailing = [::pem::parse(&request).unwrap().contents(), b"a"].concat();
    for der in [b"no".to_vec(), trailing] {
        let error = CertificateRequest::from_pem(encoded(der).as_bytes()).unwrap_err();
        assert!(matches!(error, RequestError::Malformed(_)), "{error}");
    }
}

#[test]
fn issued_certificate_has_identity_of_request_and_terms_of_signer() {
    let (authority, key) = (authority(), KeyPair::generate().unwrap());
    let request = CertificateRequest::from_pem(request_pem(&key).as_bytes()).unwrap();
    let not_after = Timestamp::from_second(now().as_second() + 600).unwrap();
    let usages = ["client auth", "digital signature", "signing", "client auth", "ipsec user"];
    let parameters = CertificateParameters { usages: &usages, not_before: now(), not_after };
    let text = authority.issue(&request, &parameters).unwrap();
    let again = authority.issue(&request, &parameters).unwrap();
    assert_eq!(crate::certs::not_after(text.as_bytes()), Some(not_after));

    let der = |text: &str| CertificateDer::from_pem_slice(text.as_bytes()).unwrap();
    let (der, again) = (der(&text), der(&again));
    let (_, certificate) = X509Certificate::from_der(&der).unwrap();
    let (_, again) = X509Certificate::from_der(&again).unwrap();
    assert_ne!(certificate.raw_serial(), again.raw_serial(), "serial numbers are random");
    let issuer_key = authority.issuer.key().subject_public_key_info();
    let (_, issuer_key) = x509_parser::x509::SubjectPublicKeyInfo::from_der(&issuer_key).unwrap();
    certificate.verify_signature(Some(&issuer_key)).unwrap();
    assert_eq!(certificate.issuer().as_raw(), authority.subject);
    assert_eq!(certificate.subject().to_string(), "O=system:nodes, CN=system:node:n1");
    assert_eq!(certificate.validity().not_before.timestamp(), now().as_second());
    assert!(!certificate.is_ca());
    let names = certificate.subject_alternative_name().unwrap().unwrap();
    assert_eq!(names.value.general_names.len(), 4);
    let key_usage = certificate.key_usage().unwrap().unwrap().value;
    assert!(key_usage.digital_signature() && !key_usage.key_cert_sign());
    let extended = certificate.extended_key_usage().unwrap().unwrap().value;
    assert!(extended.client_auth && !extended.server_auth && !extended.any);
    assert_eq!(extended.other.len(), 1);
}

#[test]
fn issued_certificate_has_only_known_attributes_of_subject() {
    const UNIT: &[u64] = &[2, 5, 4, 11];
    const UID: &[u64] = &[1, 3, 6, 1, 4, 1, 57683, 2];
    let name = subject::encode(&[
        (subject::COMMON_NAME, "first"),
        (UNIT, "u"),
        (UID, "uid-of-admin"),
        (subject::ORGANIZATION, "a"),
        (subject::COMMON_NAME, "jane"),
        (subject::ORGANIZATION, "b"),
    ]);
    let request = CertificateRequest::from_pem(request_with_subject(&name).as_bytes()).unwrap();
    assert_eq!(request.identity().common_name, "jane");
    assert_eq!(request.identity().organizations, ["a", "b"]);
    let parameters = CertificateParameters { usages: &["client auth"], not_before: now(), not_after: now() };
    let text = authority().issue(&request, &parameters).unwrap();
    let der = CertificateDer::from_pem_slice(text.as_bytes()).unwrap();
    let (_, certificate) = X509Certificate::from_der(&der).unwrap();
    assert_eq!(certificate.subject().to_string(), "O=a, O=b, OU=u, CN=jane");
}

/// A reader that skips an attribute that is not text misses a group that other readers find.
#[test]
fn request_with_attribute_that_is_not_text_is_rejected() {
    let mut name = subject::encode(&[(subject::ORGANIZATION, "system:nodes"), (subject::ORGANIZATION, "no")]);
    let value = name.len() - 4;
    assert_eq!(name[value], 0x0c, "UTF8String");
    name[value] = 0x1e;
    let text = request_with_subject(&name);
    let error = RequestedIdentity::from_pem(text.as_bytes()).unwrap_err();
    assert_eq!(error, RequestError::Malformed("subject attribute 2.5.4.10 is not text".to_owned()));
    assert_eq!(CertificateRequest::from_pem(text.as_bytes()).unwrap_err(), error);
}

#[test]
fn unknown_usage_is_rejected() {
    let request =
        CertificateRequest::from_pem(request_pem(&KeyPair::generate().unwrap()).as_bytes()).unwrap();
    let parameters = CertificateParameters { usages: &["client"], not_before: now(), not_after: now() };
    let error = authority().issue(&request, &parameters).unwrap_err();
    assert!(error.to_string().contains("unrecognized usage"), "{error}");
}

#[test]
fn request_of_each_key_type_is_issued() {
    let rsa = |size| KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size).unwrap();
    let generate = |algorithm| KeyPair::generate_for(algorithm).unwrap();
    for key in [
        rsa(rcgen::RsaKeySize::_2048),
        generate(&rcgen::PKCS_ECDSA_P256_SHA256),
        generate(&rcgen::PKCS_ECDSA_P384_SHA384),
        generate(&rcgen::PKCS_ED25519),
    ] {
        let request = CertificateRequest::from_pem(request_pem(&key).as_bytes()).unwrap();
        let parameters =
            CertificateParameters { usages: &["client auth"], not_before: now(), not_after: now() };
        let text = authority().issue(&request, &parameters).unwrap();
        let der = CertificateDer::from_pem_slice(text.as_bytes()).unwrap();
        let (_, certificate) = X509Certificate::from_der(&der).unwrap();
        assert_eq!(certificate.public_key().raw, key.subject_public_key_info(), "{:?}", key.algorithm());
    }
}

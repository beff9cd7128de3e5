//! A certificate authority as env tests create it: RSA keys of 2,048 bits, certificates valid for a week.

use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_RSA_SHA256,
};
use serving::certs::PemPair;

/// Validity of all certificates.
const VALIDITY: Duration = Duration::from_secs(7 * 24 * 3600);

pub(super) struct RsaAuthority {
    issuer: Issuer<'static, KeyPair>,
    /// Certificate and key of the authority.
    pub(super) pair: PemPair,
}

impl RsaAuthority {
    pub(super) fn new() -> Self {
        let mut params = params("envtest-environment", "envtest");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages.push(KeyUsagePurpose::KeyCertSign);
        let key = key();
        let certificate = params.self_signed(&key).expect("a CA certificate");
        let pair = PemPair { cert: certificate.pem(), key: key.serialize_pem() };
        RsaAuthority { issuer: Issuer::new(params, key), pair }
    }

    /// Issues the certificate of a server at `localhost` and `127.0.0.1`.
    pub(super) fn serving_pair(&self) -> PemPair {
        let mut params = params("localhost", "envtest");
        let names = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]);
        params.subject_alt_names = names.expect("valid names").subject_alt_names;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue(&params)
    }

    /// Issues the certificate of a user in a group.
    pub(super) fn client_pair(&self, user: &str, group: &str) -> PemPair {
        let mut params = params(user, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(&params)
    }

    fn issue(&self, params: &CertificateParams) -> PemPair {
        let key = key();
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        PemPair { cert: certificate.pem(), key: key.serialize_pem() }
    }
}

fn key() -> KeyPair {
    KeyPair::generate_for(&PKCS_RSA_SHA256).expect("a key")
}

/// Parameters of a certificate that is valid from now on.
fn params(common_name: &str, organization: &str) -> CertificateParams {
    let now = Duration::from_secs(Timestamp::now().as_second().unsigned_abs());
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let mut params = CertificateParams::default();
    (params.not_before, params.not_after) = (epoch + now, epoch + now + VALIDITY);
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, organization);
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.key_usages = vec![KeyUsagePurpose::KeyEncipherment, KeyUsagePurpose::DigitalSignature];
    params
}

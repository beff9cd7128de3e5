//! Tests of authentication: certificates, proxies, tokens, key rotation, rejected credentials.

mod ca_and_metrics;
mod certificates;
mod identities;
mod kubectl;
mod proxies;
mod rejected_credentials;
mod rotation;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyIdMethod,
    KeyPair, RevokedCertParams, SerialNumber,
};
use serde_json::{Value, json};
use serving::certs::{Authority, PemPair};
use tests::harness::{Client, ControlPlane};

/// The user of a client from a SelfSubjectReview, or `None` if authentication fails.
async fn whoami(plane: &ControlPlane, client: &Client, headers: &[(&str, &str)]) -> Option<Value> {
    let group = plane.names().group("authentication");
    let body = json!({"apiVersion": format!("{group}/v1"), "kind": "SelfSubjectReview"}).to_string();
    let url = format!("/apis/{group}/v1/selfsubjectreviews");
    let headers = [&[("content-type", "application/json")], headers].concat();
    let response = client.request("POST", &url, &headers, body.as_bytes()).await;
    (response.status != 401).then(|| response.expect(201)["status"]["userInfo"].clone())
}

/// The user name of a client, or `None` if authentication fails.
async fn user_name(plane: &ControlPlane, client: &Client) -> Option<String> {
    whoami(plane, client, &[]).await.and_then(|user| user["username"].as_str().map(str::to_owned))
}

/// A certificate authority with its files in a folder.
struct Ca {
    cert: PathBuf,
    key: PathBuf,
    authority: Authority,
}

impl Ca {
    fn new(dir: &Path, name: &str) -> Ca {
        let (cert, key) = (dir.join(format!("{name}.crt")), dir.join(format!("{name}.key")));
        let authority = Authority::ensure(&cert, &key, name, Timestamp::now()).expect("a CA");
        Ca { cert, key, authority }
    }

    fn pem(&self) -> String {
        fs::read_to_string(&self.cert).expect("the CA certificate")
    }

    /// A client certificate that is valid now.
    fn pair(&self, user: &str, groups: &[&str]) -> PemPair {
        self.pair_at(user, groups, Timestamp::now())
    }

    /// A client certificate that is valid for one hour from this time.
    fn pair_at(&self, user: &str, groups: &[&str], from: Timestamp) -> PemPair {
        let groups: Vec<String> = groups.iter().map(|&group| group.to_owned()).collect();
        self.authority.client(user, &groups, Duration::from_secs(3600), from).expect("a client certificate")
    }

    fn client(&self, plane: &ControlPlane, user: &str, groups: &[&str]) -> Client {
        let pair = self.pair(user, groups);
        Client::with_certificate(plane.anonymous().port(), &pair.cert, &pair.key)
    }

    /// The same CA for certificates with properties that only tests need.
    fn issuer(&self) -> Issuer<'static, KeyPair> {
        let key = fs::read_to_string(&self.key).expect("the CA key");
        let key = KeyPair::from_pem(&key).expect("a key");
        Issuer::from_ca_cert_pem(&self.pem(), key).expect("the CA certificate")
    }

    /// A client whose certificate has this serial number.
    fn client_with_serial(&self, plane: &ControlPlane, user: &str, group: &str, serial: u64) -> Client {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, user);
        params.distinguished_name.push(DnType::OrganizationName, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.serial_number = Some(SerialNumber::from(serial));
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.issuer()).expect("a certificate");
        Client::with_certificate(plane.anonymous().port(), &cert.pem(), &key.serialize_pem())
    }

    /// A certificate revocation list (CRL) with these serial numbers.
    fn revoke(&self, serials: &[u64]) -> String {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: rcgen::date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(2024, 1, 1),
            next_update: rcgen::date_time_ymd(2099, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer()).expect("a CRL").pem().expect("PEM")
    }
}

/// A flag whose value is a path.
fn path_flag(flag: &str, path: &Path) -> String {
    format!("--{flag}={}", path.display())
}

//! Tests of the usages in certificate requests.

use jiff::Timestamp;
use serving::certs::Authority;
use serving::certs::requests::{CertificateParameters, CertificateRequest};

/// A certificate signing request in PEM for the user `system:node:n1`.
const REQUEST: &str = "-----BEGIN CERTIFICATE REQUEST-----
MIHrMIGSAgEAMDAxFTATBgNVBAoMDHN5c3RlbTpub2RlczEXMBUGA1UEAwwOc3lz
dGVtOm5vZGU6bjEwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAQF+2kyvKYOMWaH
fZf4Ev3rguL8bXyfxNZhQroPAgCRQNEsoMbpf0o/EEOVQ9tM5gacfK/UD+GltW2q
FjTe/iWfoAAwCgYIKoZIzj0EAwIDSAAwRQIhAI3IdljN7yA4fd4mBZ6yMzyoGBqp
ASrKFUYD31+CU57aAiAA35x2RwqRhESGGjq4HeLNZRAtsdsU8QUs7cjxUr3itg==
-----END CERTIFICATE REQUEST-----
";

#[test]
fn each_usage_of_valid_requests_is_issued() {
    let dir = tempfile::tempdir().unwrap();
    let now = Timestamp::from_second(1_700_000_000).unwrap();
    let (cert, key) = (dir.path().join("ca.crt"), dir.path().join("ca.key"));
    let authority = Authority::ensure(&cert, &key, "signer", now).unwrap();
    let request = CertificateRequest::from_pem(REQUEST.as_bytes()).unwrap();
    for usage in kinds::CERTIFICATE_USAGES {
        let parameters = CertificateParameters { usages: &[usage], not_before: now, not_after: now };
        assert!(authority.issue(&request, &parameters).is_ok(), "{usage}");
    }
}

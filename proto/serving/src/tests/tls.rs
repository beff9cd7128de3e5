//! Tests of TLS: accepted client certificates, and the serving certificate.

use super::*;
use crate::certs::{Authority, PemPair, ensure_serving_pair};
use jiff::Timestamp;
use rustls::{ClientConfig, SignatureScheme};
use std::fs;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

fn now() -> Timestamp {
    use apimachinery::clock::{Clock, SystemClock};
    SystemClock::new().now()
}

struct Setup {
    _dir: tempfile::TempDir,
    files: TlsFiles,
    ca: PathBuf,
    authority: Authority,
}

fn setup() -> Setup {
    let dir = tempfile::tempdir().unwrap();
    let pair = ensure_serving_pair(dir.path(), &[], now()).unwrap();
    let authority = Authority::load(&pair.ca, &pair.ca_key).unwrap();
    let files = TlsFiles { cert: pair.cert, key: pair.key, client_cas: vec![pair.ca.clone()] };
    Setup { _dir: dir, files, ca: pair.ca, authority }
}

fn client(ca: &Path, identity: Option<(&PemPair, &PemPair)>) -> ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in certificates(ca).unwrap() {
        roots.add(certificate).unwrap();
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let chain = vec![CertificateDer::from_pem_slice(cert.cert.as_bytes()).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(key.key.as_bytes()).unwrap();
            let key = aws_lc_rs::sign::any_supported_type(&key).unwrap();
            // The client sends the certificate whatever the issuer hints are, and even with a key of another
            // certificate.
            let certified = Arc::new(CertifiedKey::new(chain, key));
            builder.with_client_cert_resolver(Arc::new(FixedCertificate(certified)))
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

#[derive(Debug)]
struct FixedCertificate(Arc<CertifiedKey>);

impl rustls::client::ResolvesClientCert for FixedCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Completes a handshake; returns the client chain that the server receives, or the error of either side.
async fn handshake(tls: &ServingTls, client: ClientConfig) -> Result<Vec<Bytes>, String> {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let accept = async {
        let mut stream = TlsAcceptor::from(tls.current()).accept(far).await.map_err(|e| e.to_string())?;
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        stream.write_all(b"x").await.map_err(|e| e.to_string())?;
        let chain = client_chain(stream.get_ref().1);
        let _ = stream.shutdown().await;
        Ok(chain)
    };
    let connect = async {
        let name = "localhost".try_into().unwrap();
        let mut stream =
            TlsConnector::from(Arc::new(client)).connect(name, near).await.map_err(|e| e.to_string())?;
        stream.read_u8().await.map_err(|e| e.to_string())
    };
    let (served, connected) = tokio::join!(accept, connect);
    connected.and(served)
}

#[tokio::test]
async fn client_certificate_is_unverified_except_proof_of_possession() {
    let Setup { _dir, files, ca, authority } = setup();
    let tls = ServingTls::load(files).unwrap();
    let hour = Duration::from_secs(3600);
    let known = authority.client("ada", &[], hour, now()).unwrap();
    let stranger_dir = tempfile::tempdir().unwrap();
    let stranger_ca = ensure_serving_pair(stranger_dir.path(), &[], now()).unwrap();
    let stranger = Authority::load(&stranger_ca.ca, &stranger_ca.ca_key).unwrap();
    let foreign = stranger.client("mallory", &[], hour, now()).unwrap();
    let long_ago =
        authority.client("old", &[], hour, Timestamp::from_second(1_000_000_000).unwrap()).unwrap();

    assert_eq!(handshake(&tls, client(&ca, None)).await, Ok(vec![]), "a client certificate is optional");
    for pair in [&known, &foreign, &long_ago] {
        let chain = handshake(&tls, client(&ca, Some((pair, pair)))).await.unwrap();
        let sent = CertificateDer::from_pem_slice(pair.cert.as_bytes()).unwrap();
        assert_eq!(chain, [Bytes::copy_from_slice(&sent)]);
    }
    // Ada's certificate without Ada's key.
    assert!(handshake(&tls, client(&ca, Some((&known, &foreign)))).await.is_err());
}

#[tokio::test]
async fn client_ca_names_are_sent_as_hints() {
    let Setup { _dir, files, ca, .. } = setup();
    let hints = subjects(&ca).unwrap();
    assert_eq!(hints.len(), 1);
    let certificate = &certificates(&ca).unwrap()[0];
    let (_, parsed) = X509Certificate::from_der(certificate).unwrap();
    assert_eq!(hints[0].as_ref(), parsed.subject().as_raw());
    assert!(ServingTls::load(TlsFiles { client_cas: Vec::new(), ..files }).is_ok());
}

#[tokio::test]
async fn tls_reload_uses_valid_files_and_keeps_previous_on_invalid_files() {
    let Setup { _dir, files, ca, authority } = setup();
    let tls = ServingTls::load(files.clone()).unwrap();
    assert!(!tls.reload().unwrap(), "nothing changed");
    let before = tls.current();

    let good = authority.serving(&["localhost".to_owned()], Duration::from_secs(3600), now()).unwrap();
    fs::write(&files.cert, &good.cert).unwrap();
    let error = tls.reload().unwrap_err().to_string();
    assert!(error.contains("does not belong to"), "{error}");
    assert!(Arc::ptr_eq(&tls.current(), &before));
    assert!(tls.is_change_rejected());
    assert!(!tls.reload().unwrap() && tls.is_change_rejected(), "the rejected files are unchanged");
    assert!(handshake(&tls, client(&ca, None)).await.is_ok(), "the previous pair is in use");

    fs::write(&files.key, &good.key).unwrap();
    assert!(tls.reload().unwrap());
    assert!(!tls.is_change_rejected());
    assert!(!Arc::ptr_eq(&tls.current(), &before));
    assert!(handshake(&tls, client(&ca, None)).await.is_ok(), "the new pair is in use");

    let client = authority.client("ca", &[], Duration::from_secs(3600), now()).unwrap();
    for (path, content) in [
        (&files.cert, "nonsense"),
        (&files.key, ""),
        (&files.client_cas[0], "x"),
        (&files.client_cas[0], &client.cert),
    ] {
        let kept = fs::read(path).unwrap();
        fs::write(path, content).unwrap();
        let error = tls.reload().unwrap_err().to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
        fs::write(path, kept).unwrap();
        assert!(tls.reload().unwrap());
    }
}

#[tokio::test]
async fn tls_watch_reloads_new_files() {
    let Setup { _dir, files, authority, .. } = setup();
    let tls = ServingTls::load(files.clone()).unwrap();
    let before = tls.current();
    let _watch = tls.spawn_watch();
    let good = authority.serving(&["localhost".to_owned()], Duration::from_secs(3600), now()).unwrap();
    fs::write(&files.key, &good.key).unwrap();
    fs::write(&files.cert, &good.cert).unwrap();
    while Arc::ptr_eq(&tls.current(), &before) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn invalid_tls_files_return_error_at_start() {
    let Setup { _dir, files, .. } = setup();
    let missing = TlsFiles { cert: files.cert.with_file_name("missing"), ..files.clone() };
    assert!(ServingTls::load(missing).unwrap_err().to_string().contains("missing"));
    let swapped = TlsFiles { cert: files.key.clone(), key: files.cert.clone(), client_cas: Vec::new() };
    let error = ServingTls::load(swapped).unwrap_err().to_string();
    assert!(!error.contains("PRIVATE"), "{error}");
}

/// Converts a version 3 certificate to a self-signed X.509 version 1 certificate with the same key.
///
/// The version and the extensions are removed from the signed part. `openssl x509 -req` without extensions
/// makes such certificates.
fn version_1_certificate(pair: &PemPair) -> CertificateDer<'static> {
    use x509_parser::der_parser::asn1_rs::Any;
    fn value(tag: u8, content: &[u8]) -> Vec<u8> {
        let mut der = vec![tag];
        match content.len() {
            length @ 0..=0x7f => der.push(length as u8),
            length @ 0x80..=0xff => der.extend([0x81, length as u8]),
            length => der.extend([0x82, (length >> 8) as u8, length as u8]),
        }
        der.extend(content);
        der
    }
    let whole = CertificateDer::from_pem_slice(pair.cert.as_bytes()).unwrap();
    let (_, outer) = Any::from_der(&whole).unwrap();
    let (signature_parts, signed) = Any::from_der(outer.data).unwrap();
    let mut fields = Vec::new();
    let mut rest = signed.data;
    while !rest.is_empty() {
        let (next, _) = Any::from_der(rest).unwrap();
        // The context tags 0 and 3 are the version and the extensions.
        if !matches!(rest[0], 0xa0 | 0xa3) {
            fields.extend_from_slice(&rest[..rest.len() - next.len()]);
        }
        rest = next;
    }
    let content = [value(0x30, &fields), signature_parts.to_vec()].concat();
    CertificateDer::from(value(0x30, &content))
}

#[tokio::test]
async fn version_1_client_certificate_fails_with_reason() {
    let Setup { _dir, files, ca, authority } = setup();
    let tls = ServingTls::load(files).unwrap();
    let pair = authority.client("ada", &[], Duration::from_secs(3600), now()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
    let key = aws_lc_rs::sign::any_supported_type(&key).unwrap();
    let certified = Arc::new(CertifiedKey::new(vec![version_1_certificate(&pair)], key));
    let mut config = client(&ca, None);
    config.client_auth_cert_resolver = Arc::new(FixedCertificate(certified));
    let (near, far) = tokio::io::duplex(64 * 1024);
    let accept = TlsAcceptor::from(tls.current()).accept(far);
    let connect = TlsConnector::from(Arc::new(config)).connect("localhost".try_into().unwrap(), near);
    let (served, _client) = tokio::join!(accept, connect);
    let reason = client_certificate_error(&served.err().unwrap()).unwrap();
    assert_eq!(reason, "the client certificate is X.509 version 1: issue a version 3 certificate");
}

//! Connections between both ends, with accepted and refused certificates.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use apimachinery::clock::{Clock as _, SystemClock};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;
use crate::certs::{Authority, PemPair};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// An authority in a folder, which issues certificates.
struct Issuer {
    authority: Authority,
    file: PathBuf,
}

impl Issuer {
    fn new(dir: &TempDir, name: &str) -> Self {
        let (file, key) = (dir.path().join(format!("{name}.crt")), dir.path().join(format!("{name}.key")));
        let authority = Authority::ensure(&file, &key, name, SystemClock::new().now()).unwrap();
        Issuer { authority, file }
    }

    fn write(&self, dir: &TempDir, name: &str, pair: &PemPair) -> MutualTlsFiles {
        let (certificate, key) =
            (dir.path().join(format!("{name}.pem")), dir.path().join(format!("{name}.key.pem")));
        std::fs::write(&certificate, &pair.cert).unwrap();
        std::fs::write(&key, &pair.key).unwrap();
        MutualTlsFiles { authority: self.file.clone(), certificate, key }
    }

    fn server(&self, dir: &TempDir, host: &str) -> MutualTlsFiles {
        let pair = self.authority.serving(&[host.to_owned()], DAY, SystemClock::new().now()).unwrap();
        self.write(dir, "server", &pair)
    }

    fn client(&self, dir: &TempDir, name: &str) -> MutualTlsFiles {
        let pair = self.authority.client(name, &[], DAY, SystemClock::new().now()).unwrap();
        self.write(dir, &format!("client-{name}"), &pair)
    }
}

/// Connects a client to a server, and exchanges one byte in each direction. Returns the errors of both ends.
async fn exchange(server: &MutualTlsServer, client: Option<&MutualTlsClient>) -> Result<(), [String; 2]> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let accepting = async {
        let (stream, _) = listener.accept().await?;
        let mut stream = server.accept(stream, [127, 0, 0, 1].into()).await?;
        let byte = stream.read_u8().await?;
        stream.write_u8(byte + 1).await?;
        stream.shutdown().await
    };
    let connecting = async {
        let Some(client) = client else {
            let mut stream = stream;
            stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await?;
            let mut text = String::new();
            stream.read_to_string(&mut text).await?;
            return Err(io::Error::other(text));
        };
        let mut stream = client.connect("127.0.0.1", stream).await?;
        stream.write_u8(7).await?;
        assert_eq!(stream.read_u8().await?, 8);
        Ok(())
    };
    match tokio::join!(accepting, connecting) {
        (Ok(()), Ok(())) => Ok(()),
        (accepting, connecting) => {
            Err([accepting, connecting].map(|end| end.err().map_or_else(String::new, |e| e.to_string())))
        }
    }
}

#[tokio::test]
async fn only_named_client_of_the_authority_is_accepted() {
    let (dir, other_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (issuer, other) = (Issuer::new(&dir, "ca"), Issuer::new(&other_dir, "other"));
    let names = vec!["apid".to_owned(), "second".to_owned()];
    let server = MutualTlsServer::load(issuer.server(&dir, "127.0.0.1"), names).unwrap();
    let client = |files| MutualTlsClient::load(files).unwrap();
    for name in ["apid", "second"] {
        exchange(&server, Some(&client(issuer.client(&dir, name)))).await.unwrap();
    }
    let foreign = MutualTlsFiles { authority: issuer.file.clone(), ..other.client(&other_dir, "apid") };
    for (files, expected) in [
        (issuer.client(&dir, "alice"), "AccessDenied"),
        (issuer.client(&dir, "APID"), "AccessDenied"),
        (foreign, "alert"),
        // A serving certificate is no client certificate.
        (issuer.server(&other_dir, "apid"), "alert"),
    ] {
        let [accepting, connecting] = exchange(&server, Some(&client(files))).await.unwrap_err();
        assert!(!accepting.is_empty() && connecting.contains(expected), "{accepting}; {connecting}");
    }
    let [accepting, response] = exchange(&server, None).await.unwrap_err();
    assert!(accepting.contains("use an https URL"), "{accepting}");
    assert!(response.starts_with("HTTP/1.1 400 Bad Request"), "{response}");
}

#[tokio::test]
async fn client_without_certificate_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let issuer = Issuer::new(&dir, "ca");
    let server = MutualTlsServer::load(issuer.server(&dir, "127.0.0.1"), vec!["apid".to_owned()]).unwrap();
    let files = issuer.client(&dir, "apid");
    let without_certificate = |content: &Content| {
        let end = client_end(content)?;
        let mut config = ClientConfig::clone(&end.config);
        config.client_auth_cert_resolver = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth()
            .client_auth_cert_resolver;
        Ok(End { config: Arc::new(config), ..end })
    };
    let current = Current::load(files, without_certificate).unwrap();
    let client = MutualTlsClient { current, verification_interval: VERIFICATION_INTERVAL };
    let [accepting, connecting] = exchange(&server, Some(&client)).await.unwrap_err();
    assert!(connecting.contains("CertificateRequired"), "{accepting}; {connecting}");
}

#[tokio::test]
async fn client_refuses_server_of_another_authority_or_name() {
    let (dir, other_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (issuer, other) = (Issuer::new(&dir, "ca"), Issuer::new(&other_dir, "other"));
    let client = MutualTlsClient::load(issuer.client(&dir, "apid")).unwrap();
    let other_server =
        MutualTlsFiles { authority: issuer.file.clone(), ..other.server(&other_dir, "127.0.0.1") };
    for (files, expected) in
        [(other_server, "UnknownIssuer"), (issuer.server(&dir, "127.0.0.2"), "NotValidForName")]
    {
        let server = MutualTlsServer::load(files, vec!["apid".to_owned()]).unwrap();
        let [_, connecting] = exchange(&server, Some(&client)).await.unwrap_err();
        assert!(connecting.contains(expected) || connecting.contains("not valid for"), "{connecting}");
    }
}

#[tokio::test]
async fn changed_files_serve_new_connections_and_invalid_files_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let issuer = Issuer::new(&dir, "ca");
    let files = issuer.server(&dir, "127.0.0.1");
    let server = MutualTlsServer::load(files.clone(), vec!["apid".to_owned()]).unwrap();
    let client = MutualTlsClient::load(issuer.client(&dir, "apid")).unwrap();
    exchange(&server, Some(&client)).await.unwrap();
    std::fs::write(&files.certificate, "not a certificate").unwrap();
    exchange(&server, Some(&client)).await.unwrap();
    let error = MutualTlsServer::load(files.clone(), Vec::new()).unwrap_err().to_string();
    assert!(error.contains("server.pem"), "{error}");
    // The new certificate is for another host, so that the client can tell both.
    issuer.server(&dir, "127.0.0.9");
    let [_, connecting] = exchange(&server, Some(&client)).await.unwrap_err();
    assert!(connecting.contains("certificate"), "{connecting}");
}

#[tokio::test]
async fn failed_reload_is_repeated_without_a_change_and_only_when_it_is_due() {
    let dir = tempfile::tempdir().unwrap();
    let issuer = Issuer::new(&dir, "ca");
    let files = issuer.client(&dir, "apid");
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = attempts.clone();
    // The second attempt fails, as without free descriptors.
    let build = move |_: &Content| match counted.fetch_add(1, Ordering::SeqCst) {
        1 => Err(SettingsError("too many open files".to_owned())),
        attempt => Ok(attempt),
    };
    let current = Current::load(files, build).unwrap();
    issuer.client(&dir, "apid");
    for _ in 0..3 {
        assert_eq!((*current.get(), attempts.load(Ordering::SeqCst)), (0, 2));
    }
    current.state.lock().failure.as_mut().unwrap().retry = Instant::now();
    for _ in 0..3 {
        assert_eq!((*current.get(), attempts.load(Ordering::SeqCst)), (2, 3));
    }
}

/// Both ends of an open connection, which verify each other often. Each end has a bundle of its own.
struct Open {
    server: VerifiedStream<server::TlsStream<TcpStream>>,
    client: VerifiedStream<client::TlsStream<TcpStream>>,
    server_bundle: PathBuf,
    client_bundle: PathBuf,
}

impl Open {
    /// The interval of the verification in these tests.
    const INTERVAL: Duration = Duration::from_millis(20);

    /// Connects ends whose bundles have the authority of `issuer`; the certificate of the client is `client`.
    async fn new(dir: &TempDir, issuer: &Issuer, client: MutualTlsFiles) -> Self {
        Open::with_interval(dir, issuer, client, Self::INTERVAL).await
    }

    async fn with_interval(
        dir: &TempDir,
        issuer: &Issuer,
        client: MutualTlsFiles,
        interval: Duration,
    ) -> Self {
        let bundle = |name: &str| {
            let path = dir.path().join(name);
            std::fs::copy(&issuer.file, &path).unwrap();
            path
        };
        let (server_bundle, client_bundle) = (bundle("server-bundle"), bundle("client-bundle"));
        let files = MutualTlsFiles { authority: server_bundle.clone(), ..issuer.server(dir, "127.0.0.1") };
        let mut server = MutualTlsServer::load(files, vec!["apid".to_owned()]).unwrap();
        let files = MutualTlsFiles { authority: client_bundle.clone(), ..client };
        let mut client = MutualTlsClient::load(files).unwrap();
        (server.verification_interval, client.verification_interval) = (interval, interval);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let accept = async {
            let (stream, peer) = listener.accept().await?;
            server.accept(stream, peer.ip()).await
        };
        let (server, client) = tokio::try_join!(accept, client.connect("127.0.0.1", stream)).unwrap();
        Open { server, client, server_bundle, client_bundle }
    }

    /// Whether both ends still wait for bytes after many verifications.
    async fn is_open(&mut self) -> bool {
        let either = async {
            tokio::select! {
                result = self.server.read_u8() => result,
                result = self.client.read_u8() => result,
            }
        };
        tokio::time::timeout(Self::INTERVAL * 20, either).await.is_err()
    }
}

/// Waits for the end of a connection by its verification.
async fn assert_refused(stream: &mut (impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin)) {
    let read = tokio::time::timeout(Duration::from_secs(60), stream.read_u8()).await.unwrap();
    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    assert_eq!(stream.write_u8(1).await.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
}

#[tokio::test]
async fn open_connection_ends_when_an_end_removes_the_authority_of_the_other() {
    for removed_by_server in [true, false] {
        let (dir, other_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (issuer, other) = (Issuer::new(&dir, "ca"), Issuer::new(&other_dir, "other"));
        let mut open = Open::new(&dir, &issuer, issuer.client(&dir, "apid")).await;
        let bundle = if removed_by_server { &open.server_bundle } else { &open.client_bundle }.clone();
        let [old, new] = [&issuer, &other].map(|issuer| std::fs::read(&issuer.file).unwrap());
        std::fs::write(&bundle, [&new[..], &old].concat()).unwrap();
        assert!(open.is_open().await, "both authorities are accepted");
        std::fs::write(&bundle, "no certificate").unwrap();
        assert!(open.is_open().await, "an invalid file changes nothing");
        std::fs::write(&bundle, new).unwrap();
        if removed_by_server {
            assert_refused(&mut open.server).await;
        } else {
            assert_refused(&mut open.client).await;
        }
    }
}

#[tokio::test]
async fn open_connection_ends_when_the_certificate_of_the_client_expires() {
    let dir = tempfile::tempdir().unwrap();
    let issuer = Issuer::new(&dir, "ca");
    let validity = Duration::from_secs(10);
    let pair = issuer.authority.client("apid", &[], validity, SystemClock::new().now()).unwrap();
    let mut open = Open::new(&dir, &issuer, issuer.write(&dir, "short", &pair)).await;
    assert!(open.is_open().await, "the certificate is valid");
    assert_refused(&mut open.server).await;
}

#[tokio::test]
async fn open_connection_ends_while_its_writer_waits() {
    let (dir, other_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (issuer, other) = (Issuer::new(&dir, "ca"), Issuer::new(&other_dir, "other"));
    let mut open = Open::new(&dir, &issuer, issuer.client(&dir, "apid")).await;
    // More than all buffers: the client does not read.
    let bytes = vec![0; 64 * 1024 * 1024];
    let write = open.server.write_all(&bytes);
    tokio::pin!(write);
    assert!(tokio::time::timeout(Open::INTERVAL * 20, &mut write).await.is_err(), "the write waits");
    std::fs::copy(&other.file, &open.server_bundle).unwrap();
    let result = tokio::time::timeout(Duration::from_secs(60), write).await.unwrap();
    assert_eq!(result.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
}

#[tokio::test]
async fn authority_is_removed_while_the_certificate_file_of_the_end_is_invalid() {
    let (dir, other_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (issuer, other) = (Issuer::new(&dir, "ca"), Issuer::new(&other_dir, "other"));
    let mut open = Open::new(&dir, &issuer, issuer.client(&dir, "apid")).await;
    std::fs::write(dir.path().join("server.pem"), "not a certificate").unwrap();
    assert!(open.is_open().await, "an invalid file changes nothing");
    std::fs::copy(&other.file, &open.server_bundle).unwrap();
    assert_refused(&mut open.server).await;
}

#[tokio::test]
async fn authority_removed_after_the_handshake_ends_the_connection_at_once() {
    let (dir, other_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (issuer, other) = (Issuer::new(&dir, "ca"), Issuer::new(&other_dir, "other"));
    let mut open = Open::with_interval(&dir, &issuer, issuer.client(&dir, "apid"), DAY).await;
    // No end has used the connection since the handshake.
    std::fs::copy(&other.file, &open.server_bundle).unwrap();
    assert_refused(&mut open.server).await;
}

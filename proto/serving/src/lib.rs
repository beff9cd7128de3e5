//! What both processes need in order to serve: listeners, TLS, certificates, the HTTP server, logs, metrics, feature
//! gates, health checks, flags and the reloading of files. No knowledge of kinds, users or policy.
//!
//! One subject a file; the public interface in short:
//!
//! ```text
//! listener   Listener::tcp(address: IpAddr, port: u16) -> io::Result<Listener>      port 0: the system chooses
//!            Listener::unix(path: &Path) -> io::Result<Listener>                    mode 0600, a dead socket is replaced
//!            listener.address() -> Option<SocketAddr>                               what was bound; None for a unix socket
//!            unix(path: &Path) -> io::Result<tokio::net::UnixListener>              the same for tonic
//!
//! tls        TlsFiles { cert: PathBuf, key: PathBuf, client_ca: Option<PathBuf> }
//!            ServingTls::load(files: TlsFiles) -> Result<Arc<ServingTls>, TlsError>
//!            tls.reload() -> Result<bool, TlsError>                                 true: something changed
//!            tls.spawn_watch(every: Duration) -> reload::Watch                      a bad file keeps the old, and logs
//!
//! certs      ensure_serving_pair(dir: &Path, names: &[String], now: Timestamp) -> Result<ServingPair, CertError>
//!              ServingPair { cert, key, ca, ca_key: PathBuf }                       made once, kept; keys mode 0600
//!            Authority::ensure(cert: &Path, key: &Path, common_name: &str, now: Timestamp) -> Result<Authority, CertError>
//!            authority.client(user: &str, groups: &[String], validity: Duration, now: Timestamp) -> Result<PemPair, CertError>
//!              PemPair { cert: String, key: Secret }
//!
//! body       Body::empty() | Body::from(Bytes | Vec<u8> | String | &'static str) | Body::stream(impl http_body::Body)
//!            read(body: Incoming, limit: usize, idle: Duration) -> Result<Bytes, ReadError>
//!              ReadError::{TooLarge(usize), Timeout, Broken(String)}
//!
//! server     trait Handler { fn handle(&self, Request<Incoming>, Arc<ConnectionInfo>) -> impl Future<Output = Response<Body>> + Send }
//!            ConnectionInfo { peer: Option<SocketAddr>, tls: bool, client_chain: Vec<Bytes> (DER, leaf first) }
//!            ServerOptions { .. } (Default: timeouts, header sizes, HTTP/2 limits, drain deadline)
//!            serve(listener, tls: Option<Arc<ServingTls>>, handler: Arc<impl Handler>, options, shutdown: impl Future) -> Drained
//!
//! log        init(level: u8, format: Format::{Text, Json}) -> Result<(), LogError>
//! metrics    Metrics::new(); .counter/.gauge/.histogram(&Definition { name, help, stability, .. }) -> Family; .text() -> String
//! gates      FeatureGates::parse(text: &str) -> Result<(FeatureGates, Vec<String>), GateError>; .enabled(gate::NAME) -> bool; help() -> String
//! health     Checks::new().with(name, || Result<(), String>); .answer(endpoint, sub_path, query, last_line) -> HealthAnswer { status, body }
//! flags      duration(&str) -> Result<Duration, String>; Switch (`--x`, `--x=false`); list parsing; for clap's value_parser
//! reload     Watch::spawn(files, every, on_change) -> Watch                         polls content; dropping it stops it
//! ```

//! Serving infrastructure of both processes.
//!
//! Listeners, TLS, certificates, HTTP server and client, logs, metrics, feature gates, health checks, flags and
//! file reloading. This crate contains no code for API kinds, users or policy. Each file covers one subject.
//!
//! Summary of the public interface:
//!
//! ```text
//! listener   Listener::tcp(address: IpAddr, port: u16).await -> io::Result<Listener>  port 0: the system chooses
//!            Listener::unix(path: &Path) -> io::Result<Listener>                      mode 0600, replaces a stale socket
//!            listener.address() -> Option<SocketAddr>                                 bound address; None for a unix socket
//!            unix(path: &Path) -> io::Result<tokio::net::UnixListener>                for servers with their own accept loop
//!
//! local      LocalStream::connect(&Path).await, LocalStream::of(tokio UnixStream)     woken only for incoming data
//! single_task run_as_single_task(|spawner| future).await                              runs a connection and its streams as one task
//!
//! tls        TlsFiles { cert: PathBuf, key: PathBuf, client_cas: Vec<PathBuf> }
//!            ServingTls::load(files: TlsFiles) -> Result<Arc<ServingTls>, TlsError>
//!            tls.reload() -> Result<bool, TlsError>                                   true: a new configuration is in use
//!            tls.spawn_watch() -> reload::Watch                                       an invalid file is logged; the previous files stay
//!            certificates(path: &Path) -> Result<Vec<CertificateDer>, TlsError>
//!
//! certs      ensure_serving_pair(dir: &Path, names: &[String], now: Timestamp) -> Result<ServingPair, CertError>
//!              ServingPair { cert, key, ca, ca_key: PathBuf }                         generated once; keys mode 0600
//!            Authority::ensure(cert: &Path, key: &Path, common_name: &str, now) -> Result<Authority, CertError>
//!            Authority::load(cert: &Path, key: &Path) -> Result<Authority, CertError>
//!            authority.client(user: &str, groups: &[String], validity: Duration, now) -> Result<PemPair, CertError>
//!              PemPair { cert: String, key: String }
//!            requests::CertificateRequest::from_pem(&[u8]) -> Result<_, RequestError>  PKCS #10, with a verified signature
//!            authority.issue(&CertificateRequest, &CertificateParameters { usages, not_before, not_after }) -> Result<String, CertError>
//!            write(path: &Path, content: &[u8], mode: u32) -> Result<(), CertError>   atomic, by rename
//!
//! build      INFO: BuildInfo { version, commit, seconds, compiler }; date()           recorded by the build script
//!
//! arguments  flag_value(&[String], name), has_flag(..), without_flag(Vec<String>, name)   flags before clap parses them
//!
//! config_file ServerConfiguration::from_arguments(&[String])                             flags of both processes from --config
//!            merge(defaults: &[FlagValues], arguments: Vec<String>) -> Vec<String>        the command line wins
//!
//! body       Body::empty() | Body::from(Bytes | Vec<u8> | String | &'static str) | Body::stream(impl http_body::Body)
//!            channel(capacity: usize) -> (mpsc::Sender<Bytes>, Body)                  used by watches
//!            read(body: Incoming, limit: usize, within: Duration).await -> Result<Bytes, ReadError>
//!              ReadError::{TooLarge(usize), Timeout, Broken(String)}
//!
//! server     trait Handler { fn handle(&self, Request<Incoming>, Arc<ConnectionInfo>) -> impl Future<Output = Response<Body>> + Send }
//!              closures of that shape are handlers
//!            ConnectionInfo { peer: Option<SocketAddr>, tls: bool, client_chain: Vec<Bytes> (DER, leaf first, unverified),
//!                             client_fingerprint: Option<[u8; 32]>, unsent_bytes: Arc<AtomicUsize>,
//!                              cut: ConnectionCloser (cut.now() ends the connection) }
//!            serve(listener, tls: Option<Arc<ServingTls>>, handler: Arc<impl Handler>, ServerOptions, shutdown: impl Future)
//!              .await -> ShutdownResult::{Clean, Cut}
//!
//! client     Client::new(&Settings { trust: Trust::{System, Authorities, Insecure}, server_name, identity, proxy, user_agent })
//!              Trust::from_pem(&[u8]), Identity::from_pem(cert, key); no redirects, any status is a response
//!            client.get(url, Limits { within, bytes }).await -> Result<ClientResponse { status, headers, body }, CallError>
//!            client.send(Request<Bytes>, limits); request(Method, url, Bytes); answer.json(), retry_after()
//!            retry::Backoff::WEBHOOK.call(&dyn Rng, || client.get(..)).await -> (Result<ClientResponse, CallError>, attempts)
//!            Remote::new(target, user_agent, &Names, Arc<dyn Clock>) -> Result<Remote, Vec<String>>
//!            remote.post(Bytes, limits).await, remote.send(Method, path, Bytes, limits).await
//! client_config  ClientConfig::load(&Path) -> Result<ClientConfig, ConfigError>; config.target(None, &Names) -> Target
//! exec       Plugin: credentials().await, reject(&Arc<Credentials>); used by Remote
//! log        init(verbosity: u8, format: Format::{Text, Json}, clock: Arc<dyn Clock>) -> Result<(), AlreadySetUp>
//!              lines are rate-limited by call site and cause; check() is the health check `log`
//! metrics    Definition::new(name, Stability, help); Metrics::new() .counter::<L>(&D) .gauge::<L>(&D) .float_gauge::<L>(&D)
//!            .histogram::<L>(&D, &'static [f64]) .single_counter(&D) .single_gauge(&D) .single_histogram(&D, ..) .text()
//!            .collect_with(|| ..) before each scrape; .declared() -> Vec<Definition>; ProcessMetrics::new(&Metrics).update()
//! compatibility  CompatibilityVersions::parse(emulated, oldest) -> Result<CompatibilityVersions { emulated, min_compatible }, Vec<VersionError>>
//! gates      FeatureGates::parse(&str, emulated: u32) -> Result<(FeatureGates, Vec<String> /* warnings */), GateErrors>
//!            gates.enabled(Gate::WatchList) -> bool; help() -> String
//! health     Checks::new().with(name, || Result<(), String>)
//!            checks.answer(endpoint: &str, check: Option<&str>, query: &str, own_name: bool) -> HealthAnswer { status, body, failures }
//! flags      duration(&str), duration_text(Duration), boolean(&str), key_value(&str): for clap's value_parser
//!            is_controller_enabled(&[String], names, by_default)                         the flag --controllers
//! service_manager  ServiceManager::from_environment().notify(ServiceState::{Ready, Reloading, Stopping})
//! reload     Snapshot::new(paths).watch(on_change) -> Watch                           ends on drop
//! ```

pub mod arguments;
pub mod body;
pub mod build;
mod cancellations;
pub mod certs;
pub mod client;
pub mod client_config;
pub mod compatibility;
pub mod config_file;
mod connection_closer;
mod connection_limits;
pub mod exec;
mod fair_stream;
pub mod flags;
pub mod gates;
mod handshake_signatures;
pub mod health;
pub mod listener;
pub mod local;
pub mod log;
pub mod metrics;
mod plain_http;
pub mod reload;
mod request_head;
mod send_limit;
pub mod server;
pub mod service_manager;
pub mod single_task;
pub mod tls;
mod trust;

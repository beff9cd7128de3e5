//! The command line flags of apid, parsed into one typed value.
//!
//! # Contract
//!
//! [`Config::read`] parses the command line. It reports all errors together, before apid opens the store or
//! binds a port; the program then exits with [`EXIT_USAGE`]. Flags that are not implemented yet are accepted
//! and listed in [`Config::unimplemented_flags`], except flags that are unsafe to ignore, which are errors.
//!
//! [`flags`] declares the flags that apid reads, [`declared_flags`] the flags without an effect.
//! [`processflags`] declares the flags that both processes read and the flags that apid passes on to authd.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use apimachinery::codec::Limits;
use apimachinery::names::Names;
use kinds::EnabledVersions;
use serving::compatibility::CompatibilityVersions;
use serving::gates::FeatureGates;

use audit::Rotation;
use authclient::ProxyHeaders;

mod availability;
mod declared_flags;
mod flags;
mod published_config;
mod read;
mod reference_flags;
#[cfg(test)]
mod tests;
mod values;

use controllers::{CertificateSigning, EnabledControllers, PublishedConfig};
pub use read::command;
pub(crate) use values::byte_size;
use verbs::addresses::{NodePortRange, ServiceRange};

/// Exit code for command line errors (`EX_USAGE`).
pub const EXIT_USAGE: u8 = 64;

/// Directory of the store within the data directory.
pub const STORE: &str = "store";

/// The authd that apid uses: spawned by apid, or external.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authd {
    /// apid starts authd and passes these flags.
    Spawned {
        /// Path of the program; None: the program `authd` beside apid or on PATH.
        program: Option<PathBuf>,
        /// Flags of the command line of authd.
        flags: Vec<String>,
    },
    /// authd runs already and listens on this socket.
    At(PathBuf),
}

/// Configuration of the process.
#[derive(Debug)]
pub struct Config {
    /// Names of groups, labels and namespaces.
    pub names: Names,
    /// Data directory; the store is in its subdirectory [`STORE`].
    pub data_dir: PathBuf,
    /// Address to listen on.
    pub bind_address: IpAddr,
    /// Port to listen on; 0 lets the system choose.
    pub secure_port: u16,
    /// Address under which clients reach the process, if configured.
    pub advertise_address: Option<IpAddr>,
    /// IP ranges of Services.
    pub service_ranges: Vec<ServiceRange>,
    /// The range of node ports of Services.
    pub node_ports: NodePortRange,
    /// File to which apid writes the bound port.
    pub port_file: PathBuf,
    /// Directory for generated certificates.
    pub cert_dir: PathBuf,
    /// Files of the serving certificate and of its key; None: apid creates both.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// CA bundles that verify the client certificates of users and of authenticating proxies.
    pub client_cas: Vec<PathBuf>,
    /// The release of `--show-hidden-metrics-for-version`, as given on the command line.
    pub hidden_metrics: String,
    /// Configuration that apid publishes in ConfigMaps and token Secrets.
    pub published_config: PublishedConfig,
    /// The authd that apid uses.
    pub authd: Authd,
    /// Socket of a spawned authd; None: apid chooses the path.
    pub authd_socket: Option<PathBuf>,
    /// Timeout of requests to authd.
    pub authd_timeout: Duration,
    /// Time for which old revisions and watch events are readable.
    pub history_retention: Duration,
    /// Time after its last write at which an Event is deleted; zero means never.
    pub event_ttl: Duration,
    /// Maximum size of the store in bytes; None: no limit.
    pub storage_quota: Option<u64>,
    /// Timeout of requests other than watches.
    pub request_timeout: Duration,
    /// Minimum duration of a watch for which the client sets no timeout.
    pub min_request_timeout: Duration,
    /// Number of objects that one deletecollection request deletes concurrently.
    pub delete_workers: usize,
    /// Controllers that `--controllers` enables; without the garbage collector if its own flag disables it.
    pub controllers: EnabledControllers,
    /// Configuration of the built-in signer; None: the signer does not run.
    pub certificate_signing: Option<CertificateSigning>,
    /// Maximum numbers of concurrent reading requests and of concurrent mutating requests; 0 means no limit.
    pub max_in_flight: (usize, usize),
    /// Decode limits of request bodies.
    pub body_limits: Limits,
    /// Time for which apid still serves requests after a termination signal, while `/readyz` fails.
    pub shutdown_delay: Duration,
    /// Time after start during which `/livez` ignores checks that do not pass yet.
    pub livez_grace: Duration,
    /// Admission plugins to enable in addition to the default ones.
    pub enable_admission: Vec<String>,
    /// Admission plugins to disable, including default plugins.
    pub disable_admission: Vec<String>,
    /// Configuration of the admission plugins.
    pub admission_configuration: admission::Configuration,
    /// Addresses of Services that webhooks name.
    pub service_map: webhooks::ServiceMap,
    /// Feature gates.
    pub gates: FeatureGates,
    /// The emulated release and the oldest compatible release.
    pub compatibility_versions: CompatibilityVersions,
    /// API versions and resources that are served.
    pub enabled_versions: EnabledVersions,
    /// File of the audit log; `-` is standard output; None: no audit log.
    pub audit_log: Option<String>,
    /// Maximum size of the audit log before its rotation, and limits on age and number of the rotated files.
    pub audit_rotation: Rotation,
    /// Whether controllers write as service accounts of their own.
    pub controllers_have_accounts: bool,
    /// Headers that an authenticating proxy may set.
    pub proxy_headers: ProxyHeaders,
    /// Log verbosity, the value of `-v`.
    pub verbosity: u8,
    /// Whether log lines are JSON.
    pub log_json: bool,
    /// Whether the authd that apid starts allows every request: without an authorization mode, or with
    /// AlwaysAllow. False for an external authd, whose modes are flags of authd.
    pub allows_everything: bool,
    /// Flags of the command line that apid does not need, each with the reason.
    pub unneeded_flags: Vec<(&'static str, &'static str)>,
    /// Flags of the command line that are not implemented yet.
    pub unimplemented_flags: Vec<String>,
    /// Warnings about the configuration, to log at the start.
    pub warnings: Vec<String>,
}

/// The action that the command line selects.
#[derive(Debug)]
pub enum Command {
    /// Serve the API with this configuration.
    Serve(Box<Config>),
    /// Print this text and exit with success.
    Print(String),
}

//! The command line flags of apid, parsed into one typed value.
//!
//! # Contract
//!
//! [`Config::read`] parses the command line. It reports all errors together, before apid opens the store or
//! binds a port; the program then exits with [`EXIT_USAGE`]. Flags that are not implemented yet are accepted
//! and listed in [`Config::unimplemented_flags`], except flags that are unsafe to ignore, which are errors.
//!
//! [`flags`] declares each flag that apid reads in the struct of its owner, which the owner reads as
//! `config.flags.OWNER`. [`reference_flags`] declares the flags without an effect.
//! [`processflags`] declares the flags that both processes read and the flags that apid passes on to authd.

use std::path::PathBuf;

use apimachinery::names::Names;
use forwarding::ForwardingOptions;
use kinds::EnabledVersions;
use serving::compatibility::CompatibilityVersions;
use serving::gates::FeatureGates;

use authclient::{AuthdServer, ProxyHeaders};

mod audit_flags;
mod availability;
mod etcd_flags;
mod flags;
mod forwarding_flags;
mod published_config;
mod read;
mod reference_flags;
mod shared_authds;
#[cfg(test)]
mod tests;
mod values;

use controllers::{CertificateSigning, EnabledControllers, PublishedConfig};
pub(crate) use etcd_flags::{EtcdFlags, PolicyConsistencyName, StorageMediaType};
pub(crate) use flags::StorageFlags;
pub use read::command;
pub(crate) use values::{byte_size, split_list};

/// Exit code for command line errors (`EX_USAGE`).
pub const EXIT_USAGE: u8 = 64;

/// Directory of the store within the data directory.
pub const STORE: &str = "store";

/// The authd that apid uses first: spawned by apid, or external.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authd {
    /// apid starts authd and passes these flags.
    Spawned {
        /// Path of the program; None means the program `authd` beside apid or on PATH.
        program: Option<PathBuf>,
        /// Flags of the command line of authd.
        flags: Vec<String>,
    },
    /// authd runs already and listens on this socket.
    At(PathBuf),
    /// apid has no authd of its own: it uses the shared ones.
    Shared,
}

/// Configuration of the process.
#[derive(Debug)]
pub struct Config {
    /// The flags, for readers that need a value as it was given. The other fields are made of flags.
    pub(crate) flags: flags::Flags,
    /// Names of groups, labels and namespaces.
    pub names: Names,
    /// Data directory; the store is in its subdirectory [`STORE`].
    pub data_dir: PathBuf,
    /// File to which apid writes the bound port.
    pub port_file: PathBuf,
    /// Directory for generated certificates.
    pub cert_dir: PathBuf,
    /// Files of the serving certificate and of its key; None means apid creates both.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// CA bundles that verify the client certificates of users and of authenticating proxies.
    pub client_cas: Vec<PathBuf>,
    /// Configuration that apid publishes in ConfigMaps and token Secrets.
    pub published_config: PublishedConfig,
    /// The authd that apid uses first.
    pub authd: Authd,
    /// The shared authds. apid uses them after its own authd has ended, or if it has no own one.
    pub shared_authds: Vec<AuthdServer>,
    /// Controllers that `--controllers` enables; without the garbage collector if its own flag disables it.
    pub controllers: EnabledControllers,
    /// Configuration of the built-in signer; None if the signer does not run.
    pub certificate_signing: Option<CertificateSigning>,
    /// Configuration of the admission plugins.
    pub admission_configuration: admission::Configuration,
    /// Options of connections to Services, pods, nodes and aggregated APIs.
    pub forwarding: ForwardingOptions,
    /// Feature gates.
    pub gates: FeatureGates,
    /// The emulated release and the oldest compatible release.
    pub compatibility_versions: CompatibilityVersions,
    /// API versions and resources that are served.
    pub enabled_versions: EnabledVersions,
    /// Headers that an authenticating proxy may set.
    pub proxy_headers: ProxyHeaders,
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

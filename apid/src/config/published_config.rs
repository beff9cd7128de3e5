//! Configuration that apid publishes as objects for its clients.

use std::path::PathBuf;

use super::parse::CommandLine;

/// Configuration to publish.
#[derive(Clone, Debug, Default)]
pub struct PublishedConfig {
    /// `--root-ca-file`.
    pub root_ca: Option<PathBuf>,
    /// `--client-ca-file`.
    pub client_ca: Option<PathBuf>,
    /// Configuration of authenticating proxies, if any is trusted.
    pub proxy: Option<PublishedProxyConfig>,
}

/// The flags of authenticating proxies.
#[derive(Clone, Debug, Default)]
pub struct PublishedProxyConfig {
    /// `--requestheader-client-ca-file`.
    pub client_ca: PathBuf,
    /// The list flags, each with its key in the ConfigMap.
    pub lists: Vec<(&'static str, Vec<String>)>,
}

impl PublishedConfig {
    /// Reads the flags.
    pub(super) fn of(line: &CommandLine) -> Self {
        let path = |name: &str| line.value(name).map(PathBuf::from);
        let proxy = path("requestheader-client-ca-file").map(|client_ca| PublishedProxyConfig {
            client_ca,
            lists: [
                "requestheader-allowed-names",
                "requestheader-username-headers",
                "requestheader-uid-headers",
                "requestheader-group-headers",
                "requestheader-extra-headers-prefix",
            ]
            .map(|name| (name, line.list(name)))
            .into(),
        });
        PublishedConfig { root_ca: path("root-ca-file"), client_ca: path("client-ca-file"), proxy }
    }
}

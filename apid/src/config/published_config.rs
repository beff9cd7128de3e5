//! Configuration that apid publishes as objects for its clients.

use std::path::PathBuf;

use processflags::SharedFlags;

use super::values::split_list;

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
    pub(super) fn new(root_ca: Option<PathBuf>, shared: &SharedFlags) -> Self {
        let proxy = &shared.proxy;
        let published_proxy = proxy.requestheader_client_ca_file.clone().map(|client_ca| {
            let lists = [
                ("requestheader-allowed-names", &proxy.requestheader_allowed_names),
                ("requestheader-username-headers", &proxy.requestheader_username_headers),
                ("requestheader-uid-headers", &proxy.requestheader_uid_headers),
                ("requestheader-group-headers", &proxy.requestheader_group_headers),
                ("requestheader-extra-headers-prefix", &proxy.requestheader_extra_headers_prefix),
            ];
            let lists = lists.map(|(name, values)| (name, split_list(values))).into();
            PublishedProxyConfig { client_ca, lists }
        });
        PublishedConfig {
            root_ca,
            client_ca: shared.certificates.client_ca_file.clone(),
            proxy: published_proxy,
        }
    }
}

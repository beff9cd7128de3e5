//! Configuration that apid publishes as objects for its clients.

use std::path::PathBuf;

use processflags::SharedFlags;

use super::controllers::is_enabled;
use super::values::split_list;

/// The names in `--controllers` of the publisher of the root CA: the current name and its alias.
const ROOT_CA_PUBLISHER: [&str; 2] = ["root-ca-certificate-publisher-controller", "root-ca-cert-publisher"];

/// Configuration that apid publishes in ConfigMaps and token Secrets.
#[derive(Clone, Debug, Default)]
pub struct PublishedConfig {
    /// CA bundle: `--root-ca-file`, or the CA of the serving certificate.
    pub root_ca: Option<PathBuf>,
    /// Whether the root CA is published: `--root-ca-file` is given, or `--controllers` enables the publisher.
    pub has_root_ca_publisher: bool,
    /// CA bundle of `--client-ca-file`.
    pub client_ca: Option<PathBuf>,
    /// Configuration of authenticating proxies, if any is trusted.
    pub proxy: Option<PublishedProxyConfig>,
}

/// The flags of authenticating proxies.
#[derive(Clone, Debug, Default)]
pub struct PublishedProxyConfig {
    /// CA bundle of `--requestheader-client-ca-file`.
    pub client_ca: PathBuf,
    /// The list flags, each with its key in the ConfigMap.
    pub lists: Vec<(&'static str, Vec<String>)>,
}

impl PublishedConfig {
    /// Takes the configuration from the flags. `controllers` is the value of `--controllers`.
    pub(super) fn new(root_ca: Option<PathBuf>, shared: &SharedFlags, controllers: &[String]) -> Self {
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
            has_root_ca_publisher: root_ca.is_some() || is_enabled(controllers, &ROOT_CA_PUBLISHER),
            root_ca,
            client_ca: shared.certificates.client_ca_file.clone(),
            proxy: published_proxy,
        }
    }

    /// Sets the CA of the serving certificate as the root CA, unless `--root-ca-file` names a CA bundle.
    pub fn complete(&mut self, serving_ca: Option<PathBuf>) {
        if self.root_ca.is_none() {
            self.root_ca = serving_ca;
        }
        if self.root_ca.is_none() && self.has_root_ca_publisher {
            tracing::info!(
                "the CA of the serving certificate is unknown; set --root-ca-file to publish kube-root-ca.crt"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_ca_publisher_follows_the_list_of_controllers() {
        for (controllers, expected) in [
            (&[][..], true),
            (&["*", "tokencleaner"], true),
            (&["tokencleaner"], false),
            (&["*", "root-ca-certificate-publisher-controller"], true),
            (&["root-ca-cert-publisher"], true),
            (&["*", "-root-ca-certificate-publisher-controller"], false),
            (&["*", "-root-ca-cert-publisher"], false),
        ] {
            let controllers: Vec<String> = controllers.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(is_enabled(&controllers, &ROOT_CA_PUBLISHER), expected, "{controllers:?}");
        }
    }

    #[test]
    fn root_ca_flag_precedes_the_serving_ca() {
        let mut config = PublishedConfig::default();
        config.complete(Some("/serving".into()));
        assert_eq!(config.root_ca, Some("/serving".into()));
        config.complete(Some("/other".into()));
        assert_eq!(config.root_ca, Some("/serving".into()));
    }
}

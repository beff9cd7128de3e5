//! The configuration that the publishers write into objects for clients.

use std::path::PathBuf;

use crate::{EnabledControllers, ROOT_CA_PUBLISHER};

/// Configuration that apid publishes in ConfigMaps and token Secrets.
#[derive(Clone, Debug, Default)]
pub struct PublishedConfig {
    /// CA bundle: `--root-ca-file`, or the CA of the serving certificate.
    pub root_ca: Option<PathBuf>,
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
    /// Sets the CA of the serving certificate as the root CA, unless `--root-ca-file` names a CA bundle.
    pub fn complete(&mut self, serving_ca: Option<PathBuf>, enabled: &EnabledControllers) {
        if self.root_ca.is_none() {
            self.root_ca = serving_ca;
        }
        if self.root_ca.is_none() && enabled.is_enabled(ROOT_CA_PUBLISHER) {
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
    fn root_ca_flag_precedes_the_serving_ca() {
        let mut config = PublishedConfig::default();
        let enabled = EnabledControllers::new(&[]);
        config.complete(Some("/serving".into()), &enabled);
        assert_eq!(config.root_ca, Some("/serving".into()));
        config.complete(Some("/other".into()), &enabled);
        assert_eq!(config.root_ca, Some("/serving".into()));
    }
}

//! The flags whose values apid publishes as objects for its clients.

use std::path::PathBuf;

use controllers::{PublishedConfig, PublishedProxyConfig, is_enabled};
use processflags::SharedFlags;

use super::values::split_list;

/// The names in `--controllers` of the publisher of the root CA: the current name and its alias.
const ROOT_CA_PUBLISHER: [&str; 2] = ["root-ca-certificate-publisher-controller", "root-ca-cert-publisher"];

/// Takes the configuration from the flags. `controllers` is the value of `--controllers`.
pub(super) fn published_config(
    root_ca: Option<PathBuf>,
    shared: &SharedFlags,
    controllers: &[String],
) -> PublishedConfig {
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
}

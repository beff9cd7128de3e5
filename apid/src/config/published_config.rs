//! The flags whose values apid publishes as objects for its clients.

use std::path::PathBuf;

use controllers::{PublishedConfig, PublishedProxyConfig};
use processflags::SharedFlags;

use super::values::split_list;

/// Takes the configuration from the flags.
pub(super) fn published_config(root_ca: Option<PathBuf>, shared: &SharedFlags) -> PublishedConfig {
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
    PublishedConfig { root_ca, client_ca: shared.certificates.client_ca_file.clone(), proxy: published_proxy }
}

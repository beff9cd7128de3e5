//! The flags of client certificates and of authenticating proxies.
//!
//! # Contract
//!
//! A proxy is trusted only if `--requestheader-client-ca-file` and `--requestheader-username-headers` are both
//! set; one without the other causes a warning (requirements A-PROXY-2, A-PROXY-18). Header names are
//! case-insensitive.

use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use processflags::ProxyFlags;
use serving::reload::Snapshot;

use crate::authn::{ProxySettings, Trust, TrustFiles};
use crate::config_error::ConfigError;

/// The flags of client certificates and of authenticating proxies.
#[derive(Debug, Default)]
pub(super) struct CertificateFlags {
    pub(super) client_ca_file: Option<PathBuf>,
    pub(super) client_crl_file: Option<PathBuf>,
    pub(super) proxy: ProxyFlags,
}

/// Checks the flags, takes a snapshot of the files, and then reads them.
/// `uids`: whether the feature gate `RemoteRequestHeaderUID` is on.
/// `now` determines which revocation lists are outdated.
pub(super) fn check(
    flags: CertificateFlags,
    uids: bool,
    now: Timestamp,
    errors: &mut Vec<ConfigError>,
    warnings: &mut Vec<String>,
) -> (Arc<Trust>, ProxySettings, Snapshot) {
    if flags.client_crl_file.is_some()
        && flags.client_ca_file.is_none()
        && flags.proxy.requestheader_client_ca_file.is_none()
    {
        errors.push(ConfigError::flag(
            "--client-crl-file",
            "requires --client-ca-file or --requestheader-client-ca-file",
        ));
    }
    if !flags.proxy.requestheader_uid_headers.is_empty() && !uids {
        errors.push(ConfigError::flag(
            "--requestheader-uid-headers",
            "needs the feature gate RemoteRequestHeaderUID",
        ));
    }
    let headers = [
        ("username-headers", &flags.proxy.requestheader_username_headers),
        ("uid-headers", &flags.proxy.requestheader_uid_headers),
        ("group-headers", &flags.proxy.requestheader_group_headers),
        ("extra-headers-prefix", &flags.proxy.requestheader_extra_headers_prefix),
    ];
    for (flag, names) in headers {
        let bad = names.iter().filter(|name| http::HeaderName::from_bytes(name.trim().as_bytes()).is_err());
        errors.extend(bad.map(|name| {
            let problem = format!("`{name}` is not a valid header name");
            ConfigError::flag(format!("--requestheader-{flag}"), problem)
        }));
    }
    let (has_authority, has_user) = (
        flags.proxy.requestheader_client_ca_file.is_some(),
        !flags.proxy.requestheader_username_headers.is_empty(),
    );
    if has_authority != has_user {
        let missing =
            if has_authority { "--requestheader-username-headers" } else { "--requestheader-client-ca-file" };
        warnings.push(format!("no authenticating proxy is trusted: {missing} is missing"));
    }
    let to_lower_case =
        |names: Vec<String>| names.iter().map(|name| name.trim().to_ascii_lowercase()).collect::<Vec<_>>();
    let proxy = ProxySettings {
        allowed_names: flags.proxy.requestheader_allowed_names,
        username: to_lower_case(flags.proxy.requestheader_username_headers),
        uid: to_lower_case(flags.proxy.requestheader_uid_headers),
        groups: to_lower_case(flags.proxy.requestheader_group_headers),
        extra_prefixes: to_lower_case(flags.proxy.requestheader_extra_headers_prefix),
    };
    let files = TrustFiles {
        client_ca: flags.client_ca_file,
        client_crl: flags.client_crl_file,
        proxy_ca: flags.proxy.requestheader_client_ca_file,
    };
    let before_read = Snapshot::new(files.paths());
    let trust = Trust::load(files, proxy.allowed_names.is_empty(), now).unwrap_or_else(|problems| {
        errors.extend(problems);
        Arc::default()
    });
    (trust, proxy, before_read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config_error::error_texts;

    fn check_flags(flags: CertificateFlags, uids: bool) -> (Vec<String>, Vec<String>, ProxySettings) {
        let (mut errors, mut warnings) = (Vec::new(), Vec::new());
        let (_, proxy, _) = check(flags, uids, Timestamp::UNIX_EPOCH, &mut errors, &mut warnings);
        (error_texts(errors), warnings, proxy)
    }

    #[test]
    fn authenticating_proxy_requires_ca_file_and_username_header() {
        let (errors, warnings, _) = check_flags(CertificateFlags::default(), true);
        assert!(errors.is_empty() && warnings.is_empty());
        let with_proxy = |proxy| CertificateFlags { proxy, ..CertificateFlags::default() };
        let headers = || {
            with_proxy(ProxyFlags {
                requestheader_username_headers: vec!["X-Remote-User".into(), " x-USER".into()],
                requestheader_uid_headers: vec!["X-Remote-Uid".into()],
                ..ProxyFlags::default()
            })
        };
        let (errors, warnings, proxy) = check_flags(headers(), true);
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(
            warnings,
            ["no authenticating proxy is trusted: --requestheader-client-ca-file is missing"]
        );
        assert_eq!(proxy.username, ["x-remote-user", "x-user"], "header names are case-insensitive");
        let (errors, ..) = check_flags(headers(), false);
        assert_eq!(errors, ["--requestheader-uid-headers: needs the feature gate RemoteRequestHeaderUID"]);
        let invalid = with_proxy(ProxyFlags {
            requestheader_group_headers: vec!["X Group".into(), String::new()],
            ..ProxyFlags::default()
        });
        assert_eq!(check_flags(invalid, true).0.len(), 2);
        let proxy =
            ProxyFlags { requestheader_client_ca_file: Some("/nope".into()), ..ProxyFlags::default() };
        let missing = CertificateFlags { client_ca_file: Some("/nope".into()), ..with_proxy(proxy) };
        assert_eq!(check_flags(missing, true).0.len(), 2, "each missing file is reported");
        let revocation_only =
            CertificateFlags { client_crl_file: Some("/nope".into()), ..CertificateFlags::default() };
        assert_eq!(check_flags(revocation_only, true).0.len(), 2, "no CA file, and a missing file");
    }
}

//! The flags of client certificates and of authenticating proxies.
//!
//! # Contract
//!
//! A proxy is trusted if `--requestheader-client-ca-file` and `--requestheader-username-headers` are both
//! set; one without the other trusts no proxy and logs a warning (requirements A-PROXY-2, A-PROXY-18). Header
//! names are case-insensitive.

use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use serving::reload::Snapshot;

use crate::authn::{ProxySettings, Trust, TrustFiles};

/// The flags as written.
#[derive(Debug, Default, clap::Args)]
pub struct Flags {
    /// PEM file of the CAs that sign client certificates. Reloaded when it changes.
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
    /// PEM or DER file of revocation lists of those CAs: a certificate on a list is rejected, whichever user
    /// it names. Reloaded when it changes.
    #[arg(long, value_name = "FILE")]
    pub client_crl_file: Option<PathBuf>,
    /// PEM file of the CAs that sign the certificates of authenticating proxies. Reloaded when it changes.
    #[arg(long, value_name = "FILE")]
    pub requestheader_client_ca_file: Option<PathBuf>,
    /// Common names that a proxy certificate may have. Default: any.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub requestheader_allowed_names: Vec<String>,
    /// Headers in which a proxy names the user; the first with a value counts. Suggested: X-Remote-User.
    #[arg(long, value_name = "HEADER,...", value_delimiter = ',')]
    pub requestheader_username_headers: Vec<String>,
    /// The same for the uid. Suggested: X-Remote-Uid.
    #[arg(long, value_name = "HEADER,...", value_delimiter = ',')]
    pub requestheader_uid_headers: Vec<String>,
    /// Headers all of whose values are groups. Suggested: X-Remote-Group.
    #[arg(long, value_name = "HEADER,...", value_delimiter = ',')]
    pub requestheader_group_headers: Vec<String>,
    /// Prefixes of headers that hold further attributes. Suggested: X-Remote-Extra-.
    #[arg(long, value_name = "PREFIX,...", value_delimiter = ',')]
    pub requestheader_extra_headers_prefix: Vec<String>,
}

/// Reads the files after it takes the snapshot.
/// `uids`: whether the feature gate `RemoteRequestHeaderUID` is on.
pub(super) fn check(
    flags: Flags,
    uids: bool,
    now: Timestamp,
    mistakes: &mut Vec<String>,
    warnings: &mut Vec<String>,
) -> (Arc<Trust>, ProxySettings, Snapshot) {
    if flags.client_crl_file.is_some()
        && flags.client_ca_file.is_none()
        && flags.requestheader_client_ca_file.is_none()
    {
        mistakes.push(
            "--client-crl-file: requires --client-ca-file or --requestheader-client-ca-file".to_owned(),
        );
    }
    if !flags.requestheader_uid_headers.is_empty() && !uids {
        mistakes.push("--requestheader-uid-headers needs the feature gate RemoteRequestHeaderUID".to_owned());
    }
    let headers = [
        ("username-headers", &flags.requestheader_username_headers),
        ("uid-headers", &flags.requestheader_uid_headers),
        ("group-headers", &flags.requestheader_group_headers),
        ("extra-headers-prefix", &flags.requestheader_extra_headers_prefix),
    ];
    for (flag, names) in headers {
        let bad = names.iter().filter(|name| http::HeaderName::from_bytes(name.trim().as_bytes()).is_err());
        mistakes
            .extend(bad.map(|name| format!("--requestheader-{flag}: `{name}` is not a valid header name")));
    }
    let (authority, user) =
        (flags.requestheader_client_ca_file.is_some(), !flags.requestheader_username_headers.is_empty());
    if authority != user {
        let missing =
            if authority { "--requestheader-username-headers" } else { "--requestheader-client-ca-file" };
        warnings.push(format!("no authenticating proxy is trusted: {missing} is missing"));
    }
    let lower =
        |names: Vec<String>| names.iter().map(|name| name.trim().to_ascii_lowercase()).collect::<Vec<_>>();
    let proxy = ProxySettings {
        allowed_names: flags.requestheader_allowed_names,
        username: lower(flags.requestheader_username_headers),
        uid: lower(flags.requestheader_uid_headers),
        groups: lower(flags.requestheader_group_headers),
        extra_prefixes: lower(flags.requestheader_extra_headers_prefix),
    };
    let files = TrustFiles {
        client_ca: flags.client_ca_file,
        revoked: flags.client_crl_file,
        proxy_ca: flags.requestheader_client_ca_file,
    };
    let before_read = Snapshot::new(files.paths());
    let trust = Trust::load(files, proxy.allowed_names.is_empty(), now).unwrap_or_else(|wrong| {
        mistakes.extend(wrong);
        Arc::default()
    });
    (trust, proxy, before_read)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(flags: Flags, uids: bool) -> (Vec<String>, Vec<String>, ProxySettings) {
        let (mut mistakes, mut warnings) = (Vec::new(), Vec::new());
        let (_, proxy, _) = check(flags, uids, Timestamp::UNIX_EPOCH, &mut mistakes, &mut warnings);
        (mistakes, warnings, proxy)
    }

    #[test]
    fn authenticating_proxy_requires_ca_file_and_username_header() {
        let (mistakes, warnings, _) = told(Flags::default(), true);
        assert!(mistakes.is_empty() && warnings.is_empty());
        let headers = || Flags {
            requestheader_username_headers: vec!["X-Remote-User".into(), " x-USER".into()],
            requestheader_uid_headers: vec!["X-Remote-Uid".into()],
            ..Flags::default()
        };
        let (mistakes, warnings, proxy) = told(headers(), true);
        assert!(mistakes.is_empty(), "{mistakes:?}");
        assert_eq!(
            warnings,
            ["no authenticating proxy is trusted: --requestheader-client-ca-file is missing"]
        );
        assert_eq!(proxy.username, ["x-remote-user", "x-user"], "header names are case-insensitive");
        let (mistakes, ..) = told(headers(), false);
        assert_eq!(mistakes, ["--requestheader-uid-headers needs the feature gate RemoteRequestHeaderUID"]);
        let bad =
            Flags { requestheader_group_headers: vec!["X Group".into(), String::new()], ..Flags::default() };
        assert_eq!(told(bad, true).0.len(), 2);
        let missing = Flags {
            requestheader_client_ca_file: Some("/nope".into()),
            client_ca_file: Some("/nope".into()),
            ..Flags::default()
        };
        assert_eq!(told(missing, true).0.len(), 2, "each missing file is reported");
        let alone = Flags { client_crl_file: Some("/nope".into()), ..Flags::default() };
        assert_eq!(told(alone, true).0.len(), 2, "no CA file, and a missing file");
    }
}

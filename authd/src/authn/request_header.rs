//! The request-header authenticator (requirements A-PROXY).
//! An authenticating proxy names the user in headers.
//!
//! # Contract
//!
//! Only a peer with a certificate of a CA in `--requestheader-client-ca-file` may name the user. The common
//! name of this certificate must be in `--requestheader-allowed-names`; an empty list allows any name. The
//! first header of `--requestheader-username-headers` with a value names the user. Without such a header this
//! authenticator does not apply, and the next authenticators run. All values of all group headers are groups.
//! The rest of a header name after an extra prefix, in lower case and percent-decoded, is an extra key; the
//! header values are its values.
//!
//! # Invariants
//!
//! INVARIANT (proxies first): this authenticator runs before that of client certificates. If a proxy names a user,
//! the user of the request is never the proxy, even if its certificate is also a valid client certificate.
//! INVARIANT (trust before reading): only header names are read before the certificate is verified.

use std::sync::Arc;

use apimachinery::user::UserInfo;
use async_trait::async_trait;
use authproto::auth::Header;
use jiff::Timestamp;
use percent_encoding::percent_decode_str;

use super::x509::subject::CertificateSubject;
use super::x509::trust::{PeerKind, Trust};
use super::x509::with_description;
use super::{AuthenticatedIdentity, Authenticator, AuthnContext, AuthnSettings, Credentials, Outcome};
use crate::mirror::MirrorNotReady;

/// The flags of the authenticator. Header names and prefixes are in lower case.
#[derive(Clone, Debug, Default)]
pub struct ProxySettings {
    /// The values of `--requestheader-allowed-names`.
    pub allowed_names: Vec<String>,
    /// The values of `--requestheader-username-headers`.
    pub username: Vec<String>,
    /// The values of `--requestheader-uid-headers`.
    pub uid: Vec<String>,
    /// The values of `--requestheader-group-headers`.
    pub groups: Vec<String>,
    /// The values of `--requestheader-extra-headers-prefix`.
    pub extra_prefixes: Vec<String>,
}

struct RequestHeaders {
    trust: Arc<Trust>,
    settings: ProxySettings,
}

pub(super) fn build(settings: &AuthnSettings) -> Option<Arc<dyn Authenticator>> {
    if !settings.trust.trusts(PeerKind::Proxy) || settings.proxy.username.is_empty() {
        return None;
    }
    Some(Arc::new(RequestHeaders { trust: Arc::clone(&settings.trust), settings: settings.proxy.clone() }))
}

#[async_trait]
impl Authenticator for RequestHeaders {
    async fn authenticate(
        &self,
        credentials: Credentials<'_>,
        context: AuthnContext<'_>,
    ) -> Result<Outcome, MirrorNotReady> {
        let Credentials { certificates, proxy_headers: headers, .. } = credentials;
        let is_username = |header: &Header| self.settings.username.contains(&header.name);
        if certificates.is_empty() || !headers.iter().any(is_username) {
            return Ok(Outcome::NotApplicable);
        }
        let identity = self.identify(certificates, headers, context.now);
        Ok(identity.transpose().map_or(Outcome::NotApplicable, Outcome::from))
    }
}

impl RequestHeaders {
    /// Returns the identity that the headers of a trusted proxy name. Returns None if no username header has a value.
    fn identify(
        &self,
        certificates: &[Vec<u8>],
        headers: &[Header],
        now: Timestamp,
    ) -> Result<Option<AuthenticatedIdentity>, String> {
        let chain = self
            .trust
            .verify(PeerKind::Proxy, certificates, now)
            .map_err(|error| with_description(certificates, &error.to_string()))?;
        let name = CertificateSubject::read(chain.leaf).map_err(|error| error.to_string())?.common_name;
        let allowed = &self.settings.allowed_names;
        if !allowed.is_empty() && !allowed.contains(&name) {
            return Err(format!("the common name `{name}` is not in --requestheader-allowed-names"));
        }
        let (not_before, expires_at) = (chain.starts, chain.ends);
        let identity =
            |user| AuthenticatedIdentity { user, not_before, expires_at, ..AuthenticatedIdentity::default() };
        Ok(self.settings.user(headers)?.map(identity))
    }
}

impl ProxySettings {
    /// Returns the user that the headers of a trusted proxy name. Returns None if no username header has a value.
    fn user(&self, headers: &[Header]) -> Result<Option<UserInfo>, String> {
        let Some(name) = first_value(&self.username, headers)? else { return Ok(None) };
        let mut user = UserInfo { name: name.to_owned(), ..UserInfo::default() };
        user.uid = first_value(&self.uid, headers)?.unwrap_or_default().to_owned();
        for name in &self.groups {
            for header in headers.iter().filter(|header| header.name == *name) {
                let group = header_text(header)?;
                if !group.is_empty() {
                    user.groups.push(group.to_owned());
                }
            }
        }
        for header in headers {
            let key = self.extra_prefixes.iter().find_map(|prefix| header.name.strip_prefix(prefix.as_str()));
            if let Some(key) = key {
                let values = user.extra.entry(decode_percent(key)).or_default();
                values.push(header_text(header)?.to_owned());
            }
        }
        Ok(Some(user))
    }
}

/// Returns the first non-empty header value, in the order of `names`.
/// If a header is repeated, only its first line is read.
fn first_value<'h>(names: &[String], headers: &'h [Header]) -> Result<Option<&'h str>, String> {
    for name in names {
        let Some(header) = headers.iter().find(|header| header.name == *name) else { continue };
        let value = header_text(header)?;
        if !value.is_empty() {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

fn header_text(header: &Header) -> Result<&str, String> {
    std::str::from_utf8(&header.value).map_err(|_| format!("the header `{}` is not UTF-8", header.name))
}

/// Decodes percent-encoding. Returns the whole key unchanged if an encoding or the UTF-8 is invalid.
fn decode_percent(key: &str) -> String {
    let is_encoding =
        |rest: &str| rest.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit));
    if !key.split('%').skip(1).all(is_encoding) {
        return key.to_owned();
    }
    percent_decode_str(key).decode_utf8().map_or_else(|_| key.to_owned(), Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> ProxySettings {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        ProxySettings {
            allowed_names: Vec::new(),
            username: list(&["x-remote-user", "x-user"]),
            uid: list(&["x-remote-uid"]),
            groups: list(&["x-remote-group", "x-group"]),
            extra_prefixes: list(&["x-remote-extra-"]),
        }
    }

    fn read(headers: &[(&str, &[u8])]) -> Result<Option<String>, String> {
        let header =
            |(name, value): &(&str, &[u8])| Header { name: (*name).to_owned(), value: value.to_vec() };
        let headers: Vec<Header> = headers.iter().map(header).collect();
        let user = settings().user(&headers)?;
        Ok(user.map(|user| format!("{} {} {:?} {:?}", user.name, user.uid, user.groups, user.extra)))
    }

    #[test]
    fn request_headers_give_user_and_groups() {
        for (headers, expected) in [
            (vec![], None),
            (vec![("x-remote-group", &b"g"[..])], None),
            (vec![("x-remote-user", &b""[..])], None),
            (vec![("x-remote-user", &b"jane"[..])], Some("jane  [] {}")),
            (vec![("x-remote-user", &b""[..]), ("x-user", b"joe")], Some("joe  [] {}")),
            (vec![("x-user", &b"joe"[..]), ("x-remote-user", b"jane")], Some("jane  [] {}")),
            (vec![("x-remote-user", &b"jane"[..]), ("x-remote-user", b"joe")], Some("jane  [] {}")),
            (vec![("x-remote-user", &b"jane"[..]), ("x-remote-uid", b"u-1")], Some("jane u-1 [] {}")),
            (
                vec![
                    ("x-remote-user", &b"jane"[..]),
                    ("x-group", b"c"),
                    ("x-remote-group", b"a"),
                    ("x-remote-group", b""),
                    ("x-remote-group", b"b"),
                ],
                Some(r#"jane  ["a", "b", "c"] {}"#),
            ),
            (
                vec![
                    ("x-remote-user", &b"jane"[..]),
                    ("x-remote-extra-example.org%2ffoo", b"1"),
                    ("x-remote-extra-example.org%2ffoo", b"2"),
                    ("x-remote-extra-100%", b"as it stands"),
                    ("x-remote-extra-%zz", b"the same"),
                ],
                Some(
                    r#"jane  [] {"%zz": ["the same"], "100%": ["as it stands"], "example.org/foo": ["1", "2"]}"#,
                ),
            ),
        ] {
            assert_eq!(read(&headers), Ok(expected.map(str::to_owned)), "{headers:?}");
        }
        assert!(read(&[("x-remote-user", b"\xff")]).is_err(), "a username that is not UTF-8 is rejected");
        assert!(read(&[("x-remote-user", b"jane"), ("x-group", b"\xff")]).is_err());
    }
}

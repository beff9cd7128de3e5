//! What a request presents to say who it is: taken from its headers, and the keyed digest under which the answer is kept.
//!
//! # Invariants
//!
//! INVARIANT (secrets stay secret): a credential itself is never a key of a cache; its digest is keyed with random bytes
//! of this process, so that it means nothing outside.

use authproto::auth::{AuthenticateRequest, Header, Revisions};
use aws_lc_rs::hmac;
use bytes::Bytes;
use http::HeaderMap;
use http::header::AUTHORIZATION;

/// What a request brings to say who it is.
#[derive(Clone, Copy)]
pub struct Credentials<'a> {
    /// The headers: `Authorization`, and those an authenticating proxy may set.
    pub headers: &'a HeaderMap,
    /// The peer's certificates in DER, leaf first; the peer has proved that it holds the leaf's key.
    pub certificate_chain: &'a [Bytes],
    /// SHA-256 over the chain, computed once for the connection; without it the chain is digested each time.
    pub chain_fingerprint: Option<&'a [u8; 32]>,
    /// A bearer token that came otherwise than in `Authorization` (WebSocket sub-protocol).
    pub bearer_token: Option<&'a str>,
    /// The request's path: anonymous access may depend on it.
    pub path: &'a str,
    /// The id that logs of both processes show.
    pub request_id: &'a str,
}

/// The headers that an authenticating proxy sets, as the flags name them. Empty: no proxy is trusted, none is passed on.
#[derive(Clone, Debug, Default)]
pub struct ProxyHeaders {
    /// Full names, lower case.
    pub names: Vec<String>,
    /// Prefixes of names, lower case.
    pub prefixes: Vec<String>,
}

impl ProxyHeaders {
    fn matches(&self, name: &str) -> bool {
        self.names.iter().any(|n| n == name) || self.prefixes.iter().any(|p| name.starts_with(p.as_str()))
    }
}

impl Credentials<'_> {
    /// The question for authd.
    pub(super) fn ask(&self, proxy: &ProxyHeaders, at_least: Revisions) -> AuthenticateRequest {
        AuthenticateRequest {
            certificate_chain: self.certificate_chain.iter().map(|der| der.to_vec()).collect(),
            bearer_token: String::from_utf8_lossy(self.token().unwrap_or_default()).into_owned(),
            proxy_headers: self
                .proxy_headers(proxy)
                .map(|(name, value)| Header { name: name.to_owned(), value: value.to_vec() })
                .collect(),
            audiences: Vec::new(),
            path: self.path.to_owned(),
            at_least: Some(at_least),
            unreadable: String::new(),
        }
    }

    /// The bearer token. An empty one is none; the scheme's case does not matter (requirements A-BEAR-1, A-BEAR-3). Bytes
    /// that are not text are a token all the same: one that nobody has, not the absence of one.
    fn token(&self) -> Option<&[u8]> {
        let from_header = || {
            let mut words = self.headers.get(AUTHORIZATION)?.as_bytes().trim_ascii().split(|&b| b == b' ');
            let bearer = words.next()?.eq_ignore_ascii_case(b"bearer");
            words.next().filter(|_| bearer)
        };
        from_header().or(self.bearer_token.map(str::as_bytes)).filter(|token| !token.is_empty())
    }

    fn proxy_headers<'s>(&'s self, proxy: &'s ProxyHeaders) -> impl Iterator<Item = (&'s str, &'s [u8])> {
        self.headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_bytes()))
            .filter(|(name, _)| proxy.matches(name))
    }
}

/// The digest of a credential.
pub(super) type Digest = [u8; 32];

/// The two keys under which an answer about a credential may be kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Digests {
    /// Of the credential alone: an accepted one does not depend on the path.
    pub(super) credential: Digest,
    /// Of the credential and the path: anonymous access and refusals may depend on it.
    pub(super) with_path: Digest,
}

/// Makes digests with a key that this process alone has.
pub(super) struct Digester {
    key: hmac::Key,
}

impl Digester {
    /// With a fresh random key.
    ///
    /// # Errors
    ///
    /// The system gave no random bytes.
    pub(super) fn new() -> Result<Self, aws_lc_rs::error::Unspecified> {
        Ok(Digester { key: hmac::Key::generate(hmac::HMAC_SHA256, &aws_lc_rs::rand::SystemRandom::new())? })
    }

    /// Of what a request presents. Every part is preceded by its length, so that no two credentials run together.
    pub(super) fn digest(&self, credentials: &Credentials<'_>, proxy: &ProxyHeaders) -> Digests {
        let mut context = hmac::Context::with_key(&self.key);
        let mut part = |bytes: &[u8]| {
            context.update(&(bytes.len() as u64).to_be_bytes());
            context.update(bytes);
        };
        part(&(credentials.certificate_chain.len() as u64).to_be_bytes());
        match credentials.chain_fingerprint {
            Some(fingerprint) => part(fingerprint),
            None => credentials.certificate_chain.iter().for_each(|der| part(der)),
        }
        part(credentials.token().unwrap_or_default());
        for (name, value) in credentials.proxy_headers(proxy) {
            part(name.as_bytes());
            part(value);
        }
        let credential = finish(context.clone());
        context.update(b"path");
        context.update(credentials.path.as_bytes());
        Digests { credential, with_path: finish(context) }
    }
}

fn finish(context: hmac::Context) -> Digest {
    let mut digest = [0; 32];
    for (to, from) in digest.iter_mut().zip(context.sign().as_ref()) {
        *to = *from;
    }
    digest
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        list.iter()
            .map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    fn with<'a>(headers: &'a HeaderMap, chain: &'a [Bytes], path: &'a str) -> Credentials<'a> {
        Credentials {
            headers,
            certificate_chain: chain,
            chain_fingerprint: None,
            bearer_token: None,
            path,
            request_id: "",
        }
    }

    #[test]
    fn the_token_is_what_follows_the_scheme() {
        for (header, expected) in [
            ("Bearer abc", Some("abc")),
            ("bearer a.b-c_d~e+f/g==", Some("a.b-c_d~e+f/g==")),
            ("  BEARER abc ", Some("abc")),
            ("Bearer abc def", Some("abc")),
            ("Bearer ", None),
            ("Bearer  abc", None),
            ("Bearer", None),
            ("Basic abc", None),
            ("", None),
        ] {
            let headers = headers(&[("authorization", header)]);
            assert_eq!(with(&headers, &[], "/").token(), expected.map(str::as_bytes), "`{header}`");
        }
    }

    #[test]
    fn different_credentials_have_different_digests() {
        let proxy = ProxyHeaders { names: vec!["x-user".into()], prefixes: vec!["x-extra-".into()] };
        let digester = Digester::new().unwrap();
        let chains = [
            vec![],
            vec![Bytes::from_static(b"ab")],
            vec![Bytes::from_static(b"a"), Bytes::from_static(b"b")],
        ];
        let header_sets = [
            headers(&[]),
            headers(&[("authorization", "Bearer ab")]),
            headers(&[("authorization", "Bearer a")]),
            headers(&[("x-user", "ab")]),
            headers(&[("x-user", "a")]),
            headers(&[("x-extra-a", "b")]),
            headers(&[("x-extra-ab", "")]),
        ];
        let mut seen = HashSet::new();
        for chain in &chains {
            for headers in &header_sets {
                assert!(
                    seen.insert(digester.digest(&with(headers, chain, "/"), &proxy).credential),
                    "{chain:?} {headers:?}"
                );
            }
        }
        let none = &headers(&[]);
        let root = digester.digest(&with(none, &[], "/"), &proxy);
        let other = digester.digest(&with(none, &[], "/x"), &proxy);
        assert_eq!(root.credential, other.credential);
        assert_ne!(root.with_path, other.with_path);
        assert_ne!(
            root.credential,
            Digester::new().unwrap().digest(&with(none, &[], "/"), &proxy).credential,
            "keyed"
        );
    }

    #[test]
    fn only_headers_of_a_trusted_proxy_are_passed_on() {
        let sent = headers(&[("x-remote-user", "root"), ("authorization", "Bearer t")]);
        let asked = with(&sent, &[], "/").ask(&ProxyHeaders::default(), Revisions::default());
        assert!(asked.proxy_headers.is_empty());
        assert_eq!(asked.bearer_token, "t");
        let trusted = ProxyHeaders { names: vec!["x-remote-user".into()], prefixes: vec![] };
        assert_eq!(with(&sent, &[], "/").ask(&trusted, Revisions::default()).proxy_headers.len(), 1);
        assert!(!format!("{asked:?}").contains("Bearer"), "the token is not in Debug output");
    }
}

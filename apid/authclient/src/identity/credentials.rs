//! The credentials of a request, and the keyed digests that are the keys of the identity cache.
//!
//! # Invariants
//!
//! INVARIANT (secrets stay secret): a credential is never a cache key. The cache key is an HMAC with a random
//! key of this process, so it is useless outside the process. Only a request and its watch own
//! [`RetainedCredentials`], whose `Debug` shows nothing of them.

use std::sync::Arc;

use apimachinery::user::UserInfo;
use authproto::auth::{AuthenticateRequest, Header, Revisions};
use aws_lc_rs::hmac;
use bytes::Bytes;
use http::HeaderMap;

use crate::identity::header_credentials::HeaderCredentials;

/// The credentials of a request.
#[derive(Clone, Copy)]
pub struct Credentials<'a> {
    /// The credentials from the headers.
    pub header_credentials: &'a HeaderCredentials,
    /// The certificates of the peer in DER, leaf first. TLS has verified that the peer has the key of the
    /// leaf.
    pub certificate_chain: &'a [Bytes],
    /// SHA-256 over `certificate_chain`, computed once per connection; None means each request digests the chain.
    pub chain_fingerprint: Option<&'a [u8; 32]>,
    /// The headers of a request with impersonation headers; None without these.
    pub impersonation_headers: Option<&'a HeaderMap>,
    /// The path of the request: anonymous access may depend on the path.
    pub path: &'a str,
    /// The request id in the logs of apid and authd.
    pub request_id: &'a str,
}

impl Credentials<'_> {
    /// Builds the request to authd. `at_least`: the policy revisions that authd must have.
    pub(crate) fn authenticate_request(&self, at_least: Revisions) -> AuthenticateRequest {
        let header_credentials = self.header_credentials;
        AuthenticateRequest {
            certificate_chain: self.certificate_chain.iter().map(|der| der.to_vec()).collect(),
            bearer_token: String::from_utf8_lossy(header_credentials.token().unwrap_or_default())
                .into_owned(),
            proxy_headers: header_credentials
                .proxy_headers()
                .map(|(name, value)| Header { name: name.to_owned(), value: value.to_vec() })
                .collect(),
            audiences: Vec::new(),
            path: self.path.to_owned(),
            at_least: Some(at_least),
            unreadable: header_credentials.unreadable().to_owned(),
            next: None,
        }
    }
}

/// The credentials of a request whose identity a webhook supplied, with the user of these credentials.
pub(crate) struct RetainedCredentials {
    header_credentials: HeaderCredentials,
    certificate_chain: Vec<Bytes>,
    chain_fingerprint: Option<[u8; 32]>,
    path: String,
    /// The user before impersonation.
    pub(crate) user: Arc<UserInfo>,
}

impl RetainedCredentials {
    /// Copies the credentials.
    pub(crate) fn new(credentials: &Credentials<'_>, user: Arc<UserInfo>) -> Self {
        RetainedCredentials {
            header_credentials: credentials.header_credentials.clone(),
            certificate_chain: credentials.certificate_chain.to_vec(),
            chain_fingerprint: credentials.chain_fingerprint.copied(),
            path: credentials.path.to_owned(),
            user,
        }
    }

    /// The credentials for an authentication.
    pub(crate) fn credentials(&self) -> Credentials<'_> {
        Credentials {
            header_credentials: &self.header_credentials,
            certificate_chain: &self.certificate_chain,
            chain_fingerprint: self.chain_fingerprint.as_ref(),
            impersonation_headers: None,
            path: &self.path,
            request_id: "watch",
        }
    }
}

impl std::fmt::Debug for RetainedCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RetainedCredentials").finish_non_exhaustive()
    }
}

/// The keyed digest of a credential: an HMAC-SHA256.
pub(crate) type Digest = [u8; 32];

/// The two keys of a credential in the identity cache: without and with the path.
pub(crate) struct Digests<'a> {
    credential: Digest,
    path: &'a str,
    key: &'a hmac::Key,
}

impl Digests<'_> {
    /// The digest of the credential alone: acceptance does not depend on the path.
    pub(crate) fn credential(&self) -> &Digest {
        &self.credential
    }

    /// The digest of the credential and the path: anonymous access and rejections may depend on the path.
    ///
    /// Computed on each call, because accepted credentials, the common case, do not need it.
    pub(crate) fn with_path(&self) -> Digest {
        let mut context = hmac::Context::with_key(self.key);
        // No credential has this input: its first part is the number of certificates, with a length of 8.
        context.update(b"path");
        context.update(&self.credential);
        context.update(self.path.as_bytes());
        finish(context)
    }
}

/// Computes digests with a random key of this process.
pub(crate) struct Digester {
    key: hmac::Key,
}

impl Digester {
    /// A digester with a new random key.
    ///
    /// # Errors
    ///
    /// The system supplied no random bytes.
    pub(crate) fn new() -> Result<Self, aws_lc_rs::error::Unspecified> {
        Ok(Digester { key: hmac::Key::generate(hmac::HMAC_SHA256, &aws_lc_rs::rand::SystemRandom::new())? })
    }

    /// Digests the credentials of a request.
    ///
    /// The length of every part precedes the part, so different credentials never have the same input.
    pub(crate) fn digest<'a>(&'a self, credentials: &Credentials<'a>) -> Digests<'a> {
        let mut context = hmac::Context::with_key(&self.key);
        let mut add_part = |bytes: &[u8]| {
            context.update(&(bytes.len() as u64).to_be_bytes());
            context.update(bytes);
        };
        let Credentials { header_credentials, certificate_chain, chain_fingerprint, path, .. } = *credentials;
        add_part(&(certificate_chain.len() as u64).to_be_bytes());
        match chain_fingerprint {
            Some(fingerprint) => add_part(fingerprint),
            None => certificate_chain.iter().for_each(|der| add_part(der)),
        }
        add_part(header_credentials.token().unwrap_or_default());
        add_part(header_credentials.unreadable().as_bytes());
        for (name, value) in header_credentials.proxy_headers() {
            add_part(name.as_bytes());
            add_part(value);
        }
        Digests { credential: finish(context), path, key: &self.key }
    }
}

fn finish(context: hmac::Context) -> Digest {
    let mut digest = [0; 32];
    for (target, source) in digest.iter_mut().zip(context.sign().as_ref()) {
        *target = *source;
    }
    digest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::header_credentials::ProxyHeaders;
    use apimachinery::names::{Names, Preset};
    use http::HeaderName;
    use std::collections::HashSet;

    fn header_credentials(list: &[(&'static str, &str)]) -> HeaderCredentials {
        let pair =
            |(name, value): &(&'static str, &str)| (HeaderName::from_static(name), value.parse().unwrap());
        let mut headers: HeaderMap = list.iter().map(pair).collect();
        let proxies = ProxyHeaders { names: vec!["x-user".into()], prefixes: vec!["x-extra-".into()] };
        HeaderCredentials::take(&mut headers, &proxies, &Names::new(Preset::Kubernetes, "").unwrap())
    }

    fn credentials<'a>(
        header_credentials: &'a HeaderCredentials,
        chain: &'a [Bytes],
        path: &'a str,
    ) -> Credentials<'a> {
        Credentials {
            header_credentials,
            certificate_chain: chain,
            chain_fingerprint: None,
            impersonation_headers: None,
            path,
            request_id: "",
        }
    }

    #[test]
    fn different_credentials_have_different_digests() {
        let digester = Digester::new().unwrap();
        let chains = [
            vec![],
            vec![Bytes::from_static(b"ab")],
            vec![Bytes::from_static(b"a"), Bytes::from_static(b"b")],
        ];
        let sources = [
            header_credentials(&[]),
            header_credentials(&[("authorization", "Bearer ab")]),
            header_credentials(&[("authorization", "Bearer a")]),
            header_credentials(&[("x-user", "ab")]),
            header_credentials(&[("x-user", "a")]),
            header_credentials(&[("x-extra-a", "b")]),
            header_credentials(&[("x-extra-ab", "")]),
            HeaderCredentials::default(),
        ];
        let mut seen = HashSet::new();
        for chain in &chains {
            for (index, header_credentials) in sources.iter().enumerate() {
                let digest = *digester.digest(&credentials(header_credentials, chain, "/")).credential();
                assert_eq!(seen.insert(digest), index != 7, "{chain:?} {index}");
            }
        }
        let none = header_credentials(&[]);
        let root = digester.digest(&credentials(&none, &[], "/"));
        let other_path = digester.digest(&credentials(&none, &[], "/x"));
        assert_eq!(root.credential(), other_path.credential());
        assert_ne!(root.with_path(), other_path.with_path());
        let other_digester = Digester::new().unwrap();
        assert_ne!(
            root.credential(),
            other_digester.digest(&credentials(&none, &[], "/")).credential(),
            "keyed"
        );
    }

    #[test]
    fn authenticate_request_debug_output_hides_credentials() {
        let sent = header_credentials(&[("x-user", "root"), ("authorization", "Bearer t")]);
        let request = credentials(&sent, &[], "/").authenticate_request(Revisions::default());
        assert_eq!((request.proxy_headers.len(), request.bearer_token.as_str()), (1, "t"));
        let output = format!("{request:?}");
        assert!(!output.contains("Bearer") && !output.contains("root"), "{output}");
    }
}

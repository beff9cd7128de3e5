//! JWT authenticators for OpenID Connect and other issuers (requirements A-OIDC, A-JWT).
//!
//! # Contract
//!
//! The unverified issuer of a token only selects the authenticator. Then the signature must verify under an
//! accepted algorithm and a key of that issuer. The token must be for one of the audiences and valid now, and
//! its claims must map to a user that meets all rules.
//! Errors go to the log; the issuer is the only claim value that authd adds to them.
//!
//! A token of an unknown issuer is rejected with a reason, so that the log distinguishes it from a missing
//! token. The other authenticators still run.
//!
//! # Invariants
//!
//! INVARIANT (signature first): only the issuer claim is read before signature verification.
//! INVARIANT (identity tokens): a token whose `typ` declares a different purpose (`at+jwt` for access,
//! `logout+jwt` …) is rejected (requirement A-OIDC-2).

pub mod claims;
pub mod discovery;
mod identity;
mod issuers;
pub mod metrics;
mod provider;
pub mod validated;

use std::collections::HashMap;
use std::sync::Arc;

use apimachinery::clock::SystemClock;
use apimachinery::names::Names;
use async_trait::async_trait;
use jiff::Timestamp;

use super::{
    AuthenticatedIdentity, Authenticator, AuthnContext, AuthnSettings, Credentials, Outcome,
    agnostic_audiences,
};
use crate::mirror::MirrorNotReady;
use crate::tokens::claims::unverified_issuer;
use crate::tokens::jose::{self, SignedToken};
use identity::ExpressionTypes;
use provider::Provider;
use validated::ValidatedAuthenticator;

pub use issuers::{IssuerHooks, Issuers};

/// Limit in characters of the URL of an unknown issuer in the log; a longer URL is truncated.
const MAX_SHOWN_ISSUER: usize = 200;

/// Configuration of the JWT authenticators.
#[derive(Clone, Debug)]
pub struct JwtSettings {
    /// The authenticators; no two have the same issuer.
    pub authenticators: Vec<Arc<ValidatedAuthenticator>>,
    /// The known issuers with their keys.
    pub issuers: Issuers,
}

impl JwtSettings {
    /// Settings without authenticators.
    pub fn none() -> Self {
        JwtSettings { authenticators: Vec::new(), issuers: Issuers::new(Arc::new(SystemClock::new())) }
    }
}

/// The authenticator of one issuer.
struct IssuerAuthenticator {
    validated: Arc<ValidatedAuthenticator>,
    provider: Arc<Provider>,
    hash: String,
}

struct JwtUnion {
    names: Arc<Names>,
    /// The authenticators, by issuer URL.
    authenticators: HashMap<String, IssuerAuthenticator>,
    /// The issuers of service-account tokens. The service-account authenticator checks their tokens.
    other_issuers: Vec<String>,
    api_audiences: Vec<String>,
    issuers: Issuers,
    types: ExpressionTypes,
}

pub(super) fn build(settings: &AuthnSettings) -> Option<Arc<dyn Authenticator>> {
    let JwtSettings { authenticators, issuers } = &settings.jwt;
    if authenticators.is_empty() {
        return None;
    }
    let authenticator = |validated: &Arc<ValidatedAuthenticator>| {
        let (validated, provider) = (Arc::clone(validated), issuers.provider(&validated.issuer));
        let url = validated.issuer.url.clone();
        let hash = issuers::issuer_hash(&url);
        (url, IssuerAuthenticator { validated, provider, hash })
    };
    let other_issuers = settings.issuer.iter().flat_map(|issuer| issuer.issuers());
    Some(Arc::new(JwtUnion {
        names: Arc::clone(&settings.names),
        authenticators: authenticators.iter().map(authenticator).collect(),
        other_issuers: other_issuers.map(str::to_owned).collect(),
        api_audiences: settings.api_audiences.clone(),
        issuers: issuers.clone(),
        types: ExpressionTypes::new(),
    }))
}

#[async_trait]
impl Authenticator for JwtUnion {
    async fn authenticate(
        &self,
        credentials: Credentials<'_>,
        context: AuthnContext<'_>,
    ) -> Result<Outcome, MirrorNotReady> {
        let authenticator = match self.route(credentials.token) {
            Ok(Some(authenticator)) => authenticator,
            Ok(None) => return Ok(Outcome::NotApplicable),
            Err(check) => return Ok(Outcome::Rejected(check)),
        };
        let clock = self.issuers.clock();
        let start = clock.monotonic();
        let outcome = self.accept(authenticator, credentials, context.now).await;
        let seconds = clock.monotonic().saturating_sub(start).as_secs_f64();
        let result = if outcome.is_ok() { "success" } else { "failure" };
        self.issuers.observe_authentication(&authenticator.hash, result, seconds);
        let url = &authenticator.validated.issuer.url;
        Ok(outcome.map_err(|check| format!("issuer {url}: {check}")).into())
    }
}

impl JwtUnion {
    /// Selects the authenticator by the unverified issuer of a token.
    /// Returns None if the token does not have three parts, or its issuer issues service-account tokens.
    fn route(&self, token: &str) -> Result<Option<&IssuerAuthenticator>, String> {
        if token.bytes().filter(|byte| *byte == b'.').take(3).count() != 2 {
            return Ok(None);
        }
        if token.len() > jose::MAX_TOKEN_BYTES {
            return Err(jose::TokenFormatError::TooLong.to_string());
        }
        let payload = jose::unverified_payload(token)
            .ok_or_else(|| jose::TokenFormatError::Base64("payload").to_string())?;
        let issuer = unverified_issuer(&payload).map_err(|error| error.to_string())?;
        let Some(issuer) = issuer else { return Err("the token has no issuer".to_owned()) };
        match self.authenticators.get(&issuer) {
            Some(authenticator) => Ok(Some(authenticator)),
            None if self.other_issuers.contains(&issuer) => Ok(None),
            None => {
                let short: String = issuer.chars().take(MAX_SHOWN_ISSUER).collect();
                Err(format!("no authenticator for the issuer `{short}`"))
            }
        }
    }

    async fn accept(
        &self,
        authenticator: &IssuerAuthenticator,
        credentials: Credentials<'_>,
        now: Timestamp,
    ) -> Result<AuthenticatedIdentity, String> {
        let IssuerAuthenticator { validated, provider, .. } = authenticator;
        let signed = SignedToken::parse(credentials.token).map_err(|error| error.to_string())?;
        check_type(signed.typ.as_deref())?;
        if !validated.algorithms.contains(&signed.algorithm) {
            return Err(format!("the algorithm `{}` is not accepted", signed.algorithm));
        }
        let payload = provider.verify(&signed).await.map_err(|error| error.to_string())?;
        let issuer = &validated.issuer;
        let claims = claims::read(payload).map_err(|error| error.to_string())?;
        let validity =
            claims::check(&claims, &issuer.url, &issuer.audiences, now).map_err(|error| error.to_string())?;
        // The token has an audience that its authenticator accepts.
        // Such a token is valid for each audience of the API server.
        let audiences = agnostic_audiences(credentials.audiences, &self.api_audiences)
            .ok_or("the token is not valid for the requested audiences")?;
        let user = identity::identify(validated, &claims, &self.names, &self.types)
            .map_err(|error| error.to_string())?;
        Ok(AuthenticatedIdentity {
            user,
            audiences,
            not_before: validity.not_before,
            expires_at: Some(validity.expires),
            ..AuthenticatedIdentity::default()
        })
    }
}

/// Checks the header `typ` (RFC 8725 section 3.11): absent, `JWT` or `application/jwt`.
fn check_type(typ: Option<&str>) -> Result<(), String> {
    let Some(typ) = typ else { return Ok(()) };
    let bare = typ.to_ascii_lowercase();
    match bare.strip_prefix("application/").unwrap_or(&bare) {
        "jwt" => Ok(()),
        _ => {
            let short: String = typ.chars().take(32).collect();
            Err(format!("the type is `{short}`, not `JWT`"))
        }
    }
}

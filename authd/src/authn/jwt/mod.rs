//! JWT authenticators for OpenID Connect and other issuers (requirements A-OIDC, A-JWT).
//!
//! # Contract
//!
//! The unverified issuer of a token only selects the authenticator. Then the signature must verify under an
//! accepted algorithm and a key of that issuer. The token must be for one of the audiences and valid now, and
//! its claims must map to a user that meets all rules. Errors go to the log, without claim values.
//!
//! A token of an unknown issuer is rejected with that reason, so that the log distinguishes it from a missing
//! token. The other authenticators still run.
//!
//! # Invariants
//!
//! INVARIANT (signature first): only the issuer claim is read before signature verification.
//! INVARIANT (identity tokens): a token whose `typ` declares another purpose (`at+jwt` for access,
//! `logout+jwt` …) is rejected (requirement A-OIDC-2).

pub mod claims;
pub mod discovery;
mod identity;
mod issuers;
mod provider;
pub mod validated;

use std::collections::HashMap;
use std::sync::Arc;

use apimachinery::clock::SystemClock;
use apimachinery::names::Names;
use async_trait::async_trait;
use jiff::Timestamp;

use super::{Accepted, Authenticator, AuthnContext, Credentials, Outcome, Settings, agnostic_audiences};
use crate::mirror::{Mirror, MirrorNotReady};
use crate::tokens::jose::{self, Signed};
use identity::Types;
use provider::Provider;
use validated::ValidatedAuthenticator;

pub use issuers::{IssuerHooks, Issuers};

/// Limit in characters of an unknown issuer in the log.
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
    /// No authenticators.
    pub fn none() -> Self {
        JwtSettings { authenticators: Vec::new(), issuers: Issuers::new(Arc::new(SystemClock::new())) }
    }
}

/// The authenticator of one issuer.
struct IssuerAuthenticator {
    checked: Arc<ValidatedAuthenticator>,
    provider: Arc<Provider>,
    hash: String,
}

struct JwtUnion {
    names: Arc<Names>,
    /// By issuer.
    authenticators: HashMap<String, IssuerAuthenticator>,
    /// Issuers whose tokens belong to another authenticator.
    others: Vec<String>,
    api_audiences: Vec<String>,
    issuers: Issuers,
    types: Types,
}

pub(super) fn build(
    settings: &Settings,
    _mirror: &Arc<Mirror>,
) -> Result<Option<Box<dyn Authenticator>>, String> {
    let JwtSettings { authenticators, issuers } = &settings.jwt;
    if authenticators.is_empty() {
        return Ok(None);
    }
    let one = |checked: &Arc<ValidatedAuthenticator>| {
        let url = checked.issuer.url.clone();
        let hash = issuers::issuer_hash(&url);
        (
            url,
            IssuerAuthenticator {
                checked: Arc::clone(checked),
                provider: issuers.provider(&checked.issuer),
                hash,
            },
        )
    };
    Ok(Some(Box::new(JwtUnion {
        names: Arc::clone(&settings.names),
        authenticators: authenticators.iter().map(one).collect(),
        others: settings.issuer.iter().flat_map(|issuer| issuer.issuers()).map(str::to_owned).collect(),
        api_audiences: settings.api_audiences.clone(),
        issuers: issuers.clone(),
        types: Types::new(),
    })))
}

#[async_trait]
impl Authenticator for JwtUnion {
    async fn authenticate(
        &self,
        credentials: Credentials<'_>,
        at: AuthnContext,
    ) -> Result<Outcome, MirrorNotReady> {
        let one = match self.route(credentials.token) {
            Ok(Some(one)) => one,
            Ok(None) => return Ok(Outcome::NotApplicable),
            Err(check) => return Ok(Outcome::Rejected(check)),
        };
        let clock = self.issuers.clock();
        let start = clock.monotonic();
        let outcome = self.accept(one, credentials, at.now).await;
        let seconds = clock.monotonic().saturating_sub(start).as_secs_f64();
        let result = if outcome.is_ok() { "success" } else { "failure" };
        self.issuers.observe_authentication(&one.hash, result, seconds);
        Ok(match outcome {
            Ok(accepted) => Outcome::Accepted(Box::new(accepted)),
            Err(check) => Outcome::Rejected(format!("issuer {}: {check}", one.checked.issuer.url)),
        })
    }
}

impl JwtUnion {
    /// Selects the authenticator of a token.
    /// None: the token is not a JWT, or belongs to another authenticator.
    fn route(&self, token: &str) -> Result<Option<&IssuerAuthenticator>, String> {
        if token.bytes().filter(|byte| *byte == b'.').take(3).count() != 2 {
            return Ok(None);
        }
        if token.len() > jose::MAX_TOKEN_BYTES {
            return Err(jose::Malformed::TooLong.to_string());
        }
        let payload =
            jose::unverified_payload(token).ok_or_else(|| jose::Malformed::Base64("payload").to_string())?;
        let issuer =
            claims::issuer(&payload).map_err(|error| format!("the claims cannot be read: {error}"))?;
        let Some(issuer) = issuer else { return Err("the token has no issuer".to_owned()) };
        match self.authenticators.get(&issuer) {
            Some(one) => Ok(Some(one)),
            None if self.others.contains(&issuer) => Ok(None),
            None => {
                let shown: String = issuer.chars().take(MAX_SHOWN_ISSUER).collect();
                Err(format!("no authenticator for the issuer `{shown}`"))
            }
        }
    }

    async fn accept(
        &self,
        one: &IssuerAuthenticator,
        credentials: Credentials<'_>,
        now: Timestamp,
    ) -> Result<Accepted, String> {
        let IssuerAuthenticator { checked, provider, .. } = one;
        let signed = Signed::parse(credentials.token).map_err(|error| error.to_string())?;
        check_type(signed.typ.as_deref())?;
        if !checked.algorithms.contains(&signed.algorithm) {
            return Err(format!("the algorithm `{}` is not accepted", signed.algorithm));
        }
        let payload = provider.verify(&signed).await?;
        let claims = claims::read(payload)?;
        let valid = claims::check(&claims, &checked.issuer.url, &checked.issuer.audiences, now)?;
        // A token of an external issuer is valid for the API server as a whole.
        let audiences = agnostic_audiences(credentials.audiences, &self.api_audiences)
            .ok_or("the token is not valid for the requested audiences")?;
        let user = identity::identify(checked, &claims, &self.names, &self.types)?;
        Ok(Accepted {
            user,
            audiences,
            not_before: valid.not_before,
            expires_at: Some(valid.expires),
            ..Accepted::default()
        })
    }
}

/// Checks the declared type (RFC 8725 section 3.11).
fn check_type(typ: Option<&str>) -> Result<(), String> {
    let Some(typ) = typ else { return Ok(()) };
    let bare = typ.to_ascii_lowercase();
    match bare.strip_prefix("application/").unwrap_or(&bare) {
        "jwt" => Ok(()),
        _ => {
            let shown: String = typ.chars().take(32).collect();
            Err(format!("the type is `{shown}`, not `JWT`"))
        }
    }
}

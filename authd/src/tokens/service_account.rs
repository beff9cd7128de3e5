//! Service-account tokens: claims, issue and verification.
//!
//! # Contract
//!
//! [`Issuer::issue`] signs a token for a service account, optionally bound to a Pod, Secret or Node; the
//! caller checks that these objects exist. [`Issuer::read`] returns the [`Claims`] of a currently valid token
//! that one of the keys signed for one of the configured issuers. For tokens of other issuers
//! [`Issuer::read`] returns None.
//! The claims follow requirements A-SA-22, with the private claims under the label domain of the preset.
//!
//! # Reference
//!
//! Requirements A-SA. apid accepts lifetimes of ten minutes to 2^32 seconds; the default is an hour. A token
//! for 3,607 seconds may be valid for a year, with `warnafter` at the requested end. The ServiceAccount
//! admission plugin adds token volumes with this lifetime.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::names::Names;
use arc_swap::ArcSwap;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

pub use super::claims::{Claims, ObjectIdentity, PrivateClaims, TokenError, subject};
use super::claims::{audiences, check_subject, first_valid, parse_claims, time_claim, unverified_issuer};
use super::jose::{self, SignedToken};
use super::keyring::Keyring;
use super::keys::SigningKey;

/// The default lifetime, in seconds.
pub const DEFAULT_SECONDS: i64 = 3600;
/// The requested lifetime of a token that may be extended, in seconds.
const EXTENDABLE_SECONDS: i64 = 3607;
/// The lifetime of an extended token, in seconds.
const EXTENDED_SECONDS: i64 = 365 * 24 * 3600;
/// Seconds that the clock of an issuer may be ahead of the local clock.
const SKEW_SECONDS: i64 = 60;

/// The parameters of a new token.
#[derive(Clone, Debug)]
pub struct TokenParameters {
    /// The service account, and the objects that the token is bound to. [`Issuer::issue`] sets `warnafter`.
    pub claims: PrivateClaims,
    /// The audiences; empty means those of the API server.
    pub audiences: Vec<String>,
    /// The requested lifetime in seconds; 0 takes the default.
    pub seconds: i64,
}

/// An issued service-account token.
#[derive(Clone, PartialEq, Eq)]
pub struct IssuedServiceAccountToken {
    /// The token text, which is secret.
    pub token: String,
    /// The time by which the client should refresh the token; an extended token is valid longer.
    pub expires: Timestamp,
    /// The lifetime in seconds without an extension; it may be shorter than requested.
    pub seconds: i64,
    /// The audiences of the token.
    pub audiences: Vec<String>,
    /// The token id, the claim `jti`.
    pub id: String,
}

impl std::fmt::Debug for IssuedServiceAccountToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IssuedServiceAccountToken")
            .field("id", &self.id)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

/// The reason why a token cannot be issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IssueError {
    /// No signing key is configured.
    #[error("no signing key for service-account tokens")]
    NoSigningKey,
    /// No issuer is configured.
    #[error("no service-account issuer is configured")]
    NoIssuer,
    /// The signing key could not sign the token.
    #[error("the key could not sign")]
    Signing,
    /// The expiry is later than the last time that authd can represent.
    #[error("the requested lifetime ends after the last supported time")]
    Expiry,
}

/// Settings of an [`Issuer`].
#[derive(Debug, Default)]
pub struct IssuerOptions {
    /// The issuers. New tokens name the first; tokens of all are accepted.
    pub issuers: Vec<String>,
    /// The audiences of the API server.
    pub audiences: Vec<String>,
    /// The maximum lifetime of a token; None means no maximum.
    pub max_lifetime: Option<Duration>,
    /// Whether tokens for 3,607 seconds are extended to a year, for clients that do not refresh tokens.
    pub extend: bool,
    /// The JWKS URL in the discovery document; None means the path under the address of apid.
    pub jwks_uri: Option<String>,
}

/// Issues and verifies service-account tokens.
#[derive(Debug)]
pub struct Issuer {
    options: IssuerOptions,
    /// The name of the claim that contains the private claims.
    private_claim: String,
    /// The issuer of legacy tokens, which are stored in Secrets.
    legacy_issuer: String,
    ring: ArcSwap<Keyring>,
}

impl Issuer {
    /// Creates an issuer from checked settings.
    pub fn new(options: IssuerOptions, ring: Keyring, names: &Names) -> Self {
        Issuer {
            options,
            private_claim: names.label_domain().to_owned(),
            legacy_issuer: format!("{}/serviceaccount", names.api_service),
            ring: ArcSwap::from_pointee(ring),
        }
    }

    /// Replaces all keys; the old keys verify no more tokens.
    pub fn replace_keys(&self, ring: Keyring) {
        self.ring.store(Arc::new(ring));
    }

    /// Returns all accepted issuers, with that of legacy tokens.
    pub fn issuers(&self) -> impl Iterator<Item = &str> {
        self.options.issuers.iter().chain([&self.legacy_issuer]).map(String::as_str)
    }

    /// Returns the audiences of the API server.
    pub fn audiences(&self) -> &[String] {
        &self.options.audiences
    }

    /// Whether there is a signing key.
    pub fn signs(&self) -> bool {
        self.ring.load().signing.is_some()
    }

    /// Signs a token for a service account; `id` is the token id.
    ///
    /// # Errors
    ///
    /// [`IssueError`].
    pub fn issue(
        &self,
        request: TokenParameters,
        id: String,
        now: Timestamp,
    ) -> Result<IssuedServiceAccountToken, IssueError> {
        let key = self.signing_key()?;
        let issuer = self.options.issuers.first().ok_or(IssueError::NoIssuer)?;
        let audiences =
            if request.audiences.is_empty() { self.options.audiences.clone() } else { request.audiences };
        let mut seconds = if request.seconds == 0 { DEFAULT_SECONDS } else { request.seconds };
        if let Some(longest) = self.options.max_lifetime {
            seconds = seconds.min(i64::try_from(longest.as_secs()).unwrap_or(i64::MAX));
        }
        let start = now.as_second();
        let is_extended = self.options.extend
            && seconds == EXTENDABLE_SECONDS
            && audiences.iter().any(|audience| self.options.audiences.contains(audience));
        let ends = start.saturating_add(if is_extended { EXTENDED_SECONDS } else { seconds });
        let subject = subject(&request.claims.namespace, &request.claims.serviceaccount.name);
        let warnafter = is_extended.then(|| start.saturating_add(seconds));
        let private = PrivateClaims { warnafter, ..request.claims };
        let claims = json!({
            "aud": audiences, "exp": ends, "iat": start, "iss": issuer, "jti": id,
            self.private_claim.as_str(): private, "nbf": start, "sub": subject,
        });
        let token = self.sign(&key, &claims)?;
        let expires =
            Timestamp::from_second(start.saturating_add(seconds)).map_err(|_| IssueError::Expiry)?;
        Ok(IssuedServiceAccountToken { token, expires, seconds, audiences, id })
    }

    /// Signs a legacy token for a Secret. The token has no expiry; it is valid as long as the Secret contains
    /// it.
    ///
    /// # Errors
    ///
    /// Those of [`Issuer::issue`].
    pub fn issue_for_secret(
        &self,
        namespace: &str,
        account: &ObjectIdentity,
        secret: &str,
    ) -> Result<String, IssueError> {
        let key = self.signing_key()?;
        let claim = |name: &str| format!("{}/serviceaccount/{name}", self.private_claim);
        let claims = json!({
            "iss": self.legacy_issuer,
            claim("namespace").as_str(): namespace,
            claim("secret.name").as_str(): secret,
            claim("service-account.name").as_str(): account.name,
            claim("service-account.uid").as_str(): account.uid,
            "sub": subject(namespace, &account.name),
        });
        self.sign(&key, &claims)
    }

    fn signing_key(&self) -> Result<Arc<SigningKey>, IssueError> {
        let key = self.ring.load().signing.clone();
        key.ok_or(IssueError::NoSigningKey)
    }

    fn sign(&self, key: &SigningKey, claims: &Value) -> Result<String, IssueError> {
        let header = json!({"alg": key.algorithm.as_str(), "kid": key.public.kid});
        let claims = claims.to_string();
        jose::sign(key, &header, claims.as_bytes()).map_err(|_| IssueError::Signing)
    }

    /// Verifies a token and returns its claims.
    /// Returns None if its issuer is not accepted, or the text is not a signed token.
    ///
    /// # Errors
    ///
    /// A check of a token of an accepted issuer failed; the error names the check for the log.
    pub fn read(&self, token: &str, now: Timestamp) -> Option<Result<Claims, TokenError>> {
        let signed = SignedToken::parse(token).ok()?;
        let issuer = unverified_issuer(signed.unverified_payload()).ok()??;
        let legacy = issuer == self.legacy_issuer;
        if !legacy && !self.options.issuers.contains(&issuer) {
            return None;
        }
        Some(self.verify_signature(&signed).and_then(|payload| {
            let claims = parse_claims(payload)?;
            // If a configured issuer has the name of the legacy issuer, the token may be a bound or a legacy
            // token.
            match (legacy, self.options.issuers.contains(&issuer)) {
                (true, false) => self.read_secret_claims(&claims, now),
                (true, true) => {
                    self.read_bound_claims(&claims, now).or_else(|_| self.read_secret_claims(&claims, now))
                }
                (false, _) => self.read_bound_claims(&claims, now),
            }
        }))
    }

    fn verify_signature<'s>(&self, signed: &'s SignedToken<'_>) -> Result<&'s [u8], TokenError> {
        let ring = self.ring.load();
        let verified = ring.candidates(signed.kid.as_deref()).find_map(|key| signed.verify(key));
        verified.ok_or(TokenError::Signature)
    }

    fn read_bound_claims(&self, claims: &Map<String, Value>, now: Timestamp) -> Result<Claims, TokenError> {
        let private = claims
            .get(&self.private_claim)
            .ok_or_else(|| TokenError::MissingClaim(self.private_claim.clone()))?;
        let private: PrivateClaims = serde_json::from_value(private.clone()).map_err(|error| {
            TokenError::MalformedClaim { name: self.private_claim.clone(), reason: error.to_string() }
        })?;
        check_subject(claims, &private)?;
        let (expires, not_before) = check_time_claims(claims, now)?;
        let expires = expires.ok_or_else(|| TokenError::MissingClaim("exp".to_owned()))?;
        Ok(Claims {
            audiences: audiences(claims),
            // The float conversion saturates.
            expires: Timestamp::from_second(expires as i64).ok(),
            not_before,
            id: claims.get("jti").and_then(Value::as_str).unwrap_or_default().to_owned(),
            private,
            legacy: false,
        })
    }

    fn read_secret_claims(&self, claims: &Map<String, Value>, now: Timestamp) -> Result<Claims, TokenError> {
        let (expires, not_before) = check_time_claims(claims, now)?;
        let text = |name: &str| {
            let name = format!("{}/serviceaccount/{name}", self.private_claim);
            let value = claims.get(&name).and_then(Value::as_str).filter(|value| !value.is_empty());
            value.map(str::to_owned).ok_or(TokenError::MissingClaim(name))
        };
        let private = PrivateClaims {
            namespace: text("namespace")?,
            secret: Some(ObjectIdentity { name: text("secret.name")?, uid: String::new() }),
            serviceaccount: ObjectIdentity {
                name: text("service-account.name")?,
                uid: text("service-account.uid")?,
            },
            ..PrivateClaims::default()
        };
        check_subject(claims, &private)?;
        Ok(Claims {
            audiences: audiences(claims),
            // The float conversion saturates.
            expires: expires.and_then(|end| Timestamp::from_second(end as i64).ok()),
            not_before,
            id: String::new(),
            private,
            legacy: true,
        })
    }

    /// Returns the document at `/openid/v1/jwks`.
    pub fn jwks(&self) -> Value {
        json!({"keys": self.ring.load().keys().map(|key| key.jwk()).collect::<Vec<_>>()})
    }

    /// Returns the document at `/.well-known/openid-configuration`.
    /// Returns None if the first issuer is not an https URL. `address` is that of apid, for the default JWKS URL.
    pub fn discovery(&self, address: &str) -> Option<Value> {
        let issuer = self.options.issuers.first().filter(|issuer| issuer.starts_with("https://"))?;
        let ring = self.ring.load();
        let mut algorithms: Vec<&str> =
            ring.keys().filter_map(|key| key.jwk().get("alg")?.as_str()).collect();
        algorithms.sort_unstable();
        algorithms.dedup();
        let jwks_uri =
            self.options.jwks_uri.clone().unwrap_or_else(|| format!("https://{address}/openid/v1/jwks"));
        Some(json!({
            "issuer": issuer,
            "jwks_uri": jwks_uri,
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": algorithms,
        }))
    }
}

/// Checks the time claims; returns the expiry in Unix seconds and the first valid moment.
fn check_time_claims(
    claims: &Map<String, Value>,
    now: Timestamp,
) -> Result<(Option<f64>, Option<Timestamp>), TokenError> {
    let expires = time_claim(claims, "exp")?;
    let starts = [time_claim(claims, "nbf")?, time_claim(claims, "iat")?];
    let now_seconds = now.as_millisecond() as f64 / 1000.0;
    if expires.is_some_and(|end| now_seconds >= end) {
        return Err(TokenError::Expired);
    }
    let leeway = SKEW_SECONDS as f64;
    if starts.into_iter().flatten().any(|start| start > now_seconds + leeway) {
        return Err(TokenError::NotYetValid);
    }
    Ok((expires, first_valid(starts, leeway)))
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;

    use super::super::keys;
    use super::*;

    fn key() -> Arc<SigningKey> {
        let pem = rcgen::KeyPair::generate().unwrap().serialize_pem();
        keys::read(pem.as_bytes()).unwrap().pop().unwrap().signing.expect("a generated key can sign")
    }

    fn issuer(signing: &Arc<SigningKey>, change: impl FnOnce(&mut IssuerOptions)) -> Issuer {
        let mut options = IssuerOptions {
            issuers: vec!["https://one.test".into(), "https://old.test".into()],
            audiences: vec!["api".into()],
            extend: true,
            ..IssuerOptions::default()
        };
        change(&mut options);
        let ring = Keyring::new(Some(Arc::clone(signing)), &[]);
        Issuer::new(options, ring, &Names::new(Preset::Kubernetes, "").unwrap())
    }

    fn named(name: &str, uid: &str) -> ObjectIdentity {
        ObjectIdentity { name: name.into(), uid: uid.into() }
    }

    fn request() -> TokenParameters {
        let claims = PrivateClaims {
            namespace: "team".into(),
            serviceaccount: named("robot", "u-1"),
            ..PrivateClaims::default()
        };
        TokenParameters { claims, audiences: Vec::new(), seconds: 0 }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn issued_token_is_valid_until_expiry() {
        let issuer = issuer(&key(), |_| {});
        let mut bound = request();
        bound.claims.pod = Some(named("p", "u-2"));
        bound.claims.node = Some(named("n", "u-3"));
        let issued = issuer.issue(bound, "id-1".into(), at(1000)).unwrap();
        assert_eq!((issued.expires, issued.seconds), (at(4600), 3600));
        let claims = issuer.read(&issued.token, at(1000)).unwrap().unwrap();
        assert_eq!(claims.audiences, ["api"]);
        assert_eq!((claims.expires, claims.id.as_str(), claims.legacy), (Some(at(4600)), "id-1", false));
        assert_eq!(claims.private.pod, Some(named("p", "u-2")));
        assert_eq!(claims.private.node, Some(named("n", "u-3")));
        assert!(issuer.read(&issued.token, at(4599)).unwrap().is_ok());
        assert_eq!(issuer.read(&issued.token, at(4600)).unwrap(), Err(TokenError::Expired));
        assert_eq!(issuer.read(&issued.token, at(900)).unwrap(), Err(TokenError::NotYetValid));
    }

    #[test]
    fn token_of_other_issuer_is_ignored_and_of_other_key_is_rejected() {
        let signing = key();
        let own_issuer = issuer(&signing, |_| {});
        let other_issuer = issuer(&signing, |options| options.issuers = vec!["https://other.test".into()]);
        let token = other_issuer.issue(request(), "i".into(), at(0)).unwrap().token;
        assert_eq!(own_issuer.read(&token, at(0)), None);
        assert_eq!(own_issuer.read("no-token", at(0)), None);
        let old = issuer(&signing, |options| options.issuers = vec!["https://old.test".into()]);
        let token = old.issue(request(), "i".into(), at(0)).unwrap().token;
        assert!(own_issuer.read(&token, at(0)).unwrap().is_ok(), "a previous issuer is accepted");
        let forged = issuer(&key(), |_| {}).issue(request(), "i".into(), at(0)).unwrap().token;
        assert_eq!(own_issuer.read(&forged, at(0)).unwrap(), Err(TokenError::Signature));
        let token = own_issuer.issue(request(), "i".into(), at(0)).unwrap().token;
        let next = key();
        own_issuer.replace_keys(Keyring::new(Some(Arc::clone(&next)), &[Arc::clone(&signing.public)]));
        assert!(own_issuer.read(&token, at(0)).unwrap().is_ok(), "a verify-only key");
        let newer = own_issuer.issue(request(), "i".into(), at(0)).unwrap().token;
        own_issuer.replace_keys(Keyring::new(Some(next), &[]));
        assert!(own_issuer.read(&token, at(0)).unwrap().is_err(), "its key was removed");
        assert!(own_issuer.read(&newer, at(0)).unwrap().is_ok());
    }

    #[test]
    fn token_lifetime_is_limited_and_extended_for_old_clients() {
        let signing = key();
        for (longest, extend, requested, seconds, exp, warns) in [
            (None, true, 0, 3600, 3600, None),
            (None, true, 600, 600, 600, None),
            (Some(1000), true, 7200, 1000, 1000, None),
            (None, true, 3607, 3607, EXTENDED_SECONDS, Some(3607)),
            (None, false, 3607, 3607, 3607, None),
        ] {
            let issuer = issuer(&signing, |options| {
                options.max_lifetime = longest.map(Duration::from_secs);
                options.extend = extend;
            });
            let issued =
                issuer.issue(TokenParameters { seconds: requested, ..request() }, "i".into(), at(0)).unwrap();
            assert_eq!((issued.seconds, issued.expires), (seconds, at(seconds)), "{requested}");
            let claims = issuer.read(&issued.token, at(0)).unwrap().unwrap();
            assert_eq!((claims.expires, claims.private.warnafter), (Some(at(exp)), warns), "{requested}");
        }
        let other_audience_issuer = issuer(&signing, |_| {});
        let request = TokenParameters { seconds: 3607, audiences: vec!["vault".into()], ..request() };
        assert_eq!(other_audience_issuer.issue(request, "i".into(), at(0)).unwrap().seconds, 3607);
    }

    #[test]
    fn token_of_secret_has_no_expiry() {
        let issuer = issuer(&key(), |_| {});
        let token = issuer.issue_for_secret("team", &named("robot", "u-1"), "robot-token").unwrap();
        let claims = issuer.read(&token, at(1 << 33)).unwrap().unwrap();
        assert!(claims.legacy && claims.expires.is_none() && claims.audiences.is_empty());
        assert_eq!(claims.private.secret, Some(named("robot-token", "")));
    }

    #[test]
    fn jwks_and_discovery_documents_name_issuer_and_keys() {
        let signing = key();
        let issuer = issuer(&signing, |_| {});
        let keys = issuer.jwks();
        assert_eq!(keys["keys"][0]["kid"], signing.public.kid.as_str());
        let document = issuer.discovery("10.0.0.1:443").unwrap();
        assert_eq!(document["issuer"], "https://one.test");
        assert_eq!(document["jwks_uri"], "https://10.0.0.1:443/openid/v1/jwks");
        assert_eq!(document["id_token_signing_alg_values_supported"], json!(["ES256"]));
        let plain = self::issuer(&signing, |options| options.issuers = vec!["svc/serviceaccount".into()]);
        assert_eq!(plain.discovery("a"), None);
    }

    #[test]
    fn token_with_mismatched_subject_is_rejected() {
        let signing = key();
        let issuer = issuer(&signing, |_| {});
        let claims = json!({
            "iss": "https://one.test", "sub": "system:serviceaccount:team:admin", "aud": ["api"], "exp": 10,
            "kubernetes.io": {"namespace": "team", "serviceaccount": {"name": "robot", "uid": "u"}},
        });
        let token = issuer.sign(&signing, &claims).unwrap();
        assert_eq!(issuer.read(&token, at(0)).unwrap(), Err(TokenError::Subject));
    }
    #[test]
    fn token_with_non_numeric_time_claim_is_rejected() {
        let signing = key();
        let issuer = issuer(&signing, |_| {});
        let bound = json!({
            "iss": "https://one.test", "sub": "system:serviceaccount:team:robot", "aud": ["api"], "exp": 10_000,
            "kubernetes.io": {"namespace": "team", "serviceaccount": {"name": "robot", "uid": "u"}},
        });
        let claim = |name: &str| format!("kubernetes.io/serviceaccount/{name}");
        let of_secret = json!({
            "iss": "kubernetes/serviceaccount", "sub": "system:serviceaccount:team:robot",
            claim("namespace"): "team", claim("secret.name"): "s",
            claim("service-account.name"): "robot", claim("service-account.uid"): "u",
        });
        let read = |claims: &Value, name: &str, value: Value| {
            let mut claims = claims.clone();
            claims[name] = value;
            let token = issuer.sign(&signing, &claims).unwrap();
            issuer.read(&token, at(1_000)).unwrap().map(|claims| claims.not_before)
        };
        for claims in [&bound, &of_secret] {
            for name in ["nbf", "iat", "exp"] {
                for value in [json!("2000000000"), json!(true), json!([1]), json!({})] {
                    let expected = TokenError::TimeClaim(name.to_owned());
                    assert_eq!(
                        read(claims, name, value.clone()),
                        Err(expected),
                        "{name} {value} of {claims}"
                    );
                }
            }
            for name in ["nbf", "iat"] {
                assert_eq!(read(claims, name, Value::Null), Ok(None), "{name}");
                assert_eq!(read(claims, name, json!(1_060)), Ok(Some(at(1_000))), "{name}");
                let early = read(claims, name, json!(1_060.5));
                assert_eq!(early, Err(TokenError::NotYetValid), "{name}");
            }
            assert_eq!(read(claims, "exp", json!(999)), Err(TokenError::Expired));
        }
    }
}

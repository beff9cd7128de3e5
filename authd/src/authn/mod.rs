//! Authentication: a union of all configured authenticators, one file per authenticator.
//!
//! # Contract
//!
//! [`AuthenticatorUnion::authenticate`] returns an identity, or a [`Rejection`] with the rejecting
//! authenticators and their reasons, for the log. The client receives only 401. The first authenticator that
//! accepts decides. Anonymous access is granted only if no authenticator rejected a credential (requirements
//! A-PRIN-12, A-PRIN-13, A-PRIN-20, A-PRIN-21). If an authenticator cannot decide and no other accepts, the
//! result is [`AuthnError::Undecided`]: the client gets 503, and nothing is cached.
//!
//! # Invariants
//!
//! INVARIANT (a bad credential is not anonymous): a request with a bearer token that no authenticator accepts
//! is not anonymous. This holds even if no authenticator checks bearer tokens. INVARIANT (authenticated group):
//! every accepted user is in `system:authenticated`, except the anonymous user and a user that its
//! authenticator put into `system:unauthenticated`.

mod anonymous;
mod bootstrap_token;
pub mod jwt;
mod request_header;
mod service_account;
mod token_file;
pub mod webhook;
mod x509;

use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::Clock;
use apimachinery::names::Names;
use apimachinery::user::{ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED, UserInfo};
use async_trait::async_trait;
use authproto::auth::{Header, ObjectRef};
use jiff::Timestamp;

pub use anonymous::Anonymous;
pub use jwt::{Issuers, JwtSettings};
pub use request_header::ProxySettings;
pub use token_file::TokenFile;
pub use x509::trust::{Trust, TrustFiles};

use crate::mirror::{AtLeast, MirrorNotReady};
use crate::tokens::service_account::Issuer;

/// The configuration of the authenticators.
#[derive(Clone, Debug)]
pub struct AuthnSettings {
    /// The names preset.
    pub names: Arc<Names>,
    /// The CA bundles for client certificates and for proxies, and the revocation lists.
    pub trust: Arc<Trust>,
    /// Settings of the request-header authenticator.
    pub proxy: ProxySettings,
    /// The content of `--token-auth-file`, read once.
    pub token_file: Option<Arc<TokenFile>>,
    /// Whether certificates may name a uid (gate `AllowParsingUserUIDFromCertAuth`).
    pub certificate_uids: bool,
    /// Whether, and for which paths, requests without credentials are made as the anonymous user.
    pub anonymous: Anonymous,
    /// OpenID Connect and other JWT authenticators.
    pub jwt: JwtSettings,
    /// The token webhook; None if it is not configured.
    pub token_webhook: Option<Arc<webhook::TokenWebhook>>,
    /// The audiences of the API server. A token that names no audience is valid for these.
    pub api_audiences: Vec<String>,
    /// Issues and verifies service-account tokens. None if no keys are configured.
    pub issuer: Option<Arc<Issuer>>,
    /// Whether tokens of deleted service accounts are rejected (`--service-account-lookup`).
    pub service_account_lookup: bool,
    /// `--enable-bootstrap-token-auth`.
    pub bootstrap_tokens: bool,
}

/// The credentials of a request. Contains secrets: no `Debug`.
#[derive(Clone, Copy, Default)]
pub struct Credentials<'a> {
    /// The client certificates in DER, leaf first. TLS has verified only that the peer has the leaf's key.
    pub certificates: &'a [Vec<u8>],
    /// The bearer token; empty when there is none.
    pub token: &'a str,
    /// The request headers that name a user if an authenticating proxy set them; names in lower case.
    pub proxy_headers: &'a [Header],
    /// The reason why a received credential cannot be parsed; empty if each can be parsed.
    pub unreadable: &'a str,
    /// Audiences that the credential must be valid for; empty means those of the API server.
    pub audiences: &'a [String],
    /// The request path, because anonymous access can be limited to some paths.
    pub path: &'a str,
}

/// The time and the stored objects of a request.
#[derive(Clone, Copy, Debug)]
pub struct AuthnContext<'m> {
    /// The current wall-clock time.
    pub now: Timestamp,
    /// The mirror of the apid that sent the request, at its minimum revision.
    pub at_least: AtLeast<'m>,
}

/// The result of one authenticator.
#[derive(Debug)]
pub enum Outcome {
    /// The credential belongs to this identity.
    Accepted(Box<AuthenticatedIdentity>),
    /// The request has no credential for this authenticator.
    NotApplicable,
    /// A credential failed a check; the text names the check for the log.
    Rejected(String),
    /// Like `Rejected`: a remote service rejected the credential or was unavailable.
    /// The duration is the TTL of the rejection for caches; zero: not cached.
    RejectedWithTtl(String, Duration),
    /// The authenticator cannot decide now, for example because too many requests wait for a remote service.
    /// The text is the reason for the log. The same credential may be accepted a moment later.
    Undecided(String),
}

impl From<Result<AuthenticatedIdentity, String>> for Outcome {
    /// Converts the result of an authenticator to which the credential belongs; the error is the failed check.
    fn from(result: Result<AuthenticatedIdentity, String>) -> Self {
        result.map_or_else(Outcome::Rejected, |identity| Outcome::Accepted(Box::new(identity)))
    }
}

/// The opinion of one authenticator on credentials.
#[derive(Debug)]
pub struct AuthnOpinion {
    /// The name of the authenticator.
    pub name: &'static str,
    /// The result. None if the authenticator did not run, because an earlier one accepted.
    pub outcome: Option<Outcome>,
    /// The duration of the authentication by this authenticator.
    pub latency: Duration,
}

/// The user of a request, with the conditions under which the result may be cached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthenticatedIdentity {
    /// The user; [`AuthenticatorUnion::authenticate`] adds the group `system:authenticated`.
    pub user: UserInfo,
    /// The requested audiences for which the credential is valid.
    pub audiences: Vec<String>,
    /// The first moment at which the credential is valid.
    pub not_before: Option<Timestamp>,
    /// When the credential expires; None means never.
    pub expires_at: Option<Timestamp>,
    /// The request has no credentials, and the user is the anonymous user.
    pub anonymous: bool,
    /// The stored objects whose deletion ends the identity.
    pub depends_on: Vec<ObjectRef>,
    /// The time for which an identity from a remote service may be cached; None for other authenticators.
    pub ttl: Option<Duration>,
}

/// The error when no authenticator accepts the credentials.
#[derive(Debug, PartialEq, Eq)]
pub enum AuthnError {
    /// The credentials are rejected.
    Rejection(Rejection),
    /// These authenticators could not decide, each with its reason; the credentials may be valid.
    Undecided(Vec<(&'static str, String)>),
}

/// The rejection of credentials, or of a request without credentials.
#[derive(Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The name of each rejecting authenticator with the failed check; empty if the request has no
    /// credentials.
    pub checks: Vec<(&'static str, String)>,
    /// The time for which the rejection may be cached; None if no authenticator limits this time.
    pub ttl: Option<Duration>,
}

impl std::fmt::Display for Rejection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.checks.is_empty() {
            return f.write_str("no credentials, and anonymous access is off");
        }
        f.write_str(&join_checks(&self.checks))
    }
}

/// Joins the messages of authenticators into one line: `NAME: TEXT; NAME: TEXT`.
pub(crate) fn join_checks(checks: &[(&'static str, String)]) -> String {
    let lines: Vec<String> = checks.iter().map(|(method, text)| format!("{method}: {text}")).collect();
    lines.join("; ")
}

/// A configured authenticator, which checks one kind of credential.
#[async_trait]
trait Authenticator: Send + Sync {
    /// Checks the credentials of one request.
    ///
    /// # Errors
    ///
    /// The mirror is older than the minimum revision.
    async fn authenticate(
        &self,
        credentials: Credentials<'_>,
        context: AuthnContext<'_>,
    ) -> Result<Outcome, MirrorNotReady>;
}

/// Builds an authenticator. Returns None if it is not configured.
type BuildAuthenticator = fn(&AuthnSettings) -> Option<Arc<dyn Authenticator>>;

/// All authenticators with their names, in the order in which they run.
const METHODS: &[(&str, BuildAuthenticator)] = &[
    ("request-header", request_header::build),
    ("x509", x509::build),
    ("token-file", token_file::build),
    ("service-account", service_account::build),
    ("bootstrap-token", bootstrap_token::build),
    ("jwt", jwt::build),
    ("webhook", webhook::build),
];

/// All configured authenticators in order, and anonymous access.
pub struct AuthenticatorUnion {
    methods: Vec<(&'static str, Arc<dyn Authenticator>)>,
    anonymous: Anonymous,
    api_audiences: Vec<String>,
}

impl AuthenticatorUnion {
    /// Builds the configured authenticators.
    pub fn build(settings: &AuthnSettings) -> Self {
        let methods = METHODS.iter().filter_map(|(name, build)| Some((*name, build(settings)?)));
        AuthenticatorUnion {
            methods: methods.collect(),
            anonymous: settings.anonymous.clone(),
            api_audiences: settings.api_audiences.clone(),
        }
    }

    /// Returns a union without authenticators and without anonymous access.
    #[cfg(test)]
    pub(crate) fn empty() -> Self {
        AuthenticatorUnion { methods: Vec::new(), anonymous: Anonymous::default(), api_audiences: Vec::new() }
    }

    /// Returns the audiences of the API server.
    pub fn api_audiences(&self) -> &[String] {
        &self.api_audiences
    }

    /// The names of all known authenticators and of anonymous access, as in metrics and the log.
    pub fn methods() -> impl Iterator<Item = &'static str> {
        METHODS.iter().map(|(name, _)| *name).chain([anonymous::NAME])
    }

    /// Returns the identity of the credentials and the name of the accepting authenticator.
    /// The inner error says why the credentials have no identity.
    ///
    /// # Errors
    ///
    /// The mirror is older than the minimum revision, and an authenticator needs it.
    pub async fn authenticate(
        &self,
        credentials: Credentials<'_>,
        context: AuthnContext<'_>,
    ) -> Result<Result<(AuthenticatedIdentity, &'static str), AuthnError>, MirrorNotReady> {
        let (mut checks, mut undecided) = (Vec::new(), Vec::new());
        let mut ttl: Option<Duration> = None;
        for (name, method) in &self.methods {
            match consult(&**method, credentials, context).await? {
                Outcome::Accepted(accepted) => return Ok(Ok((*accepted, name))),
                Outcome::NotApplicable => (),
                Outcome::Rejected(check) => checks.push((*name, check)),
                Outcome::RejectedWithTtl(check, time) => {
                    checks.push((*name, check));
                    ttl = Some(ttl.map_or(time, |least| least.min(time)));
                }
                Outcome::Undecided(reason) => undecided.push((*name, reason)),
            }
        }
        if !undecided.is_empty() {
            return Ok(Err(AuthnError::Undecided(undecided)));
        }
        if !credentials.unreadable.is_empty() {
            checks.push(("bearer", credentials.unreadable.to_owned()));
        }
        if checks.is_empty() && !credentials.token.is_empty() {
            checks.push(("bearer", "no configured authenticator accepts the token".to_owned()));
        }
        let identified =
            if checks.is_empty() { self.anonymous(credentials.path) } else { Err(Rejection { checks, ttl }) };
        Ok(identified.map_err(AuthnError::Rejection))
    }

    /// Runs the authenticators in order until one accepts, and returns one opinion for each.
    ///
    /// # Errors
    ///
    /// The mirror is older than the minimum revision, and an authenticator needs it.
    pub async fn opinions(
        &self,
        credentials: Credentials<'_>,
        context: AuthnContext<'_>,
        clock: &dyn Clock,
    ) -> Result<Vec<AuthnOpinion>, MirrorNotReady> {
        let mut opinions = Vec::new();
        let mut is_accepted = false;
        for (name, method) in &self.methods {
            let started = clock.monotonic();
            let outcome =
                if is_accepted { None } else { Some(consult(&**method, credentials, context).await?) };
            let latency = clock.monotonic().saturating_sub(started);
            is_accepted |= matches!(outcome, Some(Outcome::Accepted(_)));
            opinions.push(AuthnOpinion { name, outcome, latency });
        }
        Ok(opinions)
    }

    /// Returns the anonymous identity for a request for `path` without credentials.
    ///
    /// # Errors
    ///
    /// Anonymous access is off, or off for the path.
    pub fn anonymous(&self, path: &str) -> Result<(AuthenticatedIdentity, &'static str), Rejection> {
        if self.anonymous.allows(path) {
            Ok((anonymous::identity(), anonymous::NAME))
        } else {
            Err(Rejection { checks: Vec::new(), ttl: None })
        }
    }
}

impl std::fmt::Debug for AuthenticatorUnion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let anonymous = self.anonymous.enabled.then_some(anonymous::NAME);
        f.debug_list().entries(self.methods.iter().map(|(name, _)| *name).chain(anonymous)).finish()
    }
}

/// Consults one authenticator, and adds the authenticated group to a user that it accepts.
async fn consult(
    method: &dyn Authenticator,
    credentials: Credentials<'_>,
    context: AuthnContext<'_>,
) -> Result<Outcome, MirrorNotReady> {
    let mut outcome = method.authenticate(credentials, context).await?;
    if let Outcome::Accepted(accepted) = &mut outcome {
        let UserInfo { name, groups, .. } = &mut accepted.user;
        let is_authentication_group = |group: &String| group == AUTHENTICATED || group == UNAUTHENTICATED;
        // A proxy may forward an anonymous user.
        if name != ANONYMOUS && !groups.iter().any(is_authentication_group) {
            groups.push(AUTHENTICATED.to_owned());
        }
    }
    Ok(outcome)
}

/// Returns the audiences of a credential that names none ("audience-agnostic" in Kubernetes): those of
/// `requested` that are in `api_audiences`. Returns None if audiences are requested, and `api_audiences` has none of
/// them.
fn agnostic_audiences(requested: &[String], api_audiences: &[String]) -> Option<Vec<String>> {
    let common: Vec<String> =
        requested.iter().filter(|audience| api_audiences.contains(audience)).cloned().collect();
    (requested.is_empty() || !common.is_empty()).then_some(common)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct FixedAuthenticator(fn() -> Outcome);

    #[async_trait]
    impl Authenticator for FixedAuthenticator {
        async fn authenticate(
            &self,
            _: Credentials<'_>,
            _: AuthnContext<'_>,
        ) -> Result<Outcome, MirrorNotReady> {
            Ok((self.0)())
        }
    }

    fn accept() -> Outcome {
        let user = UserInfo { name: "jane".into(), ..UserInfo::default() };
        Outcome::Accepted(Box::new(AuthenticatedIdentity { user, ..AuthenticatedIdentity::default() }))
    }

    fn reject() -> Outcome {
        Outcome::Rejected("bad".into())
    }

    fn skip() -> Outcome {
        Outcome::NotApplicable
    }

    fn busy() -> Outcome {
        Outcome::Undecided("busy".into())
    }

    #[tokio::test]
    async fn first_accepting_authenticator_decides_and_rejection_excludes_anonymous() {
        for (methods, token, anonymous, expected) in [
            (vec![accept as fn() -> Outcome], "t", true, Ok("jane")),
            (vec![reject, accept], "t", true, Ok("jane")),
            (vec![skip, accept, reject], "t", false, Ok("jane")),
            (vec![reject, skip], "t", true, Err("m: bad")),
            (vec![reject, reject], "t", true, Err("m: bad; m: bad")),
            (vec![skip, skip], "", true, Ok("system:anonymous")),
            (vec![], "", true, Ok("system:anonymous")),
            (vec![skip], "", false, Err("no credentials, and anonymous access is off")),
            (vec![skip], "t", true, Err("bearer: no configured authenticator accepts the token")),
            (vec![busy, accept], "t", true, Ok("jane")),
            (vec![busy, reject], "t", true, Err("undecided: m: busy")),
            (vec![reject, busy, skip, busy], "t", true, Err("undecided: m: busy; m: busy")),
        ] {
            let methods: Vec<(&'static str, Arc<dyn Authenticator>)> = methods
                .into_iter()
                .map(|f| ("m", Arc::new(FixedAuthenticator(f)) as Arc<dyn Authenticator>))
                .collect();
            let anonymous = Anonymous { enabled: anonymous, paths: Vec::new() };
            let union = AuthenticatorUnion { methods, anonymous, api_audiences: Vec::new() };
            let mirror = crate::mirror::Mirror::empty();
            let context = AuthnContext { now: Timestamp::UNIX_EPOCH, at_least: mirror.at_least(0) };
            let got = union.authenticate(Credentials { token, ..Credentials::default() }, context).await;
            match got.unwrap() {
                Ok((accepted, _)) => {
                    assert_eq!(Ok(accepted.user.name.as_str()), expected);
                    let group = if accepted.anonymous { UNAUTHENTICATED } else { AUTHENTICATED };
                    assert_eq!(accepted.user.groups, [group]);
                }
                Err(AuthnError::Rejection(rejection)) => {
                    assert_eq!(Err(rejection.to_string().as_str()), expected)
                }
                Err(AuthnError::Undecided(all)) => {
                    assert_eq!(Err(format!("undecided: {}", join_checks(&all)).as_str()), expected)
                }
            }
        }
    }

    #[tokio::test]
    async fn anonymous_user_of_authenticator_is_not_in_authenticated_group() {
        let anonymous = || {
            let user = UserInfo { name: ANONYMOUS.into(), ..UserInfo::default() };
            Outcome::Accepted(Box::new(AuthenticatedIdentity { user, ..AuthenticatedIdentity::default() }))
        };
        let mut union = AuthenticatorUnion::empty();
        union.methods.push(("m", Arc::new(FixedAuthenticator(anonymous))));
        let mirror = crate::mirror::Mirror::empty();
        let context = AuthnContext { now: Timestamp::UNIX_EPOCH, at_least: mirror.at_least(0) };
        let got = union.authenticate(Credentials { token: "t", ..Credentials::default() }, context).await;
        assert!(got.unwrap().unwrap().0.user.groups.is_empty());
    }

    #[test]
    fn audience_agnostic_credential_is_limited_to_api_audiences() {
        let list = |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
        for (requested, own, expected) in [
            ("", "api", Some("")),
            ("api other", "api", Some("api")),
            ("other", "api", None),
            ("api", "", None),
        ] {
            assert_eq!(
                agnostic_audiences(&list(requested), &list(own)),
                expected.map(list),
                "{requested} of {own}"
            );
        }
    }
}

//! Who makes a request: every configured method is tried, one file a method.
//!
//! # Contract
//!
//! [`Union::authenticate`] gives an identity or a [`Refused`] that says, for the log, which method refused and why; the
//! client learns nothing but 401. The first method that accepts decides. Anonymous access is granted only when no
//! method rejected what it was shown (requirements A-PRIN-12, A-PRIN-13, A-PRIN-20, A-PRIN-21). Where a method cannot say
//! now and no other accepts it is [`Unknown::Undecided`]: the client gets 503, and nothing of it is kept.
//!
//! # Invariants
//!
//! INVARIANT (a bad credential is not anonymous): a bearer token that no method accepts is rejected, even when no
//! method takes tokens.
//! INVARIANT (authenticated group): every accepted user but the anonymous one, whoever names it, is in `system:authenticated`.

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

use crate::mirror::{Mirror, NotYet};
use crate::tokens::service_account::Issuer;

/// What the methods are configured with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The names preset.
    pub names: Arc<Names>,
    /// The authorities of client certificates and of proxies, and what is revoked.
    pub trust: Arc<Trust>,
    /// How proxies say who is meant.
    pub proxy: ProxySettings,
    /// The content of `--token-auth-file`, read once.
    pub token_file: Option<Arc<TokenFile>>,
    /// Whether certificates may name a uid (gate `AllowParsingUserUIDFromCertAuth`).
    pub certificate_uids: bool,
    /// Which requests without credentials are the anonymous user's.
    pub anonymous: Anonymous,
    /// OpenID Connect and other JWT authenticators.
    pub jwt: JwtSettings,
    /// The service that reviews tokens.
    pub token_webhook: Option<Arc<webhook::TokenWebhook>>,
    /// The audiences of the API itself: a token without an audience of its own is valid for these.
    pub api_audiences: Vec<String>,
    /// Issues and reads service-account tokens. None: there are no keys.
    pub issuer: Option<Arc<Issuer>>,
    /// Whether tokens of deleted accounts are void (`--service-account-lookup`).
    pub lookup: bool,
    /// `--enable-bootstrap-token-auth`.
    pub bootstrap_tokens: bool,
}

/// What a request shows. Holds secrets: no `Debug`.
#[derive(Clone, Copy, Default)]
pub struct Credentials<'a> {
    /// DER, leaf first. The peer holds the leaf's key; nothing else is known.
    pub certificates: &'a [Vec<u8>],
    /// The bearer token; empty when there is none.
    pub token: &'a str,
    /// Headers that an authenticating proxy may have set, names in lower case.
    pub proxy_headers: &'a [Header],
    /// What is wrong with a credential that was sent and cannot be read; empty when there is none such.
    pub unreadable: &'a str,
    /// Audiences that the credential must be valid for; empty means the API's own.
    pub audiences: &'a [String],
    /// The path that is asked for: not everything may be asked without credentials.
    pub path: &'a str,
}

/// When a question is asked.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The wall clock.
    pub now: Timestamp,
    /// The least revision of the mirror at which it may be answered.
    pub at_least: u64,
}

/// What one method says.
#[derive(Debug)]
pub enum Outcome {
    /// This is who it is.
    Accepted(Box<Accepted>),
    /// Nothing was shown that concerns this method.
    NotMine,
    /// Something was shown and a check failed: which one, for the log.
    Rejected(String),
    /// The same, and the refusal holds for no longer than this: another service said so, or could not be asked.
    RejectedFor(String, Duration),
    /// It cannot be said now; why, for the log. The same credentials may be good a moment later.
    Undecided(String),
}

/// An identity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    /// Who.
    pub user: UserInfo,
    /// The audiences for which the credential holds, of those asked for.
    pub audiences: Vec<String>,
    /// The first moment at which the credential is valid.
    pub not_before: Option<Timestamp>,
    /// When the credential ends by itself.
    pub expires_at: Option<Timestamp>,
    /// Nobody in particular.
    pub anonymous: bool,
    /// The stored objects with which it ends.
    pub rests_on: Vec<ObjectRef>,
    /// How long it may be kept, where nothing tells when it ends (another service vouched for it).
    pub ttl: Option<Duration>,
}

/// Nobody accepted the credentials.
#[derive(Debug, PartialEq, Eq)]
pub enum Unknown {
    /// They are nobody's.
    Refused(Refused),
    /// They may be somebody's: these methods could not say now, each with the reason.
    Undecided(Vec<(&'static str, String)>),
}

/// The credentials are nobody's.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    /// Method and failed check, one each; empty when no credentials were shown.
    pub checks: Vec<(&'static str, String)>,
    /// How long the refusal may be kept; None: until something changes.
    pub ttl: Option<Duration>,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.checks.is_empty() {
            return f.write_str("no credentials, and anonymous access is off");
        }
        f.write_str(&listed(&self.checks))
    }
}

/// What methods say, in one line.
pub(crate) fn listed(said: &[(&'static str, String)]) -> String {
    let said: Vec<String> = said.iter().map(|(method, text)| format!("{method}: {text}")).collect();
    said.join("; ")
}

/// A configured method.
#[async_trait]
trait Authenticator: Send + Sync {
    /// # Errors
    ///
    /// The mirror is not as new as the moment asks for.
    async fn authenticate(&self, credentials: Credentials<'_>, at: Moment) -> Result<Outcome, NotYet>;
}

/// Makes a method from the settings: None when it is not configured, an error that names the flag when it cannot work.
type Build = fn(&Settings, &Arc<Mirror>) -> Result<Option<Box<dyn Authenticator>>, String>;

/// The methods in the order they are tried.
const METHODS: &[(&str, Build)] = &[
    ("request-header", request_header::build),
    ("x509", x509::build),
    ("token-file", token_file::build),
    ("service-account", service_account::build),
    ("bootstrap-token", bootstrap_token::build),
    ("jwt", jwt::build),
    ("webhook", webhook::build),
];

/// All configured methods.
pub struct Union {
    methods: Vec<(&'static str, Box<dyn Authenticator>)>,
    anonymous: Anonymous,
    api_audiences: Vec<String>,
}

impl Union {
    /// Reads the files that the settings name. Methods that rest on stored objects ask the mirror.
    ///
    /// # Errors
    ///
    /// Every mistake, each with the flag it comes from.
    pub fn build(settings: &Settings, mirror: &Arc<Mirror>) -> Result<Self, Vec<String>> {
        let mut methods = Vec::new();
        let mut mistakes = Vec::new();
        for (name, build) in METHODS {
            match build(settings, mirror) {
                Ok(Some(method)) => methods.push((*name, method)),
                Ok(None) => (),
                Err(mistake) => mistakes.push(mistake),
            }
        }
        if mistakes.is_empty() {
            Ok(Union {
                methods,
                anonymous: settings.anonymous.clone(),
                api_audiences: settings.api_audiences.clone(),
            })
        } else {
            Err(mistakes)
        }
    }

    /// No method, and nobody is anonymous.
    #[cfg(test)]
    pub(crate) fn nothing() -> Self {
        Union { methods: Vec::new(), anonymous: Anonymous::default(), api_audiences: Vec::new() }
    }

    /// The audiences of the API itself.
    pub fn api_audiences(&self) -> &[String] {
        &self.api_audiences
    }

    /// The names of all methods that can accept.
    pub fn methods() -> impl Iterator<Item = &'static str> {
        METHODS.iter().map(|(name, _)| *name).chain([anonymous::NAME])
    }

    /// Who shows these credentials, and the method that accepted them; or why that is [`Unknown`].
    ///
    /// # Errors
    ///
    /// The mirror is not as new as the moment asks for, and a method rests on it.
    pub async fn authenticate(
        &self,
        credentials: Credentials<'_>,
        at: Moment,
    ) -> Result<Result<(Accepted, &'static str), Unknown>, NotYet> {
        let (mut checks, mut undecided) = (Vec::new(), Vec::new());
        let mut ttl: Option<Duration> = None;
        for (name, method) in &self.methods {
            match method.authenticate(credentials, at).await? {
                Outcome::Accepted(mut accepted) => {
                    let groups = &mut accepted.user.groups;
                    let known = |group: &String| group == AUTHENTICATED || group == UNAUTHENTICATED;
                    // A proxy may pass on that it does not know somebody.
                    if accepted.user.name != ANONYMOUS && !groups.iter().any(known) {
                        groups.push(AUTHENTICATED.to_owned());
                    }
                    return Ok(Ok((*accepted, name)));
                }
                Outcome::NotMine => (),
                Outcome::Rejected(check) => checks.push((*name, check)),
                Outcome::RejectedFor(check, time) => {
                    checks.push((*name, check));
                    ttl = Some(ttl.map_or(time, |least| least.min(time)));
                }
                Outcome::Undecided(why) => undecided.push((*name, why)),
            }
        }
        if !undecided.is_empty() {
            return Ok(Err(Unknown::Undecided(undecided)));
        }
        if !credentials.unreadable.is_empty() {
            checks.push(("bearer", credentials.unreadable.to_owned()));
        }
        if checks.is_empty() && !credentials.token.is_empty() {
            checks.push(("bearer", "no configured method knows such a token".to_owned()));
        }
        let identified =
            if checks.is_empty() { self.nobody(credentials.path) } else { Err(Refused { checks, ttl }) };
        Ok(identified.map_err(Unknown::Refused))
    }

    /// Who asks for a path and shows no credentials at all.
    ///
    /// # Errors
    ///
    /// Anonymous access is off, or off for the path.
    pub fn nobody(&self, path: &str) -> Result<(Accepted, &'static str), Refused> {
        if self.anonymous.admits(path) {
            Ok((anonymous::accept(), anonymous::NAME))
        } else {
            Err(Refused { checks: Vec::new(), ttl: None })
        }
    }
}

impl std::fmt::Debug for Union {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let anonymous = self.anonymous.enabled.then_some(anonymous::NAME);
        f.debug_list().entries(self.methods.iter().map(|(name, _)| *name).chain(anonymous)).finish()
    }
}

/// The audiences for which a credential that names none is valid: those asked for that are the API's own. None when
/// some are asked for and none is.
fn agnostic_audiences(asked: &[String], own: &[String]) -> Option<Vec<String>> {
    let common: Vec<String> = asked.iter().filter(|audience| own.contains(audience)).cloned().collect();
    (asked.is_empty() || !common.is_empty()).then_some(common)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(fn() -> Outcome);

    #[async_trait]
    impl Authenticator for Fixed {
        async fn authenticate(&self, _: Credentials<'_>, _: Moment) -> Result<Outcome, NotYet> {
            Ok((self.0)())
        }
    }

    fn accept() -> Outcome {
        let user = UserInfo { name: "jane".into(), ..UserInfo::default() };
        Outcome::Accepted(Box::new(Accepted { user, ..Accepted::default() }))
    }

    fn reject() -> Outcome {
        Outcome::Rejected("bad".into())
    }

    fn skip() -> Outcome {
        Outcome::NotMine
    }

    fn busy() -> Outcome {
        Outcome::Undecided("busy".into())
    }

    #[tokio::test]
    async fn the_first_that_accepts_decides_and_a_rejection_excludes_anonymous() {
        for (methods, token, anonymous, want) in [
            (vec![accept as fn() -> Outcome], "t", true, Ok("jane")),
            (vec![reject, accept], "t", true, Ok("jane")),
            (vec![skip, accept, reject], "t", false, Ok("jane")),
            (vec![reject, skip], "t", true, Err("m: bad")),
            (vec![reject, reject], "t", true, Err("m: bad; m: bad")),
            (vec![skip, skip], "", true, Ok("system:anonymous")),
            (vec![], "", true, Ok("system:anonymous")),
            (vec![skip], "", false, Err("no credentials, and anonymous access is off")),
            (vec![skip], "t", true, Err("bearer: no configured method knows such a token")),
            (vec![busy, accept], "t", true, Ok("jane")),
            (vec![busy, reject], "t", true, Err("undecided: m: busy")),
            (vec![reject, busy, skip, busy], "t", true, Err("undecided: m: busy; m: busy")),
        ] {
            let methods: Vec<(&'static str, Box<dyn Authenticator>)> =
                methods.into_iter().map(|f| ("m", Box::new(Fixed(f)) as Box<dyn Authenticator>)).collect();
            let anonymous = Anonymous { enabled: anonymous, paths: Vec::new() };
            let union = Union { methods, anonymous, api_audiences: Vec::new() };
            let at = Moment { now: Timestamp::UNIX_EPOCH, at_least: 0 };
            let got = union.authenticate(Credentials { token, ..Credentials::default() }, at).await;
            match got.unwrap() {
                Ok((accepted, _)) => {
                    assert_eq!(Ok(accepted.user.name.as_str()), want);
                    let group = if accepted.anonymous { UNAUTHENTICATED } else { AUTHENTICATED };
                    assert_eq!(accepted.user.groups, [group]);
                }
                Err(Unknown::Refused(refused)) => assert_eq!(Err(refused.to_string().as_str()), want),
                Err(Unknown::Undecided(all)) => {
                    assert_eq!(Err(format!("undecided: {}", listed(&all)).as_str()), want)
                }
            }
        }
    }

    #[tokio::test]
    async fn whoever_names_the_anonymous_user_makes_nobody_known() {
        let anonymous = || {
            let user = UserInfo { name: ANONYMOUS.into(), ..UserInfo::default() };
            Outcome::Accepted(Box::new(Accepted { user, ..Accepted::default() }))
        };
        let mut union = Union::nothing();
        union.methods.push(("m", Box::new(Fixed(anonymous))));
        let at = Moment { now: Timestamp::UNIX_EPOCH, at_least: 0 };
        let got = union.authenticate(Credentials { token: "t", ..Credentials::default() }, at).await;
        assert!(got.unwrap().unwrap().0.user.groups.is_empty());
    }

    #[test]
    fn audiences_are_those_of_the_api_itself() {
        let list = |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
        for (asked, own, want) in [
            ("", "api", Some("")),
            ("api other", "api", Some("api")),
            ("other", "api", None),
            ("api", "", None),
        ] {
            assert_eq!(agnostic_audiences(&list(asked), &list(own)), want.map(list), "{asked} of {own}");
        }
    }
}

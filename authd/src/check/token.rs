//! `authd check --token`: authenticates a token with the JWT authenticators of an authentication file.
//!
//! # Contract
//!
//! Only the JWT authenticators of the file run. The check fetches the signing keys from their issuers, and
//! waits for the keys for at most [`KEYS_TIMEOUT`]. No message contains the token.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::{Clock, SystemClock};
use apimachinery::user::UserInfo;
use serving::metrics::Metrics;
use tokio::sync::watch;

use crate::authn::jwt::metrics::JwtMetrics;
use crate::authn::jwt::{IssuerHooks, Issuers};
use crate::authn::{
    Anonymous, AuthenticatorUnion, AuthnContext, AuthnError, AuthnSettings, Credentials, JwtSettings,
    ProxySettings, Rejection,
};
use crate::config::{authentication, file};
use crate::mirror::Mirror;

/// The longest wait for the keys of all issuers.
const KEYS_TIMEOUT: Duration = Duration::from_secs(10);

/// The reason why the check cannot tell the user of a token.
#[derive(Debug, thiserror::Error)]
pub(super) enum TokenCheckError {
    /// The tokio runtime cannot start.
    #[error("cannot start the runtime: {0}")]
    Runtime(io::Error),
    /// The authenticators reject the token.
    #[error("rejected: {0}")]
    Rejected(Rejection),
    /// Authenticators could not decide, each with its reason.
    #[error("not decided: {}", crate::authn::join_checks(.0))]
    Undecided(Vec<(&'static str, String)>),
    /// An authenticator needs the mirror, which only a server has.
    #[error("not decided: the token needs stored objects")]
    NeedsObjects,
}

/// Returns the description of the user of the token; None if the file does not configure authentication.
pub(super) fn explain(
    path: &Path,
    token: &str,
    context: &authentication::Context,
) -> Option<Result<String, TokenCheckError>> {
    let configuration = authentication::read(&file::read(path).ok()?, context).ok()?;
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Some(Err(TokenCheckError::Runtime(error))),
    };
    Some(runtime.block_on(authenticate(configuration, token, context)))
}

async fn authenticate(
    configuration: authentication::Configuration,
    token: &str,
    context: &authentication::Context,
) -> Result<String, TokenCheckError> {
    let clock = Arc::new(SystemClock::new());
    let issuers = Issuers::new(clock.clone());
    let count = configuration.jwt.len();
    let settings = AuthnSettings {
        names: Arc::clone(&context.names),
        trust: Arc::default(),
        proxy: ProxySettings::default(),
        token_file: None,
        certificate_uids: false,
        anonymous: Anonymous::default(),
        jwt: JwtSettings { authenticators: configuration.jwt, issuers: issuers.clone() },
        token_webhook: None,
        api_audiences: Vec::new(),
        issuer: None,
        service_account_lookup: false,
        bootstrap_tokens: false,
    };
    let mirror = Mirror::new(Arc::clone(&context.names));
    let union = AuthenticatorUnion::build(&settings);
    let (sender, mut missing_keys) = watch::channel(count > 0);
    issuers.start(IssuerHooks {
        metrics: JwtMetrics::register(&Metrics::new()),
        invalidate: Box::new(|| {}),
        set_note: Box::new(move |note| {
            sender.send_replace(note.is_some());
        }),
    });
    issuers.report_missing_keys();
    // After the timeout the check continues: a token of an issuer with keys can still be checked.
    let _ = tokio::time::timeout(KEYS_TIMEOUT, missing_keys.wait_for(|is_missing| !is_missing)).await;
    let credentials = Credentials { token, ..Credentials::default() };
    let context = AuthnContext { now: clock.now(), at_least: mirror.at_least(0) };
    match union.authenticate(credentials, context).await {
        Ok(Ok((identity, _))) => Ok(describe(&identity.user)),
        Ok(Err(AuthnError::Rejection(rejection))) => Err(TokenCheckError::Rejected(rejection)),
        Ok(Err(AuthnError::Undecided(checks))) => Err(TokenCheckError::Undecided(checks)),
        Err(_) => Err(TokenCheckError::NeedsObjects),
    }
}

fn describe(user: &UserInfo) -> String {
    let uid = if user.uid.is_empty() { String::new() } else { format!(", uid {}", user.uid) };
    let extra: String =
        user.extra.iter().map(|(key, values)| format!(", {key}: {}", values.join(" "))).collect();
    format!("user {}{uid}, groups {}{extra}", user.name, user.groups.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::names::{Names, Preset};

    #[test]
    fn token_that_no_authenticator_takes_is_rejected_without_the_token() {
        let names = Arc::new(Names::new(Preset::Kubernetes, "").unwrap());
        let context =
            authentication::Context { names, disallowed_issuers: Vec::new(), anonymous_conditions: true };
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("authentication.yaml");
        let head = "apiVersion: apiserver.config.k8s.io/v1beta1\nkind:";
        std::fs::write(&file, format!("{head} AuthenticationConfiguration\n")).unwrap();
        let problem = explain(&file, "a-secret", &context).unwrap().unwrap_err().to_string();
        assert!(problem.starts_with("rejected: bearer:") && !problem.contains("a-secret"), "{problem}");
        std::fs::write(&file, format!("{head} AuthorizationConfiguration\n")).unwrap();
        assert!(explain(&file, "a-secret", &context).is_none());
    }
}

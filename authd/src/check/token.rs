//! `authd check --token`: the user of a token under an authentication file.
//!
//! # Contract
//!
//! Only the JWT authenticators of the file take part. Their issuers are contacted for the signing keys, for at most
//! [`KEYS_TIMEOUT`]. No message contains the token.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::{Clock, SystemClock};
use apimachinery::user::UserInfo;
use tokio::sync::watch;

use crate::authn::jwt::{IssuerHooks, Issuers};
use crate::authn::{
    Anonymous, AuthnContext, AuthnError, Credentials, JwtSettings, ProxySettings, Settings, Union,
};
use crate::config::{authentication, file};
use crate::metrics::AuthdMetrics;
use crate::mirror::Mirror;

/// Time for the issuers to supply their keys.
const KEYS_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit in bytes of a token.
const MAX_TOKEN_BYTES: u64 = 256 * 1024;

/// Reads a token.
pub(super) fn read(input: &mut impl Read) -> Result<String, String> {
    let mut token = String::new();
    input
        .take(MAX_TOKEN_BYTES)
        .read_to_string(&mut token)
        .map_err(|error| format!("standard input: {error}"))?;
    match token.trim() {
        "" => Err("standard input contains no token".to_owned()),
        token => Ok(token.to_owned()),
    }
}

/// Returns the user of the token, or the failed checks; None if the file does not configure authentication.
pub(super) fn explain(
    path: &Path,
    token: &str,
    context: &authentication::Context,
) -> Option<Result<String, String>> {
    let configuration = authentication::read(&file::read(path).ok()?, context).ok()?;
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Some(Err(format!("cannot start the runtime: {error}"))),
    };
    Some(runtime.block_on(authenticate(configuration, token, context)))
}

async fn authenticate(
    configuration: authentication::Configuration,
    token: &str,
    context: &authentication::Context,
) -> Result<String, String> {
    let clock = Arc::new(SystemClock::new());
    let issuers = Issuers::new(clock.clone());
    let count = configuration.jwt.len();
    let settings = Settings {
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
        lookup: false,
        bootstrap_tokens: false,
    };
    let mirror = Mirror::new(Arc::clone(&context.names));
    let union = Union::build(&settings, &mirror).map_err(|errors| format!("{errors:?}"))?;
    let (sender, mut missing_keys) = watch::channel(count > 0);
    issuers.start(IssuerHooks {
        metrics: AuthdMetrics::new([]).jwt.clone(),
        invalidate: Box::new(|| {}),
        set_note: Box::new(move |note| {
            sender.send_replace(note.is_some());
        }),
    });
    issuers.report_missing_keys();
    // Without the keys of one issuer, a token of another issuer can still be checked.
    let _ = tokio::time::timeout(KEYS_TIMEOUT, missing_keys.wait_for(|is_missing| !is_missing)).await;
    let credentials = Credentials { token, ..Credentials::default() };
    let context = AuthnContext { now: clock.now(), at_least: 0 };
    match union.authenticate(credentials, context).await {
        Ok(Ok((identity, _))) => Ok(describe(&identity.user)),
        Ok(Err(AuthnError::Rejection(rejection))) => Err(format!("rejected: {rejection}")),
        Ok(Err(AuthnError::Undecided(checks))) => {
            Err(format!("not decided: {}", crate::authn::join_checks(&checks)))
        }
        Err(_) => Err("not decided: the token needs stored objects".to_owned()),
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
    fn token_from_standard_input_is_trimmed_and_required() {
        assert_eq!(read(&mut " abc\n".as_bytes()).as_deref(), Ok("abc"));
        assert_eq!(read(&mut "\n".as_bytes()).unwrap_err(), "standard input contains no token");
    }

    #[test]
    fn token_that_no_authenticator_takes_is_rejected_without_the_token() {
        let names = Arc::new(Names::new(Preset::Kubernetes, "").unwrap());
        let context =
            authentication::Context { names, disallowed_issuers: Vec::new(), anonymous_conditions: true };
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("authentication.yaml");
        let head = "apiVersion: apiserver.config.k8s.io/v1beta1\nkind:";
        std::fs::write(&file, format!("{head} AuthenticationConfiguration\n")).unwrap();
        let problem = explain(&file, "a-secret", &context).unwrap().unwrap_err();
        assert!(problem.starts_with("rejected: bearer:") && !problem.contains("a-secret"), "{problem}");
        std::fs::write(&file, format!("{head} AuthorizationConfiguration\n")).unwrap();
        assert_eq!(explain(&file, "a-secret", &context), None);
    }
}

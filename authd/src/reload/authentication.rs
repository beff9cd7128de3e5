//! Hot reload of the authentication configuration, and the start of JWKS fetches.

use std::sync::Arc;

use serving::reload::Watch;

use super::metrics::ReloadMetrics;
use super::{Context, WatchedFile, watch_file};
use crate::authn::jwt::IssuerHooks;
use crate::authn::jwt::metrics::JwtMetrics;
use crate::authn::{AuthenticatorUnion, AuthnSettings};
use crate::config::authentication_source::{AuthenticationSource, LoadedConfiguration};

/// The subject of the note about the file.
const SUBJECT: &str = "authentication configuration";
/// The subject of the note about issuers without keys.
const ISSUERS: &str = "token issuers";

/// Starts fetching issuer keys, and watches the file until the returned value is dropped.
/// Needs a tokio runtime. Returns None if only flags configure authentication.
pub fn watch(mut source: AuthenticationSource, settings: &AuthnSettings, context: &Context) -> Option<Watch> {
    let Context { config, metrics, .. } = context;
    let (config_to_invalidate, config_to_note) = (Arc::downgrade(config), Arc::downgrade(config));
    settings.jwt.issuers.start(IssuerHooks {
        metrics: JwtMetrics::register(metrics),
        invalidate: Box::new(move || {
            if let Some(config) = config_to_invalidate.upgrade() {
                config.invalidate_identities();
            }
        }),
        set_note: Box::new(move |problem| {
            if let Some(config) = config_to_note.upgrade() {
                config.set_note(ISSUERS, problem);
            }
        }),
    });
    let (path, snapshot) = source.take_file()?;
    let file = WatchedFile { subject: SUBJECT, path, metrics: ReloadMetrics::for_authentication(metrics) };
    let (mut settings, shared_config) = (settings.clone(), Arc::clone(config));
    Some(watch_file(file, snapshot, context, move |content| {
        let LoadedConfiguration { authenticators, anonymous } = source.decode(content)?;
        settings.jwt.authenticators = authenticators;
        settings.anonymous = anonymous;
        shared_config.replace_authn(AuthenticatorUnion::build(&settings));
        settings.jwt.issuers.report_missing_keys();
        Ok(())
    }))
}

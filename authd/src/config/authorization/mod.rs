//! The authorization configuration file (requirements A-AZC).
//! Group and version are `apiserver.config.<d>/v1`, the kind is `AuthorizationConfiguration`.
//!
//! # Contract
//!
//! [`read`] returns the ordered authorizers, or all faults with their lines. It makes no network calls: an
//! unavailable webhook is not a fault of the file. Every authorizer type is allowed; only `Webhook` may be
//! repeated.
//!
//! A file that replaces an active one must keep its authorizer types, [`missing_types`]: an editing mistake must
//! not remove all access. Webhooks may be added, removed and changed.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::field::{FieldError, FieldPath};
use apimachinery::names::Names;
use apimachinery::selector::syntax::subdomain;

use super::document::{Document, Fault, Fields};
use crate::authz::conditions::{self, Conditions};
use crate::authz::entry::{Entry, OnFailure, Webhook};
use crate::authz::{self, Modes};
use crate::webhook::Version;

/// The kind of the document.
pub const KIND: &str = "AuthorizationConfiguration";

/// The maximum webhook timeout.
const MAX_WEBHOOK_TIMEOUT: Duration = Duration::from_secs(30);
/// Default TTL of an allow.
pub const AUTHORIZED_TTL: Duration = Duration::from_secs(300);
/// Default TTL of other responses.
pub const UNAUTHORIZED_TTL: Duration = Duration::from_secs(30);

/// Reads the file.
///
/// # Errors
///
/// All faults, sorted by line.
pub fn read(document: &Document, names: &Names) -> Result<Modes, Vec<Fault>> {
    let versions =
        ["v1", "v1beta1", "v1alpha1"].map(|version| format!("{}/{version}", names.group("apiserver.config")));
    let entries = document.decode(KIND, &versions, |fields| {
        let mut seen: Vec<Entry> = Vec::new();
        let entries = fields.objects("authorizers", |fields| {
            let entry = authorizer(fields, &seen);
            seen.extend(entry.clone());
            entry
        });
        if entries.is_empty() {
            let path = fields.path().child("authorizers");
            fields
                .faults()
                .note(&FieldError::required(&path, "at least one authorization mode must be defined"));
        }
        entries.into_iter().flatten().collect::<Vec<_>>()
    })?;
    Ok(Modes::of(entries))
}

/// Returns the authorizer types of the active file that the new one lacks; webhooks do not count.
pub fn missing_types(active: &Modes, next: &Modes) -> Vec<&'static str> {
    let is_missing = |entry: &&Entry| entry.kind != "Webhook" && !next.has(entry.kind);
    active.entries().iter().filter(is_missing).map(|entry| entry.kind).collect()
}

/// Decodes one authorizer; None if its type is unknown.
fn authorizer(fields: &mut Fields<'_>, before: &[Entry]) -> Option<Entry> {
    let (written, name) = (fields.text("type"), fields.text("name"));
    let webhook = fields.object("webhook", webhook);
    let (path, faults) = (fields.path().clone(), fields.faults());
    let of = |field: &str| path.child(field);
    if written.is_empty() {
        faults.note(&FieldError::required(&of("type"), ""));
        return None;
    }
    let Some(kind) = authz::kind(&written) else {
        let mut kinds: Vec<&str> = authz::kinds().collect();
        kinds.sort_unstable();
        faults.note(&FieldError::not_supported(&of("type"), written, &kinds));
        return None;
    };
    if kind != "Webhook" && before.iter().any(|entry| entry.kind == kind) {
        faults.note(&FieldError::duplicate(&of("type"), kind));
    }
    if name.is_empty() {
        faults.note(&FieldError::required(&of("name"), ""));
    } else if before.iter().any(|entry| entry.name == name) {
        faults.note(&FieldError::duplicate(&of("name"), name.as_str()));
    } else if let wrong = subdomain(&name)
        && !wrong.is_empty()
    {
        let text = format!("authorizer name is invalid: {}", wrong.join(", "));
        faults.note(&FieldError::invalid(&of("name"), name.as_str(), &text));
    }
    match (&webhook, kind) {
        (None, "Webhook") => {
            faults.note(&FieldError::required(&of("webhook"), "required when type=Webhook"));
        }
        (Some(_), kind) if kind != "Webhook" => {
            let text = "may only be specified when type=Webhook";
            faults.note(&FieldError::invalid(&of("webhook"), "non-null", text));
        }
        _ => (),
    }
    Some(Entry { kind, name, webhook })
}

fn webhook(fields: &mut Fields<'_>) -> Webhook {
    let timeout = duration(fields, "timeout");
    let path = fields.path().clone();
    let of = |field: &str| path.child(field);
    let faults = fields.faults();
    match timeout {
        None | Some(Duration::ZERO) => faults.note(&FieldError::required(&of("timeout"), "")),
        Some(timeout) if timeout > MAX_WEBHOOK_TIMEOUT => {
            let shown = serving::flags::duration_text(timeout);
            faults.note(&FieldError::invalid(&of("timeout"), shown, "must be > 0s and <= 30s"));
        }
        Some(_) => (),
    }
    let authorized_ttl = duration(fields, "authorizedTTL").filter(|ttl| !ttl.is_zero());
    let unauthorized_ttl = duration(fields, "unauthorizedTTL").filter(|ttl| !ttl.is_zero());
    let version =
        word(fields, "subjectAccessReviewVersion", &Version::NAMES).as_deref().and_then(Version::parse);
    word(fields, "matchConditionSubjectAccessReviewVersion", &["v1"]);
    let on_failure = word(fields, "failurePolicy", &OnFailure::NAMES).as_deref().and_then(OnFailure::parse);
    let client_config = fields.object("connectionInfo", connection);
    if client_config.is_none() {
        faults.note(&FieldError::required(&of("connectionInfo").child("type"), ""));
    }
    Webhook {
        client_config: client_config.flatten().unwrap_or_default().into(),
        version: version.unwrap_or(Version::V1),
        authorized_ttl: authorized_ttl.unwrap_or(AUTHORIZED_TTL),
        unauthorized_ttl: unauthorized_ttl.unwrap_or(UNAUTHORIZED_TTL),
        timeout: timeout.unwrap_or(MAX_WEBHOOK_TIMEOUT),
        // A webhook with a fault is never called.
        on_failure: on_failure.unwrap_or(OnFailure::Deny),
        conditions: Arc::new(match_conditions(fields)),
    }
}

/// The path of the client configuration file.
fn connection(fields: &mut Fields<'_>) -> Option<String> {
    let kind = word(fields, "type", &["InClusterConfig", "KubeConfigFile"]);
    let file = fields.optional_text("kubeConfigFile");
    let faults = fields.faults();
    let path = fields.path().child("kubeConfigFile");
    match (kind.as_deref(), file) {
        (Some("InClusterConfig"), file) => {
            let text = "InClusterConfig is not allowed: the server cannot be its own webhook";
            faults.note(&FieldError::invalid(&fields.path().child("type"), "InClusterConfig", text));
            if let Some(file) = file {
                let text = "can only be set when type=KubeConfigFile";
                faults.note(&FieldError::invalid(&path, file, text));
            }
            None
        }
        (Some(_), None) => {
            faults.note(&FieldError::required(&path, ""));
            None
        }
        (Some(_), Some(file)) if file.is_empty() => {
            faults.note(&FieldError::required(&path, ""));
            None
        }
        (Some(_), Some(file)) => {
            let fault = match std::fs::metadata(&file) {
                _ if !Path::new(&file).is_absolute() => Some("must be an absolute path".to_owned()),
                Err(error) => Some(format!("error loading file: {error}")),
                Ok(found) if !found.is_file() => Some("must be a regular file".to_owned()),
                Ok(_) => None,
            };
            if let Some(fault) = fault {
                faults.note(&FieldError::invalid(&path, file.as_str(), &fault));
            }
            Some(file)
        }
        (None, file) => file,
    }
}

fn match_conditions(fields: &mut Fields<'_>) -> Conditions {
    let mut conditions = Conditions::default();
    let mut seen: Vec<String> = Vec::new();
    let count = fields
        .objects("matchConditions", |fields| {
            let path: FieldPath = fields.path().child("expression");
            let expression = fields.text("expression");
            let faults = fields.faults();
            if expression.trim().is_empty() {
                faults.note(&FieldError::required(&path, ""));
            } else if seen.contains(&expression) {
                faults.note(&FieldError::duplicate(&path, expression.as_str()));
            } else if let Err(fault) = conditions.add(&expression) {
                faults.note(&FieldError::invalid(&path, expression.as_str(), &fault));
            }
            seen.push(expression);
        })
        .len();
    if count > conditions::MAX_CONDITIONS {
        let path = fields.path().child("matchConditions");
        fields.faults().note(&FieldError::too_many(&path, count, conditions::MAX_CONDITIONS));
    }
    conditions
}

/// A required value of a fixed set; any other value gives None and records a fault.
fn word(fields: &mut Fields<'_>, name: &'static str, known: &[&str]) -> Option<String> {
    let text = fields.text(name);
    let path = fields.path().child(name);
    if text.is_empty() {
        fields.faults().note(&FieldError::required(&path, &format!("one of {}", known.join(", "))));
        return None;
    }
    if !known.contains(&text.as_str()) {
        fields.faults().note(&FieldError::not_supported(&path, text, known));
        return None;
    }
    Some(text)
}

/// A duration; None if absent or invalid.
fn duration(fields: &mut Fields<'_>, name: &'static str) -> Option<Duration> {
    let text = fields.optional_text(name)?;
    match serving::flags::duration(&text) {
        Ok(duration) => Some(duration),
        Err(fault) => {
            fields.faults().note(&FieldError::invalid(&fields.path().child(name), text, &fault));
            Some(Duration::from_nanos(1))
        }
    }
}

#[cfg(test)]
mod tests;

//! The authorization configuration file (requirements A-AZC).
//! Group and version are `apiserver.config.<d>/v1`, the kind is `AuthorizationConfiguration`.
//!
//! # Contract
//!
//! [`read`] returns the ordered authorizers, or all errors with their lines. It makes no network calls: an
//! unavailable webhook is not an error of the file.
//! Every authorizer type is allowed; only the type `Webhook` may occur more than once and has a free name. An
//! authorizer of another type has the type in lower case as its name.
//!
//! A changed file must have all authorizer types, except `Webhook`, that were configured at start
//! ([`missing_types`]), so that an editing error cannot remove all access. Webhooks may be added, removed and
//! changed.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::document::{Document, DocumentError, Fields};
use apimachinery::field::{FieldError, FieldPath};
use apimachinery::names::Names;
use apimachinery::selector::syntax::subdomain;

use crate::authz::conditions::{self, Conditions};
use crate::authz::entry::{Entry, OnFailure, WebhookSettings, built_in_name};
use crate::authz::{self, Modes};
use crate::webhook::Version;

/// The `kind` of the file.
pub const KIND: &str = "AuthorizationConfiguration";

/// The maximum `timeout` of a webhook.
const MAX_WEBHOOK_TIMEOUT: Duration = Duration::from_secs(30);
/// The valid values of `timeout`, for errors.
const TIMEOUT_RANGE: &str = "must be > 0s and <= 30s";
/// The valid values of a TTL, for errors. A TTL of zero means the default.
const TTL_RANGE: &str = "must be > 0s";
/// The default TTL of a cached allow.
pub const AUTHORIZED_TTL: Duration = Duration::from_secs(300);
/// The default TTL of other cached responses.
pub const UNAUTHORIZED_TTL: Duration = Duration::from_secs(30);

/// Decodes and validates a document.
///
/// # Errors
///
/// All errors, sorted by line.
pub fn read(document: &Document, names: &Names) -> Result<Modes, Vec<DocumentError>> {
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
                .errors()
                .add(&FieldError::required(&path, "at least one authorization mode must be defined"));
        }
        entries.into_iter().flatten().collect::<Vec<_>>()
    })?;
    Ok(Modes::from_entries(entries))
}

/// Returns the authorizer types of `active` that `next` lacks; the type `Webhook` is ignored.
pub fn missing_types(active: &Modes, next: &Modes) -> Vec<&'static str> {
    let is_missing = |entry: &&Entry| entry.kind != "Webhook" && !next.has(entry.kind);
    active.entries().iter().filter(is_missing).map(|entry| entry.kind).collect()
}

/// Decodes one authorizer; `previous` are the authorizers before it. Returns None if its type is absent or unknown.
fn authorizer(fields: &mut Fields<'_>, previous: &[Entry]) -> Option<Entry> {
    let (type_name, name) = (fields.text("type"), fields.text("name"));
    let webhook = fields.object("webhook", read_webhook);
    let (path, errors) = (fields.path().clone(), fields.errors());
    let child = |field: &str| path.child(field);
    if type_name.is_empty() {
        errors.add(&FieldError::required(&child("type"), ""));
        return None;
    }
    let Some(kind) = authz::kind(&type_name) else {
        let mut kinds: Vec<&str> = authz::kinds().collect();
        kinds.sort_unstable();
        errors.add(&FieldError::not_supported(&child("type"), type_name, &kinds));
        return None;
    };
    if kind != "Webhook" && previous.iter().any(|entry| entry.kind == kind) {
        errors.add(&FieldError::duplicate(&child("type"), kind));
    }
    if name.is_empty() {
        errors.add(&FieldError::required(&child("name"), ""));
    } else if previous.iter().any(|entry| entry.name == name) {
        errors.add(&FieldError::duplicate(&child("name"), name.as_str()));
    } else if let problems = subdomain(&name)
        && !problems.is_empty()
    {
        let text = format!("authorizer name is invalid: {}", problems.join(", "));
        errors.add(&FieldError::invalid(&child("name"), name.as_str(), &text));
    } else if let expected = built_in_name(kind)
        && kind != "Webhook"
        && name != expected
    {
        let text = format!("expected name {expected} for authorizer {kind} instead of {name}");
        errors.add(&FieldError::invalid(&child("name"), name.as_str(), &text));
    }
    match (&webhook, kind) {
        (None, "Webhook") => {
            errors.add(&FieldError::required(&child("webhook"), "required when type=Webhook"));
        }
        (Some(_), kind) if kind != "Webhook" => {
            let text = "may only be specified when type=Webhook";
            errors.add(&FieldError::invalid(&child("webhook"), "non-null", text));
        }
        _ => (),
    }
    Some(Entry { kind, name, webhook })
}

fn read_webhook(fields: &mut Fields<'_>) -> WebhookSettings {
    let timeout = duration(fields, "timeout", TIMEOUT_RANGE);
    let path = fields.path().clone();
    let child = |field: &str| path.child(field);
    let errors = fields.errors();
    match timeout {
        None | Some(Duration::ZERO) => errors.add(&FieldError::required(&child("timeout"), "")),
        Some(timeout) if timeout > MAX_WEBHOOK_TIMEOUT => {
            let text = serving::flags::duration_text(timeout);
            errors.add(&FieldError::invalid(&child("timeout"), text, TIMEOUT_RANGE));
        }
        Some(_) => (),
    }
    let authorized_ttl = duration(fields, "authorizedTTL", TTL_RANGE).filter(|ttl| !ttl.is_zero());
    let unauthorized_ttl = duration(fields, "unauthorizedTTL", TTL_RANGE).filter(|ttl| !ttl.is_zero());
    let version =
        enum_value(fields, "subjectAccessReviewVersion", &Version::NAMES).as_deref().and_then(Version::parse);
    let conditions = match_conditions(fields);
    const CONDITION_VERSION: &str = "matchConditionSubjectAccessReviewVersion";
    if !conditions.is_empty() || !fields.text(CONDITION_VERSION).is_empty() {
        enum_value(fields, CONDITION_VERSION, &["v1"]);
    }
    let on_failure =
        enum_value(fields, "failurePolicy", &OnFailure::NAMES).as_deref().and_then(OnFailure::parse);
    let client_config = fields.object("connectionInfo", connection);
    if client_config.is_none() {
        errors.add(&FieldError::required(&child("connectionInfo").child("type"), ""));
    }
    WebhookSettings {
        client_config: client_config.flatten().unwrap_or_default().into(),
        version: version.unwrap_or(Version::V1),
        authorized_ttl: authorized_ttl.unwrap_or(AUTHORIZED_TTL),
        unauthorized_ttl: unauthorized_ttl.unwrap_or(UNAUTHORIZED_TTL),
        timeout: timeout.unwrap_or(MAX_WEBHOOK_TIMEOUT),
        // This fallback has no effect: the field is required, and a file with an error is rejected.
        on_failure: on_failure.unwrap_or(OnFailure::Deny),
        conditions: Arc::new(conditions),
    }
}

/// Decodes `connectionInfo` and returns the path of the client configuration file.
fn connection(fields: &mut Fields<'_>) -> Option<String> {
    let kind = enum_value(fields, "type", &["InClusterConfig", "KubeConfigFile"]);
    let file = fields.optional_text("kubeConfigFile");
    let errors = fields.errors();
    let path = fields.path().child("kubeConfigFile");
    match (kind.as_deref(), file) {
        (Some("InClusterConfig"), file) => {
            let text = "InClusterConfig is not allowed: the server cannot be its own webhook";
            errors.add(&FieldError::invalid(&fields.path().child("type"), "InClusterConfig", text));
            if let Some(file) = file {
                let text = "can only be set when type=KubeConfigFile";
                errors.add(&FieldError::invalid(&path, file, text));
            }
            None
        }
        (Some(_), file) if file.as_deref().unwrap_or_default().is_empty() => {
            errors.add(&FieldError::required(&path, ""));
            None
        }
        (Some(_), Some(file)) => {
            let error = match std::fs::metadata(&file) {
                _ if !Path::new(&file).is_absolute() => Some("must be an absolute path".to_owned()),
                Err(error) => Some(format!("error loading file: {error}")),
                Ok(found) if !found.is_file() => Some("must be a regular file".to_owned()),
                Ok(_) => None,
            };
            if let Some(error) = error {
                errors.add(&FieldError::invalid(&path, file.as_str(), &error));
            }
            Some(file)
        }
        (_, file) => file,
    }
}

fn match_conditions(fields: &mut Fields<'_>) -> Conditions {
    let mut conditions = Conditions::default();
    let mut seen: Vec<String> = Vec::new();
    let count = fields
        .objects("matchConditions", |fields| {
            let path: FieldPath = fields.path().child("expression");
            let expression = fields.text("expression");
            let errors = fields.errors();
            if expression.trim().is_empty() {
                errors.add(&FieldError::required(&path, ""));
            } else if seen.contains(&expression) {
                errors.add(&FieldError::duplicate(&path, expression.as_str()));
            } else if let Err(error) = conditions.add(&expression) {
                errors.add(&FieldError::invalid(&path, expression.as_str(), &error.to_string()));
            }
            seen.push(expression);
        })
        .len();
    if count > conditions::MAX_CONDITIONS {
        let path = fields.path().child("matchConditions");
        fields.errors().add(&FieldError::too_many(&path, count, conditions::MAX_CONDITIONS));
    }
    conditions
}

/// Reads a required field with a fixed set of values. Any other value is an error; the result is then None.
fn enum_value(fields: &mut Fields<'_>, name: &'static str, known: &[&str]) -> Option<String> {
    let text = fields.text(name);
    let path = fields.path().child(name);
    if text.is_empty() {
        fields.errors().add(&FieldError::required(&path, &format!("one of {}", known.join(", "))));
        return None;
    }
    if !known.contains(&text.as_str()) {
        fields.errors().add(&FieldError::not_supported(&path, text, known));
        return None;
    }
    Some(text)
}

/// Reads a duration; None if the field is absent. A negative duration is outside `range`, the text of its error.
///
/// An invalid duration adds an error and yields one nanosecond, so that a required field is not also reported
/// as absent.
fn duration(fields: &mut Fields<'_>, name: &'static str, range: &str) -> Option<Duration> {
    let text = fields.optional_text(name)?;
    let (value, problem) = match text.strip_prefix('-').map(serving::flags::duration) {
        Some(Ok(Duration::ZERO)) => return Some(Duration::ZERO),
        Some(Ok(duration)) => (format!("-{}", serving::flags::duration_text(duration)), range.to_owned()),
        _ => match serving::flags::duration(&text) {
            Ok(duration) => return Some(duration),
            Err(error) => (text, error.to_string()),
        },
    };
    fields.errors().add(&FieldError::invalid(&fields.path().child(name), value, &problem));
    Some(Duration::from_nanos(1))
}

#[cfg(test)]
mod tests;

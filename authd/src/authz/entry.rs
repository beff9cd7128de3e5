//! One entry of the ordered list of authorizers, from flags or a configuration file.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::decision::Verdict;

use super::conditions::Conditions;
use crate::webhook::Version;

/// An authorizer with its name and, for a webhook, its settings.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The authorizer type, such as `RBAC`.
    pub kind: &'static str,
    /// The name in metrics and the log: `name` in the configuration file, or [`built_in_name`] if flags create
    /// the entry.
    pub name: String,
    /// Webhook settings; for the type `Webhook` only.
    pub webhook: Option<WebhookSettings>,
}

impl Entry {
    /// Creates the entry of a type that a flag names.
    pub fn for_kind(kind: &'static str) -> Self {
        let name = if kind == "Webhook" { FLAG_WEBHOOK.to_owned() } else { built_in_name(kind) };
        Entry { kind, name, webhook: None }
    }
}

/// The name of the webhook that flags configure.
const FLAG_WEBHOOK: &str = "default";

/// The only valid name of an authorizer of a type other than `Webhook`: the type in lower case.
pub fn built_in_name(kind: &str) -> String {
    kind.to_lowercase()
}

/// Settings of an authorization webhook.
#[derive(Clone, Debug)]
pub struct WebhookSettings {
    /// The client configuration file with the URL and the credentials of the webhook.
    pub client_config: PathBuf,
    /// The version of the SubjectAccessReview.
    pub version: Version,
    /// The TTL of a cached allow; zero disables the cache.
    pub authorized_ttl: Duration,
    /// The TTL of other cached responses; zero disables the cache.
    pub unauthorized_ttl: Duration,
    /// The timeout of one call to the webhook.
    pub timeout: Duration,
    /// The decision when a call fails, a response is invalid, or a match condition fails.
    pub on_failure: OnFailure,
    /// The match conditions of the webhook.
    pub conditions: Arc<Conditions>,
}

/// The failure policy of a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// The webhook has no opinion, and the next authorizer decides.
    NoOpinion,
    /// The webhook denies the request.
    Deny,
}

impl OnFailure {
    /// The names of the two failure policies in the configuration file.
    pub const NAMES: [&'static str; 2] = ["Deny", "NoOpinion"];

    /// Parses the name of a failure policy; None if the name is unknown.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "NoOpinion" => Some(OnFailure::NoOpinion),
            "Deny" => Some(OnFailure::Deny),
            _ => None,
        }
    }

    /// The verdict of the webhook after a failure.
    pub fn verdict(self) -> Verdict {
        match self {
            OnFailure::NoOpinion => Verdict::NoOpinion,
            OnFailure::Deny => Verdict::Deny,
        }
    }
}

//! One of the ordered modes, as flags or a configuration file name it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::decision::Verdict;

use super::conditions::Conditions;
use crate::webhook::Version;

/// A mode with its name and, for a webhook, how it is asked.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The type, as it is written: `RBAC`.
    pub kind: &'static str,
    /// The name, for metrics: the type, unless a configuration file says another.
    pub name: String,
    /// How it is asked; for the type `Webhook` alone.
    pub webhook: Option<Webhook>,
}

impl Entry {
    /// A mode that is named by its type.
    pub fn of(kind: &'static str) -> Self {
        Entry { kind, name: kind.to_owned(), webhook: None }
    }
}

/// How a webhook is asked.
#[derive(Clone, Debug)]
pub struct Webhook {
    /// The client configuration file that says where it is and with which credentials.
    pub client_config: PathBuf,
    /// The version in which it is asked.
    pub version: Version,
    /// How long an allow is kept; zero: it is not.
    pub authorized_ttl: Duration,
    /// How long any other answer is kept; zero: it is not.
    pub unauthorized_ttl: Duration,
    /// How long one call may take.
    pub timeout: Duration,
    /// What is decided when it does not answer, answers nonsense, or a condition fails.
    pub on_failure: OnFailure,
    /// Which questions it is asked.
    pub conditions: Arc<Conditions>,
}

/// What a failure decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// The next mode is asked.
    NoOpinion,
    /// The request is refused.
    Deny,
}

impl OnFailure {
    /// Both, as they are written.
    pub const NAMES: [&'static str; 2] = ["Deny", "NoOpinion"];

    /// The policy of a name.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "NoOpinion" => Some(OnFailure::NoOpinion),
            "Deny" => Some(OnFailure::Deny),
            _ => None,
        }
    }

    /// What it decides.
    pub fn verdict(self) -> Verdict {
        match self {
            OnFailure::NoOpinion => Verdict::NoOpinion,
            OnFailure::Deny => Verdict::Deny,
        }
    }
}

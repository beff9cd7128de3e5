//! Fault-injecting authorization webhook: several failure modes, and decisions that change immediately.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::webhooks::{Says, Service, answer};

/// Response mode of the webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    /// A correct review.
    Honest,
    /// 200 with a body that is not a review.
    Babbling,
    /// 403.
    Rude,
    /// 500, which authd retries.
    Broken,
    /// No response until the client closes the connection.
    Silent,
}

struct Mind {
    mood: Mood,
    allowed: HashSet<String>,
    /// Number of failed reviews by user.
    failures: HashMap<String, u64>,
}

impl Mind {
    fn says(&mut self, review: &Value) -> Says {
        let user = review["spec"]["user"].as_str().unwrap_or_default();
        if self.mood != Mood::Honest {
            *self.failures.entry(user.to_owned()).or_default() += 1;
        }
        match self.mood {
            Mood::Honest => answer(review, json!({"allowed": self.allowed.contains(user)})),
            Mood::Babbling => Some((200, "it depends".into())),
            Mood::Rude => Some((403, json!({}))),
            Mood::Broken => Some((500, json!({}))),
            Mood::Silent => None,
        }
    }
}

/// The webhook; see the module. Initially it sends correct reviews and denies all requests.
pub(crate) struct Fickle {
    service: Service,
    mind: Arc<Mutex<Mind>>,
}

impl Fickle {
    pub(crate) async fn start() -> Arc<Fickle> {
        let mind = Mind { mood: Mood::Honest, allowed: HashSet::new(), failures: HashMap::new() };
        let mind = Arc::new(Mutex::new(mind));
        let own = Arc::clone(&mind);
        let service = Service::start(move |_, review| own.lock().says(review)).await;
        service.forget();
        Arc::new(Fickle { service, mind })
    }

    /// The kubeconfig file with which authd calls the webhook.
    pub(crate) fn config(&self) -> PathBuf {
        self.service.config("decide", "certificate-authority: ca.crt")
    }

    /// Allows or denies all requests of a user.
    pub(crate) fn set(&self, user: &str, allowed: bool) {
        let mut mind = self.mind.lock();
        if allowed {
            mind.allowed.insert(user.to_owned());
        } else {
            mind.allowed.remove(user);
        }
    }

    /// Switches to a response mode for this time, then back to correct reviews.
    pub(crate) async fn be(&self, mood: Mood, time: Duration) {
        self.mind.lock().mood = mood;
        tokio::time::sleep(time).await;
        self.mind.lock().mood = Mood::Honest;
    }

    /// Number of failed reviews of a user.
    pub(crate) fn failures(&self, user: &str) -> u64 {
        self.mind.lock().failures.get(user).copied().unwrap_or(0)
    }

    /// Number of failed reviews of all users.
    pub(crate) fn all_failures(&self) -> u64 {
        self.mind.lock().failures.values().sum()
    }
}

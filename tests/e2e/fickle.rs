//! An authorization webhook that fails in every way that one can, and changes its mind at once.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::webhooks::{Says, Service, answer};

/// How it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    /// What it thinks.
    Honest,
    /// No review.
    Babbling,
    /// 403.
    Rude,
    /// 500, which is tried again.
    Broken,
    /// Nothing, for as long as somebody waits.
    Silent,
}

struct Mind {
    mood: Mood,
    allowed: HashSet<String>,
    /// By user, how often it failed them.
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

/// See the module. It is honest until it is told otherwise, and allows nobody anything.
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

    /// The client configuration file for it.
    pub(crate) fn config(&self) -> PathBuf {
        self.service.config("decide", "certificate-authority: ca.crt")
    }

    /// Allows a user everything, or nothing.
    pub(crate) fn set(&self, user: &str, allowed: bool) {
        let mut mind = self.mind.lock();
        if allowed {
            mind.allowed.insert(user.to_owned());
        } else {
            mind.allowed.remove(user);
        }
    }

    /// Is in a mood for a while.
    pub(crate) async fn be(&self, mood: Mood, time: Duration) {
        self.mind.lock().mood = mood;
        tokio::time::sleep(time).await;
        self.mind.lock().mood = Mood::Honest;
    }

    /// How often it failed a user.
    pub(crate) fn failures(&self, user: &str) -> u64 {
        self.mind.lock().failures.get(user).copied().unwrap_or(0)
    }

    /// How often it failed somebody.
    pub(crate) fn all_failures(&self) -> u64 {
        self.mind.lock().failures.values().sum()
    }
}

//! What of a store is missing, as far as that is known.

use std::collections::BTreeSet;
use std::fmt;

/// Damages, stretches and keys that are named; there may be very many.
pub(super) const NAMED: usize = 20;

/// What is missing, or may be: nothing is left out of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Revisions whose change, or whose object, is missing: the first and the last of them.
    pub revisions: Option<(u64, u64)>,
    /// Changes after this revision may be missing, and how many there were is not known.
    pub after: Option<u64>,
    /// Keys of which a version is missing.
    pub keys: BTreeSet<String>,
    /// Stretches of keys in which rows cannot be read: the keys before and behind, where there are any.
    pub between: Vec<(Option<String>, Option<String>)>,
}

impl Lost {
    pub(super) fn revision(&mut self, revision: u64) {
        let (first, last) = self.revisions.unwrap_or((revision, revision));
        self.revisions = Some((first.min(revision), last.max(revision)));
    }

    pub(super) fn key(&mut self, key: &str) {
        if !self.keys.contains(key) {
            self.keys.insert(key.to_owned());
        }
    }

    /// Whether nothing is.
    pub fn is_nothing(&self) -> bool {
        *self == Lost::default()
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((first, last)) = self.revisions {
            writeln!(f, "lost: changes among revisions {first} to {last} are missing")?;
        }
        if let Some(after) = self.after {
            writeln!(f, "lost: changes after revision {after}, if there were any")?;
        }
        for (after, before) in self.between.iter().take(NAMED) {
            let after = after
                .as_ref()
                .map_or_else(|| "from the first key".to_owned(), |key| format!("after `{key}`"));
            let before =
                before.as_ref().map_or_else(|| "to the last".to_owned(), |key| format!("before `{key}`"));
            writeln!(f, "lost: rows {after}, {before}")?;
        }
        if self.between.len() > NAMED {
            writeln!(f, "lost: rows in {} more places", self.between.len() - NAMED)?;
        }
        for key in self.keys.iter().take(NAMED) {
            writeln!(f, "lost: a version of `{key}`")?;
        }
        if self.keys.len() > NAMED {
            writeln!(f, "lost: versions of {} more keys", self.keys.len() - NAMED)?;
        }
        Ok(())
    }
}

/// What is damaged: some of it in words, and how much there is.
#[derive(Debug, Default)]
pub(in super::super) struct Damages {
    pub(in super::super) named: Vec<String>,
    /// Those that are not named.
    pub(in super::super) more: usize,
}

impl Damages {
    pub(super) fn push(&mut self, what: impl FnOnce() -> String) {
        if self.named.len() < NAMED { self.named.push(what()) } else { self.more += 1 }
    }
}

//! The lost data of a store, as far as known.

use std::collections::BTreeSet;
use std::fmt;

/// Maximum number of damaged places, key ranges and keys that a report lists by name.
pub(super) const MAX_NAMED: usize = 20;

/// All data that is missing or possibly missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LossReport {
    /// The first and the last revision whose change or object is missing.
    pub revisions: Option<(u64, u64)>,
    /// Changes after this revision may be missing, in unknown number.
    pub after: Option<u64>,
    /// Keys with a missing version.
    pub keys: BTreeSet<String>,
    /// Key ranges with unreadable rows: the readable keys before and after each range, if any.
    pub between: Vec<(Option<String>, Option<String>)>,
}

impl LossReport {
    /// Widens the range of lost revisions to include a revision.
    pub(super) fn add_revision(&mut self, revision: u64) {
        let (first, last) = self.revisions.unwrap_or((revision, revision));
        self.revisions = Some((first.min(revision), last.max(revision)));
    }

    pub(super) fn add_key(&mut self, key: &str) {
        if !self.keys.contains(key) {
            self.keys.insert(key.to_owned());
        }
    }

    /// Whether nothing is lost.
    pub fn is_empty(&self) -> bool {
        *self == LossReport::default()
    }
}

impl fmt::Display for LossReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((first, last)) = self.revisions {
            writeln!(f, "lost: some or all of the revisions {first} to {last} are missing")?;
        }
        if let Some(after) = self.after {
            writeln!(f, "lost: changes after revision {after}, if there were any")?;
        }
        for (after, before) in self.between.iter().take(MAX_NAMED) {
            let after = after
                .as_ref()
                .map_or_else(|| "from the first key".to_owned(), |key| format!("after `{key}`"));
            let before =
                before.as_ref().map_or_else(|| "to the last".to_owned(), |key| format!("before `{key}`"));
            writeln!(f, "lost: rows {after}, {before}")?;
        }
        if self.between.len() > MAX_NAMED {
            writeln!(f, "lost: rows in {} more places", self.between.len() - MAX_NAMED)?;
        }
        for key in self.keys.iter().take(MAX_NAMED) {
            writeln!(f, "lost: a version of `{key}`")?;
        }
        if self.keys.len() > MAX_NAMED {
            writeln!(f, "lost: versions of {} more keys", self.keys.len() - MAX_NAMED)?;
        }
        Ok(())
    }
}

/// The damaged places of a store: descriptions of the first ones, and the number of the others.
#[derive(Debug, Default)]
pub(in super::super) struct DamagedPlaces {
    pub(in super::super) named: Vec<String>,
    /// The number of damaged places without a description.
    pub(in super::super) more: usize,
}

impl DamagedPlaces {
    pub(super) fn push(&mut self, describe: impl FnOnce() -> String) {
        if self.named.len() < MAX_NAMED { self.named.push(describe()) } else { self.more += 1 }
    }
}

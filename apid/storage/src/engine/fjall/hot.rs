//! The rows that were written last, kept for the writer: what is written often is looked up without the tables.
//!
//! # Contract
//!
//! Holds what is written and marked, nothing else; the tables stay the truth. Bounded in bytes: rows that were not
//! asked for while half of the bound was filled are let go.

use std::collections::HashMap;
use std::sync::Arc;

use crate::Row;

/// See the module.
pub(super) struct Hot {
    young: HashMap<Arc<str>, Option<Row>>,
    old: HashMap<Arc<str>, Option<Row>>,
    /// Bytes of `young`.
    bytes: usize,
    limit: usize,
}

impl Hot {
    /// Holds about as many bytes.
    pub(super) fn new(limit: usize) -> Self {
        Hot { young: HashMap::new(), old: HashMap::new(), bytes: 0, limit }
    }

    /// What is known of a key: a row, or that there is none.
    pub(super) fn find(&mut self, key: &str) -> Option<Option<Row>> {
        if let Some(row) = self.young.get(key) {
            return Some(row.clone());
        }
        let (key, row) = self.old.remove_entry(key)?;
        self.insert(key, row.clone());
        Some(row)
    }

    /// Takes in what a key is now.
    pub(super) fn insert(&mut self, key: Arc<str>, row: Option<Row>) {
        self.old.remove(&key);
        self.bytes += weight(&key, row.as_ref());
        if let Some(before) = self.young.insert(key.clone(), row) {
            self.bytes -= weight(&key, before.as_ref());
        }
        if self.bytes > self.limit / 2 {
            self.old = std::mem::take(&mut self.young);
            self.bytes = 0;
        }
    }

    /// Forgets all: the tables are others now.
    pub(super) fn clear(&mut self) {
        *self = Hot::new(self.limit);
    }
}

fn weight(key: &str, row: Option<&Row>) -> usize {
    size_of::<(Arc<str>, Option<Row>)>() + key.len() + row.map_or(0, |row| row.value.len())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::Revision;

    fn row(key: &str, size: usize, revision: u64) -> Option<Row> {
        Some(Row { key: key.into(), value: Bytes::from(vec![0; size]), revision: Revision(revision) })
    }

    #[test]
    fn keeps_what_is_asked_for_and_lets_the_rest_go() {
        let mut hot = Hot::new(20_000);
        hot.insert("often".into(), row("often", 100, 1));
        hot.insert("gone".into(), None);
        for number in 0..1000 {
            let key = format!("{number}");
            hot.insert(key.as_str().into(), row(&key, 1000, 2));
            assert_eq!(hot.find("often"), Some(row("often", 100, 1)));
            let held: usize =
                hot.young.iter().chain(&hot.old).map(|(key, row)| weight(key, row.as_ref())).sum();
            assert!(held <= 22_000, "{held} bytes are held");
        }
        assert_eq!(hot.find("gone"), None, "not asked for, so no longer known");
        hot.insert("often".into(), None);
        assert_eq!(hot.find("often"), Some(None), "known not to be there");
        hot.clear();
        assert_eq!(hot.find("often"), None);
    }
}

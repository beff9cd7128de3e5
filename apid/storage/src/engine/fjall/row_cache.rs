//! The row cache of the writer: recently written rows, looked up without the tables.
//!
//! # Contract
//!
//! The cache holds only rows that are written and whose revision is at or below the high-water mark; the
//! tables stay the source of truth. The size in bytes is limited. The cache evicts rows that were not used
//! while half of the limit was filled.

use std::collections::HashMap;
use std::sync::Arc;

use crate::Row;

/// The row cache; see the module documentation.
pub(super) struct RowCache {
    /// The rows used since the last exchange. An exchange moves the rows of `young` to `old`, after it has
    /// evicted the previous rows of `old`.
    young: HashMap<Arc<str>, Option<Row>>,
    /// The rows that the last exchange moved from `young`. A use moves a row back to `young`; the next
    /// exchange evicts the rows that are still in `old`.
    old: HashMap<Arc<str>, Option<Row>>,
    /// Size of `young` in bytes.
    bytes: usize,
    limit: usize,
}

impl RowCache {
    /// A cache with a limit in bytes.
    pub(super) fn new(limit: usize) -> Self {
        RowCache { young: HashMap::new(), old: HashMap::new(), bytes: 0, limit }
    }

    /// The cached state of a key: a row, or Some(None) for an absent key. None is a cache miss.
    pub(super) fn find(&mut self, key: &str) -> Option<Option<Row>> {
        if let Some(row) = self.young.get(key) {
            return Some(row.clone());
        }
        let (key, row) = self.old.remove_entry(key)?;
        self.insert(key, row.clone());
        Some(row)
    }

    /// Stores the new state of a key.
    pub(super) fn insert(&mut self, key: Arc<str>, row: Option<Row>) {
        self.old.remove(&key);
        self.bytes += row_bytes(&key, row.as_ref());
        if let Some(before) = self.young.insert(key.clone(), row) {
            self.bytes -= row_bytes(&key, before.as_ref());
        }
        if self.bytes > self.limit / 2 {
            self.old = std::mem::take(&mut self.young);
            self.bytes = 0;
        }
    }

    /// Empties the cache before the tables close.
    pub(super) fn clear(&mut self) {
        *self = RowCache::new(self.limit);
    }
}

fn row_bytes(key: &str, row: Option<&Row>) -> usize {
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
    fn row_cache_keeps_used_rows_and_evicts_others() {
        let mut cache = RowCache::new(20_000);
        cache.insert("often".into(), row("often", 100, 1));
        cache.insert("gone".into(), None);
        for number in 0..1000 {
            let key = format!("{number}");
            cache.insert(key.as_str().into(), row(&key, 1000, 2));
            assert_eq!(cache.find("often"), Some(row("often", 100, 1)));
            let held: usize =
                cache.young.iter().chain(&cache.old).map(|(key, row)| row_bytes(key, row.as_ref())).sum();
            assert!(held <= 22_000, "the cache holds {held} bytes");
        }
        assert_eq!(cache.find("gone"), None, "an unused entry is evicted");
        cache.insert("often".into(), None);
        assert_eq!(cache.find("often"), Some(None), "an absent key is cached");
        cache.clear();
        assert_eq!(cache.find("often"), None);
    }
}

//! Database reads at a revision: the row of a key, a range of keys, a range of history.
//!
//! # Contract
//!
//! Reads skip rows above the requested revision: unacknowledged writes stay invisible. The caller
//! must check afterwards that the revision was not compacted during the read ([`super::state`]), because
//! trimming can remove old versions during a read.

use std::ops::Bound;
use std::sync::Arc;

use fjall::{Keyspace, Readable, Snapshot, UserValue};

use super::database::{Tables, map_fjall_error};
use super::layout::{self, LogEntry, Tag, Version};
use crate::{Change, Error, MAX_KEY, Result, Revision, Row};

/// Number of versions of one key that a scan skips before it seeks the next key directly.
const SKIPS_BEFORE_SEEK: usize = 16;

/// The newest version of a key at a revision; a tombstone is a version.
pub(super) fn version_at(tables: &Tables, key: &str, at: u64) -> Result<Option<Version>> {
    if key.len() > MAX_KEY {
        return Ok(None);
    }
    let head = layout::head(key);
    let bounds = layout::version_key_of(&head, at)..=layout::version_key_of(&head, 0);
    let Some(guard) = tables.versions.range(bounds).next() else { return Ok(None) };
    let (key, row) = guard.into_inner().map_err(|error| map_fjall_error(&error))?;
    layout::decode_version(&key, &row).map(Some)
}

/// The row of a key at a revision.
pub(super) fn row_at(tables: &Tables, key: &str, at: u64) -> Result<Option<Row>> {
    let found = version_at(tables, key, at)?;
    Ok(found.and_then(|version| {
        Some(Row { key: key.into(), value: version.value?, revision: Revision(version.revision) })
    }))
}

/// Limits of one read of rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowLimits {
    /// Maximum number of rows.
    pub(super) rows: usize,
    /// Maximum size in bytes of all keys and values together; a first row above the maximum is read alone.
    pub(super) bytes: usize,
}

impl RowLimits {
    /// Limits the number of rows only; 0 means all rows.
    pub(super) fn of_rows(rows: usize) -> Self {
        RowLimits { rows: if rows == 0 { usize::MAX } else { rows }, bytes: usize::MAX }
    }
}

/// Rows of a range at a revision within limits, and whether more rows follow.
pub(super) fn range_at(
    tables: &Tables,
    prefix: &str,
    start: &str,
    limits: RowLimits,
    at: u64,
) -> Result<(Vec<Row>, bool)> {
    let (mut rows, mut used_bytes) = (Vec::new(), 0_usize);
    if prefix.len() > MAX_KEY {
        return Ok((rows, false));
    }
    // No key is longer than MAX_KEY: a truncated start bounds the seek, and the loop compares whole keys.
    let seek = start.get(..start.floor_char_boundary(MAX_KEY)).unwrap_or_default();
    let (low, high) = layout::bounds(prefix, seek);
    if high.as_ref().is_some_and(|high| *high <= low) {
        return Ok((rows, false));
    }
    let high = high.map_or(Bound::Unbounded, Bound::Excluded);
    let snapshot = tables.database.snapshot();
    let mut iterator = snapshot.range(&tables.versions, (Bound::Included(low), high.clone()));
    // The head (see `layout::head`) whose visible version is found: later rows with this head are older.
    let mut found_head: Vec<u8> = Vec::new();
    let mut skipped = 0;
    while let Some(guard) = iterator.next() {
        let (key, bytes) = guard.into_inner().map_err(|error| map_fjall_error(&error))?;
        let (head, revision) = layout::split_version_key(&key)?;
        let is_superseded = head == found_head;
        if is_superseded || revision > at {
            skipped += 1;
            if skipped > SKIPS_BEFORE_SEEK {
                let next = layout::version_key_of(head, if is_superseded { 0 } else { at });
                let next = if is_superseded { Bound::Excluded(next) } else { Bound::Included(next) };
                iterator = snapshot.range(&tables.versions, (next, high.clone()));
                skipped = 0;
            }
            continue;
        }
        skipped = 0;
        found_head.clear();
        found_head.extend_from_slice(head);
        let version = layout::decode_version(&key, &bytes)?;
        let Some(value) = version.value else { continue };
        let key = layout::key_of_head(head)?;
        if &*key < start {
            continue;
        }
        let row = Row { key, value, revision: Revision(revision) };
        used_bytes = used_bytes.saturating_add(row.size());
        if rows.len() == limits.rows || (used_bytes > limits.bytes && !rows.is_empty()) {
            return Ok((rows, true));
        }
        rows.push(row);
    }
    Ok((rows, false))
}

/// Limits of one read of history; the first limit that is reached ends the read.
#[derive(Clone, Copy, Debug)]
pub(super) struct HistoryLimits {
    /// Maximum number of log entries to scan.
    pub(super) entries: usize,
    /// Size in bytes (see [`Change::bytes`]) of the collected changes at which a read ends. The last change
    /// may exceed it.
    pub(super) bytes: usize,
}

/// The log entries after one revision, up to another.
pub(super) fn entries(
    snapshot: &Snapshot,
    log: &Keyspace,
    after: u64,
    upto: u64,
) -> impl Iterator<Item = Result<LogEntry>> {
    let bounds = (Bound::Excluded(layout::log_key(after)), Bound::Included(layout::log_key(upto.max(after))));
    // A range that excludes and includes the same key is empty, and is not a valid argument.
    let iterator = (after < upto).then(|| snapshot.range(log, bounds));
    iterator.into_iter().flatten().map(|guard| {
        let (key, row) = guard.into_inner().map_err(|error| map_fjall_error(&error))?;
        layout::decode_entry(&key, &row)
    })
}

/// The changes of a prefix between two revisions, and the revision up to which they are complete.
///
/// `after` is exclusive and `upto` inclusive.
pub(super) fn history(
    tables: &Tables,
    prefix: &str,
    after: u64,
    upto: u64,
    limits: HistoryLimits,
) -> Result<(Vec<Change>, u64)> {
    let snapshot = tables.database.snapshot();
    let mut changes = Vec::new();
    let (mut scanned, mut bytes) = (0, 0);
    let mut through = after;
    for entry in entries(&snapshot, &tables.log, after, upto) {
        let entry = entry?;
        if !tables.follows(through, entry.revision) {
            return Err(missing_revisions_error(through + 1, entry.revision - 1));
        }
        through = entry.revision;
        if entry.key.starts_with(prefix) {
            let change = change_of(&snapshot, tables, entry)?;
            bytes += change.bytes();
            changes.push(change);
        }
        scanned += 1;
        if scanned >= limits.entries || bytes >= limits.bytes {
            return Ok((changes, through));
        }
    }
    if through < upto {
        return Err(missing_revisions_error(through + 1, upto));
    }
    Ok((changes, upto))
}

/// The error for a gap in history.
fn missing_revisions_error(first: u64, last: u64) -> Error {
    Error::Corrupt(format!("revisions {first} to {last} are missing"))
}

/// Builds the change of a log entry. The log holds no values; `versions` holds them.
fn change_of(snapshot: &Snapshot, tables: &Tables, entry: LogEntry) -> Result<Change> {
    let value = |revision: u64| {
        let key = layout::version_key(&entry.key, revision);
        let row: Option<UserValue> =
            snapshot.get(&tables.versions, &key).map_err(|error| map_fjall_error(&error))?;
        let version = row.map(|row| layout::decode_version(&key, &row)).transpose()?;
        version.and_then(|version| version.value).ok_or_else(|| {
            Error::Corrupt(format!(
                "`{}` has no object at revision {revision}, but the log names this revision",
                entry.key
            ))
        })
    };
    let new = match entry.event {
        Tag::Removed => None,
        _ => Some(value(entry.revision)?),
    };
    let old = match entry.previous {
        0 => None,
        previous => {
            Some(Row { key: Arc::clone(&entry.key), value: value(previous)?, revision: Revision(previous) })
        }
    };
    Ok(Change { key: entry.key, old, new, revision: Revision(entry.revision) })
}

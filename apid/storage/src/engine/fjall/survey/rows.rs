//! Rows of a survey, collected table by table and batch by batch: their kind, without the object bytes.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::super::files::table;
use super::super::layout::{self, LogEntry, Tag};
use super::VersionKind;

/// The kind and content of a row.
#[derive(Debug)]
pub(super) enum RowKind {
    /// A removal.
    Removed,
    /// `versions`.
    Version(VersionKind),
    /// `log`. Boxed, because most rows are in `versions`.
    Entry(Box<LogEntry>),
    /// `meta`: the encoded row.
    Meta(Box<Bytes>),
    /// A damaged row.
    Unreadable,
}

impl RowKind {
    /// Classifies the row at a key; None is a removal.
    fn classify(key: &[u8], row: Option<&Bytes>) -> RowKind {
        let Some(row) = row else { return RowKind::Removed };
        match layout::tag(row) {
            Some(Tag::Object | Tag::Deleted) => match layout::decode_version(key, row) {
                Ok(version) => RowKind::Version(VersionKind::of(version.value.as_ref())),
                Err(_) => RowKind::Unreadable,
            },
            Some(Tag::Created | Tag::Updated | Tag::Removed) => match layout::decode_entry(key, row) {
                Ok(entry) => RowKind::Entry(Box::new(entry)),
                Err(_) => RowKind::Unreadable,
            },
            Some(Tag::Meta) if layout::decode_meta_row(key, row).is_ok() => {
                RowKind::Meta(Box::new(row.clone()))
            }
            Some(Tag::Meta) | None => RowKind::Unreadable,
        }
    }
}

#[derive(Debug)]
pub(super) struct SurveyedRow {
    seqno: u64,
    pub(super) kind: RowKind,
}

/// The rows of one keyspace.
#[derive(Default)]
pub(super) struct Keyspace {
    pub(super) rows: BTreeMap<Box<[u8]>, SurveyedRow>,
    /// The highest sequence number in tables; None when a table is not completely readable.
    pub(super) persisted: Option<u64>,
    pub(super) unreadable_ranges: Vec<table::UnreadableRange>,
}

impl Keyspace {
    /// Adds a row, unless a newer row with the same key exists.
    pub(super) fn add(&mut self, key: Vec<u8>, seqno: u64, row: Option<&Bytes>) {
        if self.rows.get(&*key).is_some_and(|known| known.seqno > seqno) {
            return;
        }
        let kind = RowKind::classify(&key, row);
        self.rows.insert(key.into_boxed_slice(), SurveyedRow { seqno, kind });
    }

    /// The newest revision in the `log` keyspace; None for other keyspaces.
    pub(super) fn newest_entry(&self) -> Option<u64> {
        match self.rows.last_key_value() {
            Some((_, SurveyedRow { kind: RowKind::Entry(entry), .. })) => Some(entry.revision),
            _ => None,
        }
    }

    /// The newest revision in the `versions` keyspace; None for other keyspaces.
    pub(super) fn newest_version(&self) -> Option<u64> {
        let versions = self.rows.iter().filter(|(_, known)| matches!(known.kind, RowKind::Version(_)));
        versions.filter_map(|(key, _)| Some(layout::split_version_key(key).ok()?.1)).max()
    }
}

//! A survey of a store: all rows read from the files without fjall, and the damage in them.
//!
//! # Contract
//!
//! [`Survey::read`] reads every file and changes none. Reading continues after a damage. The survey contains
//! the readable rows, and identifies the missing rows by revision, by key, or by neighbouring keys. The
//! caller must hold the lock of the store. The survey holds sorted keys and revisions, and no objects;
//! [`Survey::read_objects`] reads the files again for the objects.
//!
//! # Invariants
//!
//! INVARIANT (same precedence as fjall): of several rows with one key the row with the highest sequence number
//! counts. A journal row counts only if its sequence number is above those of all tables of the keyspace, because a
//! merge of tables may drop removals.
//! INVARIANT (loss report is complete): every acknowledged row is in the survey, or was trimmed, or is named
//! in [`LossReport`]. Unknown cases count as lost.

mod checks;
mod journals;
mod loss_report;
mod rows;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use self::journals::{Gap, Part};
use self::loss_report::DamagedPlaces;
pub use self::loss_report::LossReport;
use self::rows::{Keyspace, RowKind};
use super::database::map_io_error;
use super::files::{self, FileProblem, journal, manifest, table};
use super::high_water_mark::{self, MarkValues};
use super::layout::{self, Jump, LogEntry, META_COMPACTED, META_IDENTITY, META_JUMP, META_TRIMMED, Tag};
use super::{Identity, ignore_not_found};
use crate::ENCRYPTED_PREFIX;

/// The kind of a row of `versions`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VersionKind {
    /// An object.
    Object,
    /// An object with an encrypted value.
    Encrypted,
    /// A tombstone.
    Deleted,
}

impl VersionKind {
    fn of(value: Option<&Bytes>) -> VersionKind {
        match value {
            Some(value) if value.starts_with(ENCRYPTED_PREFIX) => VersionKind::Encrypted,
            Some(_) => VersionKind::Object,
            None => VersionKind::Deleted,
        }
    }
}

/// The survey; see the module documentation.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// The valid slots of the high-water mark, newest first; empty when the mark is missing.
    pub(super) marks: Vec<MarkValues>,
    /// The identity of the store, if readable.
    pub(super) identity: Option<Identity>,
    /// The newest revision found, in the log or of an object.
    pub(super) revision: u64,
    pub(super) compacted: u64,
    pub(super) trimmed: u64,
    pub(super) jumps: Vec<Jump>,
    /// The rows of `versions` by key: grouped by object, newest version first.
    pub(super) versions: BTreeMap<Box<[u8]>, VersionKind>,
    pub(super) log: BTreeMap<u64, LogEntry>,
    pub(super) journals: usize,
    pub(super) bytes: u64,
    /// The damaged places found.
    pub(super) damaged_places: DamagedPlaces,
    /// Findings that lose no data.
    pub(super) remarks: Vec<String>,
    pub(super) lost: LossReport,
    /// The highest sequence number in the tables of `versions`; None when a table is not completely readable.
    persisted: Option<u64>,
    /// The revision up to which all rows of `versions` were written to tables. The source is the high-water
    /// mark or a later row in a table, because rows reach tables in write order.
    flushed: u64,
    gaps: Vec<Gap>,
    /// Description of an unreadable end of the newest journal that looks like the result of a crash.
    torn: Option<String>,
    /// The table files. The other source of rows is `parts`, the readable parts of the journals.
    pub(super) tables: Vec<PathBuf>,
    parts: Vec<Part>,
}

impl Survey {
    /// Reads the store in a directory.
    ///
    /// # Errors
    ///
    /// The operating system fails to read an existing file.
    pub(super) fn read(dir: &Path) -> io::Result<Survey> {
        let mut survey = Survey::default();
        survey.read_mark(&dir.join("mark"))?;
        let database = dir.join("fjall");
        let mut keyspaces: BTreeMap<u64, Keyspace> = BTreeMap::new();
        match files::check_version(&database) {
            Err(FileProblem::Damaged(problem)) => survey.damaged_places.push(|| problem),
            Err(FileProblem::Unreadable(error)) => return Err(io::Error::other(error)),
            Ok(()) => {}
        }
        let folders = ignore_not_found(files::keyspaces(&database))?.unwrap_or_else(|| {
            survey.damaged_places.push(|| "the folder `keyspaces` is missing".to_owned());
            Vec::new()
        });
        for (number, folder) in &folders {
            let keyspace = survey.read_tables(folder)?;
            keyspaces.insert(*number, keyspace);
        }
        survey.read_journals(&database, &mut keyspaces)?;
        for (number, keyspace) in keyspaces {
            if !files::is_internal(number) {
                survey.add_rows(keyspace);
            }
        }
        survey.check_consistency();
        Ok(survey)
    }

    /// Whether no damage and no loss was found.
    pub(super) fn is_sound(&self) -> bool {
        self.damaged_places.named.is_empty() && self.lost.is_empty()
    }

    /// The acknowledged revisions, as far as known.
    pub(super) fn acknowledged(&self) -> Option<MarkValues> {
        self.marks.first().copied()
    }

    fn read_mark(&mut self, path: &Path) -> io::Result<()> {
        let Some(bytes) = ignore_not_found(std::fs::read(path))? else {
            self.damaged_places.push(|| "the high-water mark file `mark` is missing".to_owned());
            return Ok(());
        };
        let slots = high_water_mark::decode_slots(&bytes);
        let unreadable = slots.iter().filter(|slot| slot.is_none()).count();
        let mut found: Vec<_> = slots.into_iter().flatten().collect();
        found.sort_unstable_by_key(|(count, _)| std::cmp::Reverse(*count));
        self.marks = found.into_iter().map(|(_, values)| values).collect();
        match (unreadable, self.marks.is_empty()) {
            (0, _) => {}
            (_, false) => {
                self.remarks.push("one of the two slots of the high-water mark is unreadable".to_owned())
            }
            (_, true) => self.damaged_places.push(|| "the high-water mark is unreadable".to_owned()),
        }
        Ok(())
    }

    fn read_tables(&mut self, folder: &Path) -> io::Result<Keyspace> {
        let mut keyspace = Keyspace { persisted: Some(0), ..Keyspace::default() };
        let tables = match manifest::read(folder) {
            Ok(listed) => listed.into_iter().map(|listed| (listed.id, Some(listed))).collect(),
            Err(FileProblem::Unreadable(error)) => return Err(io::Error::other(error)),
            Err(FileProblem::Damaged(problem)) => {
                self.damaged_places.push(|| format!("{problem}; reading all tables in its folder"));
                let ids = ignore_not_found(table::table_files(folder))?.unwrap_or_default();
                ids.into_iter().map(|(id, _)| (id, None)).collect::<Vec<_>>()
            }
        };
        for (id, listed) in tables {
            let path = table::path(folder, id);
            let offset = listed.map_or(0, |listed| listed.seqno);
            let is_whole = listed.is_some_and(|listed| table::is_whole(&path, listed.checksum));
            let metadata = table::metadata(&path);
            let mut rows = 0;
            let read = table::salvage(&path, |row| {
                rows += 1;
                keyspace.persisted = keyspace.persisted.map(|highest| highest.max(row.seqno + offset));
                keyspace.add(row.key, row.seqno + offset, row.value.as_ref());
            });
            let unreadable_ranges = ignore_not_found(read)?
                .unwrap_or_else(|| vec![table::UnreadableRange { after: None, before: None }]);
            self.bytes += std::fs::metadata(&path).map_or(0, |file| file.len());
            self.tables.push(path.clone());
            if is_whole {
                continue;
            }
            let name = files::short_path(&path);
            if metadata.as_ref().is_some_and(|metadata| metadata.rows == rows) {
                self.damaged_places
                    .push(|| format!("table {name} fails its checksum, all of its {rows} rows are readable"));
                continue;
            }
            let of_total =
                metadata.as_ref().map_or_else(String::new, |metadata| format!(" of {}", metadata.rows));
            self.damaged_places
                .push(|| format!("table {name} fails its checksum, {rows}{of_total} rows are readable"));
            keyspace.persisted = None;
            keyspace.unreadable_ranges.extend(unreadable_ranges);
        }
        Ok(keyspace)
    }

    /// Adds the rows of a keyspace of this engine to the survey, by the kind that each row carries.
    fn add_rows(&mut self, keyspace: Keyspace) {
        for range in keyspace.unreadable_ranges {
            let name = |key: Option<Vec<u8>>| key.map(|key| readable_key(&key));
            self.lost.between.push((name(range.after), name(range.before)));
        }
        for (key, row) in keyspace.rows {
            match row.kind {
                RowKind::Removed => {}
                RowKind::Unreadable => self.record_damaged_row(&key),
                RowKind::Entry(entry) => {
                    self.revision = self.revision.max(entry.revision);
                    self.log.insert(entry.revision, *entry);
                }
                RowKind::Meta(row) => {
                    if self.read_meta_row(&key, &row).is_err() {
                        self.record_damaged_row(&key);
                    }
                }
                RowKind::Version(version) => match decode_version_key(&key) {
                    Some((_, revision)) => {
                        self.revision = self.revision.max(revision);
                        self.persisted = keyspace.persisted;
                        self.versions.insert(key, version);
                    }
                    None => self.record_damaged_row(&key),
                },
            }
        }
    }

    fn record_damaged_row(&mut self, key: &[u8]) {
        self.damaged_places.push(|| format!("a row is damaged (key {})", key.escape_ascii()));
        match layout::log_revision(key) {
            Ok(revision) => self.lost.add_revision(revision),
            Err(_) => {
                if let Ok((_, revision)) = layout::split_version_key(key) {
                    self.lost.add_revision(revision);
                }
                self.lost.add_key(&readable_key(key));
            }
        }
    }

    /// Records the content of a row of `meta`.
    fn read_meta_row(&mut self, name: &[u8], row: &[u8]) -> crate::Result<()> {
        let (revision, body) = layout::decode_meta_row(name, row)?;
        match name {
            META_COMPACTED => self.compacted = revision,
            META_TRIMMED => self.trimmed = revision,
            META_IDENTITY => {
                let text = String::from_utf8_lossy(body).into_owned();
                self.identity = text.split_once('\n').map(|(preset, domain)| Identity {
                    preset: preset.to_owned(),
                    api_domain: domain.to_owned(),
                });
            }
            name if name.starts_with(META_JUMP) => self.jumps.push(layout::decode_jump(name, row)?),
            _ => {}
        }
        Ok(())
    }

    /// The number of live objects, and of the encrypted ones among them.
    pub(super) fn count_live_objects(&self) -> (usize, usize) {
        let mut live_objects = LiveObjects::new(&self.log);
        let live = self.versions.iter().filter(|(key, version)| live_objects.is_live(key, **version));
        live.fold((0, 0), |(objects, encrypted), (_, version)| {
            (objects + 1, encrypted + usize::from(*version == VersionKind::Encrypted))
        })
    }

    /// Reads the files again, and calls `each` with the key, revision and bytes of every live object.
    ///
    /// The survey holds no versions afterwards.
    ///
    /// # Errors
    ///
    /// The files are unreadable or changed since the survey, or `each` fails.
    pub(super) fn read_objects(
        &mut self,
        mut each: impl FnMut(&str, u64, &[u8]) -> crate::Result<()>,
    ) -> crate::Result<()> {
        let mut live_objects = LiveObjects::new(&self.log);
        let mut remaining = std::mem::take(&mut self.versions);
        remaining.retain(|key, version| live_objects.is_live(key, *version));
        let mut visit = |key: &[u8], row: Option<&Bytes>| -> crate::Result<()> {
            let Some(row) = row.filter(|_| remaining.contains_key(key)) else { return Ok(()) };
            if let (Ok(version), Some((name, revision))) =
                (layout::decode_version(key, row), decode_version_key(key))
                && let Some(value) = version.value
            {
                each(&name, revision, &value)?;
                remaining.remove(key);
            }
            Ok(())
        };
        for path in &self.tables {
            let mut visited = Ok(());
            let read = table::salvage(path, |row| {
                if visited.is_ok() {
                    visited = visit(&row.key, row.value.as_ref());
                }
            });
            ignore_not_found(read).map_err(|error| map_io_error(&error))?;
            visited?;
        }
        for Part { path, begin, end } in &self.parts {
            let mut batches = journal::Batches::open(path, *begin).map_err(|error| map_io_error(&error))?;
            while batches.end() < *end
                && let Some(batch) = batches.next().map_err(|error| map_io_error(&error))?
            {
                for item in batch.items {
                    let row = item.value.and_then(journal::Value::decompressed).map(Bytes::from);
                    visit(&item.key, row.as_ref())?;
                }
            }
        }
        match remaining.first_key_value() {
            None => Ok(()),
            Some((key, _)) => Err(crate::Error::Unavailable(format!(
                "the files of the store changed during the read: `{}` is missing",
                readable_key(key)
            ))),
        }
    }
}

/// Selects the live objects from the sorted rows of `versions`: the first row of a key is its newest.
///
/// A tombstone may be lost while the log still records the deletion: deleted objects stay deleted.
struct LiveObjects<'a> {
    /// The head (see `layout::head`) of the last row: later rows with this head are older versions.
    head: Vec<u8>,
    /// The revisions of deletions that were the last change of their keys.
    deleted: BTreeMap<&'a str, u64>,
}

impl<'a> LiveObjects<'a> {
    fn new(log: &'a BTreeMap<u64, LogEntry>) -> Self {
        let mut deleted = BTreeMap::new();
        for entry in log.values() {
            if entry.event == Tag::Removed {
                deleted.insert(&*entry.key, entry.revision);
            } else {
                deleted.remove(&*entry.key);
            }
        }
        LiveObjects { head: Vec::new(), deleted }
    }

    fn is_live(&mut self, key: &[u8], version: VersionKind) -> bool {
        let head = layout::split_version_key(key).map_or(key, |(head, _)| head);
        if self.head == head {
            return false;
        }
        self.head.clear();
        self.head.extend_from_slice(head);
        version != VersionKind::Deleted
            && decode_version_key(key).is_some_and(|(name, revision)| {
                self.deleted.get(&*name).is_none_or(|deletion| *deletion < revision)
            })
    }
}

/// Splits a `versions` key into the object key and the revision.
fn decode_version_key(key: &[u8]) -> Option<(Arc<str>, u64)> {
    let (head, revision) = layout::split_version_key(key).ok()?;
    Some((layout::key_of_head(head).ok()?, revision))
}

/// A key of a keyspace in readable form, for messages.
fn readable_key(key: &[u8]) -> String {
    let name = layout::split_version_key(key).and_then(|(head, _)| layout::key_of_head(head));
    match (name, layout::log_revision(key)) {
        (Ok(name), _) => name.to_string(),
        (_, Ok(revision)) => format!("revision {revision}"),
        _ => key.escape_ascii().to_string(),
    }
}

//! All rows of a store as its files hold them, read without fjall, and what is wrong with them.
//!
//! # Contract
//!
//! [`Survey::of`] reads every file and changes none. It goes on where something is damaged: what is left is in the survey,
//! and what is missing is named by revision, by key, or by the keys around it. The caller holds the store's lock.
//!
//! # Invariants
//!
//! INVARIANT (as fjall would): of several rows of one key the one with the highest number counts, and what a journal
//! holds counts only beyond what tables hold, because removals may be gone from tables that were merged.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::Identity;
use super::files::{self, Trouble, journal, manifest, table};
use super::layout::{self, Entry, Jump, META_COMPACTED, META_IDENTITY, META_JUMP, META_TRIMMED, Tag};
use super::mark::{self, Values};

/// What is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Revisions whose change, or whose object, is missing: the first and the last of them.
    pub revisions: Option<(u64, u64)>,
    /// Keys of which a version is missing.
    pub keys: Vec<String>,
    /// Stretches of keys in which rows cannot be read: the keys before and behind, where there are any.
    pub between: Vec<(Option<String>, Option<String>)>,
}

impl Lost {
    fn revision(&mut self, revision: u64) {
        let (first, last) = self.revisions.unwrap_or((revision, revision));
        self.revisions = Some((first.min(revision), last.max(revision)));
    }

    fn key(&mut self, key: &str) {
        if !self.keys.iter().any(|known| known == key) {
            self.keys.push(key.to_owned());
        }
    }

    /// Whether nothing is.
    pub fn is_nothing(&self) -> bool {
        *self == Lost::default()
    }
}

/// A row.
#[derive(Clone, Debug)]
struct Held {
    seqno: u64,
    /// None: removed, or not kept. See `Survey::of`.
    value: Option<Bytes>,
    removed: bool,
}

/// A version of a key.
#[derive(Clone, Debug)]
pub(super) struct Version {
    pub(super) revision: u64,
    /// None: the key was deleted at this revision.
    pub(super) value: Option<Bytes>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// The valid slots of the mark, newest first; none when it is missing.
    pub(super) marks: Vec<Values>,
    /// Whose store it is, if that can be read.
    pub(super) identity: Option<Identity>,
    /// The newest revision found, in the log or of an object.
    pub(super) revision: u64,
    pub(super) compacted: u64,
    pub(super) trimmed: u64,
    pub(super) jumps: Vec<Jump>,
    /// Versions of every key, newest first. Values are empty unless they were asked for.
    pub(super) versions: BTreeMap<Arc<str>, Vec<Version>>,
    pub(super) log: BTreeMap<u64, Entry>,
    pub(super) tables: usize,
    pub(super) journals: usize,
    pub(super) bytes: u64,
    /// What is damaged.
    pub(super) damages: Vec<String>,
    /// What is not as it was written, and does not matter.
    pub(super) remarks: Vec<String>,
    pub(super) lost: Lost,
}

/// The rows of one keyspace.
#[derive(Default)]
struct Keyspace {
    rows: BTreeMap<Vec<u8>, Held>,
    /// The highest number in tables; None when that is not known for sure.
    persisted: Option<u64>,
    stretches: Vec<table::Stretch>,
}

impl Keyspace {
    fn take(&mut self, key: Vec<u8>, seqno: u64, value: Option<Bytes>) {
        if self.rows.get(&key).is_none_or(|held| held.seqno <= seqno) {
            self.rows.insert(key, Held { seqno, removed: value.is_none(), value });
        }
    }
}

impl Survey {
    /// Reads the store in a directory. `values`: also what objects hold, which takes the memory that they take.
    ///
    /// # Errors
    ///
    /// The operating system could not read a file that is there.
    pub(super) fn of(dir: &Path, values: bool) -> io::Result<Survey> {
        let mut survey = Survey::default();
        survey.read_mark(&dir.join("mark"))?;
        let database = dir.join("fjall");
        let mut keyspaces: BTreeMap<u64, Keyspace> = BTreeMap::new();
        match files::check_version(&database) {
            Err(Trouble::Damaged(what) | Trouble::Lost(what)) => survey.damages.push(what),
            Err(Trouble::Unreadable(error)) => return Err(io::Error::other(error)),
            Ok(()) => {}
        }
        let folders = match files::keyspaces(&database) {
            Ok(folders) => folders,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                survey.damages.push("the folder of tables is missing".to_owned());
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        for (number, folder) in &folders {
            let keyspace = survey.read_tables(folder)?;
            keyspaces.insert(*number, keyspace);
        }
        survey.read_journals(&database, &mut keyspaces)?;
        for (number, keyspace) in keyspaces {
            if !files::is_own(number) {
                survey.sort(keyspace, values);
            }
        }
        for versions in survey.versions.values_mut() {
            versions.sort_unstable_by_key(|version| std::cmp::Reverse(version.revision));
        }
        survey.judge();
        Ok(survey)
    }

    /// What was acknowledged, as far as that is known.
    pub(super) fn acknowledged(&self) -> Option<Values> {
        self.marks.first().copied()
    }

    fn read_mark(&mut self, path: &Path) -> io::Result<()> {
        let slots = match std::fs::read(path) {
            Ok(bytes) => mark::slots(&bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.damages.push("the high-water mark is missing".to_owned());
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let unreadable = slots.iter().filter(|slot| slot.is_none()).count();
        let mut found: Vec<_> = slots.into_iter().flatten().collect();
        found.sort_unstable_by_key(|(count, _)| std::cmp::Reverse(*count));
        self.marks = found.into_iter().map(|(_, values)| values).collect();
        match (unreadable, self.marks.is_empty()) {
            (0, _) => {}
            (_, false) => {
                self.remarks.push("one of the two slots of the high-water mark cannot be read".to_owned())
            }
            (_, true) => self.damages.push("the high-water mark cannot be read".to_owned()),
        }
        Ok(())
    }

    fn read_tables(&mut self, folder: &Path) -> io::Result<Keyspace> {
        let mut keyspace = Keyspace { persisted: Some(0), ..Keyspace::default() };
        let listed = match manifest::read(folder) {
            Ok(listed) => listed.into_iter().map(|listed| (listed.id, Some(listed))).collect(),
            Err(Trouble::Unreadable(error)) => return Err(io::Error::other(error)),
            Err(Trouble::Damaged(what) | Trouble::Lost(what)) => {
                self.damages.push(format!("{what}; all tables in its folder are read"));
                let ids = match table::all(folder) {
                    Ok(ids) => ids,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
                    Err(error) => return Err(error),
                };
                ids.into_iter().map(|(id, _)| (id, None)).collect::<Vec<_>>()
            }
        };
        for (id, listed) in listed {
            let path = table::path(folder, id);
            self.tables += 1;
            let offset = listed.map_or(0, |listed| listed.seqno);
            let whole = listed.is_some_and(|listed| table::is_whole(&path, listed.checksum));
            let facts = table::facts(&path);
            let mut rows = 0;
            let read = table::salvage(&path, |row| {
                rows += 1;
                keyspace.persisted = keyspace.persisted.map(|highest| highest.max(row.seqno + offset));
                keyspace.take(row.key, row.seqno + offset, row.value);
            });
            let stretches = match read {
                Ok(stretches) => stretches,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    vec![table::Stretch { after: None, before: None }]
                }
                Err(error) => return Err(error),
            };
            self.bytes += std::fs::metadata(&path).map_or(0, |file| file.len());
            if whole {
                continue;
            }
            let complete = facts.as_ref().is_some_and(|facts| facts.rows == rows);
            if complete {
                self.damages.push(format!(
                    "table {} fails its checksum, all of its {rows} rows can be read",
                    files::name(&path)
                ));
                continue;
            }
            let of = facts.as_ref().map_or_else(String::new, |facts| format!(" of {}", facts.rows));
            self.damages.push(format!(
                "table {} fails its checksum, {rows}{of} rows can be read",
                files::name(&path)
            ));
            keyspace.persisted = None;
            keyspace.stretches.extend(stretches);
        }
        Ok(keyspace)
    }

    fn read_journals(&mut self, database: &Path, keyspaces: &mut BTreeMap<u64, Keyspace>) -> io::Result<()> {
        let journals = match journal::journals(database) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            journals => journals?,
        };
        self.journals = journals.len();
        let mut last = 0;
        for (index, (_, path)) in journals.iter().enumerate() {
            let mut batches = journal::Batches::open(path)?;
            while let Some(batch) = batches.next()? {
                if batch.seqno <= last {
                    self.damages.push(format!("journal {} has batches out of order", files::name(path)));
                }
                last = batch.seqno;
                for item in batch.items {
                    let keyspace = keyspaces.entry(item.keyspace).or_default();
                    if keyspace.persisted.is_some_and(|persisted| batch.seqno <= persisted) {
                        continue;
                    }
                    let value = match item.value.map(journal::Value::decompressed) {
                        None => None,
                        Some(Some(bytes)) => Some(Bytes::from(bytes)),
                        Some(None) => {
                            self.damages.push(format!(
                                "journal {} has a row that does not decompress",
                                files::name(path)
                            ));
                            continue;
                        }
                    };
                    keyspace.take(item.key, batch.seqno, value);
                }
            }
            self.bytes += batches.end();
            if journal::has_content(path, batches.end())? {
                let what =
                    format!("journal {} cannot be read beyond byte {}", files::name(path), batches.end());
                if index + 1 < journals.len() {
                    self.damages.push(what);
                } else {
                    self.remarks.push(format!("{what}, as after a crash in the middle of a write"));
                }
            }
        }
        Ok(())
    }

    /// Takes in the rows of one of our keyspaces. Every row says what it is.
    fn sort(&mut self, keyspace: Keyspace, values: bool) {
        for stretch in keyspace.stretches {
            let name = |key: Option<Vec<u8>>| key.map(|key| readable(&key));
            self.lost.between.push((name(stretch.after), name(stretch.before)));
        }
        for (key, held) in keyspace.rows {
            let Some(row) = held.value.filter(|_| !held.removed) else { continue };
            match layout::tag(&row) {
                Some(Tag::Object | Tag::Deleted) => match layout::decode_version(&key, &row) {
                    Ok(found) => {
                        let Ok(name) =
                            layout::split_version_key(&key).and_then(|(head, _)| layout::key_of_head(head))
                        else {
                            self.damages.push(format!("a key cannot be read ({})", key.escape_ascii()));
                            continue;
                        };
                        self.revision = self.revision.max(found.revision);
                        let value = found.value.map(|value| if values { value } else { Bytes::new() });
                        let version = Version { revision: found.revision, value };
                        self.versions.entry(name).or_default().push(version);
                    }
                    Err(error) => self.bad_row(&key, &error),
                },
                Some(Tag::Created | Tag::Updated | Tag::Removed) => match layout::decode_entry(&key, &row) {
                    Ok(entry) => {
                        self.revision = self.revision.max(entry.revision);
                        self.log.insert(entry.revision, entry);
                    }
                    Err(error) => self.bad_row(&key, &error),
                },
                Some(Tag::Fact) => {
                    if let Err(error) = self.fact(&key, &row) {
                        self.bad_row(&key, &error);
                    }
                }
                None => self.damages.push(format!("a row has an unknown tag (key {})", key.escape_ascii())),
            }
        }
    }

    fn bad_row(&mut self, key: &[u8], error: &crate::Error) {
        self.damages.push(error.to_string());
        match layout::log_revision(key) {
            Ok(revision) => self.lost.revision(revision),
            Err(_) => {
                if let Ok((_, revision)) = layout::split_version_key(key) {
                    self.lost.revision(revision);
                }
                self.lost.key(&readable(key));
            }
        }
    }

    fn fact(&mut self, name: &[u8], row: &[u8]) -> crate::Result<()> {
        let (revision, body) = layout::decode_fact(name, row)?;
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

    /// Compares rows with each other and with the mark.
    fn judge(&mut self) {
        if self.identity.is_none() {
            self.damages.push("the store does not say whose it is".to_owned());
        }
        let mark = self.acknowledged().unwrap_or_default();
        if self.compacted < mark.compacted {
            self.damages.push(format!(
                "history was compacted up to revision {}, the store knows of {}",
                mark.compacted, self.compacted
            ));
        }
        let begin = self.compacted.max(mark.compacted);
        let mut lost = std::mem::take(&mut self.lost);
        let mut damages = Vec::new();
        let mut last = begin;
        for entry in self.log.range(begin + 1..).map(|(_, entry)| entry) {
            let jumped = self.jumps.iter().any(|jump| jump.from.0 <= last && jump.to.0 == entry.revision);
            if entry.revision != last + 1 && !jumped {
                damages.push(format!("revisions {} to {} are missing", last + 1, entry.revision - 1));
                lost.revision(last + 1);
                lost.revision(entry.revision - 1);
            }
            last = entry.revision;
        }
        let newest = self.log.last_key_value().map_or(0, |(revision, _)| *revision);
        if newest < mark.revision {
            let (first, last) = (newest + 1, mark.revision);
            damages.push(format!(
                "revisions {first} to {last} are missing; writes up to revision {last} were acknowledged"
            ));
            lost.revision(first);
            lost.revision(last);
        }
        for entry in self.log.range(self.trimmed.max(begin) + 1..).map(|(_, entry)| entry) {
            for revision in [entry.revision, entry.previous] {
                let found = self
                    .versions
                    .get(&entry.key)
                    .is_some_and(|versions| versions.iter().any(|version| version.revision == revision));
                if revision != 0 && !found {
                    damages.push(format!(
                        "`{}` has no object of revision {revision}, which the log names",
                        entry.key
                    ));
                    lost.revision(revision);
                    lost.key(&entry.key);
                }
            }
        }
        if !lost.between.is_empty() {
            // Their revisions are not known: objects that did not change for long are among them.
            lost.revision(1);
            lost.revision(self.revision.max(mark.revision));
        }
        self.lost = lost;
        self.damages.append(&mut damages);
    }
}

/// A key of a keyspace, for people.
fn readable(key: &[u8]) -> String {
    let name = layout::split_version_key(key).and_then(|(head, _)| layout::key_of_head(head));
    match (name, layout::log_revision(key)) {
        (Ok(name), _) => name.to_string(),
        (_, Ok(revision)) => format!("revision {revision}"),
        _ => key.escape_ascii().to_string(),
    }
}

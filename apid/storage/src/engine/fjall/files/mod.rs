//! Verification of fjall's files without fjall: the engine opens only an intact database.
//!
//! # Contract
//!
//! [`verify`] checks every manifest, table and journal of a database against their checksums and the
//! high-water mark, and changes nothing. The cost is one read of all files. [`verify_journals`] does not
//! compare tables with their checksums.
//!
//! # Invariants
//!
//! INVARIANT (only intact databases are opened): fjall trusts its manifests. fjall deletes tables that no
//! manifest names and keyspaces without a known name. fjall truncates journals at the first unreadable batch.
//! So one flipped byte could silently delete rows before [`super::recovery`] runs. [`verify`] detects the
//! damage while all files are unchanged.
//!
//! INVARIANT (unflushed rows are in journals): every acknowledged change above the flushed revision is
//! in a journal. The rows of `log` in journals have consecutive revisions. So a missing journal is detected,
//! even the oldest one, and even where compacted history shows no gap.
//!
//! # Reference
//!
//! fjall 3.1, lsm-tree 3.1 (`Cargo.toml` pins both); `FORMAT.md` lists the parts that this module reads.

pub(super) mod journal;
pub(super) mod manifest;
pub(super) mod table;

use std::io;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use self::journal::JournalEnd;
use self::manifest::ListedTable;
use super::database::map_io_error;
use super::high_water_mark::MarkValues;
use super::{ignore_not_found, layout};
use crate::Error;

/// fjall's folder of keyspaces.
const KEYSPACES: &str = "keyspaces";
/// The number of fjall's internal keyspace.
const INTERNAL_KEYSPACE: u64 = 0;
/// Minimum number of keyspaces: the internal one of fjall, and the three of this engine.
const MIN_KEYSPACES: usize = 4;
/// The content of the version file of a fjall 3 database.
const VERSION: &[u8] = b"FJL\x03";
/// The number of the format in [`VERSION`].
const FORMAT: u8 = 3;
/// The name of the keyspace for history.
const LOG: &str = "log";
/// The name of the keyspace for objects.
const VERSIONS: &str = "versions";

/// The keyspace folders, sorted by number.
pub(super) fn keyspaces(database: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = numbered_entries(&database.join(KEYSPACES), "")?;
    found.retain(|(_, path)| path.is_dir());
    Ok(found)
}

/// Whether a keyspace is internal to fjall.
pub(super) fn is_internal(keyspace: u64) -> bool {
    keyspace == INTERNAL_KEYSPACE
}

/// The entries of a folder whose names are a number and a suffix, sorted by number.
fn numbered_entries(folder: &Path, suffix: &str) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(suffix)?.parse().ok());
        found.extend(number.map(|number| (number, entry.path())));
    }
    found.sort_unstable();
    Ok(found)
}

/// The reason why the engine does not open the files.
#[derive(Debug)]
pub(super) enum FileProblem {
    /// A file is missing or differs from the bytes that were written, or acknowledged revisions are missing. The
    /// affected rows are not known yet.
    Damaged(String),
    /// The files cannot be read.
    Unreadable(Error),
}

impl From<io::Error> for FileProblem {
    fn from(error: io::Error) -> Self {
        FileProblem::Unreadable(map_io_error(&error))
    }
}

impl From<FileProblem> for Error {
    fn from(problem: FileProblem) -> Self {
        match problem {
            FileProblem::Damaged(problem) => Error::Corrupt(problem),
            FileProblem::Unreadable(error) => error,
        }
    }
}

/// The result of a verification that found no damage and no certain loss.
pub(super) struct VerifyOutcome {
    /// The description of a possible loss: acknowledged changes are not in journals, and the high-water mark
    /// does not record that they were flushed to tables.
    ///
    /// A process killed between a flush and the write of the mark leaves the same state without any loss.
    /// Only a scan of all rows shows whether changes are lost.
    pub(super) suspicion: Option<String>,
    /// The end of the newest journal.
    pub(super) journal_end: Option<JournalEnd>,
}

/// Verifies all files of a store with a known high-water mark; see the module documentation.
pub(super) fn verify(database: &Path, mark: &MarkValues) -> Result<VerifyOutcome, FileProblem> {
    check_version(database)?;
    let keyspaces = keyspaces(database)?;
    if keyspaces.len() < MIN_KEYSPACES {
        return Err(FileProblem::Damaged("a keyspace of the database is missing".to_owned()));
    }
    verify_tables(&listed_tables(&keyspaces)?)?;
    verify_journals(database, mark)
}

/// Verifies that the journals and the tables of a store hold all acknowledged changes. The checksums of
/// tables are not verified.
pub(super) fn verify_journals(database: &Path, mark: &MarkValues) -> Result<VerifyOutcome, FileProblem> {
    let keyspaces = keyspaces(database)?;
    let tables = listed_tables(&keyspaces)?;
    let numbers = keyspace_numbers(&keyspaces)?;
    let tables_of = |name: &str| {
        let number = numbers.iter().find(|(known, _)| known == name).map(|(_, number)| *number);
        let number =
            number.ok_or_else(|| FileProblem::Damaged("the name of a keyspace is missing".to_owned()))?;
        let tables = tables.iter().filter(move |(keyspace, ..)| *keyspace == number);
        Ok::<_, FileProblem>(tables.filter_map(|(_, path, listed)| Some((table::metadata(path)?, listed))))
    };
    let newest_in_tables = tables_of(LOG)?
        .filter_map(|(metadata, _)| layout::log_revision(&metadata.last_key).ok())
        .max()
        .unwrap_or_default();
    let persisted = tables_of(VERSIONS)?.map(|(metadata, listed)| metadata.seqno + listed.seqno).max();
    let JournalContent { newest: newest_in_journals, complete_through, end: journal_end } =
        read_journals(database, mark.flushed.versions, persisted)?;
    let newest = newest_in_journals.max(newest_in_tables);
    if newest < mark.revision {
        return Err(FileProblem::Damaged(format!(
            "the journals are readable up to revision {newest}, but writes up to revision {} were acknowledged",
            mark.revision
        )));
    }
    let suspicion = || format!("the journals lack writes after revision {complete_through}");
    Ok(VerifyOutcome { suspicion: (complete_through < mark.revision).then(suspicion), journal_end })
}

/// The tables that the manifests of keyspaces list, each with the number of its keyspace and its path.
fn listed_tables(keyspaces: &[(u64, PathBuf)]) -> Result<Vec<(u64, PathBuf, ListedTable)>, FileProblem> {
    let mut tables = Vec::new();
    for (number, folder) in keyspaces {
        for table in manifest::read(folder)? {
            tables.push((*number, table::path(folder, table.id), table));
        }
    }
    Ok(tables)
}

/// The numbers of the keyspaces, by name.
pub(super) fn keyspace_numbers(keyspaces: &[(u64, PathBuf)]) -> Result<Vec<(String, u64)>, FileProblem> {
    let mut found = Vec::new();
    for (_, folder) in keyspaces.iter().filter(|(number, _)| is_internal(*number)) {
        for listed in manifest::read(folder)? {
            table::salvage(&table::path(folder, listed.id), |row| {
                let number = row.key.strip_prefix(b"n").and_then(|number| <[u8; 8]>::try_from(number).ok());
                if let (Some(number), Some(name)) = (number, row.value) {
                    found.push((String::from_utf8_lossy(&name).into_owned(), u64::from_be_bytes(number)));
                }
            })?;
        }
    }
    Ok(found)
}

/// Checks the version file of fjall.
pub(super) fn check_version(database: &Path) -> Result<(), FileProblem> {
    match ignore_not_found(std::fs::read(database.join("version")))? {
        Some(bytes) if bytes == VERSION => Ok(()),
        Some(bytes) => Err(match newer_format(&bytes) {
            Some(format) => FileProblem::Unreadable(Error::Unavailable(format!(
                "the database has format {format} of fjall, which is newer than the known format {FORMAT}; start the \
                 release of apid that wrote the store"
            ))),
            None => FileProblem::Damaged("fjall's file `version` is damaged".to_owned()),
        }),
        None => Err(FileProblem::Damaged("fjall's file `version` is missing".to_owned())),
    }
}

/// Returns the format number in a version file, if it is one of the three after the known one. One flipped bit of the
/// known number makes none of them, so that damage is not taken for a newer format.
fn newer_format(version: &[u8]) -> Option<u8> {
    match version {
        [b'F', b'J', b'L', format] if (FORMAT + 1..=FORMAT + 3).contains(format) => Some(*format),
        _ => None,
    }
}

/// Verifies tables against the checksums of their manifests, on all processors.
fn verify_tables(tables: &[(u64, PathBuf, ListedTable)]) -> Result<(), FileProblem> {
    let threads = std::thread::available_parallelism().map_or(2, usize::from).min(tables.len().max(1));
    let next = Mutex::new(tables.iter());
    let first_problem = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut buffer = vec![0; 1 << 20];
                while first_problem.lock().is_none() {
                    let Some((_, path, table)) = next.lock().next() else { return };
                    if let Err(problem) = table::verify(path, table.checksum, &mut buffer) {
                        first_problem.lock().get_or_insert(problem);
                    }
                }
            });
        }
    });
    first_problem.into_inner().map_or(Ok(()), Err)
}

/// The readable content of the journals.
struct JournalContent {
    /// The newest revision of a `log` row; 0 when the journals hold none.
    newest: u64,
    /// The revision up to which all rows of `versions` are in tables or journals.
    complete_through: u64,
    /// The end of the newest journal; None when there is no journal.
    end: Option<JournalEnd>,
}

/// Reads all journals. `flushed` is the revision up to which the rows of `versions` are in tables.
///
/// `persisted` is the highest sequence number of fjall in these tables; all rows with sequence numbers up to
/// `persisted` are in tables too.
fn read_journals(
    database: &Path,
    flushed: u64,
    persisted: Option<u64>,
) -> Result<JournalContent, FileProblem> {
    let (mut newest, mut complete_through, mut previous_seqno, mut end) = (0, flushed, None, None);
    let journals = journal::journals(database)?;
    for (index, (_, path)) in journals.iter().enumerate() {
        let mut batches = journal::Batches::open(path, 0)?;
        while let Some(batch) = batches.next()? {
            // The checksum of a batch does not cover its sequence number, which decides which of two rows is
            // newer.
            if previous_seqno.is_some_and(|previous| previous >= batch.seqno) {
                return Err(FileProblem::Damaged(format!(
                    "journal {} has batches out of order after revision {newest}",
                    short_path(path)
                )));
            }
            previous_seqno = Some(batch.seqno);
            let follows_tables =
                persisted.is_some_and(|persisted| batch.seqno <= persisted.saturating_add(1));
            // Only `log` rows have keys of this length. fjall compresses large values, and a `log` row with a
            // long object key is large.
            let log = batch.items.into_iter().filter(|item| item.key.len() == layout::LOG_KEY_BYTES);
            for item in log {
                if let Some(value) = item.value.and_then(journal::Value::decompressed)
                    && let Ok(entry) = layout::decode_entry(&item.key, &value)
                {
                    newest = newest.max(entry.revision);
                    if follows_tables || entry.revision <= complete_through.saturating_add(1) {
                        complete_through = complete_through.max(entry.revision);
                    }
                }
            }
        }
        // Only the newest journal may end inside a batch.
        if index + 1 < journals.len() && journal::has_content(path, batches.end())? {
            return Err(FileProblem::Damaged(format!(
                "journal {} is unreadable after revision {newest}",
                short_path(path)
            )));
        }
        end = Some(batches.into_journal_end(path.clone()));
    }
    Ok(JournalContent { newest, complete_through, end })
}

/// Removes a database whose creation was interrupted before fjall wrote its version. Only for a store without
/// a mark.
///
/// fjall can neither open nor create such a database.
///
/// # Errors
///
/// The database holds data, or reading or removing it failed.
pub(super) fn remove_interrupted_creation(database: &Path) -> Result<(), Error> {
    let reason = match check_version(database) {
        Err(FileProblem::Damaged(reason)) if database.is_dir() => reason,
        Err(FileProblem::Unreadable(error)) => return Err(error),
        _ => return Ok(()),
    };
    let is_empty = || -> io::Result<bool> {
        for (_, path) in journal::journals(database)? {
            if journal::Batches::open(&path, 0)?.next()?.is_some() {
                return Ok(false);
            }
        }
        Ok(ignore_not_found(keyspaces(database))?.unwrap_or_default().is_empty())
    };
    if !is_empty().map_err(|error| map_io_error(&error))? {
        return Err(Error::Corrupt(reason));
    }
    std::fs::remove_dir_all(database).map_err(|error| map_io_error(&error))
}

/// The last three parts of a path, for messages.
pub(super) fn short_path(path: &Path) -> String {
    let parts: Vec<_> = path.iter().rev().take(3).collect();
    parts.into_iter().rev().collect::<PathBuf>().display().to_string()
}

//! fjall's own files, read without fjall: it opens only what was found whole.
//!
//! # Contract
//!
//! [`verify`] reads every manifest, table and journal of a database against their checksums and the high-water mark, and
//! changes nothing. It costs what reading the files costs.
//!
//! # Invariants
//!
//! INVARIANT (nothing is opened that is damaged): fjall itself believes what its manifests say, deletes tables that they
//! do not name and keyspaces that it cannot find the names of, and cuts journals off at the first byte that it cannot read.
//! So a flipped byte could take rows away for good, without a word, before [`super::recovery`] can look. It is met here,
//! while all files are as they were.
//!
//! INVARIANT (what tables do not hold, journals do): every acknowledged change of an object that the mark does not call
//! flushed is in a journal, and the rows of `log` in journals follow each other by one. So a journal that is gone as a whole
//! shows, the oldest one too, also where history is given up and no gap in it would.
//!
//! # Reference
//!
//! fjall 3.1, lsm-tree 3.1 (`Cargo.toml` pins both); `FORMAT.md` says what is read here.

pub(super) mod journal;
pub(super) mod manifest;
pub(super) mod table;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use self::manifest::Listed;
use super::database::translate_io;
use super::layout;
use super::mark::Values;
use crate::Error;

/// fjall's folder of keyspaces, and in it the one of its own facts.
const KEYSPACES: &str = "keyspaces";
const OWN: u64 = 0;
/// The least number of keyspaces of a store: fjall's own, and ours.
const LEAST: usize = 4;
/// The content of the file that marks a database of fjall 3.
const VERSION: &[u8] = b"FJL\x03";
/// The names of the keyspaces of history and of objects.
const LOG: &str = "log";
const VERSIONS: &str = "versions";

/// The folders of keyspaces, by number.
pub(super) fn keyspaces(database: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = numbered(&database.join(KEYSPACES), "")?;
    found.retain(|(_, path)| path.is_dir());
    Ok(found)
}

/// Whether a keyspace is fjall's own.
pub(super) fn is_own(keyspace: u64) -> bool {
    keyspace == OWN
}

/// The entries of a folder whose names are a number and an ending, by number.
fn numbered(folder: &Path, ending: &str) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(ending)?.parse().ok());
        found.extend(number.map(|number| (number, entry.path())));
    }
    found.sort_unstable();
    Ok(found)
}

/// Why the files are not opened.
#[derive(Debug)]
pub(super) enum Trouble {
    /// Something does not have the bytes it was written with. Which rows that concerns is not known here.
    Damaged(String),
    /// Acknowledged revisions are not there.
    Lost(String),
    /// The files cannot be read.
    Unreadable(Error),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Trouble::Unreadable(translate_io(&error))
    }
}

/// Looks at all files of a store whose mark is known. See the module. Answers with a doubt where acknowledged changes are not
/// in journals and the mark does not say that they are in tables: they are if the process was killed after they were flushed
/// and before the mark said so. Only all rows together tell.
pub(super) fn verify(database: &Path, mark: &Values) -> Result<Option<String>, Trouble> {
    check_version(database)?;
    let keyspaces = keyspaces(database)?;
    if keyspaces.len() < LEAST {
        return Err(Trouble::Damaged("a keyspace of the database is missing".to_owned()));
    }
    let mut tables = Vec::new();
    for (number, folder) in &keyspaces {
        for table in manifest::read(folder)? {
            tables.push((*number, table::path(folder, table.id), table));
        }
    }
    verify_tables(&tables)?;
    let numbers = numbers(&keyspaces)?;
    let of = |name: &str| {
        let number = numbers.iter().find(|(known, _)| known == name).map(|(_, number)| *number);
        let number =
            number.ok_or_else(|| Trouble::Damaged("the name of a keyspace is missing".to_owned()))?;
        let tables = tables.iter().filter(move |(of, ..)| *of == number);
        Ok::<_, Trouble>(tables.filter_map(|(_, path, listed)| Some((table::facts(path)?, listed))))
    };
    let in_tables = of(LOG)?
        .filter_map(|(facts, _)| layout::log_revision(&facts.last_key).ok())
        .max()
        .unwrap_or_default();
    let persisted = of(VERSIONS)?.map(|(facts, listed)| facts.seqno + listed.seqno).max();
    let Journaled { newest: in_journals, reached } =
        read_journals(database, mark.flushed.versions, persisted)?;
    let newest = in_journals.max(in_tables);
    if newest < mark.revision {
        return Err(Trouble::Lost(format!(
            "the journals can be read up to revision {newest}, writes up to revision {} were acknowledged",
            mark.revision
        )));
    }
    let doubt = || format!("the journals do not have what was written after revision {reached}");
    Ok((reached < mark.revision).then(doubt))
}

/// The numbers of keyspaces, by name.
pub(super) fn numbers(keyspaces: &[(u64, PathBuf)]) -> Result<Vec<(String, u64)>, Trouble> {
    let mut found = Vec::new();
    for (_, folder) in keyspaces.iter().filter(|(number, _)| is_own(*number)) {
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

/// Checks the file that says which format of fjall this is.
pub(super) fn check_version(database: &Path) -> Result<(), Trouble> {
    match std::fs::read(database.join("version")) {
        Ok(bytes) if bytes == VERSION => Ok(()),
        Ok(_) => Err(Trouble::Damaged("the file of fjall's version is not what was written".to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(Trouble::Damaged("the file of fjall's version is missing".to_owned()))
        }
        Err(error) => Err(error.into()),
    }
}

/// Checks tables against the checksums in manifests, on all processors.
fn verify_tables(tables: &[(u64, PathBuf, Listed)]) -> Result<(), Trouble> {
    let threads = std::thread::available_parallelism().map_or(2, usize::from).min(tables.len().max(1));
    let next = Mutex::new(tables.iter());
    let first_trouble = Arc::new(Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut buffer = vec![0; 1 << 20];
                while first_trouble.lock().is_none() {
                    let Some((_, path, table)) = next.lock().next() else { return };
                    if let Err(trouble) = table::verify(path, table.checksum, &mut buffer) {
                        first_trouble.lock().get_or_insert(trouble);
                    }
                }
            });
        }
    });
    let trouble = first_trouble.lock().take();
    trouble.map_or(Ok(()), Err)
}

/// What journals hold, as far as they can be read.
struct Journaled {
    /// The newest revision of a row of `log`; 0 when there is none.
    newest: u64,
    /// Up to here the rows of `versions` of every revision are in tables or in journals.
    reached: u64,
}

/// `flushed`: up to here the rows of `versions` are in tables. `persisted`: the highest of fjall's numbers there, up to which
/// they are in tables as well.
fn read_journals(database: &Path, flushed: u64, persisted: Option<u64>) -> Result<Journaled, Trouble> {
    let (mut newest, mut reached, mut before) = (0, flushed, None);
    let journals = journal::journals(database)?;
    for (index, (_, path)) in journals.iter().enumerate() {
        let mut batches = journal::Batches::open(path, 0)?;
        while let Some(batch) = batches.next()? {
            // The one number of a batch that its checksum does not cover decides which of two rows is the newer.
            if before.is_some_and(|before| before >= batch.seqno) {
                return Err(Trouble::Damaged(format!(
                    "journal {} has batches out of order after revision {newest}",
                    name(path)
                )));
            }
            before = Some(batch.seqno);
            let all_before = persisted.is_some_and(|persisted| batch.seqno <= persisted.saturating_add(1));
            // Rows of the log have short keys. fjall compresses large values, and that of a row with a long key is one.
            let log = batch.items.into_iter().filter(|item| item.key.len() == layout::LOG_KEY);
            for item in log {
                if let Some(value) = item.value.and_then(journal::Value::decompressed)
                    && let Ok(entry) = layout::decode_entry(&item.key, &value)
                {
                    newest = newest.max(entry.revision);
                    if all_before || entry.revision <= reached.saturating_add(1) {
                        reached = reached.max(entry.revision);
                    }
                }
            }
        }
        // Only the journal that was written to last may end in the middle of a batch.
        if index + 1 < journals.len() && journal::has_content(path, batches.end())? {
            return Err(Trouble::Damaged(format!(
                "journal {} cannot be read after revision {newest}",
                name(path)
            )));
        }
    }
    Ok(Journaled { newest, reached })
}

/// Removes a database whose making was interrupted so early that fjall can neither open it nor make it: its version is not
/// written, and nothing else is. Only for a store that has no mark.
///
/// # Errors
///
/// It holds something, or it cannot be looked at or removed.
pub(super) fn remove_unmade(database: &Path) -> Result<(), Error> {
    let why = match check_version(database) {
        Err(Trouble::Damaged(why) | Trouble::Lost(why)) if database.is_dir() => why,
        Err(Trouble::Unreadable(error)) => return Err(error),
        _ => return Ok(()),
    };
    let is_empty = || -> io::Result<bool> {
        for (_, path) in journal::journals(database)? {
            if journal::Batches::open(&path, 0)?.next()?.is_some() {
                return Ok(false);
            }
        }
        let folders = match keyspaces(database) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            folders => folders?,
        };
        Ok(folders.is_empty())
    };
    if !is_empty().map_err(|error| translate_io(&error))? {
        return Err(Error::Corrupt(why));
    }
    std::fs::remove_dir_all(database).map_err(|error| translate_io(&error))
}

/// The last parts of a path, for people.
pub(super) fn name(path: &Path) -> String {
    let parts: Vec<_> = path.iter().rev().take(3).collect();
    parts.into_iter().rev().collect::<PathBuf>().display().to_string()
}

//! Offline tools for a store that no process serves: check, repair, backup, restore.
//!
//! # Contract
//!
//! Each function takes the lock of the store, and fails while a process holds it.
//!
//! - [`check`] changes nothing.
//! - [`repair`] builds a new store from all readable data beside the old one, and exchanges their names. The
//!   old store stays as `NAME.damaged`.
//! - [`backup`] needs an intact store.
//! - [`restore`] creates a store in an unused directory.
//!
//! # Invariants
//!
//! INVARIANT (no revision is reused): a repaired or restored store continues above every revision of the old
//! store, and of other stores restored from the same file ([`resume_revision`]). The earlier history is
//! compacted. Lists and watches from before the repair or restore get `Compacted`, and no new write reuses a
//! revision that a client has seen.

mod archive;
mod build;

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

pub use self::archive::{
    ArchiveCounts, ArchiveEncoder, ArchiveError, ArchiveFile, ArchiveProblem, ArchiveReader,
};
use self::build::StoreBuilder;
use super::database::Tables;
use super::high_water_mark::MarkValues;
use super::reader::RowLimits;
pub use super::survey::LossReport;
use super::survey::Survey;
use super::{Identity, OpenError, parent, reader, recovery};
use crate::{Error, Revision};

/// Minimum difference between the new revisions of a repaired or restored store and all earlier revisions.
///
/// It exceeds the number of writes that a store makes between its last backup and the loss of the store.
pub const REVISION_GAP: u64 = 1 << 32;
/// Number of low bits of a revision below the seconds of the clock. A store makes fewer than 2^22 writes a
/// second.
///
/// The seconds since 1970, shifted by this number of bits, stay below 2^53 until 2038. Clients that read
/// numbers as doubles lose no digit.
const REVISION_BITS_PER_SECOND: u32 = 22;

/// The revision after which a repaired or restored store continues.
///
/// `newest` is the newest known earlier revision, `now` the seconds since 1970. A file that is restored twice
/// makes two stores. The clock puts the revisions of the second store above all revisions that the first
/// store has served.
pub fn resume_revision(newest: u64, now: u64) -> u64 {
    newest.saturating_add(REVISION_GAP).max(now << REVISION_BITS_PER_SECOND)
}

/// Size in bytes of the block cache during an offline operation.
const CACHE_BYTES: u64 = 16 << 20;
/// Limits of one read of rows for a backup.
const PAGE_LIMITS: RowLimits = RowLimits { rows: 1000, bytes: 16 << 20 };

/// A number of objects with encrypted values. Its text is a line about their keys, or nothing without such objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncryptedObjects(pub u64);

impl fmt::Display for EncryptedObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            count => writeln!(
                f,
                "{count} objects are encrypted: a server needs the same `--encryption-provider-config` to read them"
            ),
        }
    }
}

/// The content and the damage of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The identity of the store, if readable.
    pub identity: Option<Identity>,
    /// The newest revision.
    pub revision: u64,
    /// The compacted revision.
    pub compacted: u64,
    /// Number of live objects.
    pub objects: usize,
    /// Number of live objects with encrypted values.
    pub encrypted: EncryptedObjects,
    /// Size in bytes of the tables and of the readable parts of journals.
    pub bytes: u64,
    /// Number of changes in the retained history.
    pub changes: usize,
    /// Number of table files.
    pub tables: usize,
    /// Number of journal files.
    pub journals: usize,
    /// Findings that lose no data, such as an incomplete batch at the end of the newest journal.
    pub remarks: Vec<String>,
    /// The first damaged places; empty for an intact store.
    pub damaged_places: Vec<String>,
    /// The number of further damaged places.
    pub more_damaged_places: usize,
    /// The lost data.
    pub lost: LossReport,
}

impl Report {
    fn from_survey(survey: &Survey) -> Report {
        let (objects, encrypted) = survey.count_live_objects();
        Report {
            identity: survey.identity.clone(),
            revision: survey.revision,
            compacted: survey.compacted,
            objects,
            encrypted: EncryptedObjects(encrypted as u64),
            bytes: survey.bytes,
            changes: survey.log.range(survey.compacted + 1..).count(),
            tables: survey.tables.len(),
            journals: survey.journals,
            remarks: survey.remarks.clone(),
            damaged_places: survey.damaged_places.named.clone(),
            more_damaged_places: survey.damaged_places.more,
            lost: survey.lost.clone(),
        }
    }

    /// Whether no damage and no loss was found.
    pub fn is_sound(&self) -> bool {
        self.damaged_places.is_empty() && self.lost.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(identity) = &self.identity {
            writeln!(f, "made with {identity}")?;
        }
        writeln!(
            f,
            "revision {}, history after {}: {} changes; {} objects",
            self.revision, self.compacted, self.changes, self.objects
        )?;
        writeln!(f, "{} tables and {} journals, {} MiB", self.tables, self.journals, self.bytes >> 20)?;
        write!(f, "{}", self.encrypted)?;
        for remark in &self.remarks {
            writeln!(f, "harmless: {remark}")?;
        }
        for damage in &self.damaged_places {
            writeln!(f, "damaged: {damage}")?;
        }
        if self.more_damaged_places > 0 {
            writeln!(f, "damaged: {} more places", self.more_damaged_places)?;
        }
        write!(f, "{}", self.lost)?;
        if self.is_sound() {
            return writeln!(f, "sound");
        }
        if self.lost.is_empty() {
            writeln!(f, "lost: nothing")?;
        } else {
            writeln!(
                f,
                "objects written there have an earlier state or are missing; objects deleted there may exist again"
            )?;
        }
        writeln!(f, "kept: all other writes, {} objects\nnot sound", self.objects)
    }
}

/// Reads a whole store and reports its content and damage. Changes nothing.
///
/// # Errors
///
/// No store exists, a process holds the lock, or the files are unreadable. Damage is not an error.
pub fn check(dir: &Path) -> Result<Report, OpenError> {
    let _lock = lock(dir)?;
    Ok(Report::from_survey(&Survey::read(dir)?))
}

/// The result of [`repair`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepairOutcome {
    /// The store was intact and is unchanged.
    Sound(Report),
    /// A new store holds all readable data.
    Rebuilt {
        /// The report on the old store: its content and its damage.
        report: Report,
        /// The revision of the new store.
        revision: Revision,
        /// The number of objects in the new store.
        objects: usize,
        /// The path of the damaged store.
        kept: PathBuf,
    },
}

/// Builds a new store from the newest readable versions, including versions behind unreadable parts.
///
/// Each object is complete, but the combination of objects may never have existed at one moment. The repair
/// holds keys in memory, and no objects. `identity` applies to a store without a readable identity; `now` is
/// for [`resume_revision`].
///
/// # Errors
///
/// No store exists, a process holds the lock, the files are unreadable, no identity is known, or building the
/// new store fails. The old store is then unchanged.
pub fn repair(dir: &Path, identity: Option<&Identity>, now: u64) -> Result<RepairOutcome, OpenError> {
    let lock = lock(dir)?;
    let mut survey = Survey::read(dir)?;
    let report = Report::from_survey(&survey);
    if report.is_sound() {
        return Ok(RepairOutcome::Sound(report));
    }
    let acknowledged = survey.acknowledged().unwrap_or_default();
    let newest = survey.revision.max(acknowledged.revision);
    let (unfinished, kept) = (unused_sibling_path(dir, "repaired")?, unused_sibling_path(dir, "damaged")?);
    let identity = survey.identity.clone().or_else(|| identity.cloned()).ok_or(OpenError::MissingIdentity)?;
    let mut build = StoreBuilder::begin(&unfinished, &identity)?;
    let mut objects = 0;
    let fill_result = survey.read_objects(|key, revision, value| {
        objects += 1;
        build.add(key, revision, value)
    });
    let build_result = fill_result
        .map_err(OpenError::from)
        .and_then(|()| build.finish(newest, resume_revision(newest, now)));
    let revision = build_result.inspect_err(|_| {
        // The unfinished store holds nothing that the old one lacks.
        let _ = std::fs::remove_dir_all(&unfinished);
    })?;
    replace(dir, &unfinished, &kept)?;
    drop(lock);
    Ok(RepairOutcome::Rebuilt { report, revision, objects, kept })
}

/// The description of a backup file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupSummary {
    /// The identity of the store.
    pub identity: Identity,
    /// The revision of the store at the backup.
    pub revision: Revision,
    /// The number of objects.
    pub objects: u64,
    /// The number of objects with encrypted values.
    pub encrypted: EncryptedObjects,
    /// Size of the file in bytes.
    pub bytes: u64,
}

/// Writes the objects of an intact store to a new file.
///
/// # Errors
///
/// No store exists, a process holds the lock, the store is damaged or unreadable, the file exists already, or
/// writing the file fails.
pub fn backup(dir: &Path, file: &Path) -> Result<BackupSummary, OpenError> {
    let _lock = lock(dir)?;
    let (tables, mark) = open_intact(dir)?;
    let recovered = recovery::compare(&tables, mark)?;
    let identity = recovery::identity(&tables)?;
    let (mut file, mut buffer) = (ArchiveFile::create(file)?, Vec::new());
    let mut encoder = ArchiveEncoder::begin(&identity, recovered.revision, &mut buffer);
    let (mut start, mut more) = (String::new(), true);
    while more {
        let (rows, has_more) = reader::range_at(&tables, "", &start, PAGE_LIMITS, recovered.revision)?;
        more = has_more;
        for row in rows {
            encoder.add(&row.key, row.revision.0, &row.value, &mut buffer);
            file.write(&buffer)?;
            buffer.clear();
            start = format!("{}\0", row.key);
        }
    }
    let counts = encoder.finish(&mut buffer);
    file.write(&buffer)?;
    file.finish()?;
    Ok(counts.summary(identity, Revision(recovered.revision)))
}

/// The identity of an intact store.
///
/// # Errors
///
/// No store exists, a process holds the lock, or the store is damaged or unreadable.
pub fn identity(dir: &Path) -> Result<Identity, OpenError> {
    let _lock = lock(dir)?;
    let (tables, _) = open_intact(dir)?;
    Ok(recovery::identity(&tables)?)
}

/// Verifies the files of a store and opens its tables.
fn open_intact(dir: &Path) -> Result<(Tables, MarkValues), OpenError> {
    let mark = super::read_mark(&dir.join("mark"))?
        .ok_or_else(|| Error::Corrupt("the high-water mark file `mark` is missing".to_owned()))?;
    let journal_end = super::verify_files(dir, &mark.values())?;
    Ok((Tables::open(&dir.join("fjall"), CACHE_BYTES, journal_end)?, mark.values()))
}

/// The result of [`restore`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreOutcome {
    /// The content of the backup file.
    pub archived: BackupSummary,
    /// The revision of the new store.
    pub revision: Revision,
}

/// Creates a store from a file that [`backup`] wrote. `now` is for [`resume_revision`].
///
/// # Errors
///
/// A store exists already, the file is incomplete, or building the store fails. A failure leaves no store.
pub fn restore(file: &Path, dir: &Path, now: u64) -> Result<RestoreOutcome, OpenError> {
    if dir.try_exists()? {
        return Err(OpenError::Exists(dir.to_owned()));
    }
    let mut archive = ArchiveReader::open(file)?;
    let (identity, newest) = (archive.identity().clone(), archive.revision());
    let unfinished = unused_sibling_path(dir, "restored")?;
    let mut build = StoreBuilder::begin(&unfinished, &identity)?;
    let fill_result = (|| {
        while let Some((key, revision, value)) = archive.next_object()? {
            build.add(&key, revision, &value)?;
        }
        Ok::<(), OpenError>(())
    })();
    let build_result = fill_result.and_then(|()| build.finish(newest, resume_revision(newest, now)));
    let revision = build_result.inspect_err(|_| {
        // The unfinished store holds nothing that the file lacks.
        let _ = std::fs::remove_dir_all(&unfinished);
    })?;
    rename(&unfinished, dir)?;
    let archived = archive.counts().summary(identity, Revision(newest));
    Ok(RestoreOutcome { archived, revision })
}

/// Locks an existing store.
fn lock(dir: &Path) -> Result<File, OpenError> {
    if !dir.is_dir() {
        return Err(OpenError::NotFound(dir.to_owned()));
    }
    super::lock(dir)
}

/// An unused path in the parent of a directory: its name with a suffix, and a number if necessary.
fn unused_sibling_path(dir: &Path, suffix: &str) -> io::Result<PathBuf> {
    for number in 0.. {
        let mut name = dir.as_os_str().to_owned();
        name.push(if number == 0 { format!(".{suffix}") } else { format!(".{suffix}-{number}") });
        let path = PathBuf::from(name);
        if !path.try_exists()? {
            return Ok(path);
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Exchanges a store for a new one, and renames the old one to `kept`.
///
/// The exchange is atomic where the file system supports it. Then a server that starts during the exchange
/// does not find the store missing, and does not create an empty store.
fn replace(dir: &Path, new: &Path, kept: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    match renameat_with(CWD, new, CWD, dir, RenameFlags::EXCHANGE) {
        Ok(()) => rename(new, kept),
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            rename(dir, kept)?;
            rename(new, dir)
        }
        Err(error) => Err(error.into()),
    }
}

/// Renames a file or directory and syncs its parent.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::rename(from, to)?;
    File::open(parent(to))?.sync_all()
}

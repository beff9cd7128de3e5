//! What is done to a store that no process serves: looked at, mended, written to one file, made from one.
//!
//! # Contract
//!
//! Each takes the lock of the store and refuses while a process has it. [`check`] changes nothing. [`repair`] makes a new
//! store of what can be read beside the old one and then changes their names: the old one stays, as `NAME.damaged`.
//! [`backup`] needs a sound store. [`restore`] makes a store where there is none.
//!
//! # Invariants
//!
//! INVARIANT (no number twice): a store that was repaired or restored goes on above every revision that it, or another
//! store restored from the same file, can have been at ([`go_on_after`]), and history before is given up: lists and watches that clients began before are refused with
//! `Compacted`, and no new write gets a number that a client has seen.

mod archive;
mod build;

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use self::archive::{Reader, Writer};
use self::build::Build;
use super::database::Tables;
pub use super::survey::Lost;
use super::survey::Survey;
use super::{Identity, OpenError, reader, recovery};
use crate::{Error, Revision};

/// How far above everything before a repaired or restored store goes on at least: more writes than a store makes between a
/// backup and its loss.
pub const RAISE: u64 = 1 << 32;
/// Revisions for a second of the clock, as a power of two: more than a store ever writes in one. Seconds since 1970 times
/// this stay below 2^53 until 2038, and so exact in every client.
const PER_SECOND: u32 = 22;

/// The revision after which a repaired or restored store goes on. `newest` is what is known of the revisions before;
/// `now` are seconds since 1970: a file that is restored twice makes two stores, and the second must be above what the
/// first has served since.
pub fn go_on_after(newest: u64, now: u64) -> u64 {
    newest.saturating_add(RAISE).max(now << PER_SECOND)
}

/// Bytes of blocks that are kept in memory meanwhile.
const CACHE: u64 = 16 << 20;
/// Rows that are read at a time.
const PAGE: usize = 1000;

/// What a store is made of, and what is wrong with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Whose it is, if that can be read.
    pub identity: Option<Identity>,
    /// The newest revision.
    pub revision: u64,
    /// The newest revision whose history is given up.
    pub compacted: u64,
    /// Objects that are there now.
    pub objects: usize,
    /// Their bytes are not counted: bytes of files, written ones.
    pub bytes: u64,
    /// Changes in the history that is kept.
    pub changes: usize,
    /// Files.
    pub tables: usize,
    /// Files.
    pub journals: usize,
    /// What is not as it was written and does not matter.
    pub remarks: Vec<String>,
    /// What is damaged, or the first of it. None: the store is sound.
    pub damages: Vec<String>,
    /// How much more is damaged.
    pub more_damages: usize,
    /// What is missing.
    pub lost: Lost,
}

impl Report {
    fn of(survey: &Survey) -> Report {
        Report {
            identity: survey.identity.clone(),
            revision: survey.revision,
            compacted: survey.compacted,
            objects: survey.live(),
            bytes: survey.bytes,
            changes: survey.log.range(survey.compacted + 1..).count(),
            tables: survey.tables.len(),
            journals: survey.journals,
            remarks: survey.remarks.clone(),
            damages: survey.damages.named.clone(),
            more_damages: survey.damages.more,
            lost: survey.lost.clone(),
        }
    }

    /// Whether nothing is damaged.
    pub fn is_sound(&self) -> bool {
        self.damages.is_empty() && self.lost.is_nothing()
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
        for remark in &self.remarks {
            writeln!(f, "harmless: {remark}")?;
        }
        for damage in &self.damages {
            writeln!(f, "damaged: {damage}")?;
        }
        if self.more_damages > 0 {
            writeln!(f, "damaged: {} more places", self.more_damages)?;
        }
        write!(f, "{}", self.lost)?;
        if self.is_sound() {
            return writeln!(f, "sound");
        }
        if self.lost.is_nothing() {
            writeln!(f, "lost: nothing")?;
        } else {
            writeln!(
                f,
                "what was written there is as it was before, or missing, and what was deleted there may be back"
            )?;
        }
        writeln!(f, "kept: all else that was written, {} objects\nnot sound", self.objects)
    }
}

/// Reads all of a store and says what it finds. Changes nothing.
///
/// # Errors
///
/// There is no store, a process has it, or its files cannot be read at all. Damage is no error.
pub fn check(dir: &Path) -> Result<Report, OpenError> {
    let _lock = lock(dir)?;
    Ok(Report::of(&Survey::of(dir)?))
}

/// What [`repair`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repaired {
    /// The store was sound and is as it was.
    Sound(Report),
    /// A new store holds what could be read.
    Mended {
        /// What was wrong.
        report: Report,
        /// The revision of the new store.
        revision: Revision,
        /// Objects in it.
        objects: usize,
        /// Where the damaged one is.
        kept: PathBuf,
    },
}

/// Makes a new store of the newest versions that can be read, also of those behind what cannot be: each object is whole,
/// and objects may be together that never were at one moment. Holds keys in memory meanwhile, and no objects. `identity`
/// is for a store that cannot say whose it is, `now` for [`go_on_after`].
///
/// # Errors
///
/// Like [`check`]; when nobody says whose the store is; and when the new store cannot be made. The old one is as it was
/// then.
pub fn repair(dir: &Path, identity: Option<&Identity>, now: u64) -> Result<Repaired, OpenError> {
    let lock = lock(dir)?;
    let mut survey = Survey::of(dir)?;
    let report = Report::of(&survey);
    if report.is_sound() {
        return Ok(Repaired::Sound(report));
    }
    let acknowledged = survey.acknowledged().unwrap_or_default();
    let newest = survey.revision.max(acknowledged.revision);
    let (unfinished, kept) = (beside(dir, "repaired")?, beside(dir, "damaged")?);
    let identity = survey.identity.clone().or_else(|| identity.cloned()).ok_or(OpenError::Unidentified)?;
    let mut build = Build::begin(&unfinished, &identity)?;
    let mut objects = 0;
    let filled = survey.objects(|key, revision, value| {
        objects += 1;
        build.add(key, revision, value)
    });
    let built = filled.map_err(OpenError::from).and_then(|()| build.finish(newest, go_on_after(newest, now)));
    let revision = built.inspect_err(|_| {
        // It holds nothing that is not in the old one.
        let _ = std::fs::remove_dir_all(&unfinished);
    })?;
    replace(dir, &unfinished, &kept)?;
    drop(lock);
    Ok(Repaired::Mended { report, revision, objects, kept })
}

/// What was written to a file, or read from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Archived {
    /// Whose the store is.
    pub identity: Identity,
    /// The revision of the objects.
    pub revision: Revision,
    /// How many there are.
    pub objects: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Writes the objects of a sound store to a new file.
///
/// # Errors
///
/// Like [`check`]; and when the store is damaged, or the file cannot be written or is there already.
pub fn backup(dir: &Path, file: &Path) -> Result<Archived, OpenError> {
    let _lock = lock(dir)?;
    let database = dir.join("fjall");
    let mark = super::read_mark(&dir.join("mark"))?
        .ok_or_else(|| Error::Corrupt("the high-water mark is missing".to_owned()))?;
    super::look(dir, &mark.values())?;
    let tables = Tables::open(&database, CACHE)?;
    let standing = recovery::compare(&tables, mark.values())?;
    let identity = recovery::identity(&tables)?;
    let mut writer = Writer::create(file, &identity, standing.revision)?;
    let (mut start, mut more) = (String::new(), true);
    while more {
        let (rows, rest) = reader::range_at(&tables, "", &start, PAGE, standing.revision)?;
        more = rest;
        for row in rows {
            writer.add(&row.key, row.revision.0, &row.value)?;
            start = format!("{}\0", row.key);
        }
    }
    let (objects, bytes) = writer.finish()?;
    Ok(Archived { identity, revision: Revision(standing.revision), objects, bytes })
}

/// What [`restore`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// What the file holds.
    pub archived: Archived,
    /// The revision of the new store.
    pub revision: Revision,
}

/// Makes a store from a file that [`backup`] wrote. `now` is for [`go_on_after`].
///
/// # Errors
///
/// There is a store already, the file is not whole, or the store cannot be made. Then there is none.
pub fn restore(file: &Path, dir: &Path, now: u64) -> Result<Restored, OpenError> {
    if dir.try_exists()? {
        let why = format!("`{}` is there already: a store is restored where there is none", dir.display());
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, why).into());
    }
    let mut archive = Reader::open(file)?;
    let (identity, newest) = (archive.identity().clone(), archive.revision());
    let unfinished = beside(dir, "restored")?;
    let mut build = Build::begin(&unfinished, &identity)?;
    let filled = (|| {
        while let Some((key, revision, value)) = archive.next()? {
            build.add(&key, revision, &value)?;
        }
        Ok::<(), OpenError>(())
    })();
    let built = filled.and_then(|()| build.finish(newest, go_on_after(newest, now)));
    let revision = match built {
        Ok(revision) => revision,
        Err(error) => {
            // It holds nothing that is not in the file.
            let _ = std::fs::remove_dir_all(&unfinished);
            return Err(error);
        }
    };
    rename(&unfinished, dir)?;
    let (objects, bytes) = archive.read();
    let archived = Archived { identity, revision: Revision(newest), objects, bytes };
    Ok(Restored { archived, revision })
}

/// The lock of a store that is there.
fn lock(dir: &Path) -> Result<File, OpenError> {
    if !dir.is_dir() {
        let why = format!("there is no store in `{}`", dir.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, why).into());
    }
    super::lock(dir)
}

/// A name beside a directory that is free.
fn beside(dir: &Path, what: &str) -> io::Result<PathBuf> {
    for number in 0.. {
        let mut name = dir.as_os_str().to_owned();
        name.push(if number == 0 { format!(".{what}") } else { format!(".{what}-{number}") });
        let path = PathBuf::from(name);
        if !path.try_exists()? {
            return Ok(path);
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Puts a new store in the place of one, and the old one aside: in one step where the file system can, so that there is
/// no moment without a store in which a server would found an empty one.
fn replace(dir: &Path, new: &Path, aside: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    match renameat_with(CWD, new, CWD, dir, RenameFlags::EXCHANGE) {
        Ok(()) => rename(new, aside),
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            rename(dir, aside)?;
            rename(new, dir)
        }
        Err(error) => Err(error.into()),
    }
}

/// Renames a directory and syncs the one it is in.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::rename(from, to)?;
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

//! The backup file, as `FORMAT.md` specifies. Reading detects every change and every truncation.
//!
//! [`ArchiveEncoder`] makes the bytes, which an [`ArchiveFile`] stores and a server sends to a client.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::{BackupSummary, EncryptedObjects, Identity, rename};
use crate::{ENCRYPTED_PREFIX, MAX_ENCRYPTION_OVERHEAD, MAX_KEY, MAX_VALUE, Revision};

const MAGIC: &[u8; 16] = b"apid backup\nv1\n\0";
const ROW: u8 = 1;
const END: u8 = 2;

/// The reason why a backup file is not usable.
#[derive(Debug, thiserror::Error)]
#[error("the backup file `{}` {problem}", .path.display())]
pub struct ArchiveError {
    /// The backup file.
    pub path: PathBuf,
    /// The problem of the file.
    pub problem: ArchiveProblem,
}

/// The problem of a backup file, as the predicate of a sentence.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveProblem {
    /// A file with the name exists, or the file cannot be created.
    #[error("cannot be created: {0}")]
    Create(io::Error),
    /// The file cannot be written.
    #[error("cannot be written: {0}")]
    Write(io::Error),
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Read(io::Error),
    /// The path names no file.
    #[error("does not exist")]
    Missing,
    /// The file is no backup, or one of a newer release.
    #[error("has no supported format: only files of `apid store backup` can be restored")]
    Format,
    /// The file ends before the trailer.
    #[error("is truncated: make or use another backup")]
    Truncated,
    /// A checksum is wrong, or a length is impossible.
    #[error("is damaged, a checksum is wrong: make or use another backup")]
    Damaged,
}

impl ArchiveProblem {
    fn of_read(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => ArchiveProblem::Truncated,
            io::ErrorKind::NotFound => ArchiveProblem::Missing,
            _ => ArchiveProblem::Read(error),
        }
    }

    fn of(self, path: &Path) -> ArchiveError {
        ArchiveError { path: path.to_owned(), problem: self }
    }
}

type Result<T, E = ArchiveProblem> = std::result::Result<T, E>;

/// The size of a backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArchiveCounts {
    /// Number of objects.
    pub objects: u64,
    /// Number of objects with encrypted values.
    pub encrypted: EncryptedObjects,
    /// Number of bytes.
    pub bytes: u64,
}

impl ArchiveCounts {
    fn add_object(&mut self, value: &[u8]) {
        self.objects += 1;
        self.encrypted.0 += u64::from(value.starts_with(ENCRYPTED_PREFIX));
    }

    /// The description of a backup of this size.
    pub fn summary(self, identity: Identity, revision: Revision) -> BackupSummary {
        let ArchiveCounts { objects, encrypted, bytes } = self;
        BackupSummary { identity, revision, objects, encrypted, bytes }
    }
}

/// Encodes a backup: header, objects, trailer.
#[derive(Debug)]
pub struct ArchiveEncoder {
    counts: ArchiveCounts,
    crc: u32,
}

impl ArchiveEncoder {
    /// Begins a backup of the objects at a revision, and appends its header.
    pub fn begin(identity: &Identity, revision: u64, out: &mut Vec<u8>) -> ArchiveEncoder {
        let mut encoder = ArchiveEncoder { counts: ArchiveCounts::default(), crc: 0 };
        let text = format!("{}\n{}", identity.preset, identity.api_domain);
        encoder.record(
            &[MAGIC, &revision.to_be_bytes(), &encoded_length(text.as_bytes()), text.as_bytes()],
            out,
        );
        encoder
    }

    /// Appends an object.
    pub fn add(&mut self, key: &str, revision: u64, value: &[u8], out: &mut Vec<u8>) {
        let lengths = [encoded_length(key.as_bytes()), encoded_length(value)].concat();
        self.record(&[&[ROW], &revision.to_be_bytes(), &lengths, key.as_bytes(), value], out);
        self.counts.add_object(value);
    }

    /// Appends the trailer. Returns the size of the whole backup.
    pub fn finish(mut self, out: &mut Vec<u8>) -> ArchiveCounts {
        let objects = self.counts.objects;
        self.record(&[&[END], &objects.to_be_bytes()], out);
        self.counts
    }

    /// Appends a record and the running checksum over all records so far.
    fn record(&mut self, parts: &[&[u8]], out: &mut Vec<u8>) {
        for part in parts {
            self.crc = crc32c::crc32c_append(self.crc, part);
            out.extend_from_slice(part);
            self.counts.bytes += part.len() as u64;
        }
        self.counts.bytes += 4;
        out.extend_from_slice(&self.crc.to_be_bytes());
    }
}

fn encoded_length(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes()
}

/// A backup file that has a temporary name until it is complete. The file mode is 0600, because backups
/// contain secrets.
#[derive(Debug)]
pub struct ArchiveFile {
    file: BufWriter<File>,
    path: PathBuf,
    unfinished: PathBuf,
}

impl ArchiveFile {
    /// Creates the file under the name `PATH.new`. Replaces such a file if no process writes it: a killed process
    /// has left it.
    ///
    /// # Errors
    ///
    /// The path exists already or ends with a slash, another process writes the file, or the file cannot be created.
    pub fn create(path: &Path) -> Result<ArchiveFile, ArchiveError> {
        let unfinished = path.with_added_extension("new");
        let file = check_new(path).and_then(|()| create_locked(&unfinished));
        let file = file.map_err(|error| ArchiveProblem::Create(error).of(path))?;
        Ok(ArchiveFile { file: BufWriter::with_capacity(1 << 20, file), path: path.to_owned(), unfinished })
    }

    /// Appends bytes.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), ArchiveError> {
        self.file.write_all(bytes).map_err(|error| ArchiveProblem::Write(error).of(&self.path))
    }

    /// Reads the whole file back and compares its checksums.
    ///
    /// # Errors
    ///
    /// The file is incomplete or damaged.
    pub fn verify(&mut self) -> Result<BackupSummary, ArchiveError> {
        self.file.flush().map_err(|error| ArchiveProblem::Write(error).of(&self.path))?;
        let mut reader = ArchiveReader::open(&self.unfinished)?;
        while reader.next_object()?.is_some() {}
        Ok(reader.counts().summary(reader.identity().clone(), Revision(reader.revision())))
    }

    /// Syncs and renames the file.
    ///
    /// # Errors
    ///
    /// The file cannot be synced or renamed.
    pub fn finish(mut self) -> Result<(), ArchiveError> {
        let mut finish = || {
            self.file.flush()?;
            self.file.get_ref().sync_all()?;
            rename(&self.unfinished, &self.path)
        };
        finish().map_err(|error| ArchiveProblem::Write(error).of(&self.path))
    }

    /// Removes the incomplete file.
    pub fn discard(self) {
        let _ = std::fs::remove_file(&self.unfinished);
    }
}

/// Rejects a path that exists already or ends with a slash.
fn check_new(path: &Path) -> io::Result<()> {
    if path.try_exists()? {
        let reason = "the file exists; choose another name";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, reason));
    }
    if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
        let reason = "the path is a folder; name a file";
        return Err(io::Error::new(io::ErrorKind::IsADirectory, reason));
    }
    Ok(())
}

/// Creates a file and locks it until the file is closed. Empties an existing file that is not locked.
///
/// A backup contains secrets. So a file of another user and a file with a second name are rejected, and the file is
/// readable by its owner only.
fn create_locked(path: &Path) -> io::Result<File> {
    let no_symlinks = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or_default();
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(no_symlinks)
        .open(path)?;
    let is_same_file = || -> io::Result<bool> {
        let (opened, named) = (file.metadata()?, path.symlink_metadata()?);
        Ok((opened.dev(), opened.ino()) == (named.dev(), named.ino()))
    };
    // The other process may have renamed its complete file before the lock was taken.
    if file.try_lock().is_err() || !is_same_file().unwrap_or(false) {
        let reason = format!("another backup is writing `{}`; wait for its end", path.display());
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, reason));
    }
    let opened = file.metadata()?;
    if opened.uid() != rustix::process::geteuid().as_raw() || opened.nlink() != 1 {
        let reason = format!(
            "`{}` belongs to another user or has a second name; remove the file, or choose another file",
            path.display()
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    }
    file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    file.set_len(0)?;
    Ok(file)
}

/// A reader of backup files.
#[derive(Debug)]
pub struct ArchiveReader {
    path: PathBuf,
    file: BufReader<File>,
    identity: Identity,
    revision: u64,
    counts: ArchiveCounts,
    crc: u32,
    /// Whether the trailer was read.
    ended: bool,
}

impl ArchiveReader {
    /// Opens the file of a backup, and reads its header.
    ///
    /// # Errors
    ///
    /// The file does not exist, cannot be read, or is no backup.
    pub fn open(path: &Path) -> Result<ArchiveReader, ArchiveError> {
        let file = File::open(path).map_err(|error| ArchiveProblem::of_read(error).of(path))?;
        let mut reader = ArchiveReader {
            path: path.to_owned(),
            file: BufReader::with_capacity(1 << 20, file),
            identity: Identity { preset: String::new(), api_domain: String::new() },
            revision: 0,
            counts: ArchiveCounts::default(),
            crc: 0,
            ended: false,
        };
        reader.read_header().map_err(|problem| problem.of(path))?;
        Ok(reader)
    }

    fn read_header(&mut self) -> Result<()> {
        if self.read_array::<16>()? != *MAGIC {
            return Err(ArchiveProblem::Format);
        }
        self.revision = u64::from_be_bytes(self.read_array()?);
        let text = self.read_sized(MAX_KEY)?;
        self.check_crc()?;
        let text = String::from_utf8(text).map_err(|_| ArchiveProblem::Damaged)?;
        let (preset, api_domain) = text.split_once('\n').ok_or(ArchiveProblem::Damaged)?;
        self.identity = Identity { preset: preset.to_owned(), api_domain: api_domain.to_owned() };
        Ok(())
    }

    /// The identity of the backed-up store.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The revision of the backup.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The size of the part that is read so far.
    pub fn counts(&self) -> ArchiveCounts {
        self.counts
    }

    /// Reads the next object: key, revision, bytes. None after the last one, if the file is complete.
    ///
    /// # Errors
    ///
    /// The file is truncated or damaged.
    pub fn next_object(&mut self) -> Result<Option<(String, u64, Bytes)>, ArchiveError> {
        self.read_object().map_err(|problem| problem.of(&self.path))
    }

    fn read_object(&mut self) -> Result<Option<(String, u64, Bytes)>> {
        if self.ended {
            return Ok(None);
        }
        match self.read_array()? {
            [ROW] => {
                let revision = u64::from_be_bytes(self.read_array()?);
                let lengths = [self.read_array()?, self.read_array()?].map(u32::from_be_bytes);
                let [key, value] = lengths.map(|length| usize::try_from(length).unwrap_or(usize::MAX));
                if key > MAX_KEY || value > MAX_VALUE + MAX_ENCRYPTION_OVERHEAD || revision > self.revision {
                    return Err(ArchiveProblem::Damaged);
                }
                let key = String::from_utf8(self.read_bytes(key)?).map_err(|_| ArchiveProblem::Damaged)?;
                let value = self.read_bytes(value)?;
                self.check_crc()?;
                self.counts.add_object(&value);
                Ok(Some((key, revision, value.into())))
            }
            [END] => {
                let objects = u64::from_be_bytes(self.read_array()?);
                self.check_crc()?;
                if objects != self.counts.objects
                    || self.file.read(&mut [0]).map_err(ArchiveProblem::of_read)? != 0
                {
                    return Err(ArchiveProblem::Damaged);
                }
                self.ended = true;
                Ok(None)
            }
            _ => Err(ArchiveProblem::Damaged),
        }
    }

    fn read_array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.file.read_exact(&mut bytes).map_err(ArchiveProblem::of_read)?;
        self.crc = crc32c::crc32c_append(self.crc, &bytes);
        self.counts.bytes += N as u64;
        Ok(bytes)
    }

    /// Reads a length and that many bytes; a length above `max` is an error.
    fn read_sized(&mut self, max: usize) -> Result<Vec<u8>> {
        let length = usize::try_from(u32::from_be_bytes(self.read_array()?)).unwrap_or(usize::MAX);
        if length > max {
            return Err(ArchiveProblem::Damaged);
        }
        self.read_bytes(length)
    }

    fn read_bytes(&mut self, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.file.read_exact(&mut bytes).map_err(ArchiveProblem::of_read)?;
        self.crc = crc32c::crc32c_append(self.crc, &bytes);
        self.counts.bytes += length as u64;
        Ok(bytes)
    }

    /// Reads the checksum at this position, and compares it with the running checksum.
    fn check_crc(&mut self) -> Result<()> {
        let mut stored = [0; 4];
        self.file.read_exact(&mut stored).map_err(ArchiveProblem::of_read)?;
        self.counts.bytes += 4;
        if u32::from_be_bytes(stored) == self.crc { Ok(()) } else { Err(ArchiveProblem::Damaged) }
    }
}

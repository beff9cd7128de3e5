//! The backup file, as `FORMAT.md` specifies. Reading detects every change and every truncation.
//!
//! [`ArchiveEncoder`] makes the bytes, which an [`ArchiveFile`] stores and a server sends to a client.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::super::database::map_io_error;
use super::{BackupSummary, Identity, rename};
use crate::{Error, MAX_KEY, MAX_VALUE, Result, Revision};

const MAGIC: &[u8; 16] = b"apid backup\nv1\n\0";
const ROW: u8 = 1;
const END: u8 = 2;

/// Encodes a backup: header, objects, trailer.
#[derive(Debug)]
pub struct ArchiveEncoder {
    objects: u64,
    bytes: u64,
    crc: u32,
}

impl ArchiveEncoder {
    /// Begins a backup of the objects at a revision, and appends its header.
    pub fn begin(identity: &Identity, revision: u64, out: &mut Vec<u8>) -> ArchiveEncoder {
        let mut encoder = ArchiveEncoder { objects: 0, bytes: 0, crc: 0 };
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
        self.objects += 1;
    }

    /// Appends the trailer. Returns the numbers of objects and bytes.
    pub fn finish(mut self, out: &mut Vec<u8>) -> (u64, u64) {
        let objects = self.objects;
        self.record(&[&[END], &objects.to_be_bytes()], out);
        (objects, self.bytes)
    }

    /// Appends a record and the running checksum over all records so far.
    fn record(&mut self, parts: &[&[u8]], out: &mut Vec<u8>) {
        for part in parts {
            self.crc = crc32c::crc32c_append(self.crc, part);
            out.extend_from_slice(part);
            self.bytes += part.len() as u64;
        }
        self.bytes += 4;
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
    /// The error does not contain the path.
    /// The path exists already or ends with a slash, another process writes the file, or the file cannot be created.
    pub fn create(path: &Path) -> io::Result<ArchiveFile> {
        if path.try_exists()? {
            let reason = "the file exists; choose another name";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, reason));
        }
        if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
            let reason = "the path is a folder; name a file";
            return Err(io::Error::new(io::ErrorKind::IsADirectory, reason));
        }
        let unfinished = path.with_added_extension("new");
        let file = create_locked(&unfinished)?;
        Ok(ArchiveFile { file: BufWriter::with_capacity(1 << 20, file), path: path.to_owned(), unfinished })
    }

    /// Appends bytes.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    /// Reads the whole file back and compares its checksums.
    ///
    /// # Errors
    ///
    /// The file is incomplete or damaged.
    pub fn verify(&mut self) -> Result<BackupSummary> {
        self.file.flush().map_err(|error| map_io_error(&error))?;
        let mut reader = ArchiveReader::open(&self.unfinished)?;
        while reader.next_object()?.is_some() {}
        let (objects, bytes) = reader.counts();
        let (identity, revision) = (reader.identity().clone(), Revision(reader.revision()));
        Ok(BackupSummary { identity, revision, objects, bytes })
    }

    /// Syncs and renames the file.
    ///
    /// # Errors
    ///
    /// The file cannot be synced or renamed.
    pub fn finish(mut self) -> io::Result<()> {
        self.file.flush()?;
        self.file.get_ref().sync_all()?;
        rename(&self.unfinished, &self.path)
    }

    /// Removes the incomplete file.
    pub fn discard(self) {
        let _ = std::fs::remove_file(&self.unfinished);
    }
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
    file: BufReader<File>,
    identity: Identity,
    revision: u64,
    objects: u64,
    bytes: u64,
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
    pub fn open(path: &Path) -> Result<ArchiveReader> {
        let file = File::open(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::Unavailable(format!("`{}` does not exist", path.display())),
            _ => map_io_error(&error),
        })?;
        let identity = Identity { preset: String::new(), api_domain: String::new() };
        let file = BufReader::with_capacity(1 << 20, file);
        let mut reader =
            ArchiveReader { file, identity, revision: 0, objects: 0, bytes: 0, crc: 0, ended: false };
        if reader.read_array::<16>()? != *MAGIC {
            return Err(Error::Corrupt(format!(
                "`{}` is not a backup file of a supported format",
                path.display()
            )));
        }
        reader.revision = u64::from_be_bytes(reader.read_array()?);
        let text = reader.read_sized(MAX_KEY)?;
        reader.check_crc()?;
        let text = String::from_utf8(text).map_err(|_| damaged_error())?;
        let (preset, api_domain) = text.split_once('\n').ok_or_else(damaged_error)?;
        reader.identity = Identity { preset: preset.to_owned(), api_domain: api_domain.to_owned() };
        Ok(reader)
    }

    /// The identity of the backed-up store.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The revision of the backup.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The numbers of objects and bytes read so far.
    pub fn counts(&self) -> (u64, u64) {
        (self.objects, self.bytes)
    }

    /// Reads the next object: key, revision, bytes. None after the last one, if the file is complete.
    ///
    /// # Errors
    ///
    /// The file is truncated or damaged.
    pub fn next_object(&mut self) -> Result<Option<(String, u64, Bytes)>> {
        if self.ended {
            return Ok(None);
        }
        match self.read_array()? {
            [ROW] => {
                let revision = u64::from_be_bytes(self.read_array()?);
                let lengths = [self.read_array()?, self.read_array()?].map(u32::from_be_bytes);
                let [key, value] = lengths.map(|length| usize::try_from(length).unwrap_or(usize::MAX));
                if key > MAX_KEY || value > MAX_VALUE || revision > self.revision {
                    return Err(damaged_error());
                }
                let key = String::from_utf8(self.read_bytes(key)?).map_err(|_| damaged_error())?;
                let value = self.read_bytes(value)?;
                self.check_crc()?;
                self.objects += 1;
                Ok(Some((key, revision, value.into())))
            }
            [END] => {
                let objects = u64::from_be_bytes(self.read_array()?);
                self.check_crc()?;
                if objects != self.objects
                    || self.file.read(&mut [0]).map_err(|error| map_io_error(&error))? != 0
                {
                    return Err(damaged_error());
                }
                self.ended = true;
                Ok(None)
            }
            _ => Err(damaged_error()),
        }
    }

    fn read_array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.file.read_exact(&mut bytes).map_err(|error| map_read_error(&error))?;
        self.crc = crc32c::crc32c_append(self.crc, &bytes);
        self.bytes += N as u64;
        Ok(bytes)
    }

    /// Reads a length and that many bytes; a length above `max` is an error.
    fn read_sized(&mut self, max: usize) -> Result<Vec<u8>> {
        let length = usize::try_from(u32::from_be_bytes(self.read_array()?)).unwrap_or(usize::MAX);
        if length > max {
            return Err(damaged_error());
        }
        self.read_bytes(length)
    }

    fn read_bytes(&mut self, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.file.read_exact(&mut bytes).map_err(|error| map_read_error(&error))?;
        self.crc = crc32c::crc32c_append(self.crc, &bytes);
        self.bytes += length as u64;
        Ok(bytes)
    }

    /// Reads the checksum at this position, and compares it with the running checksum.
    fn check_crc(&mut self) -> Result<()> {
        let mut stored = [0; 4];
        self.file.read_exact(&mut stored).map_err(|error| map_read_error(&error))?;
        self.bytes += 4;
        if u32::from_be_bytes(stored) == self.crc { Ok(()) } else { Err(damaged_error()) }
    }
}

fn damaged_error() -> Error {
    Error::Corrupt("the backup file is damaged".to_owned())
}

fn map_read_error(error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Error::Corrupt("the backup file is truncated".to_owned()),
        _ => map_io_error(error),
    }
}

//! Serves a [`Disk`] as a FUSE file system.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow,
    WriteFlags,
};
use parking_lot::Mutex;
use rand::rngs::SmallRng;

use crate::disk::{Directory, Disk, DiskError, File, Node, ROOT};

/// Time for which the kernel caches names and sizes. It can be long, because the kernel makes all changes.
const KERNEL_CACHE_TTL: Duration = Duration::from_secs(60);

/// Total and free blocks that statfs reports for a disk without a limit.
const UNLIMITED_BLOCKS: u64 = 1 << 28;
/// Size of a block in the attributes of files and in statfs.
const BLOCK_BYTES: u32 = 4096;

/// Mounted disk. Drop unmounts it.
pub struct Mount {
    disk: Arc<Mutex<Disk>>,
    sync_delay_micros: Arc<AtomicU64>,
    dir: PathBuf,
    session: Option<BackgroundSession>,
}

impl Mount {
    /// Mounts a disk on an empty directory.
    pub fn new(disk: Disk, dir: &Path) -> io::Result<Mount> {
        let disk = Arc::new(Mutex::new(disk));
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("crash".to_owned()), MountOption::NoAtime];
        let sync_delay_micros = Arc::new(AtomicU64::new(0));
        let served =
            DiskFilesystem { disk: Arc::clone(&disk), sync_delay_micros: Arc::clone(&sync_delay_micros) };
        let session = fuser::spawn_mount(served, dir, &config)?;
        Ok(Mount { disk, sync_delay_micros, dir: dir.to_owned(), session: Some(session) })
    }

    /// Returns the mount point.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Sets the capacity in bytes: [`Disk::set_capacity`].
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.disk.lock().set_capacity(bytes);
    }

    /// Makes every sync take `time`, so that changes stay pending for longer, as on a real disk.
    pub fn set_sync_duration(&self, time: Duration) {
        self.sync_delay_micros.store(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Returns the disk after a power cut now, and the names that the cut removed or restored.
    pub fn cut(&self, random: &mut SmallRng) -> (Disk, Vec<String>) {
        let now = self.disk.lock().clone();
        now.cut(random)
    }

    /// Unmounts the disk; fails while files are open.
    pub fn unmount(mut self) -> io::Result<()> {
        // A separate process unmounts: a process that waits for the file system that it serves cannot be killed.
        let status = Command::new("umount").arg(&self.dir).status()?;
        if !status.success() {
            return Err(io::Error::other(format!("umount ends with {status}")));
        }
        self.session.take().map_or(Ok(()), BackgroundSession::join)
    }
}

/// FUSE file system of a disk.
struct DiskFilesystem {
    disk: Arc<Mutex<Disk>>,
    /// Duration of each sync in microseconds.
    sync_delay_micros: Arc<AtomicU64>,
}

fn attributes(id: u64, node: &Node) -> FileAttr {
    let (kind, perm) = match node {
        Node::File(_) => (FileType::RegularFile, 0o600),
        Node::Directory(_) => (FileType::Directory, 0o700),
    };
    let size = node.size() as u64;
    FileAttr {
        ino: INodeNo(id),
        size,
        blocks: size.div_ceil(512),
        atime: SystemTime::UNIX_EPOCH,
        mtime: SystemTime::UNIX_EPOCH,
        ctime: SystemTime::UNIX_EPOCH,
        crtime: SystemTime::UNIX_EPOCH,
        kind,
        perm,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

fn errno(error: DiskError) -> Errno {
    match error {
        DiskError::Missing => Errno::ENOENT,
        DiskError::NameExists => Errno::EEXIST,
        DiskError::NotDirectory => Errno::ENOTDIR,
        DiskError::IsDirectory => Errno::EISDIR,
        DiskError::NotEmpty => Errno::ENOTEMPTY,
        DiskError::CrossDirectory => Errno::EXDEV,
        DiskError::Full => Errno::ENOSPC,
    }
}

/// Replies to a request whose reply contains no data.
fn reply_without_data(result: Result<(), DiskError>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

impl DiskFilesystem {
    fn sync(&self, id: INodeNo, reply: ReplyEmpty) {
        let micros = self.sync_delay_micros.load(Ordering::Relaxed);
        if micros > 0 {
            std::thread::sleep(Duration::from_micros(micros));
        }
        reply_without_data(self.disk.lock().sync(id.0), reply);
    }

    fn attributes(&self, id: u64) -> Result<FileAttr, DiskError> {
        self.disk.lock().node(id).map(|node| attributes(id, node))
    }
}

impl Filesystem for DiskFilesystem {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.disk.lock().lookup(parent.0, name);
        match found.and_then(|id| self.attributes(id)) {
            Ok(found) => reply.entry(&KERNEL_CACHE_TTL, &found, Generation(0)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn getattr(&self, _: &Request, id: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(id.0) {
            Ok(found) => reply.attr(&KERNEL_CACHE_TTL, &found),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        id: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let resized = size.map_or(Ok(()), |size| self.disk.lock().resize(id.0, size as usize));
        match resized.and_then(|()| self.attributes(id.0)) {
            Ok(found) => reply.attr(&KERNEL_CACHE_TTL, &found),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, _mode: u32, _umask: u32, reply: ReplyEntry) {
        let created = self.disk.lock().create(parent.0, name, Node::Directory(Directory::default()));
        match created.and_then(|id| self.attributes(id)) {
            Ok(created) => reply.entry(&KERNEL_CACHE_TTL, &created, Generation(0)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let created = self.disk.lock().create(parent.0, name, Node::File(File::default()));
        match created.and_then(|id| self.attributes(id)) {
            Ok(created) => {
                self.disk.lock().open(created.ino.0);
                reply.created(&KERNEL_CACHE_TTL, &created, Generation(0), FileHandle(0), FopenFlags::empty());
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn open(&self, _: &Request, id: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.disk.lock().open(id.0);
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn release(
        &self,
        _: &Request,
        id: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.disk.lock().release(id.0);
        reply.ok();
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_without_data(self.disk.lock().remove(parent.0, name, false), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_without_data(self.disk.lock().remove(parent.0, name, true), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if flags.contains(RenameFlags::RENAME_EXCHANGE) {
            return reply.error(Errno::EINVAL);
        }
        let replace = !flags.contains(RenameFlags::RENAME_NOREPLACE);
        reply_without_data(
            self.disk.lock().rename((parent.0, name), (new_parent.0, new_name), replace),
            reply,
        );
    }

    fn read(
        &self,
        _: &Request,
        id: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.disk.lock().read(id.0, offset as usize, size as usize) {
            Ok(data) => reply.data(&data),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn write(
        &self,
        _: &Request,
        id: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.disk.lock().write(id.0, offset as usize, data) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn flush(&self, _: &Request, _id: INodeNo, _fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, id: INodeNo, _fh: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        self.sync(id, reply);
    }

    fn fsyncdir(&self, _: &Request, id: INodeNo, _fh: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        self.sync(id, reply);
    }

    fn readdir(&self, _: &Request, id: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let disk = self.disk.lock();
        let names = match disk.list(id.0) {
            Ok(names) => names,
            Err(error) => return reply.error(errno(error)),
        };
        for (index, (name, id)) in names.into_iter().enumerate().skip(offset as usize) {
            let kind = match disk.node(id) {
                Ok(Node::Directory(_)) => FileType::Directory,
                _ => FileType::RegularFile,
            };
            if reply.add(INodeNo(id), index as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _id: INodeNo, reply: ReplyStatfs) {
        let (blocks, free) = match self.disk.lock().capacity_pages() {
            Some((capacity, free)) => (capacity as u64, free as u64),
            None => (UNLIMITED_BLOCKS, UNLIMITED_BLOCKS),
        };
        reply.statfs(blocks, free, free, ROOT << 20, ROOT << 20, BLOCK_BYTES, 255, BLOCK_BYTES);
    }
}

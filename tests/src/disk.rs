//! In-memory file system that can compute the disk after a power cut.
//!
//! # Contract
//!
//! Every change is visible at once and pending until it is synced. A sync of the file covers data and sizes; a
//! sync of the directory covers created, removed and renamed names. [`Disk::cut`] returns the disk after a cut
//! at this moment: all synced changes, and a random part of the pending changes. A rename is kept or lost as a
//! whole. The original disk continues unchanged.
//!
//! A disk may have a capacity. Written pages count while a name leads to them or the file is open. When all
//! pages are used, writes fail until pages are freed.
//!
//! # Reference
//!
//! POSIX `fsync` as described by `fsync(2)` of Linux: syncing a file does not sync its name.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};

use rand::Rng;
use rand::rngs::SmallRng;

use crate::content::{Content, PAGE_BYTES};

/// Inode number of the root directory in FUSE.
pub const ROOT: u64 = 1;

/// Bytes that a disk writes atomically.
const SECTOR: usize = 512;

/// A disk: files and directories by inode number.
#[derive(Clone, Debug)]
pub struct Disk {
    nodes: BTreeMap<u64, Node>,
    next: u64,
    /// Sequence number of the last change.
    changes: u64,
    /// Maximum number of written pages of all files; None means no limit.
    capacity: Option<usize>,
    /// Number of open handles by inode number.
    open_handles: BTreeMap<u64, usize>,
    /// Inode numbers of removed files and directories: kept for open handles, or for a cut that restores a
    /// name.
    unnamed: BTreeSet<u64>,
}

/// A file or a directory.
#[derive(Clone, Debug)]
pub enum Node {
    /// A file with its content.
    File(File),
    /// A directory with its names.
    Directory(Directory),
}

/// Content of a file: as processes see it, as synced, and the writes since then.
#[derive(Clone, Debug, Default)]
pub struct File {
    live: Content,
    durable: Content,
    pending: Vec<(u64, Write)>,
}

/// Names of a directory: as processes see them, as synced, and the changes since then.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    live: BTreeMap<OsString, u64>,
    durable: BTreeMap<OsString, u64>,
    pending: Vec<(u64, NameChange)>,
}

#[derive(Clone, Debug)]
enum Write {
    Data(usize, Vec<u8>),
    Size(usize),
}

#[derive(Clone, Debug)]
enum NameChange {
    Put(OsString, u64),
    Remove(OsString),
    Rename(OsString, OsString, u64),
}

/// Error of an operation on the disk. FUSE returns a different errno for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskError {
    /// No such file or directory.
    Missing,
    /// The name exists.
    NameExists,
    /// A directory was expected.
    NotDirectory,
    /// A file was expected.
    IsDirectory,
    /// The directory has entries.
    NotEmpty,
    /// Renames across directories are not implemented: the store does none.
    CrossDirectory,
    /// The disk is full.
    Full,
}

/// Effect of a cut on the pending changes.
#[derive(Clone, Copy, Debug)]
enum CutOutcome {
    /// All pending changes are lost.
    Lost,
    /// All pending changes are kept, as when only the process ends.
    Kept,
    /// Changes below this sequence number are kept, as on a disk that keeps the order of writes.
    Before(u64),
    /// Each change is kept or lost independently. Some writes of data are kept or lost sector by sector.
    Independent,
}

impl Default for Disk {
    fn default() -> Self {
        Disk::new()
    }
}

impl Disk {
    /// Creates an empty root directory.
    pub fn new() -> Self {
        let root = Node::Directory(Directory::default());
        Disk {
            nodes: BTreeMap::from([(ROOT, root)]),
            next: ROOT + 1,
            changes: 0,
            capacity: None,
            open_handles: BTreeMap::new(),
            unnamed: BTreeSet::new(),
        }
    }

    /// Sets the capacity in bytes, rounded down to whole pages; None means no limit.
    ///
    /// Existing content stays, even above the capacity.
    pub fn set_capacity(&mut self, bytes: Option<u64>) {
        self.capacity = bytes.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX) / PAGE_BYTES);
    }

    /// Returns the capacity in pages and the number of free pages; None means no limit.
    pub fn capacity_pages(&self) -> Option<(usize, usize)> {
        let capacity = self.capacity?;
        let counted_pages = |(id, node): (&u64, &Node)| match node {
            Node::File(file) if self.open_handles.contains_key(id) || !self.unnamed.contains(id) => {
                file.live.written_pages()
            }
            _ => 0,
        };
        let used: usize = self.nodes.iter().map(counted_pages).sum();
        Some((capacity, capacity.saturating_sub(used)))
    }

    /// Counts a new open handle of a file.
    pub fn open(&mut self, file: u64) {
        *self.open_handles.entry(file).or_default() += 1;
    }

    /// Releases an open handle. A file without a name is dropped then, unless a cut could restore its name.
    pub fn release(&mut self, file: u64) {
        if let Some(count) = self.open_handles.get_mut(&file) {
            *count -= 1;
            if *count == 0 {
                self.open_handles.remove(&file);
                self.drop_closed();
            }
        }
    }

    /// Drops removed files and directories without open handles, if no cut can restore a name for them.
    fn drop_closed(&mut self) {
        let closed: Vec<u64> =
            self.unnamed.iter().copied().filter(|id| !self.open_handles.contains_key(id)).collect();
        for id in closed {
            let can_be_named = |node: &Node| match node {
                Node::Directory(directory) => directory.can_name(id),
                Node::File(_) => false,
            };
            if !self.nodes.values().any(can_be_named) {
                self.nodes.remove(&id);
                self.unnamed.remove(&id);
            }
        }
    }

    /// Returns a file or directory by its inode number.
    pub fn node(&self, id: u64) -> Result<&Node, DiskError> {
        self.nodes.get(&id).ok_or(DiskError::Missing)
    }

    fn directory(&self, id: u64) -> Result<&Directory, DiskError> {
        match self.node(id)? {
            Node::Directory(directory) => Ok(directory),
            Node::File(_) => Err(DiskError::NotDirectory),
        }
    }

    fn directory_mut(&mut self, id: u64) -> Result<&mut Directory, DiskError> {
        match self.nodes.get_mut(&id) {
            Some(Node::Directory(directory)) => Ok(directory),
            Some(Node::File(_)) => Err(DiskError::NotDirectory),
            None => Err(DiskError::Missing),
        }
    }

    fn file_mut(&mut self, id: u64) -> Result<&mut File, DiskError> {
        match self.nodes.get_mut(&id) {
            Some(Node::File(file)) => Ok(file),
            Some(Node::Directory(_)) => Err(DiskError::IsDirectory),
            None => Err(DiskError::Missing),
        }
    }

    /// Returns the sequence number of a new change.
    fn next_change(&mut self) -> u64 {
        self.changes += 1;
        self.changes
    }

    /// Returns the inode number of a name in a directory.
    pub fn lookup(&self, directory: u64, name: &OsStr) -> Result<u64, DiskError> {
        self.directory(directory)?.live.get(name).copied().ok_or(DiskError::Missing)
    }

    /// Returns the names in a directory with their inode numbers.
    pub fn list(&self, directory: u64) -> Result<Vec<(OsString, u64)>, DiskError> {
        Ok(self.directory(directory)?.live.iter().map(|(name, id)| (name.clone(), *id)).collect())
    }

    /// Creates a file or a directory. Returns its inode number.
    pub fn create(&mut self, directory: u64, name: &OsStr, node: Node) -> Result<u64, DiskError> {
        if self.directory(directory)?.live.contains_key(name) {
            return Err(DiskError::NameExists);
        }
        let (id, change) = (self.next, self.next_change());
        self.next += 1;
        self.nodes.insert(id, node);
        let directory = self.directory_mut(directory)?;
        directory.live.insert(name.to_owned(), id);
        directory.pending.push((change, NameChange::Put(name.to_owned(), id)));
        Ok(id)
    }

    /// Removes a name. A file stays readable through open handles.
    pub fn remove(&mut self, directory: u64, name: &OsStr, expect_directory: bool) -> Result<(), DiskError> {
        let id = self.lookup(directory, name)?;
        match (self.node(id)?, expect_directory) {
            (Node::Directory(directory), true) if !directory.live.is_empty() => {
                return Err(DiskError::NotEmpty);
            }
            (Node::Directory(_), false) => return Err(DiskError::IsDirectory),
            (Node::File(_), true) => return Err(DiskError::NotDirectory),
            _ => {}
        }
        let change = self.next_change();
        let directory = self.directory_mut(directory)?;
        directory.live.remove(name);
        directory.pending.push((change, NameChange::Remove(name.to_owned())));
        self.unnamed.insert(id);
        Ok(())
    }

    /// Renames within a directory; overwrites an existing name if `replace`.
    pub fn rename(&mut self, from: (u64, &OsStr), to: (u64, &OsStr), replace: bool) -> Result<(), DiskError> {
        if from.0 != to.0 {
            return Err(DiskError::CrossDirectory);
        }
        let id = self.lookup(from.0, from.1)?;
        if !replace && self.lookup(to.0, to.1).is_ok() {
            return Err(DiskError::NameExists);
        }
        let change = self.next_change();
        let directory = self.directory_mut(from.0)?;
        directory.live.remove(from.1);
        let replaced = directory.live.insert(to.1.to_owned(), id);
        directory.pending.push((change, NameChange::Rename(from.1.to_owned(), to.1.to_owned(), id)));
        self.unnamed.extend(replaced);
        Ok(())
    }

    /// Reads a file.
    pub fn read(&self, file: u64, offset: usize, size: usize) -> Result<Vec<u8>, DiskError> {
        match self.node(file)? {
            Node::File(file) => Ok(file.live.read(offset, size)),
            Node::Directory(_) => Err(DiskError::IsDirectory),
        }
    }

    /// Writes to a file, completely or not at all.
    pub fn write(&mut self, file: u64, offset: usize, data: &[u8]) -> Result<(), DiskError> {
        if let Some((_, free)) = self.capacity_pages()
            && self.file_mut(file)?.live.missing_pages(offset, data.len()) > free
        {
            return Err(DiskError::Full);
        }
        let change = self.next_change();
        let file = self.file_mut(file)?;
        let write = Write::Data(offset, data.to_vec());
        write.apply(&mut file.live);
        file.pending.push((change, write));
        Ok(())
    }

    /// Truncates a file or extends it with zeros.
    pub fn resize(&mut self, file: u64, size: usize) -> Result<(), DiskError> {
        let change = self.next_change();
        let file = self.file_mut(file)?;
        file.live.resize(size);
        file.pending.push((change, Write::Size(size)));
        Ok(())
    }

    /// Syncs the content of a file, or the names of a directory.
    pub fn sync(&mut self, id: u64) -> Result<(), DiskError> {
        match self.nodes.get_mut(&id).ok_or(DiskError::Missing)? {
            Node::File(file) => {
                for (_, write) in file.pending.drain(..) {
                    write.apply(&mut file.durable);
                }
            }
            Node::Directory(directory) => {
                directory.pending.clear();
                directory.durable = directory.live.clone();
                self.drop_closed();
            }
        }
        Ok(())
    }

    /// Returns the disk after a power cut now, and the names that the cut removed or restored.
    pub fn cut(&self, random: &mut SmallRng) -> (Disk, Vec<String>) {
        let outcome = match random.random_range(0..8) {
            0 => CutOutcome::Lost,
            1 => CutOutcome::Kept,
            2 | 3 => CutOutcome::Before(self.random_change(random)),
            _ => CutOutcome::Independent,
        };
        let mut disk_after_cut =
            Disk { nodes: BTreeMap::new(), next: self.next, capacity: self.capacity, ..Disk::new() };
        for (id, node) in &self.nodes {
            disk_after_cut.nodes.insert(*id, node.cut(outcome, random));
        }
        let (before, after) = (self.paths(), disk_after_cut.paths());
        let lost = before.difference(&after).map(|path| format!("lost {path}"));
        let restored = after.difference(&before).map(|path| format!("restored {path}"));
        let names = lost.chain(restored).collect();
        disk_after_cut.drop_unnamed();
        (disk_after_cut, names)
    }

    /// Returns the paths of all files and directories.
    fn paths(&self) -> BTreeSet<String> {
        let mut paths = BTreeSet::new();
        let mut next = vec![(ROOT, String::new())];
        while let Some((id, path)) = next.pop() {
            if let Some(Node::Directory(directory)) = self.nodes.get(&id) {
                let child =
                    |(name, id): (&OsString, &u64)| (*id, format!("{path}/{}", name.to_string_lossy()));
                next.extend(directory.live.iter().map(child));
            }
            paths.insert(path);
        }
        paths
    }

    /// Chooses a sequence number between those of the oldest pending change and of the last change.
    fn random_change(&self, random: &mut SmallRng) -> u64 {
        let oldest = self.nodes.values().filter_map(Node::oldest_change).min().unwrap_or(self.changes);
        random.random_range(oldest..=self.changes)
    }

    /// Drops files and directories without a name.
    fn drop_unnamed(&mut self) {
        let mut named = BTreeSet::new();
        let mut next = vec![ROOT];
        while let Some(id) = next.pop() {
            if named.insert(id)
                && let Some(Node::Directory(directory)) = self.nodes.get(&id)
            {
                next.extend(directory.live.values());
            }
        }
        self.nodes.retain(|id, _| named.contains(id));
    }
}

impl Directory {
    /// Whether a name in this directory refers to an inode number, now or after some cut.
    fn can_name(&self, id: u64) -> bool {
        let pending = |(_, naming): &(u64, NameChange)| match naming {
            NameChange::Put(_, put) | NameChange::Rename(_, _, put) => *put == id,
            NameChange::Remove(_) => false,
        };
        self.live.values().chain(self.durable.values()).any(|named| *named == id)
            || self.pending.iter().any(pending)
    }
}

impl Node {
    /// Returns the size of a file in bytes.
    pub fn size(&self) -> usize {
        match self {
            Node::File(file) => file.live.size(),
            Node::Directory(_) => 0,
        }
    }

    /// Returns the sequence number of the oldest pending change.
    fn oldest_change(&self) -> Option<u64> {
        match self {
            Node::File(file) => file.pending.first().map(|(change, _)| *change),
            Node::Directory(directory) => directory.pending.first().map(|(change, _)| *change),
        }
    }

    fn cut(&self, outcome: CutOutcome, random: &mut SmallRng) -> Node {
        match self {
            Node::File(file) => {
                let mut content = file.durable.clone();
                for (change, write) in &file.pending {
                    write.cut(outcome, *change, random, &mut content);
                }
                Node::File(File { live: content.clone(), durable: content, pending: Vec::new() })
            }
            Node::Directory(directory) => {
                let mut names = directory.durable.clone();
                for (change, naming) in &directory.pending {
                    if outcome.keeps(*change, random) {
                        naming.apply(&mut names);
                    }
                }
                Node::Directory(Directory { live: names.clone(), durable: names, pending: Vec::new() })
            }
        }
    }
}

impl CutOutcome {
    fn keeps(self, change: u64, random: &mut SmallRng) -> bool {
        match self {
            CutOutcome::Lost => false,
            CutOutcome::Kept => true,
            CutOutcome::Before(moment) => change < moment,
            CutOutcome::Independent => random.random_bool(0.5),
        }
    }
}

impl Write {
    fn apply(&self, content: &mut Content) {
        match self {
            Write::Data(offset, data) => content.write(*offset, data),
            Write::Size(size) => content.resize(*size),
        }
    }

    fn cut(&self, outcome: CutOutcome, change: u64, random: &mut SmallRng, content: &mut Content) {
        match (outcome, self) {
            (CutOutcome::Independent, Write::Data(offset, data)) if random.random_bool(0.25) => {
                // Sectors begin at multiples of their size, independent of the start of the write.
                let end = offset + data.len();
                for sector in offset / SECTOR..end.div_ceil(SECTOR) {
                    let (begin, until) = ((sector * SECTOR).max(*offset), ((sector + 1) * SECTOR).min(end));
                    if random.random_bool(0.5) {
                        content.write(begin, &data[begin - offset..until - offset]);
                    }
                }
            }
            _ if outcome.keeps(change, random) => self.apply(content),
            _ => {}
        }
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<OsString, u64>) {
        match self {
            NameChange::Put(name, id) => {
                names.insert(name.clone(), *id);
            }
            NameChange::Remove(name) => {
                names.remove(name);
            }
            NameChange::Rename(from, to, id) => {
                names.remove(from);
                names.insert(to.clone(), *id);
            }
        }
    }
}

#[test]
fn power_cut_keeps_synced_data_and_nothing_unwritten() {
    use rand::SeedableRng;
    let name = OsStr::new;
    for seed in 0..200 {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut disk = Disk::new();
        let file = disk.create(ROOT, name("new"), Node::File(File::default())).unwrap();
        disk.write(file, 0, &[1; 2000]).unwrap();
        disk.sync(file).unwrap();
        let (nameless, _) = disk.cut(&mut random);
        assert!(nameless.list(ROOT).unwrap().len() <= 1, "seed {seed}");
        if let Ok(file) = nameless.lookup(ROOT, name("new")) {
            assert_eq!(
                nameless.read(file, 0, 9999).unwrap(),
                [1; 2000],
                "seed {seed}: synced data without its name"
            );
        }
        disk.sync(ROOT).unwrap();
        disk.write(file, 1000, &[2; 2000]).unwrap();
        disk.rename((ROOT, name("new")), (ROOT, name("current")), true).unwrap();
        let (left, _) = disk.cut(&mut random);
        let names = left.list(ROOT).unwrap();
        assert_eq!(names.len(), 1, "seed {seed}: a rename is whole");
        let bytes = left.read(names[0].1, 0, 9999).unwrap();
        assert!(bytes.len() >= 2000 && bytes[..1000] == [1; 1000], "seed {seed}");
        let torn = (1001..bytes.len()).filter(|at| bytes[at - 1] != bytes[*at]);
        for at in torn {
            assert!(at == 2000 || at % SECTOR == 0, "seed {seed}: torn at {at}, inside a sector");
        }
        disk.sync(file).unwrap();
        disk.sync(ROOT).unwrap();
        let (all, _) = disk.cut(&mut random);
        assert_eq!(all.read(all.lookup(ROOT, name("current")).unwrap(), 0, 9999).unwrap()[1000..], [2; 2000]);
    }
}

#[test]
fn full_disk_rejects_writes_until_file_is_removed_and_closed() {
    let name = OsStr::new;
    let mut disk = Disk::new();
    disk.set_capacity(Some(3 * PAGE_BYTES as u64));
    let file = disk.create(ROOT, name("a"), Node::File(File::default())).unwrap();
    disk.open(file);
    disk.resize(file, 100 * PAGE_BYTES).unwrap();
    assert_eq!(disk.capacity_pages(), Some((3, 3)), "unwritten pages do not count");
    disk.write(file, PAGE_BYTES, &[1; 2 * PAGE_BYTES]).unwrap();
    assert_eq!(disk.write(file, 8 * PAGE_BYTES - 1, &[1; 2]), Err(DiskError::Full));
    disk.write(file, PAGE_BYTES, &[2; PAGE_BYTES]).unwrap();
    disk.remove(ROOT, name("a"), false).unwrap();
    assert_eq!(disk.capacity_pages(), Some((3, 1)), "it is still open");
    disk.release(file);
    assert_eq!(disk.capacity_pages(), Some((3, 3)));
    assert!(disk.node(file).is_ok(), "a cut can restore its name");
    disk.sync(ROOT).unwrap();
    assert!(disk.node(file).is_err());
}

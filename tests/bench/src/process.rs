//! CPU time and memory of processes, from `/proc`, and the disk space of their directories.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fs, io};

/// Returns the CPU time (user and system) of processes in seconds; None if a process has ended.
pub fn cpu_seconds(pids: &[u32]) -> Option<f64> {
    pids.iter().map(|pid| cpu_ticks(*pid)).sum::<Option<u64>>().map(|ticks| ticks as f64 / 100.0)
}

/// Returns the CPU time of a process in ticks of 10 ms: the sum of the fields 14 (user) and 15 (system) of
/// `stat`.
///
/// The fields are counted after the closing parenthesis, because the command before it can contain spaces.
fn cpu_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// Returns the resident memory of a process in MiB.
pub fn resident_mib(pid: u32) -> Option<f64> {
    status_mib(pid, "VmRSS:")
}

/// Returns the peak resident memory of a process since [`reset_peak`], in MiB.
pub fn peak_mib(pid: u32) -> Option<f64> {
    status_mib(pid, "VmHWM:")
}

/// Resets the peak that [`peak_mib`] returns to the current resident memory.
///
/// # Errors
///
/// The process has ended or belongs to another user.
pub fn reset_peak(pid: u32) -> io::Result<()> {
    fs::write(format!("/proc/{pid}/clear_refs"), "5")
}

fn status_mib(pid: u32, field: &str) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with(field))?;
    let kib: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib / 1024.0)
}

/// Returns the allocated disk space of all files below a directory, in MiB.
///
/// # Errors
///
/// A directory cannot be read. A file that is removed meanwhile is not an error and counts zero.
pub fn disk_mib(dir: &Path) -> io::Result<f64> {
    const BLOCK_BYTES: f64 = 512.0;
    let mut sum = 0.0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        sum += match entry.metadata() {
            Ok(found) if found.is_dir() => disk_mib(&entry.path())?,
            Ok(found) => found.blocks() as f64 * BLOCK_BYTES / f64::from(1 << 20),
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0.0,
            Err(error) => return Err(error),
        };
    }
    Ok(sum)
}

/// Returns the child processes of `pid`.
pub fn children(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let mut found: Vec<u32> = text.split_whitespace().filter_map(|p| p.parse().ok()).collect();
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    for task in tasks {
        let text = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        found.extend(text.split_whitespace().filter_map(|p| p.parse::<u32>().ok()));
    }
    found.sort_unstable();
    found.dedup();
    found
}

//! Disk space checks: commits are rejected before the disk is full, because a failed write stops fjall.
//!
//! # Contract
//!
//! While the free space is below the reserve, creates and updates are rejected. Deletes and trimming, which
//! free space, are rejected only below half of the reserve. While the data exceeds the quota, creates and
//! updates are rejected. Both states end without intervention when space is available.

use std::path::PathBuf;
use std::time::Duration;

use super::database::Tables;
use crate::{Error, Result};

/// Time for which a measurement is reused.
const MEASUREMENT_TTL: Duration = Duration::from_millis(100);

/// The effect of a write on the used space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpaceEffect {
    /// A create or update.
    Grow,
    /// A delete, or internal maintenance.
    Shrink,
}

/// The disk space check; see the module documentation.
pub(super) struct SpaceCheck {
    dir: PathBuf,
    reserve: u64,
    quota: Option<u64>,
    /// The last measurement, with its monotonic clock time.
    measured: Option<(Duration, DiskUsage)>,
}

/// A measurement in bytes.
#[derive(Clone, Copy, Debug)]
struct DiskUsage {
    free: u64,
    used: u64,
}

impl SpaceCheck {
    pub(super) fn new(dir: PathBuf, reserve: u64, quota: Option<u64>) -> Self {
        SpaceCheck { dir, reserve, quota, measured: None }
    }

    /// Checks whether the disk space and the quota permit a write. `now` is the monotonic clock time, for
    /// [`MEASUREMENT_TTL`].
    pub(super) fn admit(&mut self, effect: SpaceEffect, tables: &Tables, now: Duration) -> Result<()> {
        let usage = match self.measured {
            Some((at, usage)) if now.saturating_sub(at) < MEASUREMENT_TTL => usage,
            _ => {
                let usage = DiskUsage { free: free_bytes(&self.dir)?, used: used_bytes(tables) };
                self.measured = Some((now, usage));
                usage
            }
        };
        check_space(effect, usage, self.reserve, self.quota)
    }

    /// Checks whether the space suffices for reopening the database after a failed write.
    pub(super) fn check_reopen(&self) -> Result<()> {
        let usage = DiskUsage { free: free_bytes(&self.dir)?, used: 0 };
        check_space(SpaceEffect::Shrink, usage, self.reserve, None)
    }
}

fn check_space(effect: SpaceEffect, usage: DiskUsage, reserve: u64, quota: Option<u64>) -> Result<()> {
    let (minimum, writes, served) = match effect {
        SpaceEffect::Grow => (reserve, "creates and updates", "reads and deletes are served"),
        SpaceEffect::Shrink => (reserve / 2, "deletes and maintenance", "only reads are served"),
    };
    if usage.free < minimum {
        let (free, minimum) = (usage.free >> 20, minimum >> 20);
        let reason = format!("{free} MiB are free on disk; {writes} need at least {minimum} MiB; {served}");
        return Err(Error::Full(reason));
    }
    match quota {
        Some(quota) if effect == SpaceEffect::Grow && usage.used >= quota => Err(Error::Full(format!(
            "{} bytes are used, the quota is {quota} bytes (--storage-quota); {served}",
            usage.used
        ))),
        _ => Ok(()),
    }
}

/// Size of the data in bytes: tables, and memtables that become tables.
///
/// Journals hold the memtables a second time and have their own limit.
fn used_bytes(tables: &Tables) -> u64 {
    tables.table_bytes() + tables.database.write_buffer_size()
}

/// Free bytes of the file system of the directory.
fn free_bytes(dir: &PathBuf) -> Result<u64> {
    let disk = rustix::fs::statvfs(dir)
        .map_err(|error| Error::Unavailable(format!("reading the free disk space failed: {error}")))?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_store_error_names_sizes_and_served_requests() {
        let error = |effect, free, used, quota| {
            check_space(effect, DiskUsage { free, used }, 256 << 20, quota).unwrap_err().to_string()
        };
        assert_eq!(
            error(SpaceEffect::Grow, 1 << 40, 12, Some(10)),
            "storage is full: 12 bytes are used, the quota is 10 bytes (--storage-quota); reads and deletes are served"
        );
        assert_eq!(
            error(SpaceEffect::Grow, 200 << 20, 0, None),
            "storage is full: 200 MiB are free on disk; creates and updates need at least 256 MiB; reads and deletes are \
             served"
        );
        assert_eq!(
            error(SpaceEffect::Shrink, 0, 0, None),
            "storage is full: 0 MiB are free on disk; deletes and maintenance need at least 128 MiB; only reads are served"
        );
    }

    #[test]
    fn disk_reserve_is_kept_and_deletes_may_use_half() {
        let cases = [
            (SpaceEffect::Grow, 100, 0, None, true),
            (SpaceEffect::Grow, 99, 0, None, false),
            (SpaceEffect::Shrink, 99, 0, None, true),
            (SpaceEffect::Shrink, 49, 0, None, false),
            (SpaceEffect::Grow, 100, 9, Some(10), true),
            (SpaceEffect::Grow, 100, 10, Some(10), false),
            (SpaceEffect::Shrink, 100, 10, Some(10), true),
        ];
        for (effect, free, used, quota, admitted) in cases {
            let checked = check_space(effect, DiskUsage { free, used }, 100, quota);
            assert_eq!(
                checked.is_ok(),
                admitted,
                "{effect:?}, {free} free, {used} of {quota:?} used: {checked:?}"
            );
        }
    }
}

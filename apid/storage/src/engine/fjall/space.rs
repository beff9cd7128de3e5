//! Disk space checks: commits are rejected before a write could fail, because a failed write stops fjall.
//!
//! # Contract
//!
//! Below the reserve all writes are rejected. Deletes and trimming, which free space, may use half of the
//! reserve. Above the quota only writes that free space are accepted. Both states end without intervention
//! when space is available.

use std::path::PathBuf;
use std::time::Duration;

use super::database::Tables;
use crate::{Error, Result};

/// Validity of one measurement.
const FRESH: Duration = Duration::from_millis(100);

/// The effect of a write on the used space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// A create or update.
    Grow,
    /// A delete, or internal maintenance.
    Shrink,
}

/// The disk space check; see the module documentation.
pub(super) struct Space {
    dir: PathBuf,
    reserve: u64,
    quota: Option<u64>,
    measured: Option<(Duration, Room)>,
}

/// A measurement in bytes.
#[derive(Clone, Copy, Debug)]
struct Room {
    free: u64,
    used: u64,
}

impl Space {
    pub(super) fn new(dir: PathBuf, reserve: u64, quota: Option<u64>) -> Self {
        Space { dir, reserve, quota, measured: None }
    }

    /// Checks whether a write is permitted at this clock time.
    pub(super) fn admit(&mut self, need: Need, tables: &Tables, now: Duration) -> Result<()> {
        let room = match self.measured {
            Some((at, room)) if now.saturating_sub(at) < FRESH => room,
            _ => {
                let room = Room { free: free(&self.dir)?, used: used(tables) };
                self.measured = Some((now, room));
                room
            }
        };
        judge(need, room, self.reserve, self.quota)
    }

    /// Checks whether the space suffices for reopening the database after a failed write.
    pub(super) fn can_reopen(&self) -> Result<()> {
        judge(Need::Shrink, Room { free: free(&self.dir)?, used: 0 }, self.reserve, None)
    }
}

fn judge(need: Need, room: Room, reserve: u64, quota: Option<u64>) -> Result<()> {
    let reserve = match need {
        Need::Grow => reserve,
        Need::Shrink => reserve / 2,
    };
    if room.free < reserve {
        let free = room.free >> 20;
        return Err(Error::Full(format!(
            "{free} MiB are free on disk, the reserve is {} MiB",
            reserve >> 20
        )));
    }
    match quota {
        Some(quota) if need == Need::Grow && room.used >= quota => {
            Err(Error::Full(format!("{} bytes are used, the quota is {quota}", room.used)))
        }
        _ => Ok(()),
    }
}

/// Size of the data in bytes: tables, and memtables that become tables.
///
/// Journals hold the memtables a second time and have their own limit.
pub(super) fn used(tables: &Tables) -> u64 {
    tables.table_bytes() + tables.database.write_buffer_size()
}

fn free(dir: &PathBuf) -> Result<u64> {
    let disk = rustix::fs::statvfs(dir)
        .map_err(|error| Error::Unavailable(format!("reading the free disk space failed: {error}")))?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_kept_and_deletes_may_use_half_of_it() {
        let cases = [
            (Need::Grow, 100, 0, None, true),
            (Need::Grow, 99, 0, None, false),
            (Need::Shrink, 99, 0, None, true),
            (Need::Shrink, 49, 0, None, false),
            (Need::Grow, 100, 9, Some(10), true),
            (Need::Grow, 100, 10, Some(10), false),
            (Need::Shrink, 100, 10, Some(10), true),
        ];
        for (need, free, used, quota, admitted) in cases {
            let judged = judge(need, Room { free, used }, 100, quota);
            assert_eq!(
                judged.is_ok(),
                admitted,
                "{need:?}, {free} free, {used} of {quota:?} used: {judged:?}"
            );
        }
    }
}

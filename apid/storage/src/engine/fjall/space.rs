//! Room on the disk: commits are refused before a write could fail, because a failed write stops fjall.
//!
//! # Contract
//!
//! Below the reserve nothing is written, except that deletes and the store's own trimming, which make room, may go down
//! to half of it. Above the quota only what makes room is written. Both end by themselves when there is room again.

use std::path::PathBuf;
use std::time::Duration;

use super::database::Tables;
use crate::{Error, Result};

/// A measurement is used this long.
const FRESH: Duration = Duration::from_millis(100);

/// What a write does to the room there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// A create or update.
    Grow,
    /// A delete, or the store's own work.
    Shrink,
}

/// See the module.
pub(super) struct Space {
    dir: PathBuf,
    reserve: u64,
    quota: Option<u64>,
    measured: Option<(Duration, Room)>,
}

/// Bytes.
#[derive(Clone, Copy, Debug)]
struct Room {
    free: u64,
    used: u64,
}

impl Space {
    pub(super) fn new(dir: PathBuf, reserve: u64, quota: Option<u64>) -> Self {
        Space { dir, reserve, quota, measured: None }
    }

    /// Whether a write may be tried at this time of the clock.
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

    /// Whether there is room to open the database again after a write failed.
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
        return Err(Error::Full(format!("{free} MiB are free on the disk, {} MiB are kept", reserve >> 20)));
    }
    match quota {
        Some(quota) if need == Need::Grow && room.used >= quota => {
            Err(Error::Full(format!("{} bytes are used, the quota is {quota}", room.used)))
        }
        _ => Ok(()),
    }
}

/// Bytes of data: in tables, and in memtables that will become tables. Journals hold the latter a second time and are
/// bounded by themselves.
pub(super) fn used(tables: &Tables) -> u64 {
    tables.table_bytes() + tables.database.write_buffer_size()
}

fn free(dir: &PathBuf) -> Result<u64> {
    let disk = rustix::fs::statvfs(dir)
        .map_err(|error| Error::Unavailable(format!("the free space of the disk is not known: {error}")))?;
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

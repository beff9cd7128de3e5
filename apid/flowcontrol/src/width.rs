//! The number of seats that a request occupies.
//!
//! # Contract
//!
//! A request for one object takes one seat. A list takes a seat for each hundred objects that it reads, or for each
//! 100 kB of them if that is more. A write takes one seat, and after its response seats for the watches it wakes: one
//! for each ten, for 5 ms, if ten or more wake. The maximum of the level bounds both.
//!
//! # Reference
//!
//! kube-apiserver 1.33. It counts objects only; bytes are an addition, because a hundred large objects cost as much as
//! thousands of small ones.

use std::time::Duration;

use crate::Work;

/// Objects that one seat of a list reads.
const OBJECTS_PER_SEAT: usize = 100;
/// Stored bytes that one seat of a list reads.
const BYTES_PER_SEAT: usize = 100_000;
/// Watches that one final seat of a write wakes.
const WATCHES_PER_SEAT: usize = 10;
/// Time for which one final seat of a write is occupied.
const TIME_PER_EVENT: Duration = Duration::from_millis(5);

/// The objects that a list reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListSize {
    /// Objects in scope.
    pub objects: usize,
    /// Their stored bytes.
    pub bytes: usize,
}

/// Work of a list, of a watch with initial events, or of the deletion of a collection.
pub fn list_work(size: ListSize, max_seats: usize) -> Work {
    let by_objects = size.objects.div_ceil(OBJECTS_PER_SEAT);
    let by_bytes = size.bytes.div_ceil(BYTES_PER_SEAT);
    Work::of_seats(by_objects.max(by_bytes).clamp(1, max_seats.max(1)))
}

/// Work of a write that wakes a number of watches.
pub fn write_work(watches: usize, max_seats: impl FnOnce() -> usize) -> Work {
    if watches < WATCHES_PER_SEAT {
        return Work::SMALL;
    }
    let wanted = watches.div_ceil(WATCHES_PER_SEAT);
    let seats = wanted.min(max_seats().max(1));
    // The same work with fewer seats takes longer.
    let final_time = TIME_PER_EVENT.mul_f64(wanted as f64 / seats as f64);
    Work { seats: 1, final_seats: seats, final_time }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_takes_seats_by_objects_or_bytes() {
        let table = [
            ((0, 0), 1),
            ((1, 400), 1),
            ((100, 40_000), 1),
            ((101, 40_000), 2),
            ((499, 40_000), 5),
            ((10, 350_000), 4),
            ((1_000_000, 40_000), 10),
            ((1, 1_500_000), 10),
        ];
        for ((objects, bytes), seats) in table {
            assert_eq!(
                list_work(ListSize { objects, bytes }, 10),
                Work::of_seats(seats),
                "{objects} {bytes}"
            );
        }
        assert_eq!(list_work(ListSize { objects: 1_000, bytes: 0 }, 3), Work::of_seats(3));
        assert_eq!(list_work(ListSize { objects: 1_000, bytes: 0 }, 0), Work::of_seats(1));
    }

    #[test]
    fn write_takes_final_seats_by_watches() {
        let work =
            |final_seats, millis| Work { seats: 1, final_seats, final_time: Duration::from_millis(millis) };
        let table = [
            (0, Work::SMALL),
            (9, Work::SMALL),
            (10, work(1, 5)),
            (11, work(2, 5)),
            (100, work(10, 5)),
            (200, work(10, 10)),
            (1_000, work(10, 50)),
        ];
        for (watches, expected) in table {
            assert_eq!(write_work(watches, || 10), expected, "{watches} watches");
        }
        assert_eq!(write_work(100, || 5), work(5, 10), "the same seat-seconds with fewer seats");
    }
}

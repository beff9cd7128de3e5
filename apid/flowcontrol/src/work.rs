//! The work that a request is expected to cause.

use std::time::Duration;

/// Expected work of a request.
///
/// A request occupies seats while it runs. A write that wakes many watches goes on to occupy seats for a time after its
/// response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Seats until the response.
    pub seats: usize,
    /// Seats after the response.
    pub final_seats: usize,
    /// The time for which `final_seats` stay occupied.
    pub final_time: Duration,
}

/// Expected time until the response of a request, for the order of queues. The true time replaces it afterwards.
pub(crate) const EXPECTED_SERVICE_TIME: Duration = Duration::from_millis(3);

impl Work {
    /// Work of a request that touches one object and wakes few watches.
    pub const SMALL: Self = Work::of_seats(1);

    /// Work that ends with the response.
    pub const fn of_seats(seats: usize) -> Self {
        Work { seats, final_seats: 0, final_time: Duration::ZERO }
    }

    /// The seats that the request occupies at once, at most. They are reserved from start to end.
    pub(crate) fn max_seats(&self) -> usize {
        self.seats.max(self.final_seats)
    }

    /// The expected work, in seconds of one seat.
    pub(crate) fn seat_seconds(&self) -> f64 {
        self.seats as f64 * EXPECTED_SERVICE_TIME.as_secs_f64()
            + self.final_seats as f64 * self.final_time.as_secs_f64()
    }
}

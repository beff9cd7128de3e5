//! Counters of an attacker: requests, codes, the largest rejection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::client::{AttackResponse, Error};

/// Counters shared by the tasks of an attack.
#[derive(Clone, Default)]
pub struct Tally {
    sent: Arc<AtomicU64>,
    counts: Arc<Mutex<Counts>>,
}

/// Results of the requests.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Number of requests, or of connections if the attack sends no requests.
    pub sent: u64,
    /// Responses by code.
    pub codes: BTreeMap<u16, u64>,
    /// Requests without a response, by cause.
    pub failures: BTreeMap<&'static str, u64>,
    /// Bytes of the largest response with a code of 400 or above.
    pub rejection_bytes: usize,
    /// Largest number of header lines of a response.
    pub header_lines: usize,
}

impl Tally {
    /// Counts a request; returns its number.
    pub fn count_sent(&self) -> u64 {
        self.sent.fetch_add(1, Ordering::Relaxed)
    }

    /// Counts the head of a response.
    pub fn count_code(&self, code: u16) {
        *self.counts.lock().codes.entry(code).or_default() += 1;
    }

    /// Counts a complete response, or a failure without a response.
    pub fn count_answer(&self, answer: &Result<AttackResponse, Error>) {
        let mut counts = self.counts.lock();
        match answer {
            Ok(answer) => {
                *counts.codes.entry(answer.code).or_default() += 1;
                counts.header_lines = counts.header_lines.max(answer.header_lines);
                if answer.code >= 400 {
                    counts.rejection_bytes = counts.rejection_bytes.max(answer.bytes);
                }
            }
            Err(error) => *counts.failures.entry(failure_cause(error)).or_default() += 1,
        }
    }

    /// Counts a request without a response.
    pub fn count_failure(&self, cause: &'static str) {
        *self.counts.lock().failures.entry(cause).or_default() += 1;
    }

    /// Returns the current counts.
    pub fn counts(&self) -> Counts {
        Counts { sent: self.sent.load(Ordering::Relaxed), ..self.counts.lock().clone() }
    }
}

/// Returns the cause of a failure for [`Counts::failures`].
fn failure_cause(error: &Error) -> &'static str {
    match error.downcast_ref::<h2::Error>() {
        Some(error) if error.is_reset() => "reset",
        Some(error) if error.is_go_away() => "goaway",
        Some(_) => "broken",
        None => "unconnected",
    }
}

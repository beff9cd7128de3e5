//! What an attacker counts: requests, codes, the largest refusal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::client::{Answer, Error};

/// Counters that the tasks of an attack share.
#[derive(Clone, Default)]
pub struct Tally {
    sent: Arc<AtomicU64>,
    counts: Arc<Mutex<Counts>>,
}

/// What came back.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Requests, or connections where an attack sends no request.
    pub sent: u64,
    /// Answers by code.
    pub codes: BTreeMap<u16, u64>,
    /// Requests without an answer, by cause.
    pub failures: BTreeMap<&'static str, u64>,
    /// Bytes of the largest answer of code 400 or above.
    pub refusal: usize,
    /// Most header lines of an answer.
    pub header_lines: usize,
}

impl Tally {
    /// Counts a request; answers its number.
    pub fn count_sent(&self) -> u64 {
        self.sent.fetch_add(1, Ordering::Relaxed)
    }

    /// Counts the head of an answer.
    pub fn count_code(&self, code: u16) {
        *self.counts.lock().codes.entry(code).or_default() += 1;
    }

    /// Counts a whole answer, or its absence.
    pub fn count_answer(&self, answer: &Result<Answer, Error>) {
        let mut counts = self.counts.lock();
        match answer {
            Ok(answer) => {
                *counts.codes.entry(answer.code).or_default() += 1;
                counts.header_lines = counts.header_lines.max(answer.header_lines);
                if answer.code >= 400 {
                    counts.refusal = counts.refusal.max(answer.bytes);
                }
            }
            Err(error) => *counts.failures.entry(cause(error)).or_default() += 1,
        }
    }

    /// Counts a request without an answer.
    pub fn count_failure(&self, cause: &'static str) {
        *self.counts.lock().failures.entry(cause).or_default() += 1;
    }

    /// The counts until now.
    pub fn counts(&self) -> Counts {
        Counts { sent: self.sent.load(Ordering::Relaxed), ..self.counts.lock().clone() }
    }
}

/// A short name of an error.
fn cause(error: &Error) -> &'static str {
    match error.downcast_ref::<h2::Error>() {
        Some(error) if error.is_reset() => "reset",
        Some(error) if error.is_go_away() => "goaway",
        Some(_) => "broken",
        None => "unconnected",
    }
}

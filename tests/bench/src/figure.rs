//! Figures with limits: CPU time, percentiles, and the exit status of a bench.
//!
//! # Contract
//!
//! [`verdict`] counts each missed limit of the process. With `--check`, [`Limits::finish`] returns an error if a
//! limit was missed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::client::Error;
use crate::process;

/// Number of limits that the bench has missed.
static MISSED: AtomicUsize = AtomicUsize::new(0);

/// Returns the word for a limit that is met or missed, and counts a missed limit for [`Limits::finish`].
pub fn verdict(holds: bool) -> &'static str {
    if holds {
        return "holds";
    }
    MISSED.fetch_add(1, Ordering::Relaxed);
    "MISSED"
}

/// The flag `--check`.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Limits {
    /// Exit with an error when a limit is missed
    #[arg(long)]
    check: bool,
}

impl Limits {
    /// Returns the result of a bench, after all its figures.
    ///
    /// # Errors
    ///
    /// `--check` is set, and a limit was missed.
    pub fn finish(self) -> Result<(), Error> {
        match MISSED.load(Ordering::Relaxed) {
            missed if self.check && missed > 0 => Err(format!("{missed} limits were missed").into()),
            _ => Ok(()),
        }
    }
}

/// Prints a figure, its maximum, and whether the maximum holds.
pub fn report(name: &str, figure: f64, bound: f64, unit: &str) {
    let verdict = verdict(figure <= bound);
    println!("{name:<52} {figure:>8.2} {unit:<5} at most {bound:>4} {unit:<5} {verdict}");
}

/// CPU time of processes since the start of a measurement.
///
/// Other load on the machine changes the CPU time of work only a little, but can change its duration a lot.
pub struct CpuMeter {
    pids: Vec<u32>,
    before: f64,
}

impl CpuMeter {
    /// Starts a measurement of the CPU time of processes.
    ///
    /// # Errors
    ///
    /// A process has ended.
    pub fn begin(pids: &[u32]) -> Result<Self, Error> {
        Ok(CpuMeter { pids: pids.to_vec(), before: process::cpu_seconds(pids).ok_or("a process has ended")? })
    }

    /// Returns microseconds per item for `count` items.
    ///
    /// # Errors
    ///
    /// A process has ended.
    pub fn micros_per_item(&self, count: usize) -> Result<f64, Error> {
        let spent = process::cpu_seconds(&self.pids).ok_or("a process has ended")? - self.before;
        Ok(spent * 1e6 / count as f64)
    }
}

/// Returns a percentile of sorted latencies, in microseconds.
pub fn percentile(sorted: &[Duration], percent: usize) -> f64 {
    let index = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(index).map_or(0.0, |duration| duration.as_secs_f64() * 1e6)
}

//! Crash tests of the fjall engine on real files with 32 writers: SIGKILL and power cuts.
//!
//! After a crash every acknowledged write is present, no rejected write is present, and the store opens again
//! within the deadline.
//!
//! `CRASH_CYCLES=200` runs that many crashes of each kind, otherwise each kind ends after some seconds.
//! `CRASH_SEED` repeats the random choices of an earlier run, but not the scheduling of its threads.

mod child;
mod kill;
mod model;
mod power;
mod record;
mod session;
mod workload;

use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::SmallRng;

/// Time for which a test repeats its kind of crash without `CRASH_CYCLES`.
const BUDGET: Duration = Duration::from_secs(20);

/// Number or duration of the crashes, and the seed.
struct Plan {
    cycles: Option<u64>,
    begun: Instant,
    seed: u64,
}

impl Plan {
    fn from_environment() -> Plan {
        let number = |name| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
        let seed = number("CRASH_SEED").unwrap_or_else(|| rand::random::<u32>().into());
        Plan { cycles: number("CRASH_CYCLES"), begun: Instant::now(), seed }
    }

    /// Time between start and crash of a store.
    ///
    /// Mostly short, for many crashes in little time; sometimes long enough for memtable flushes, merges and
    /// compaction.
    fn write_duration(random: &mut SmallRng) -> Duration {
        let max_millis = if random.random_bool(0.2) { 400 } else { 50 };
        Duration::from_millis(random.random_range(1..max_millis))
    }

    fn should_continue(&self, cycle: u64) -> bool {
        self.cycles.map_or_else(|| self.begun.elapsed() < BUDGET, |cycles| cycle < cycles)
    }
}

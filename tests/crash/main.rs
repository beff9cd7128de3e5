//! The fjall engine's real files, after the process was killed and after the power was cut, under 32 writers: every
//! acknowledged write is there, no refused one is, the store starts again, and in time.
//!
//! `CRASH_CYCLES=200` runs that many crashes of each kind, otherwise each kind ends after some seconds. `CRASH_SEED`
//! repeats the choices of an earlier run (the threads' order is the machine's).

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    unreachable_pub,
    reason = "a test fails by panicking, and runs on the machine's time"
)]

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

/// How long each kind of crash is tried unless a number of cycles is given.
const BUDGET: Duration = Duration::from_secs(20);

/// How many crashes, and from which seed.
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

    /// How long a store is written to before it crashes: mostly so short that many crashes are soon over, and at times
    /// long enough that memtables were flushed, merged and trimmed.
    fn while_written(random: &mut SmallRng) -> Duration {
        let most = if random.random_bool(0.2) { 400 } else { 50 };
        Duration::from_millis(random.random_range(1..most))
    }

    fn goes_on(&self, cycle: u64) -> bool {
        self.cycles.map_or_else(|| self.begun.elapsed() < BUDGET, |cycles| cycle < cycles)
    }
}

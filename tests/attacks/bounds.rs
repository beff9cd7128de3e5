//! The bounds that hold during every attack.

use std::time::Duration;

/// How much slower the programs of the dev profile may be: they run at `opt-level = 1` with assertions, often beside builds.
const DEV_FACTOR: u32 = 8;

/// MiB that both processes may use beyond the data set.
const MEMORY_MIB: f64 = 256.0;

/// What must hold during an attack.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// p99 of a polite GET, from the time at which it was due.
    pub get_p99: Duration,
    /// p99 of a polite create.
    pub create_p99: Duration,
    /// CPU time of one request of the attacker, in both processes.
    pub cpu: Duration,
    /// Resident memory of both processes beyond the data set, in MiB.
    pub memory_mib: f64,
    /// Resident memory of authd with the data set, in MiB.
    pub authd_mib: f64,
    /// Bytes of an answer that refuses a request, with its headers.
    pub refusal: usize,
    /// Header lines of an answer: common clients read at most 100.
    pub header_lines: usize,
    /// Bytes that both processes write to the log during one attack.
    pub log: u64,
}

impl Bounds {
    /// For programs of the release profile.
    pub const RELEASE: Bounds = Bounds {
        get_p99: Duration::from_millis(50),
        create_p99: Duration::from_millis(100),
        cpu: Duration::from_secs(1),
        memory_mib: MEMORY_MIB,
        authd_mib: 64.0,
        refusal: 256 * 1024,
        header_lines: 100,
        log: 256 * 1024,
    };

    /// For programs of the dev profile: times are [`DEV_FACTOR`] times longer, sizes are the same.
    pub const DEV: Bounds = Bounds {
        get_p99: Bounds::RELEASE.get_p99.saturating_mul(DEV_FACTOR),
        create_p99: Bounds::RELEASE.create_p99.saturating_mul(DEV_FACTOR),
        cpu: Bounds::RELEASE.cpu.saturating_mul(DEV_FACTOR),
        ..Bounds::RELEASE
    };
}

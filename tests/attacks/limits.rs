//! Limits that hold during every attack.

use std::time::Duration;

/// Factor of the time limits for programs of the dev profile.
///
/// They have assertions, at most `opt-level = 1`, and often run beside builds.
const DEV_FACTOR: u32 = 8;

/// Memory in MiB that both processes may use in addition to the data set.
const MEMORY_MIB: f64 = 256.0;

/// Limits during an attack.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum p99 latency of the GETs of the reference client, counted from the time at which they are due.
    pub get_p99: Duration,
    /// Maximum p99 latency of the creates of the reference client.
    pub create_p99: Duration,
    /// Maximum CPU time of one request of the attacker, in both processes together.
    pub cpu: Duration,
    /// Maximum resident memory of both processes beyond the data set, in MiB.
    pub memory_mib: f64,
    /// Maximum resident memory of authd with the data set, in MiB.
    pub authd_mib: f64,
    /// Maximum size of a rejection in bytes, including headers.
    pub rejection_bytes: usize,
    /// Maximum number of header lines of a response: common clients read at most 100.
    pub header_lines: usize,
    /// Maximum number of bytes that both processes log during one attack.
    pub log: u64,
}

impl Limits {
    /// Limits for programs of the release profile.
    pub const RELEASE: Limits = Limits {
        get_p99: Duration::from_millis(50),
        create_p99: Duration::from_millis(100),
        cpu: Duration::from_secs(1),
        memory_mib: MEMORY_MIB,
        authd_mib: 64.0,
        rejection_bytes: 256 * 1024,
        header_lines: 100,
        log: 256 * 1024,
    };

    /// Limits for programs of the dev profile: times are [`DEV_FACTOR`] times longer, sizes are the same.
    pub const DEV: Limits = Limits {
        get_p99: Limits::RELEASE.get_p99.saturating_mul(DEV_FACTOR),
        create_p99: Limits::RELEASE.create_p99.saturating_mul(DEV_FACTOR),
        cpu: Limits::RELEASE.cpu.saturating_mul(DEV_FACTOR),
        ..Limits::RELEASE
    };
}

//! Clocks and random generators as parameters, so that tests simulate years in seconds and replay a seed.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::Timestamp;

/// Source of time.
pub trait Clock: Send + Sync + 'static {
    /// Returns the wall-clock time.
    fn now(&self) -> Timestamp;

    /// Returns the time since an arbitrary start, by a clock that never goes back.
    fn monotonic(&self) -> Duration;
}

/// Wall clock and monotonic clock of the machine.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: std::time::Instant,
}

#[expect(clippy::disallowed_methods, reason = "the only source of the system time")]
impl SystemClock {
    /// Starts the monotonic clock at zero.
    pub fn new() -> Self {
        SystemClock { start: std::time::Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock::new()
    }
}

#[expect(clippy::disallowed_methods, reason = "the only source of the system time")]
impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn monotonic(&self) -> Duration {
        std::time::Instant::now().saturating_duration_since(self.start)
    }
}

/// Clock for tests: its time changes only by calls of its methods.
#[derive(Debug)]
pub struct ManualClock {
    /// Time of the monotonic clock in milliseconds. Its initial value is the Unix time of the start, not 0.
    millis: AtomicI64,
    /// Milliseconds to add to `millis` for the wall clock; negative after [`ManualClock::set_back`].
    wall_offset: AtomicI64,
}

impl ManualClock {
    /// Creates a clock whose wall clock shows `start`.
    pub fn at(start: Timestamp) -> Self {
        ManualClock { millis: AtomicI64::new(start.as_millisecond()), wall_offset: AtomicI64::new(0) }
    }

    /// Moves both the wall clock and the monotonic clock forward.
    pub fn advance(&self, by: Duration) {
        self.millis.fetch_add(i64::try_from(by.as_millis()).unwrap_or(i64::MAX), Ordering::SeqCst);
    }

    /// Sets the wall clock back; the monotonic clock does not move.
    pub fn set_back(&self, by: Duration) {
        let millis = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        self.wall_offset.fetch_sub(millis, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        let millis = self.millis.load(Ordering::SeqCst);
        let wall = millis.saturating_add(self.wall_offset.load(Ordering::SeqCst));
        Timestamp::from_millisecond(wall).unwrap_or(Timestamp::MAX)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.millis.load(Ordering::SeqCst)).unwrap_or(0))
    }
}

/// Random generator; not for keys or tokens, which `aws-lc-rs` generates.
pub trait Rng: Send + Sync + 'static {
    /// Returns 128 random bits.
    fn bits(&self) -> u128;

    /// Returns a version 4 UUID (RFC 9562).
    fn uuid(&self) -> String {
        let uuid = uuid::Builder::from_random_bytes(self.bits().to_be_bytes()).into_uuid();
        uuid.hyphenated().encode_lower(&mut uuid::Uuid::encode_buffer()).to_owned()
    }

    /// Returns five characters of the alphabet of generated names (specification: `metadata.generateName`).
    fn name_suffix(&self) -> String {
        const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
        let mut bits = self.bits();
        let mut suffix = String::with_capacity(5);
        for _ in 0..5 {
            let index = usize::try_from(bits % 27).unwrap_or(0);
            suffix.push(char::from(ALPHABET.get(index).copied().unwrap_or(b'b')));
            bits /= 27;
        }
        suffix
    }
}

/// Random generator of each thread, which the operating system seeds.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemRng;

impl Rng for SystemRng {
    fn bits(&self) -> u128 {
        rand::random()
    }
}

/// Seeded generator: the same seed gives the same run.
#[derive(Debug)]
pub struct SeededRng {
    state: std::sync::atomic::AtomicU64,
}

impl SeededRng {
    /// Creates a generator from a seed. A test prints its seed, so that a failure can be repeated.
    pub fn new(seed: u64) -> Self {
        SeededRng { state: std::sync::atomic::AtomicU64::new(seed) }
    }

    /// Returns the next 64 bits by SplitMix64: one step of the state, then a mix of its bits.
    fn next(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.state.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl Rng for SeededRng {
    fn bits(&self) -> u128 {
        (u128::from(self.next()) << 64) | u128::from(self.next())
    }
}

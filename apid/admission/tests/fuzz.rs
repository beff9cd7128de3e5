//! Fuzz target for responses of admission webhooks: nothing panics.
//!
//! The target runs for `FUZZ_SECONDS` (default 2), from `FUZZ_SEED` (default: fixed, so that a run is repeatable
//! up to its number of rounds). A failure prints seed, round and input.

#![expect(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

use std::panic::catch_unwind;
use std::sync::LazyLock;
use std::time::Duration;

use apimachinery::clock::{Clock, Rng, SeededRng, SystemClock};
use apimachinery::names::{Names, Preset};

static NAMES: LazyLock<Names> = LazyLock::new(|| Names::new(Preset::Kubernetes, "").unwrap());

const SEEDS: [&str; 3] = [
    r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":true}}"#,
    r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":false,"status":{"code":403,"message":"m","reason":"r","details":{"causes":[{"field":"f"}],"retryAfterSeconds":1}},"warnings":["w"],"auditAnnotations":{"k":"v"}}}"#,
    r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":true,"patchType":"JSONPatch","patch":"W3sib3AiOiJhZGQiLCJwYXRoIjoiL2EiLCJ2YWx1ZSI6MX1d"}}"#,
];

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn pick(rng: &SeededRng, below: usize) -> usize {
    usize::try_from(rng.bits() % below.max(1) as u128).unwrap_or(0)
}

/// Changes some bytes of a seed: replaces, removes or repeats a range.
fn mutate(rng: &SeededRng) -> Vec<u8> {
    let seed = SEEDS.get(pick(rng, SEEDS.len())).copied().unwrap_or_default();
    let mut bytes = seed.as_bytes().to_vec();
    for _ in 0..=pick(rng, 4) {
        let start = pick(rng, bytes.len());
        let end = (start + pick(rng, 12)).min(bytes.len());
        let range: Vec<u8> = bytes.get(start..end).unwrap_or_default().to_vec();
        match pick(rng, 3) {
            0 => drop(bytes.drain(start..end)),
            1 => drop(bytes.splice(start..start, range)),
            _ => bytes.iter_mut().skip(start).take(1).for_each(|byte| *byte = rng.bits().to_le_bytes()[0]),
        }
    }
    bytes
}

#[test]
fn fuzz_admission_responses() {
    let (clock, seed) = (SystemClock::new(), number("FUZZ_SEED", 1));
    let end = clock.monotonic() + Duration::from_secs(number("FUZZ_SECONDS", 2));
    let rng = SeededRng::new(seed);
    SEEDS.iter().for_each(|text| admission::fuzz_response(text.as_bytes(), &NAMES));
    let mut round = 0_u64;
    while clock.monotonic() < end {
        let bytes = mutate(&rng);
        if catch_unwind(|| admission::fuzz_response(&bytes, &NAMES)).is_err() {
            panic!("seed {seed}, round {round}: {}", String::from_utf8_lossy(&bytes));
        }
        round += 1;
    }
}

//! Fuzz tests of parsers: mutated examples, and shrinking of an input that fails.
//!
//! # Contract
//!
//! [`run`] calls a target with each example, then with mutated examples for `FUZZ_SECONDS` (default 2), from
//! `FUZZ_SEED` (default: fixed, so that a run is repeatable up to its number of rounds). A target fails by
//! panicking. [`run`] then removes bytes while the target still fails, and panics with the seed, the round and
//! the remaining input.

#![allow(clippy::disallowed_methods, reason = "the time limit of a test is real time")]
#![allow(clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// The seed without `FUZZ_SEED`.
const DEFAULT_SEED: u64 = 20_240_601;
/// The duration without `FUZZ_SECONDS`.
const DEFAULT_SECONDS: u64 = 2;
/// Bytes with a meaning in one of the formats.
const SPECIAL: &[u8] = b"{}[]()\"'\\:,-?&*!|>%@`#=<~.+;/_ \n\t\r\0\xff\xc3\xa90195eExuny";
/// Maximum number of mutations of one input.
const MAX_MUTATIONS: usize = 8;
/// Maximum number of calls of the target while an input is shrunk; at the limit the shrinking ends.
const MAX_SHRINK_CALLS: usize = 10_000;

/// Runs a target with mutations of examples.
///
/// # Panics
///
/// The target panicked.
pub fn run<S: AsRef<[u8]>>(name: &str, examples: &[S], target: impl Fn(&[u8])) {
    for example in examples {
        target(example.as_ref());
    }
    let variable = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = variable("FUZZ_SEED").unwrap_or(DEFAULT_SEED);
    let budget = Duration::from_secs(variable("FUZZ_SECONDS").unwrap_or(DEFAULT_SECONDS));
    let mut rng = SmallRng::seed_from_u64(seed);
    let fails = |input: &[u8]| catch_unwind(AssertUnwindSafe(|| target(input))).is_err();
    let start = Instant::now();
    let mut round = 0_u64;
    while start.elapsed() < budget {
        let input = mutate(&mut rng, examples);
        if fails(&input) {
            let input = shrink(input, &fails);
            panic!("{name}: FUZZ_SEED={seed} round {round}: {:?}", String::from_utf8_lossy(&input));
        }
        round += 1;
    }
    println!("{name}: {round} rounds");
}

/// Runs a target that takes text; an input that is not UTF-8 is converted with replacement characters.
pub fn run_text(name: &str, examples: &[&str], target: impl Fn(&str)) {
    run(name, examples, |input| target(&String::from_utf8_lossy(input)));
}

/// Returns a mutated example, two examples spliced, or random bytes.
pub fn mutate<S: AsRef<[u8]>>(rng: &mut SmallRng, examples: &[S]) -> Vec<u8> {
    let example = |rng: &mut SmallRng| match examples.len() {
        0 => &[][..],
        count => examples[rng.random_range(0..count)].as_ref(),
    };
    let mut bytes = match rng.random_range(0..10) {
        0 => (0..rng.random_range(0..64)).map(|_| rng.random()).collect(),
        1 | 2 => {
            let (head, tail) = (example(rng), example(rng));
            [&head[..rng.random_range(0..=head.len())], &tail[rng.random_range(0..=tail.len())..]].concat()
        }
        _ => example(rng).to_vec(),
    };
    for _ in 0..rng.random_range(0..MAX_MUTATIONS) {
        mutate_once(rng, &mut bytes);
    }
    bytes
}

/// Inserts, replaces, removes, repeats or cuts bytes.
fn mutate_once(rng: &mut SmallRng, bytes: &mut Vec<u8>) {
    let special = SPECIAL[rng.random_range(0..SPECIAL.len())];
    let at = rng.random_range(0..=bytes.len());
    match rng.random_range(0..6) {
        0 => bytes.insert(at, special),
        1 if at < bytes.len() => bytes[at] = special,
        2 if at < bytes.len() => bytes[at] = rng.random(),
        3 if at < bytes.len() => drop(bytes.remove(at)),
        4 => {
            let piece = bytes[at..(at + rng.random_range(0..40)).min(bytes.len())].to_vec();
            let to = rng.random_range(0..=bytes.len());
            bytes.splice(to..to, piece.repeat(rng.random_range(1..40)));
        }
        _ => bytes.truncate(at.max(1)),
    }
}

/// Removes ever smaller pieces of an input while it still fails.
fn shrink(mut input: Vec<u8>, fails: &impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut calls = 0;
    let mut size = input.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < input.len() && calls < MAX_SHRINK_CALLS {
            let mut shorter = input.clone();
            shorter.drain(at..(at + size).min(input.len()));
            calls += 1;
            if fails(&shorter) {
                input = shorter;
            } else {
                at += size;
            }
        }
        size /= 2;
    }
    input
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failing_input_is_shrunk_to_the_bytes_that_fail() {
        let fails = |input: &[u8]| input.contains(&b'x') && input.contains(&b'y');
        assert_eq!(shrink(b"a long text with x and then some y at its end".to_vec(), &fails), b"xy");
    }

    #[test]
    fn same_seed_gives_the_same_inputs() {
        let inputs = |seed| {
            let mut rng = SmallRng::seed_from_u64(seed);
            (0..50).map(|_| mutate(&mut rng, &["{\"a\": [1, 2]}"])).collect::<Vec<_>>()
        };
        assert_eq!(inputs(1), inputs(1));
        assert_ne!(inputs(1), inputs(2));
    }

    #[test]
    #[should_panic(expected = "digits: FUZZ_SEED=")]
    fn failing_target_is_reported_with_seed() {
        run("digits", &["a1"], |input| assert!(input.len() < 3));
    }
}

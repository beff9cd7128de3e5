//! Fuzz target for client frames: random and mutated input.
//!
//! The parser must not panic, its memory is bounded, and its replies depend only on the bytes, not on how the
//! network splits them.
//!
//! The test runs for `FUZZ_SECONDS` (default 2), from `FUZZ_SEED` (default: fixed). A failure prints seed,
//! round and input.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use apimachinery::clock::{Clock as _, Rng as _, SeededRng, SystemClock};

use super::frames::tests::masked;
use super::frames::{
    BINARY, CLOSE, CONTROL_MAX, ClientFrameParser, PING, PONG, PROTOCOL_ERROR, Reply, TEXT, frame,
};

/// Feeds bytes split at `cuts`, in turn; returns all replies and whether the connection closes.
fn parser_replies(mut bytes: &[u8], cuts: &[usize]) -> (Vec<u8>, bool) {
    let mut received = ClientFrameParser::default();
    let mut all = Vec::new();
    for cut in cuts.iter().cycle() {
        if bytes.is_empty() {
            break;
        }
        let (part, rest) = bytes.split_at((*cut).clamp(1, bytes.len()));
        bytes = rest;
        match received.take(part) {
            Reply::Nothing => {}
            Reply::Frames(frames) => all.extend(frames),
            Reply::Close(frames) => {
                all.extend(frames);
                return (all, true);
            }
        }
        assert!(
            received.incomplete.len() <= 14 + CONTROL_MAX,
            "{} bytes are buffered",
            received.incomplete.len()
        );
    }
    (all, false)
}

/// The reference model of RFC 6455, section 5.2, for a complete input.
fn model_replies(mut bytes: &[u8]) -> (Vec<u8>, bool) {
    let mut all = Vec::new();
    loop {
        let [first, second, rest @ ..] = bytes else { return (all, false) };
        let (control, short) = (first & 0x08 != 0, second & 0x7f);
        let allowed = [0, TEXT, BINARY, CLOSE, PING, PONG].contains(&(first & 0x0f))
            && first & 0x70 == 0
            && second & 0x80 != 0
            && !(control && (first & 0x80 == 0 || short > 125))
            && !(first & 0x0f == CLOSE && short == 1);
        let broken = |mut all: Vec<u8>| {
            all.extend(frame(CLOSE, &PROTOCOL_ERROR.to_be_bytes()));
            (all, true)
        };
        if !allowed {
            return broken(all);
        }
        let extended = match short {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        if rest.len() < extended + 4 {
            return (all, false);
        }
        let length = match extended {
            0 => u64::from(short),
            _ => rest[..extended].iter().fold(0, |sum, byte| (sum << 8) | u64::from(*byte)),
        };
        if length >> 63 != 0 {
            return broken(all);
        }
        let (mask, payload) = rest[extended..].split_at(4);
        let Some(payload) = usize::try_from(length).ok().and_then(|length| payload.get(..length)) else {
            return (all, false);
        };
        let plain: Vec<u8> = payload.iter().enumerate().map(|(i, byte)| byte ^ mask[i % 4]).collect();
        bytes = &rest[extended + 4 + payload.len()..];
        match first & 0x0f {
            PING => all.extend(frame(PONG, &plain)),
            CLOSE => {
                all.extend(frame(CLOSE, plain.get(..2).unwrap_or_default()));
                return (all, true);
            }
            _ => {}
        }
    }
}

/// The first two bytes of the input define the split positions.
fn frames(data: &[u8]) {
    let [first, second, bytes @ ..] = data else { return };
    let expected_replies = model_replies(bytes);
    for cuts in [&[usize::MAX][..], &[1], &[usize::from(*first), usize::from(*second), 1]] {
        assert_eq!(parser_replies(bytes, cuts), expected_replies, "split at {cuts:?}");
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let huge = [&[0, 0, 0x82, 0xff][..], &[0x7f; 8], &[1, 2, 3, 4], b"and so on"].concat();
    let parts = [
        masked(0x01, b"a"),
        masked(0x89, b"between"),
        masked(0x80, b"b"),
        masked(0x8a, b""),
        masked(0x82, &[7; 300]),
        masked(0x89, &[5; 125]),
        masked(0x88, b"\x03\xe8the end"),
        masked(0x89, b"too late"),
    ];
    let all = parts.concat();
    let single = parts.iter().map(|part| [&[3, 7][..], part].concat());
    single
        .chain([huge, [&[5, 90][..], &all].concat(), [&[1, 1][..], &masked(0x81, &[9; 70_000])].concat()])
        .collect()
}

#[test]
fn fuzz_client_frames_match_reference_model() {
    const SPECIAL: &[u8] =
        &[0, 1, 2, 8, 9, 10, 0x7d, 0x7e, 0x7f, 0x80, 0x81, 0x88, 0x89, 0x8a, 0xfd, 0xfe, 0xff];
    let variable = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = variable("FUZZ_SEED").unwrap_or(20_251_121);
    let budget = Duration::from_secs(variable("FUZZ_SECONDS").unwrap_or(2));
    let (clock, rng, seeds) = (SystemClock::new(), SeededRng::new(seed), seeds());
    let pick = |n: usize| usize::try_from(rng.bits() % (n.max(1) as u128)).unwrap_or(0);
    seeds.iter().for_each(|bytes| frames(bytes));
    let mut round = 0_u64;
    while clock.monotonic() < budget {
        let mut bytes = match pick(10) {
            0 => (0..pick(200)).map(|_| rng.bits() as u8).collect(),
            1 => [&seeds[pick(seeds.len())][..], &seeds[pick(seeds.len())][2..]].concat(),
            _ => seeds[pick(seeds.len())].clone(),
        };
        for _ in 0..pick(5) {
            let at = pick(bytes.len().min(40));
            match pick(4) {
                0 => bytes.insert(at, SPECIAL[pick(SPECIAL.len())]),
                1 if at < bytes.len() => bytes[at] = SPECIAL[pick(SPECIAL.len())],
                2 if at < bytes.len() => drop(bytes.remove(at)),
                _ => bytes.truncate(bytes.len() - at),
            }
        }
        if catch_unwind(AssertUnwindSafe(|| frames(&bytes))).is_err() {
            panic!("FUZZ_SEED={seed} round {round}: {bytes:?}");
        }
        round += 1;
    }
    println!("{round} rounds");
}

//! Shuffle sharding: the queues among which the requests of one flow are distributed.
//!
//! # Contract
//!
//! A flow is a flow schema and a distinguisher. Its hash deals a hand of different queues, always the same hand. Two
//! flows rarely have the same hand, so a flow that fills its queues leaves most other flows at least one short queue.
//!
//! # Reference
//!
//! Kubernetes deals the same hands: the first eight bytes of the SHA-256 of schema, a zero byte and distinguisher are a
//! number, little endian. The digits of the number, to the bases `queues`, `queues - 1`, …, choose each card among the
//! queues that are left.

use aws_lc_rs::digest::{SHA256, digest};

/// Returns the hash of a flow.
pub(crate) fn flow_hash(schema: &str, distinguisher: &str) -> u64 {
    let digest = digest(&SHA256, &[schema.as_bytes(), &[0], distinguisher.as_bytes()].concat());
    let first = digest.as_ref().first_chunk::<8>().copied().unwrap_or_default();
    u64::from_le_bytes(first)
}

/// Deals different numbers below `queues` into `hand`, at most `hand_size` of them.
pub(crate) fn deal(mut hash: u64, queues: usize, hand_size: usize, hand: &mut Vec<usize>) {
    hand.clear();
    for left in (1..=queues as u64).rev().take(hand_size) {
        hand.push((hash % left) as usize);
        hash /= left;
    }
    // Each entry is now a position among the queues that the earlier entries leave. From the last entry to the first,
    // so that the earlier entries are still positions.
    for index in (0..hand.len()).rev() {
        let Some((card, earlier)) = hand.get_mut(..=index).and_then(<[usize]>::split_last_mut) else {
            continue;
        };
        for position in earlier.iter().rev() {
            if *card >= *position {
                *card += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use rand::rngs::SmallRng;
    use rand::{Rng as _, SeedableRng as _};

    use super::*;

    fn hand(hash: u64, queues: usize, hand_size: usize) -> Vec<usize> {
        let mut hand = Vec::new();
        deal(hash, queues, hand_size, &mut hand);
        hand
    }

    #[test]
    fn flows_get_hands_that_kube_apiserver_deals() {
        // From a dump of the queues of kube-apiserver, and from the algorithm of its documentation.
        assert_eq!(hand(flow_hash("t", "bob"), 8, 2), [0, 3]);
        assert_eq!(hand(flow_hash("t", "carol"), 8, 2), [2, 7]);
        assert_eq!(hand(flow_hash("t", "bob"), 64, 6), [56, 16, 34, 15, 3, 31]);
        assert_eq!(hand(flow_hash("t", "carol"), 64, 6), [26, 53, 51, 6, 36, 41]);
    }

    #[test]
    fn hand_has_different_queues() {
        let mut rng = SmallRng::seed_from_u64(1);
        for _ in 0..2_000 {
            let queues = rng.random_range(1..=20);
            let hand_size = rng.random_range(1..=queues);
            let hand = hand(rng.random(), queues, hand_size);
            assert_eq!(hand.len(), hand_size);
            assert_eq!(hand.iter().collect::<HashSet<_>>().len(), hand_size, "{hand:?}");
            assert!(hand.iter().all(|queue| *queue < queues), "{hand:?}");
        }
    }

    #[test]
    fn hands_of_all_flows_use_all_queues_evenly() {
        let mut uses = [0_u32; 16];
        for user in 0..8_000 {
            for queue in hand(flow_hash("s", &format!("user{user}")), 16, 4) {
                uses[queue] += 1;
            }
        }
        assert!(uses.iter().all(|uses| (1_800..=2_200).contains(uses)), "{uses:?}");
    }
}

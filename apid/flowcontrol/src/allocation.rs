//! Seats of the levels: nominal limits from shares, and current limits after lending and borrowing.
//!
//! # Contract
//!
//! The server's seats are `--max-requests-inflight` and `--max-mutating-requests-inflight` together. A level has a
//! nominal limit in proportion to its shares, rounded up. It lends at most a part of it and borrows at most a given
//! number of seats. So its current limit stays between the lower and the upper limit.
//!
//! [`allocate`] divides the sum of all nominal limits by one proportion of the levels' targets, within the bounds of
//! each level.

/// The configured limits of a level, in seats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) nominal: usize,
    pub(crate) lower: usize,
    pub(crate) upper: usize,
}

impl Limits {
    /// Computes the limits of a level. `server`: all seats; `share_sum`: the shares of all levels.
    pub(crate) fn new(server: usize, share_sum: u64, spec: &crate::configuration::LevelSpec) -> Self {
        let nominal = match share_sum {
            0 => 0,
            sum => (server as f64 * f64::from(spec.nominal_shares) / sum as f64).ceil() as usize,
        };
        let percent_of_nominal =
            |percent: u32| (nominal as f64 * f64::from(percent) / 100.0).round() as usize;
        Limits {
            nominal,
            lower: nominal.saturating_sub(percent_of_nominal(spec.lendable_percent)),
            upper: nominal + spec.borrowing_limit_percent.map_or(server, percent_of_nominal),
        }
    }

    /// The current limit of a level that has not yet lent or borrowed: half of what it may lend is lent.
    pub(crate) fn initial(self) -> usize {
        self.nominal - (self.nominal - self.lower) / 2
    }
}

/// Bounds and target of a level, in seats. `lower` is at most `target`, and at most `upper`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Claim {
    pub(crate) lower: f64,
    pub(crate) upper: f64,
    pub(crate) target: f64,
}

/// Seats of each level, and the proportion of the targets that led to them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Allocation {
    pub(crate) seats: Vec<f64>,
    /// 0 if all levels have their lower bound.
    pub(crate) fair_fraction: f64,
}

/// Divides `total` seats: each level gets `fair_fraction * target` within its bounds, and the sum is `total`.
///
/// Levels get their lower bounds if even these exceed `total`, and their upper bounds if these do not reach it.
pub(crate) fn allocate(total: f64, claims: &[Claim]) -> Allocation {
    let seats_at = |fraction: f64| -> Vec<f64> {
        claims.iter().map(|claim| (fraction * claim.target).clamp(claim.lower, claim.upper)).collect()
    };
    let sum_at = |fraction: f64| seats_at(fraction).iter().sum::<f64>();
    // Between two neighbours of this list no level meets a bound, so the sum is linear there.
    let mut bends: Vec<f64> = claims
        .iter()
        .filter(|claim| claim.target > 0.0)
        .flat_map(|claim| [claim.lower / claim.target, claim.upper / claim.target])
        .chain([0.0])
        .collect();
    bends.sort_by(f64::total_cmp);
    let mut low = 0.0;
    for bend in bends {
        let (sum_low, sum) = (sum_at(low), sum_at(bend));
        if sum >= total {
            let part = if sum > sum_low { ((total - sum_low) / (sum - sum_low)).max(0.0) } else { 0.0 };
            low += part * (bend - low);
            return Allocation { seats: seats_at(low), fair_fraction: low };
        }
        low = bend;
    }
    Allocation { seats: seats_at(low), fair_fraction: low }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{Rng as _, SeedableRng as _};

    use super::*;
    use crate::configuration::{LevelSpec, LimitResponse};

    fn spec(nominal_shares: u32, lendable_percent: u32, borrowing_limit_percent: Option<u32>) -> LevelSpec {
        LevelSpec {
            nominal_shares,
            lendable_percent,
            borrowing_limit_percent,
            response: LimitResponse::Reject,
        }
    }

    #[test]
    fn limits_of_built_in_levels_are_those_of_kube_apiserver() {
        // Metrics of kube-apiserver with a level of one share beside the built-in ones.
        let table = [
            (spec(0, 0, None), (0, 0, 600)),
            (spec(5, 0, None), (13, 13, 613)),
            (spec(30, 33, None), (74, 50, 674)),
            (spec(40, 25, None), (98, 73, 698)),
            (spec(10, 0, None), (25, 25, 625)),
            (spec(40, 50, None), (98, 49, 698)),
            (spec(100, 90, None), (245, 24, 845)),
            (spec(0, 0, Some(0)), (0, 0, 0)),
        ];
        for (spec, (nominal, lower, upper)) in table {
            assert_eq!(Limits::new(600, 245, &spec), Limits { nominal, lower, upper }, "{spec:?}");
        }
        assert_eq!(Limits::new(600, 0, &spec(0, 0, None)).nominal, 0);
    }

    #[test]
    fn allocation_has_one_proportion_within_bounds() {
        let claim = |lower, upper, target| Claim { lower, upper, target };
        let table = [
            (30.0, vec![claim(0.0, 100.0, 10.0), claim(0.0, 100.0, 20.0)], vec![10.0, 20.0], 1.0),
            (60.0, vec![claim(0.0, 100.0, 10.0), claim(0.0, 100.0, 20.0)], vec![20.0, 40.0], 2.0),
            (60.0, vec![claim(0.0, 15.0, 10.0), claim(0.0, 100.0, 20.0)], vec![15.0, 45.0], 2.25),
            (30.0, vec![claim(20.0, 30.0, 20.0), claim(0.0, 100.0, 20.0)], vec![20.0, 10.0], 0.5),
            (10.0, vec![claim(8.0, 30.0, 20.0), claim(5.0, 100.0, 20.0)], vec![8.0, 5.0], 0.0),
            (99.0, vec![claim(0.0, 30.0, 20.0), claim(0.0, 40.0, 20.0)], vec![30.0, 40.0], 2.0),
            (50.0, vec![claim(0.0, 30.0, 0.0), claim(0.0, 100.0, 1.0)], vec![0.0, 50.0], 50.0),
        ];
        for (total, claims, seats, fair_fraction) in table {
            assert_eq!(allocate(total, &claims), Allocation { seats, fair_fraction }, "{total} {claims:?}");
        }
    }

    #[test]
    fn allocation_distributes_all_seats_of_random_claims() {
        let mut rng = SmallRng::seed_from_u64(7);
        for _ in 0..1_000 {
            let claims: Vec<Claim> = (0..rng.random_range(1..12))
                .map(|_| {
                    let lower = f64::from(rng.random_range(0..50));
                    let upper = lower + f64::from(rng.random_range(0..200));
                    Claim { lower, upper, target: lower + f64::from(rng.random_range(1..50)) }
                })
                .collect();
            let lower_sum: f64 = claims.iter().map(|claim| claim.lower).sum();
            let upper_sum: f64 = claims.iter().map(|claim| claim.upper).sum();
            let total = lower_sum + (upper_sum - lower_sum) * rng.random_range(0.0..1.0);
            let allocation = allocate(total, &claims);
            let sum: f64 = allocation.seats.iter().sum();
            assert!((sum - total).abs() < 1e-6, "{total} {sum} {claims:?}");
            for (seats, claim) in allocation.seats.iter().zip(&claims) {
                let expected = (allocation.fair_fraction * claim.target).clamp(claim.lower, claim.upper);
                assert!((seats - expected).abs() < 1e-9, "{claims:?}");
            }
        }
    }
}

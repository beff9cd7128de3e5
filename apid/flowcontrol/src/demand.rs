//! The demand of a level for seats over time, from which lending and borrowing follow.
//!
//! # Contract
//!
//! [`DemandIntegrator`] follows one number, the seats of the level that are occupied or waited for, and returns its
//! highest value, mean and standard deviation over a period, weighted by time. [`SmoothedDemand`] follows the mean plus
//! one deviation: upwards at once, downwards by 2.3 % of the difference each period.

use std::time::Duration;

/// Part of the smoothed demand that a period keeps.
const KEPT_PER_PERIOD: f64 = 0.977;

/// Follows the demand of a level during a period.
#[derive(Clone, Debug, Default)]
pub(crate) struct DemandIntegrator {
    current: f64,
    since: Duration,
    /// Seconds of the period.
    seconds: f64,
    /// Integral of the demand, and of its square.
    integral: f64,
    square_integral: f64,
    highest: f64,
}

/// The demand of a level in one period, in seats.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Demand {
    pub(crate) highest: f64,
    pub(crate) mean: f64,
    pub(crate) deviation: f64,
}

impl DemandIntegrator {
    /// Begins a period at `now` without demand.
    pub(crate) fn begin(now: Duration) -> Self {
        DemandIntegrator { since: now, ..DemandIntegrator::default() }
    }

    /// Records the demand from `now` on.
    pub(crate) fn set(&mut self, now: Duration, seats: usize) {
        self.integrate(now);
        self.current = seats as f64;
        self.highest = self.highest.max(self.current);
    }

    /// Returns the demand of the period and begins the next one.
    pub(crate) fn next_period(&mut self, now: Duration) -> Demand {
        self.integrate(now);
        let demand = self.demand();
        *self = DemandIntegrator {
            current: self.current,
            since: self.since,
            highest: self.current,
            ..DemandIntegrator::default()
        };
        demand
    }

    fn integrate(&mut self, now: Duration) {
        let seconds = now.saturating_sub(self.since).as_secs_f64();
        self.since = self.since.max(now);
        self.seconds += seconds;
        self.integral += self.current * seconds;
        self.square_integral += self.current * self.current * seconds;
    }

    fn demand(&self) -> Demand {
        if self.seconds <= 0.0 {
            return Demand { highest: self.highest, mean: self.current, deviation: 0.0 };
        }
        let mean = self.integral / self.seconds;
        // Rounding can make a variance of zero negative.
        let variance = (self.square_integral / self.seconds - mean * mean).max(0.0);
        Demand { highest: self.highest, mean, deviation: variance.sqrt() }
    }
}

/// The demand of a level over several periods, in seats.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct SmoothedDemand {
    pub(crate) last: Demand,
    pub(crate) smoothed: f64,
}

impl SmoothedDemand {
    /// Adds the demand of a period.
    pub(crate) fn add(&mut self, demand: Demand) {
        let envelope = demand.mean + demand.deviation;
        let decayed = KEPT_PER_PERIOD * self.smoothed + (1.0 - KEPT_PER_PERIOD) * envelope;
        self.last = demand;
        self.smoothed = envelope.max(decayed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn demand_is_weighted_by_time() {
        let mut demand = DemandIntegrator::begin(at(1.0));
        demand.set(at(2.0), 4);
        demand.set(at(4.0), 1);
        let period = demand.next_period(at(5.0));
        // One second of 0, two of 4, one of 1.
        assert_eq!((period.highest, period.mean), (4.0, 2.25));
        let variance: f64 = (0.0 + 2.0 * 16.0 + 1.0) / 4.0 - 2.25 * 2.25;
        assert!((period.deviation - variance.sqrt()).abs() < 1e-9, "{period:?}");
        let next = demand.next_period(at(6.0));
        assert_eq!(next, Demand { highest: 1.0, mean: 1.0, deviation: 0.0 }, "the demand goes on");
    }

    #[test]
    fn period_without_time_has_current_demand() {
        let mut demand = DemandIntegrator::begin(at(1.0));
        demand.set(at(1.0), 3);
        assert_eq!(demand.next_period(at(1.0)), Demand { highest: 3.0, mean: 3.0, deviation: 0.0 });
    }

    #[test]
    fn smoothed_demand_rises_at_once_and_falls_slowly() {
        let mut demand = SmoothedDemand::default();
        demand.add(Demand { highest: 12.0, mean: 8.0, deviation: 2.0 });
        assert_eq!(demand.smoothed, 10.0);
        demand.add(Demand::default());
        assert!((demand.smoothed - 9.77).abs() < 1e-9, "{demand:?}");
        for _ in 0..30 {
            demand.add(Demand::default());
        }
        assert!((4.0..5.0).contains(&demand.smoothed), "half of it is gone after five minutes: {demand:?}");
    }
}

//! Circuit breaker of one webhook: back-off after failed connections, with half-open trials.
//!
//! # Contract
//!
//! After [`FAILURE_THRESHOLD`] consecutive failures to connect, the back-off refuses all calls during a
//! pause. After the pause it permits one call, the trial, and refuses other calls until the trial ends. If
//! the trial fails to connect, the next pause is twice as long, up to a second. A successful connection
//! ends the back-off. A call that times out does not end it, because its connection may not have succeeded.
//!
//! # Invariants
//!
//! INVARIANT (no influence of clients): only failures to connect begin a back-off. Slow calls, unusable responses and
//! cancelled requests do not, because clients can cause them. A client must not cause refused calls, because
//! the refused call of a webhook with the failure policy `Ignore` does not prevent a write.

use std::time::Duration;

use parking_lot::Mutex;
use serving::backoff::Backoff;

/// Number of consecutive failures to connect after which a back-off begins.
const FAILURE_THRESHOLD: u32 = 5;
/// The pauses. The longest pause is short, so that calls soon reach a webhook that is reachable again.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(200), longest: Duration::from_secs(1) };

/// The circuit breaker of a webhook.
#[derive(Debug, Default)]
pub(crate) struct CircuitBreaker(Mutex<CircuitState>);

#[derive(Debug, Default)]
struct CircuitState {
    /// Number of consecutive failures to connect.
    failures: u32,
    /// Earliest time of the next trial, on the monotonic clock.
    next_trial: Duration,
    is_trial_running: bool,
}

/// Permission for one call. After the permission of a trial is dropped, the next call can be a trial.
///
/// A permission that is dropped without a report leaves the number of failures and the pause unchanged.
#[derive(Debug)]
pub(crate) struct Permission<'a> {
    circuit: &'a CircuitBreaker,
    is_trial: bool,
}

/// Rejection of a call during back-off.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the last {failures} connections failed; the next call is tried in {wait:?}")]
pub(crate) struct Rejection {
    failures: u32,
    wait: Duration,
}

impl CircuitBreaker {
    /// Permits or refuses a call. `now` is the time of the monotonic clock.
    pub(crate) fn permit(&self, now: Duration) -> Result<Permission<'_>, Rejection> {
        let mut state = self.0.lock();
        if state.failures < FAILURE_THRESHOLD {
            return Ok(Permission { circuit: self, is_trial: false });
        }
        let wait = state.next_trial.saturating_sub(now);
        if state.is_trial_running || !wait.is_zero() {
            return Err(Rejection { failures: state.failures, wait });
        }
        state.is_trial_running = true;
        Ok(Permission { circuit: self, is_trial: true })
    }
}

impl Permission<'_> {
    /// Reports a call whose connection succeeded, which ends the back-off.
    pub(crate) fn report_success(self) {
        self.circuit.0.lock().failures = 0;
    }

    /// Reports a failure to connect. `now` is the time of the monotonic clock.
    pub(crate) fn report_failure(self, now: Duration) {
        let mut state = self.circuit.0.lock();
        state.failures = state.failures.saturating_add(1);
        state.next_trial = now + BACKOFF.pause(state.failures.saturating_sub(FAILURE_THRESHOLD));
    }
}

impl Drop for Permission<'_> {
    fn drop(&mut self) {
        if self.is_trial {
            self.circuit.0.lock().is_trial_running = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn back_off_begins_after_consecutive_failures_and_ends_with_a_success() {
        let circuit = CircuitBreaker::default();
        for _ in 0..3 {
            for _ in 1..FAILURE_THRESHOLD {
                circuit.permit(at(0)).unwrap().report_failure(at(0));
            }
            circuit.permit(at(0)).unwrap().report_success();
        }
        for _ in 0..FAILURE_THRESHOLD {
            circuit.permit(at(0)).unwrap().report_failure(at(0));
        }
        let refused = circuit.permit(at(50)).unwrap_err();
        assert_eq!(refused, Rejection { failures: 5, wait: at(150) });
        circuit.permit(at(200)).unwrap().report_success();
        circuit.permit(at(200)).unwrap();
    }

    #[test]
    fn one_trial_runs_at_a_time_and_a_failed_trial_doubles_the_pause() {
        let circuit = CircuitBreaker::default();
        for _ in 0..FAILURE_THRESHOLD {
            circuit.permit(at(0)).unwrap().report_failure(at(0));
        }
        let trial = circuit.permit(at(200)).unwrap();
        assert!(circuit.permit(at(200)).is_err(), "a trial is running");
        drop(trial);
        circuit.permit(at(200)).unwrap().report_failure(at(200));
        assert!(circuit.permit(at(599)).is_err());
        for round in 0..20 {
            let now = at(600 + round * 1000);
            circuit.permit(now).unwrap().report_failure(now);
        }
        assert!(circuit.permit(at(600 + 19 * 1000 + 999)).is_err());
        circuit.permit(at(600 + 20 * 1000)).unwrap();
    }
}

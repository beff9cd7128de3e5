//! Retries with back-off: which failures are transient, and how long to wait.
//!
//! # Contract
//!
//! [`RetryPolicy::call`] retries until a response or a failure is final, and makes at most [`RetryPolicy::attempts`]
//! attempts. Transient outcomes are 429 and 5xx responses, other unsuccessful responses with `Retry-After`,
//! and broken connections. Final outcomes are all other responses, unreachable servers, and timeouts: after a
//! timeout the caller has already waited long enough.
//!
//! # Reference
//!
//! The webhook package of `k8s.io/apiserver`: five attempts from 500 ms by a factor of 1.5 and a fifth of
//! jitter. It retries 500, 504 and 429 but no other 5xx.

use std::future::Future;
use std::time::Duration;

use apimachinery::clock::Rng;
use http::StatusCode;

use super::{CallError, ClientResponse};

/// Maximum pause because of `Retry-After`; a longer one is shortened to this time.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(5);

/// Attempts of a call, with exponential back-off and jitter between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryPolicy {
    /// Pause before the second attempt.
    pub first: Duration,
    /// Factor between consecutive pauses.
    pub factor: f64,
    /// Maximum random extension of a pause, as a fraction of the pause.
    pub jitter: f64,
    /// Maximum number of attempts, including the first; at least one is made.
    pub attempts: u32,
}

impl RetryPolicy {
    /// Back-off for webhooks.
    pub const WEBHOOK: RetryPolicy =
        RetryPolicy { first: Duration::from_millis(500), factor: 1.5, jitter: 0.2, attempts: 5 };
    /// A single attempt.
    pub const ONCE: RetryPolicy =
        RetryPolicy { first: Duration::ZERO, factor: 1.0, jitter: 0.0, attempts: 1 };

    /// Returns the pause after the attempt with this number, from 1.
    fn pause(&self, attempts_made: u32, rng: &dyn Rng) -> Duration {
        let exponent = i32::try_from(attempts_made.saturating_sub(1)).unwrap_or(i32::MAX);
        // The upper 53 of 128 bits make a fraction below one.
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit a float's mantissa")]
        let part = (rng.bits() >> 75) as f64 / (1_u64 << 53) as f64;
        let seconds = self.first.as_secs_f64() * self.factor.powi(exponent) * self.jitter.mul_add(part, 1.0);
        Duration::try_from_secs_f64(seconds).unwrap_or(MAX_RETRY_AFTER)
    }

    /// Calls until the outcome is final; returns the outcome and the number of attempts.
    pub async fn call<F, AttemptFuture>(
        &self,
        rng: &dyn Rng,
        attempt: F,
    ) -> (Result<ClientResponse, CallError>, u32)
    where
        F: FnMut() -> AttemptFuture,
        AttemptFuture: Future<Output = Result<ClientResponse, CallError>>,
    {
        self.call_while(is_transient, rng, attempt).await
    }

    /// Calls while `is_retried` is true for the outcome; returns the last outcome and the number of attempts.
    pub async fn call_while<F, AttemptFuture>(
        &self,
        is_retried: impl Fn(&Result<ClientResponse, CallError>) -> bool,
        rng: &dyn Rng,
        mut attempt: F,
    ) -> (Result<ClientResponse, CallError>, u32)
    where
        F: FnMut() -> AttemptFuture,
        AttemptFuture: Future<Output = Result<ClientResponse, CallError>>,
    {
        let mut attempts_made = 0;
        loop {
            let outcome = attempt().await;
            attempts_made += 1;
            if attempts_made >= self.attempts || !is_retried(&outcome) {
                return (outcome, attempts_made);
            }
            let retry_after = outcome.as_ref().ok().and_then(ClientResponse::retry_after).unwrap_or_default();
            tokio::time::sleep(self.pause(attempts_made, rng).max(retry_after.min(MAX_RETRY_AFTER))).await;
        }
    }
}

/// Whether an outcome is transient, so that a further attempt may succeed.
pub fn is_transient(outcome: &Result<ClientResponse, CallError>) -> bool {
    match outcome {
        Ok(answer) => {
            answer.status.is_server_error()
                || answer.status == StatusCode::TOO_MANY_REQUESTS
                || (!answer.status.is_success() && answer.retry_after().is_some())
        }
        Err(error) => matches!(error, CallError::Broken(_)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::clock::SeededRng;
    use bytes::Bytes;
    use http::HeaderMap;
    use std::cell::Cell;

    fn answer(status: u16, retry_after: Option<&str>) -> Result<ClientResponse, CallError> {
        let mut headers = HeaderMap::new();
        if let Some(after) = retry_after {
            headers.insert("retry-after", after.parse().unwrap());
        }
        Ok(ClientResponse { status: StatusCode::from_u16(status).unwrap(), headers, body: Bytes::new() })
    }

    #[test]
    fn transient_outcomes_are_retried() {
        for (outcome, expected) in [
            (answer(200, None), false),
            (answer(201, Some("1")), false),
            (answer(302, None), false),
            (answer(400, None), false),
            (answer(401, None), false),
            (answer(403, None), false),
            (answer(409, Some("1")), true),
            (answer(429, None), true),
            (answer(500, None), true),
            (answer(502, None), true),
            (answer(503, Some("0")), true),
            (answer(504, None), true),
            (Err(CallError::Broken("reset".into())), true),
            (Err(CallError::Timeout(Duration::from_secs(1))), false),
            (Err(CallError::Unreachable("refused".into())), false),
            (Err(CallError::TooLarge(5)), false),
            (Err(CallError::Credentials("none".into())), false),
        ] {
            assert_eq!(is_transient(&outcome), expected, "{outcome:?}");
        }
    }

    #[tokio::test]
    async fn retries_end_with_first_final_outcome() {
        let quick = RetryPolicy { first: Duration::from_micros(1), ..RetryPolicy::WEBHOOK };
        for (failures, want_status, want_made) in
            [(0, 200, 1), (3, 200, 4), (4, 200, 5), (5, 500, 5), (9, 500, 5)]
        {
            let made = Cell::new(0);
            let (outcome, attempts) = quick
                .call(&SeededRng::new(1), || {
                    made.set(made.get() + 1);
                    let status = if made.get() > failures { 200 } else { 500 };
                    async move { answer(status, None) }
                })
                .await;
            assert_eq!((outcome.unwrap().status.as_u16(), attempts), (want_status, want_made), "{failures}");
            assert_eq!(made.get(), want_made);
        }
        let (_, attempts) = RetryPolicy::ONCE.call(&SeededRng::new(1), || async { answer(500, None) }).await;
        assert_eq!(attempts, 1);
    }

    #[test]
    fn backoff_pauses_grow_with_at_most_20_percent_jitter() {
        let rng = SeededRng::new(7);
        for (made, least) in [(1, 500.0), (2, 750.0), (3, 1125.0), (4, 1687.5)] {
            for _ in 0..1000 {
                let pause = RetryPolicy::WEBHOOK.pause(made, &rng).as_secs_f64() * 1000.0;
                assert!((least..=least * 1.2 + 0.001).contains(&pause), "{pause} after {made}");
            }
        }
    }
}

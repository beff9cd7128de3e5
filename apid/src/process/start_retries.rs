//! Repeated reads and writes of the store at the start, while etcd or a KMS plugin is not available.

use std::sync::Arc;
use std::time::Duration;

use encryption::Encryption;
use tokio::time::Instant;

use super::error::ProcessError;
use crate::config::EtcdFlags;

/// Pause before an operation is repeated.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The conditions under which the start repeats a failed operation on the store.
pub(super) struct StartRetries {
    /// The time until which an unavailable etcd is awaited; None with an embedded store, which does not recover by itself.
    deadline: Option<Instant>,
    encryption: Option<Arc<Encryption>>,
}

impl StartRetries {
    /// Starts the time of `--storage-initialization-timeout`, if the store is in etcd.
    pub(super) fn new(etcd: &EtcdFlags, encryption: Option<Arc<Encryption>>) -> Self {
        let is_in_etcd = !etcd.servers().is_empty();
        let deadline = is_in_etcd.then(|| Instant::now() + etcd.storage_initialization_timeout);
        StartRetries { deadline, encryption }
    }

    /// Repeats an idempotent operation while a KMS plugin is not healthy, because values of its keys are not readable then,
    /// and until the deadline while etcd is not available.
    pub(super) async fn run<T>(
        &self,
        mut operation: impl AsyncFnMut() -> Result<T, ProcessError>,
    ) -> Result<T, ProcessError> {
        loop {
            let error = match operation().await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            if let Some(Err(reason)) = self.encryption.as_ref().map(|encryption| encryption.kms_health()) {
                tracing::warn!(%error, reason, "the start waits for a KMS plugin");
            } else if error.is_unavailable()
                && self.deadline.is_some_and(|deadline| Instant::now() < deadline)
            {
                tracing::warn!(%error, "the start waits for etcd");
            } else {
                return Err(error);
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::status::Status;

    use super::*;

    /// Fails once with `error`, and counts the calls.
    async fn calls_after(deadline: Option<Instant>, error: ProcessError) -> (bool, u32) {
        let (mut first, mut calls) = (Some(error), 0);
        let retries = StartRetries { deadline, encryption: None };
        let result = retries
            .run(async || {
                calls += 1;
                first.take().map_or(Ok(()), Err)
            })
            .await;
        (result.is_ok(), calls)
    }

    #[tokio::test]
    async fn start_repeats_an_operation_until_the_deadline_while_etcd_is_unavailable() {
        let unavailable = || ProcessError::TokenKey(storage::Error::Unavailable("no leader".to_owned()));
        let by_status = ProcessError::Namespaces(Box::new(Status::unavailable("no leader", 1)));
        let now = Instant::now();
        let (past, later) = (Some(now), Some(now + Duration::from_secs(60)));
        let (first, second) = tokio::join!(calls_after(later, unavailable()), calls_after(later, by_status));
        assert_eq!([first, second], [(true, 2); 2]);
        assert_eq!(calls_after(past, unavailable()).await, (false, 1));
        assert_eq!(calls_after(None, unavailable()).await, (false, 1), "an embedded store");
        let corrupt = ProcessError::Addresses(storage::Error::Corrupt("bytes".to_owned()));
        assert_eq!(calls_after(later, corrupt).await, (false, 1));
    }
}

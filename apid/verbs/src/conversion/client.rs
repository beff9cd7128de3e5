//! Client of conversion webhooks.
//!
//! # Contract
//!
//! All calls share [`MEMORY_BYTES`] for decoded responses. A call reserves its part of this memory after the
//! response has arrived, so a webhook that does not respond delays no other webhook. The memory of a decoded
//! response never exceeds its part: a response that needs more than the estimate waits for all memory and is
//! decoded again.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::codec::{self, DecodeError, Limits};
use apimachinery::object::Value;
use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use webhooks::{CallFailure, ClientConfiguration, InvalidConfiguration, WebhookCall, WebhookClients};

/// Timeout of a request to a conversion webhook.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of a response in bytes; the conversion with a larger response fails.
const RESPONSE_BYTES: usize = 64 << 20;
/// Maximum number of JSON values in a response; the conversion with more values fails.
const ELEMENTS: usize = 4_000_000;
/// Maximum estimated memory of a decoded response, in bytes; the conversion with a larger response fails.
const TREE_BYTES: usize = 512 << 20;
/// Maximum estimated memory of all decoded responses at one time, in bytes; at the limit, responses wait.
const MEMORY_BYTES: usize = TREE_BYTES;
/// Estimated bytes of memory of a decoded response for each byte of the response body.
const TREE_FACTOR: usize = 16;
/// Bytes of memory for which one permit of the semaphore stands.
const PERMIT_BYTES: usize = 1024;

/// The reason why a call of a conversion webhook returned no usable response.
#[derive(Debug, thiserror::Error)]
pub enum ConversionCallError {
    /// The `clientConfig` of the definition is invalid.
    #[error(transparent)]
    Configuration(#[from] InvalidConfiguration),
    /// The HTTP request failed.
    #[error(transparent)]
    Call(#[from] CallFailure),
    /// The semaphore for the memory of responses is closed, which does not happen.
    #[error(transparent)]
    Memory(#[from] AcquireError),
    /// The response cannot be decoded.
    #[error(transparent)]
    Response(#[from] DecodeError),
}

impl ConversionCallError {
    /// Returns the error text for logs, which contains nothing of the response.
    pub(super) fn log_text(&self) -> String {
        match self {
            ConversionCallError::Call(failure) => failure.log_text(),
            other => other.to_string(),
        }
    }
}

/// Sends ConversionReviews to webhooks.
#[async_trait]
pub trait ConversionClient: Send + Sync {
    /// Sends a ConversionReview to the webhook of a `clientConfig` and returns the response.
    ///
    /// # Errors
    ///
    /// See [`ConversionCallError`].
    async fn post(
        &self,
        client_config: &Value,
        review: Value,
    ) -> Result<ConversionResponse, ConversionCallError>;
}

/// The response of a webhook.
#[derive(Debug)]
pub struct ConversionResponse {
    /// The decoded ConversionReview.
    pub review: Value,
    /// The permits for the memory of `review`, released on drop; None for a client without a memory limit.
    pub memory: Option<OwnedSemaphorePermit>,
}

impl From<Value> for ConversionResponse {
    fn from(review: Value) -> Self {
        ConversionResponse { review, memory: None }
    }
}

/// Client that calls conversion webhooks over HTTPS, with a limit on the memory of responses.
pub struct WebhookConversionClient {
    clients: Arc<WebhookClients>,
    memory: Arc<Semaphore>,
}

impl WebhookConversionClient {
    /// Creates a client that calls webhooks through `clients`.
    pub fn new(clients: Arc<WebhookClients>) -> Self {
        WebhookConversionClient { clients, memory: Arc::new(Semaphore::new(MEMORY_BYTES / PERMIT_BYTES)) }
    }
}

#[async_trait]
impl ConversionClient for WebhookConversionClient {
    async fn post(
        &self,
        client_config: &Value,
        review: Value,
    ) -> Result<ConversionResponse, ConversionCallError> {
        let configuration = ClientConfiguration::read(client_config)?;
        let body = Bytes::from(codec::json::encode(&review));
        let call =
            WebhookCall { body, timeout: TIMEOUT, response_bytes: RESPONSE_BYTES, sends_timeout: true };
        let response = self.clients.post(&configuration, None, call).await?;
        decode_response(&self.memory, &response).await
    }
}

/// Reserves the estimated memory of a response and decodes the response; if the estimate is too low, reserves
/// all memory and decodes the response again.
async fn decode_response(
    memory: &Arc<Semaphore>,
    response: &[u8],
) -> Result<ConversionResponse, ConversionCallError> {
    let estimate = response.len().saturating_mul(TREE_FACTOR).min(TREE_BYTES);
    match decode_with_memory(memory, response, estimate).await {
        Err(ConversionCallError::Response(DecodeError::TreeTooLarge(_))) if estimate < TREE_BYTES => {
            decode_with_memory(memory, response, TREE_BYTES).await
        }
        result => result,
    }
}

/// Reserves memory and decodes a response to a tree that fits into this memory.
///
/// Waits until the memory is free.
async fn decode_with_memory(
    memory: &Arc<Semaphore>,
    response: &[u8],
    tree_bytes: usize,
) -> Result<ConversionResponse, ConversionCallError> {
    let permits = u32::try_from(tree_bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX);
    let permits = Arc::clone(memory).acquire_many_owned(permits).await?;
    let limits = Limits { bytes: response.len(), elements: ELEMENTS, tree_bytes, ..Limits::BODY };
    let decoded = codec::json::decode(response, limits)?;
    Ok(ConversionResponse { review: decoded.value, memory: Some(permits) })
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn response_of_empty_objects(count: usize) -> String {
        format!("[{}]", vec!["{}"; count].join(","))
    }

    #[tokio::test]
    async fn large_responses_wait_for_the_shared_memory() {
        let memory = Arc::new(Semaphore::new(MEMORY_BYTES / PERMIT_BYTES));
        let text = format!("[\"{}\"]", "x".repeat(MEMORY_BYTES / TREE_FACTOR / 2 - 4));
        let decode = || decode_response(&memory, text.as_bytes());
        let halves = [decode().await.unwrap(), decode().await.unwrap()];
        assert!(decode().now_or_never().is_none());
        drop(halves);
        assert!(decode().now_or_never().is_some());
    }

    #[tokio::test]
    async fn responses_that_need_more_than_the_estimate_wait_for_all_memory() {
        let memory = Arc::new(Semaphore::new(MEMORY_BYTES / PERMIT_BYTES));
        let text = response_of_empty_objects(1_000);
        let decode = || decode_response(&memory, text.as_bytes());
        let first = decode().await.unwrap();
        assert_eq!(first.review.as_array().map(Vec::len), Some(1_000));
        assert_eq!(memory.available_permits(), 0);
        assert!(decode_response(&memory, b"{}").now_or_never().is_none());
        drop(first);
        let small = decode_response(&memory, b"[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]").await.unwrap();
        assert!(decode().now_or_never().is_none(), "{small:?}");
    }

    #[tokio::test]
    async fn rejected_responses_release_their_memory() {
        let memory = Arc::new(Semaphore::new(MEMORY_BYTES / PERMIT_BYTES));
        let too_large = response_of_empty_objects(TREE_BYTES / 1_000);
        for text in ["{", &too_large] {
            let error = decode_response(&memory, text.as_bytes()).await.unwrap_err();
            assert!(matches!(error, ConversionCallError::Response(_)), "{error}");
            assert_eq!(memory.available_permits(), MEMORY_BYTES / PERMIT_BYTES);
        }
    }
}

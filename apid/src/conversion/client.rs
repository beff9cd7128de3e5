//! Client of conversion webhooks.
//!
//! # Contract
//!
//! All calls share [`MEMORY_BYTES`] for decoded responses. A call reserves its part of this memory after the
//! response has arrived, so a webhook that does not respond delays no other webhook.

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
        let body = Bytes::from(review.to_string());
        let call =
            WebhookCall { body, timeout: TIMEOUT, response_bytes: RESPONSE_BYTES, sends_timeout: true };
        let response = self.clients.post(&configuration, None, call).await?;
        let memory = reserve_memory(&self.memory, response.len()).await?;
        let limits =
            Limits { bytes: response.len(), elements: ELEMENTS, tree_bytes: TREE_BYTES, ..Limits::BODY };
        let decoded = codec::json::decode(&response, limits)?;
        Ok(ConversionResponse { review: decoded.value, memory: Some(memory) })
    }
}

/// Reserves the memory to decode a response of `response` bytes; waits until enough memory is free. A large
/// response reserves all memory.
async fn reserve_memory(
    memory: &Arc<Semaphore>,
    response: usize,
) -> Result<OwnedSemaphorePermit, AcquireError> {
    let bytes = response.saturating_mul(TREE_FACTOR).min(MEMORY_BYTES);
    let permits = u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX);
    Arc::clone(memory).acquire_many_owned(permits).await
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn large_responses_wait_for_the_shared_memory() {
        let memory = Arc::new(Semaphore::new(MEMORY_BYTES / PERMIT_BYTES));
        let largest = reserve_memory(&memory, RESPONSE_BYTES).await.unwrap();
        assert!(reserve_memory(&memory, 1).now_or_never().is_none(), "one response takes all memory");
        drop(largest);
        let half = MEMORY_BYTES / TREE_FACTOR / 2;
        let halves =
            [reserve_memory(&memory, half).await.unwrap(), reserve_memory(&memory, half).await.unwrap()];
        assert!(reserve_memory(&memory, half).now_or_never().is_none());
        drop(halves);
        assert!(reserve_memory(&memory, half).now_or_never().is_some());
    }
}

//! Client of conversion webhooks.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::codec::{self, Limits};
use apimachinery::object::Value;
use async_trait::async_trait;
use bytes::Bytes;
use webhooks::{ClientConfiguration, WebhookCall, WebhookClients};

/// Timeout of a conversion.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of a response in bytes.
const RESPONSE_BYTES: usize = 64 << 20;
/// Maximum number of values in a response.
const ELEMENTS: usize = 4_000_000;
/// Maximum estimated memory of a decoded response.
const TREE_BYTES: usize = 512 << 20;

/// Sends ConversionReviews to webhooks.
#[async_trait]
pub trait ConversionClient: Send + Sync {
    /// Sends a ConversionReview to the webhook of a `clientConfig` and returns the response.
    ///
    /// # Errors
    ///
    /// The reason for which there is no response, as a text for the client.
    async fn post(&self, client_config: &Value, review: Value) -> Result<Value, String>;
}

#[async_trait]
impl ConversionClient for Arc<WebhookClients> {
    async fn post(&self, client_config: &Value, review: Value) -> Result<Value, String> {
        let configuration = ClientConfiguration::read(client_config).map_err(|error| error.to_string())?;
        let body = Bytes::from(review.to_string());
        let call =
            WebhookCall { body, timeout: TIMEOUT, response_bytes: RESPONSE_BYTES, sends_timeout: true };
        let response = WebhookClients::post(self, &configuration, None, call).await;
        let response = response.map_err(|failure| failure.to_string())?;
        let limits =
            Limits { bytes: response.len(), elements: ELEMENTS, tree_bytes: TREE_BYTES, ..Limits::BODY };
        let decoded = codec::json::decode(&response, limits).map_err(|error| error.to_string())?;
        Ok(decoded.value)
    }
}

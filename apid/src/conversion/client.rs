//! Client of conversion webhooks.
//!
//! # Errors
//!
//! The texts of failures are those of the HTTP client of kube-apiserver where that client has a fixed text:
//! `Post "URL": REASON` without a response, and the standard text of a status code without a Status.

use std::collections::HashMap;
use std::time::Duration;

use apimachinery::codec::Limits as DecodeLimits;
use apimachinery::object::Value;
use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use parking_lot::Mutex;
use serving::client::{CallError, Client, ClientResponse, Limits, Settings, Trust};

/// Timeout of a conversion.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of a response in bytes.
const MAX_RESPONSE: usize = 64 << 20;
/// Maximum number of clients with distinct settings.
const MAX_CLIENTS: usize = 64;
/// Maximum length of a response body in a message.
const MAX_QUOTED: usize = 2048;

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

/// Client over HTTPS, with one connection pool for each CA bundle.
#[derive(Default)]
pub struct WebhookClient {
    /// Clients by CA bundle.
    clients: Mutex<HashMap<String, Client>>,
}

impl WebhookClient {
    fn client(&self, bundle: &str) -> Result<Client, String> {
        let mut clients = self.clients.lock();
        if let Some(client) = clients.get(bundle) {
            return Ok(client.clone());
        }
        let trust = match bundle {
            "" => Trust::System,
            bundle => {
                let pem = STANDARD.decode(bundle).map_err(|error| format!("caBundle: {error}"))?;
                Trust::from_pem(&pem).map_err(|error| format!("caBundle: {error}"))?
            }
        };
        let client = Client::new(&Settings { trust, ..Settings::default() });
        let client = client.map_err(|error| error.to_string())?;
        if clients.len() >= MAX_CLIENTS {
            clients.clear();
        }
        clients.insert(bundle.to_owned(), client.clone());
        Ok(client)
    }
}

#[async_trait]
impl ConversionClient for WebhookClient {
    async fn post(&self, client_config: &Value, review: Value) -> Result<Value, String> {
        let text = |field: &str| client_config.get(field).and_then(Value::as_str).unwrap_or("");
        let client = self.client(text("caBundle"))?;
        let url = format!("{}?timeout={}s", text("url"), TIMEOUT.as_secs());
        let limits = Limits { within: TIMEOUT, bytes: MAX_RESPONSE };
        let body = Bytes::from(review.to_string());
        let response = client.post_json(&url, body, limits).await.map_err(|error| {
            let reason = match error {
                CallError::Timeout(_) => {
                    "context deadline exceeded (Client.Timeout exceeded while awaiting headers)".to_owned()
                }
                other => other.to_string(),
            };
            format!("Post {url:?}: {reason}")
        })?;
        read(&response)
    }
}

/// Returns the document of a successful response.
fn read(response: &ClientResponse) -> Result<Value, String> {
    if !response.status.is_success() {
        return Err(status_text(response));
    }
    let limits = DecodeLimits { bytes: response.body.len(), ..DecodeLimits::BODY };
    let decoded = apimachinery::codec::json::decode(&response.body, limits);
    decoded.map(|decoded| decoded.value).map_err(|error| error.to_string())
}

/// Returns the message of a Status, or the standard text of a status code.
fn status_text(response: &ClientResponse) -> String {
    if let Ok(status) = response.json()
        && status.get("kind").and_then(Value::as_str) == Some("Status")
        && let Some(message) = status.get("message").and_then(Value::as_str)
    {
        return message.to_owned();
    }
    let body = String::from_utf8_lossy(&response.body);
    let body: String = body.trim().chars().take(MAX_QUOTED).collect();
    match response.status.as_u16() {
        400 => "the server rejected our request for an unknown reason".to_owned(),
        401 => "the server has asked for the client to provide credentials".to_owned(),
        403 => body,
        404 => "the server could not find the requested resource".to_owned(),
        405 => "the server does not allow this method on the requested resource".to_owned(),
        429 => "the server has received too many requests and has asked us to try again later".to_owned(),
        503 => "the server is currently unable to handle the request".to_owned(),
        504 => "the server was unable to return a response in the time allotted, but may still be processing the request".to_owned(),
        code if code >= 500 => {
            format!("an error on the server ({body:?}) has prevented the request from succeeding")
        }
        code => format!("the server responded with the status code {code} but did not return more details"),
    }
}

//! Client of the webhooks that API objects configure: admission webhooks and conversion webhooks.
//!
//! # Contract
//!
//! A [`ClientConfiguration`] is the field `clientConfig` of a webhook: a URL or a Service reference, with a CA
//! bundle. [`WebhookClients::post`] sends a JSON body and returns the bytes of a successful response, or a
//! [`CallFailure`]. The caller decodes the response. One [`WebhookClients`] serves all callers of a process.
//!
//! ```text
//! let configuration = ClientConfiguration::read(&webhook["clientConfig"])?;
//! let call = WebhookCall { body, timeout, response_bytes: 3 << 20, sends_timeout: true };
//! let response: Bytes = clients.post(&configuration, None, call).await?;
//! ```
//!
//! A Service reference is resolved for each call, without a cluster network ([`forwarding::ServiceResolver`]): by
//! `--service-resolver-file`, by the external name of the Service, or by a ready address of its EndpointSlices.
//! The TLS server name of a Service is always `<name>.<namespace>.svc`. The path of a URL or Service is cleaned as
//! kube-apiserver cleans it: `//a/../b/` is sent as `/b`.
//!
//! # Invariants
//!
//! INVARIANT (bounded): a call ends within its timeout, including the wait for a permit and the resolution. A
//! response is at most as long as the call allows. The number of pooled clients is bounded.
//! INVARIANT (independent webhooks): webhooks with different configurations have separate connections, limits
//! of calls in flight and back-offs, so that a slow webhook delays no other webhook.
//! INVARIANT (fails at once): a call of an unresolvable Service or of a webhook in back-off fails without a
//! wait. Only failures to connect begin a back-off.

mod call_failure;
mod circuit_breaker;
mod client_configuration;
mod clients;
mod users;

pub use call_failure::CallFailure;
pub use client_configuration::{ClientConfiguration, InvalidConfiguration, ServiceReference, WebhookAddress};
pub use clients::{ClientOptions, MAX_CALLS_IN_FLIGHT, WebhookCall, WebhookClients};
pub use users::WebhookUsers;

#[cfg(test)]
mod tests;

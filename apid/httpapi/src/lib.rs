//! The HTTP layer: maps requests to verbs and results to responses.
//!
//! # Contract
//!
//! [`Api`] is the request handler of the server. `handler` runs the stages in order: request info,
//! authentication, impersonation, authorization, execution, response. `execution` routes a request to its
//! verb, and a path outside the resource grammar to the axum router of `routes`. Each file has one subject.
//! Only `respond` turns a Status into a response.
//!
//! # Invariants
//!
//! INVARIANT (one reading): the verb acts on exactly the attributes that were authorized; only `request_info`
//! parses a path.
//! INVARIANT (a Status, never a panic): a malformed request gets a response with a Status that names the error.
//! INVARIANT (bounded): a client that does not read costs the send buffer of its connection and, until the
//! request deadline (`deadline`), the source of its response. A watch costs a position in the event ring
//! buffer.

mod aggregated;
mod audited_request;
mod audited_streams;
mod backup;
mod body;
mod client_addresses;
mod containers;
mod deadline;
mod execution;
mod flow;
mod forwarded;
mod freshness;
mod handler;
mod head_limits;
mod in_flight;
mod list_scope;
mod long_running;
mod metrics;
mod negotiate;
mod openapi;
mod openid;
mod params;
mod paths;
mod query;
mod request_context;
mod request_cost;
mod request_info;
mod resources;
mod response;
mod routes;
mod shares;
mod slow_writes;
mod state;
mod stream;
mod websocket;
mod work_pool;

#[cfg(test)]
mod tests;

pub use body::RequestBody;
pub use flow::RequestLimits;
pub use flowcontrol::{FlowControl, ServerLimits};
pub use freshness::{Freshness, MAX_AGE, PolicyConsistency};
pub use handler::Api;
pub use state::{Health, HttpSettings, HttpState};

//! HTTP requests to verbs and back.
//!
//! # Contract
//!
//! [`Api`] is the handler that the server calls. What a request passes on its way stands in `handler`, top to bottom:
//! request info, authentication, impersonation, authorization, route, verb, response. One subject a file; a Status becomes
//! a response in `respond` and nowhere else.
//!
//! # Invariants
//!
//! INVARIANT (one reading): what is authorized is what is done; only `request_info` reads a path.
//! INVARIANT (a Status, never a panic): whatever a client sends is answered with a Status that says what is wrong.
//! INVARIANT (bounded): a client that does not read costs what its connection buffers, and until the time of its request
//! is over (`deadline`) what its answer is made of. A watch costs a position in the ring of events.

mod body;
mod chunks;
mod deadline;
mod encoding;
mod exchange;
mod handler;
mod head_bounds;
mod in_flight;
mod lists;
mod metrics;
mod negotiate;
mod openapi;
mod openid;
mod params;
mod paths;
mod pieces;
mod protobuf;
mod query;
mod represent;
mod request_info;
mod resources;
mod respond;
mod shares;
mod stream;
mod websocket;
mod weight;
mod work_pool;

#[cfg(test)]
mod tests;

pub use body::RequestBody;
pub use handler::Api;
pub use metrics::RequestMetrics;
pub use protobuf::Messages;

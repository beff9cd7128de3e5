//! Connections to the backends that API objects name: Services, nodes, pods and aggregated APIs.
//!
//! # Contract
//!
//! Three steps, each usable alone:
//!
//! 1. A resolver turns an object into a [`Target`]: [`ServiceResolver`], [`NodeResolver`], [`pod_target`].
//! 2. A [`Transport`] sends requests to a target, with reuse of connections, and upgrades connections.
//! 3. [`forward()`] forwards one request of a client, with the rules for headers, bodies, upgrades and redirects.
//!
//! ```text
//! let target = forwarding.nodes.kubelet(&node).await?;
//! let forward = Forward { transport: &forwarding.kubelets, target: &target, path_and_query, ... };
//! match forward::forward(&head, body, forward).await? {
//!     Forwarded::Response(response) => ...,
//!     Forwarded::Upgraded { head, tunnel } => { tokio::spawn(tunnel.run()); ... }
//! }
//! ```
//!
//! The caller authenticates, authorizes and audits the request first, and limits the time to the response head.
//!
//! # Invariants
//!
//! INVARIANT (allowed addresses): a connection goes to an address that [`AddressPolicy`] allows, or to a host that the
//! configuration of this server or the external name of a Service names. The address is resolved once: the checked
//! address is the one that is connected to.
//! INVARIANT (no foreign identity): see [`headers`].
//! INVARIANT (no loop): a request that this process has forwarded before is not forwarded again; see [`Hops`].
//! INVARIANT (no redirect): no function of this crate follows a redirect.
//! INVARIANT (secrets stay out): no error and no `Debug` of this crate contains a header, a body or a key.

mod address_policy;
mod credentials;
mod forward;
pub mod headers;
mod hops;
mod lookup;
mod nodes;
mod process;
mod rewriting;
mod service_map;
mod services;
pub mod spdy;
pub mod streams;
mod target;
mod transport;
mod tunnel;
pub mod url_path;

pub use address_policy::{AddressNotAllowed, AddressPolicy, InvalidNetwork};
pub use credentials::ClientCredentials;
pub use forward::{Appearance, Forward, ForwardError, Forwarded, forward};
pub use hops::{FORWARDED_BY, Hops, LoopDetected};
pub use nodes::{
    DEFAULT_ADDRESS_TYPES, DEFAULT_KUBELET_PORT, NodeError, NodeResolver, kubelet_port, pod_address,
    pod_target,
};
pub use process::{Forwarding, ForwardingOptions};
pub use service_map::{ServiceMap, ServiceMapError, ServicePort};
pub use services::{ResolutionError, Routing, ServiceLookup, ServiceResolver, service_port_name};
pub use target::{NameError, Scheme, Target};
pub use transport::{
    MAX_HEAD_BYTES, MAX_HEAD_FIELDS, MAX_STREAMS, STREAM_WINDOW, Transport, TransportError,
    TransportSettings, UpgradeAnswer, UpgradedStream,
};
pub use tunnel::{Tunnel, TunnelBytes, pipe};

#[cfg(test)]
mod tests;

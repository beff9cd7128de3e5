//! Core API group.

use crate::BuiltInKind;

mod binding;
mod component_status;
mod config_map;
mod endpoints;
mod event;
mod immutable;
mod limit_range;
mod limit_range_rules;
mod namespace;
mod node;
mod node_rules;
mod persistent_volume;
mod persistent_volume_claim;
mod persistent_volume_claim_rules;
pub(crate) mod persistent_volume_rules;
mod pod;
mod pod_parts;
mod pod_status;
mod pod_template;
mod replication_controller;
mod resource_quota;
mod resource_quota_rules;
mod secret;
mod service;
mod service_account;
mod service_addresses;
mod service_families;
mod service_rules;
mod service_update;
mod service_warnings;
mod tls_secret;

pub(crate) use event::KIND as EVENT;
pub use pod_status::quality_of_service;
pub use service_families::complete as complete_service_families;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[BuiltInKind] = &[
    binding::KIND,
    component_status::KIND,
    config_map::KIND,
    endpoints::KIND,
    event::KIND,
    limit_range::KIND,
    namespace::KIND,
    node::KIND,
    persistent_volume_claim::KIND,
    persistent_volume::KIND,
    pod::KIND,
    pod_template::KIND,
    replication_controller::KIND,
    resource_quota::KIND,
    secret::KIND,
    service_account::KIND,
    service::KIND,
];

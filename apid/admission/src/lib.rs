//! Admission plugins, which change or reject writes between decoding and storage.
//! Each plugin is one file and one entry in the ordered table.
//!
//! # Contract
//!
//! apid builds one [`Chain`] at start-up from the flags and the plugins of [`plugins::PLUGINS`]. For each
//! write the verbs call [`Chain::mutate`] before validation and [`Chain::validate`] afterwards. A deletion
//! has only an old object in both phases. The first rejection ends the chain and is the response.
//!
//! # Invariants
//!
//! INVARIANT (mutating before validating): no plugin changes an object after another plugin has validated it.
//! INVARIANT (no needless cost): plugins wait only if they must. A write without interested plugins causes no
//! allocation and no task switch.
//! INVARIANT (no storage): plugins read other objects only through [`Reader`], which the process provides.

mod admission_request;
mod always_admit;
mod always_deny;
mod always_pull_images;
mod attributes;
mod authorization;
mod certificate_request;
mod certificate_subject_restriction;
mod chain;
mod compiled_objects;
mod configuration;
mod default_class;
mod default_toleration_seconds;
mod deny_service_external_ips;
mod environment;
mod event_rate_limit;
mod expression_inputs;
mod extended_resource_toleration;
mod limit_pod_hard_anti_affinity_topology;
mod limit_ranger;
mod match_condition_metrics;
mod match_conditions;
mod matching;
mod metrics;
mod mutating_admission_policy;
mod mutation;
mod namespace_existence;
mod namespace_lifecycle;
mod node_restriction;
mod owner_references_permission_enforcement;
mod persistent_volume_claim_resize;
mod plugin;
mod plugin_configuration;
pub mod plugins;
mod pod_containers;
mod pod_node_selector;
mod pod_resources;
mod pod_security;
mod pod_toleration_restriction;
mod policy;
mod priority;
pub mod quantity;
pub mod quota;
mod reader;
mod reinvocation;
mod representation;
mod reviewed_objects;
mod runtime_class;
mod service_account;
mod signers;
mod storage_object_in_use_protection;
mod taint_nodes_by_condition;
mod timing;
mod tolerations;
mod tree;
mod turn;
mod validating_admission_policy;
mod webhook;

pub use attributes::{Attributes, ObjectReference, Operation, Recorder};
pub use chain::{Chain, ConfigError};
pub use configuration::Configuration;
pub use environment::{Environment, webhook_clients};
pub use metrics::AdmissionMetrics;
pub use namespace_lifecycle::terminating_namespace;
pub use plugin_configuration::{PluginConfiguration, PluginConfigurationError};

pub use reader::{Authorizer, ListResult, ListedObject, LookupResult, ObjectKind, Reader, Writer};
pub use webhook::ReaderServices;

pub(crate) use compiled_objects::CompiledObjects;
pub(crate) use plugin::{Interest, Plugin, WriteTarget};
pub(crate) use timing::Phase;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

//! API group `flowcontrol.apiserver`: API priority and fairness.

use crate::BuiltInKind;

mod flow_schema;
mod flow_schema_rules;
mod priority_level_configuration;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[BuiltInKind] = &[flow_schema::KIND, priority_level_configuration::KIND];

//! The group `flowcontrol.apiserver`: which requests wait for which.

use crate::Kind;

mod flow_schema;
mod priority_level_configuration;

/// Its kinds, in discovery's order.
pub(crate) const KINDS: &[Kind] = &[flow_schema::KIND, priority_level_configuration::KIND];

//! API group `storagemigration`: rewriting of stored objects.

use crate::Kind;

mod storage_version_migration;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[Kind] = &[storage_version_migration::KIND];

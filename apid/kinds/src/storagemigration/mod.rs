//! API group `storagemigration`: rewriting of stored objects.

use crate::BuiltInKind;

mod storage_version_migration;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[BuiltInKind] = &[storage_version_migration::KIND];

//! API group `internal.apiserver`: the encodings of stored objects.

use crate::BuiltInKind;

mod storage_version;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[BuiltInKind] = &[storage_version::KIND];

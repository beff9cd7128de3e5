//! The table of the built-in kinds.

use crate::BuiltInKind;

/// Kinds of each group, in discovery order of the groups.
const GROUPS: &[&[BuiltInKind]] = &[
    crate::core::KINDS,
    crate::apiregistration::KINDS,
    crate::apps::KINDS,
    crate::events::KINDS,
    crate::authentication::KINDS,
    crate::authorization::KINDS,
    crate::autoscaling::KINDS,
    crate::batch::KINDS,
    crate::certificates::KINDS,
    crate::networking::KINDS,
    crate::policy::KINDS,
    crate::rbac::KINDS,
    crate::storage::KINDS,
    crate::admissionregistration::KINDS,
    crate::apiextensions::KINDS,
    crate::scheduling::KINDS,
    crate::coordination::KINDS,
    crate::node::KINDS,
    crate::discovery::KINDS,
    crate::flowcontrol::KINDS,
    crate::internal_apiserver::KINDS,
    crate::resource::KINDS,
    crate::storagemigration::KINDS,
];

/// All built-in kinds, also those that are off by default, in discovery order.
pub(crate) fn built_in_kinds() -> impl Iterator<Item = &'static BuiltInKind> {
    GROUPS.iter().flat_map(|kinds| kinds.iter())
}

/// Kinds that are served unless a key of `--runtime-config` disables them. Discovery and OpenAPI documents list them only
/// if a key enables them.
pub(crate) const UNLISTED_KINDS: &[BuiltInKind] = crate::explain::KINDS;

/// Body kinds of subresources that are not resources.
pub(crate) const VIRTUAL_SUBRESOURCES: &[BuiltInKind] =
    &[crate::scale::KIND, crate::authentication::token_request::KIND, crate::eviction::KIND];

//! API group `explain`: explanations of decisions and of tokens.

use crate::BuiltInKind;

/// Kinds of the group, in discovery order. apid evaluates each object and stores none.
pub(crate) const KINDS: &[BuiltInKind] = &[
    BuiltInKind::review("explain/v1alpha1.AccessExplanation", "accessexplanations"),
    BuiltInKind::review("explain/v1alpha1.TokenExplanation", "tokenexplanations"),
];

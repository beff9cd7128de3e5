//! API group `explain`: explanations of decisions and of tokens.

use crate::Kind;

/// Kinds of the group, in discovery order. apid evaluates each object and stores none.
pub(crate) const KINDS: &[Kind] = &[
    Kind::review("explain/v1alpha1.AccessExplanation", "accessexplanations"),
    Kind::review("explain/v1alpha1.TokenExplanation", "tokenexplanations"),
];

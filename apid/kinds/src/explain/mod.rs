//! API group `explain`: explanations of decisions and of tokens.

use crate::{Kind, REVIEW_VERBS, Storage};

/// Kinds of the group, in discovery order. apid evaluates each object and stores none.
pub(crate) const KINDS: &[Kind] = &[
    Kind {
        kind: "AccessExplanation",
        resource: "accessexplanations",
        singular: "accessexplanation",
        schema: "explain/v1alpha1.AccessExplanation",
        ..EXPLANATION
    },
    Kind {
        kind: "TokenExplanation",
        resource: "tokenexplanations",
        singular: "tokenexplanation",
        schema: "explain/v1alpha1.TokenExplanation",
        ..EXPLANATION
    },
];

const EXPLANATION: Kind = Kind {
    group: "explain",
    versions: &["v1alpha1"],
    storage: Storage::Review,
    verbs: REVIEW_VERBS,
    ..Kind::CLUSTER_SCOPED
};

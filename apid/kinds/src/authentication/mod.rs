//! The group `authentication`: questions about who somebody is.

pub(crate) mod token_request;

use crate::strategy::Plain;
use crate::{Kind, REVIEW_VERBS, Storage};

/// Its kinds, in discovery's order. All are answered and none is stored.
pub(crate) const KINDS: &[Kind] = &[
    Kind {
        kind: "SelfSubjectReview",
        resource: "selfsubjectreviews",
        singular: "selfsubjectreview",
        schema: "authentication/v1.SelfSubjectReview",
        ..REVIEW
    },
    Kind {
        kind: "TokenReview",
        resource: "tokenreviews",
        singular: "tokenreview",
        schema: "authentication/v1.TokenReview",
        ..REVIEW
    },
];

const REVIEW: Kind = Kind {
    group: "authentication",
    versions: &["v1"],
    kind: "",
    resource: "",
    singular: "",
    short_names: &[],
    categories: &[],
    namespaced: false,
    storage: Storage::Review,
    verbs: REVIEW_VERBS,
    subresources: &[],
    schema: "",
    strategy: &Plain,
};

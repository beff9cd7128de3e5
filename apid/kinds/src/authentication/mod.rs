//! API group `authentication`: token reviews, subject reviews and token requests.

pub(crate) mod token_request;

use crate::{Kind, REVIEW_VERBS, Storage};

/// Kinds of the group, in discovery order. apid evaluates each object and stores none.
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

const REVIEW: Kind =
    Kind { group: "authentication", storage: Storage::Review, verbs: REVIEW_VERBS, ..Kind::CLUSTER_SCOPED };

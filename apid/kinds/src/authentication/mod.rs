//! API group `authentication`: token reviews, subject reviews and token requests.

pub(crate) mod token_request;

use crate::{Kind, REVIEW_VERBS, Storage};

/// Kinds of the group, in discovery order. apid evaluates each object and stores none.
pub(crate) const KINDS: &[Kind] = &[
    SELF_SUBJECT,
    Kind { versions: &["v1beta1"], schema: "authentication/v1beta1.SelfSubjectReview", ..SELF_SUBJECT },
    Kind { versions: &["v1alpha1"], schema: "authentication/v1alpha1.SelfSubjectReview", ..SELF_SUBJECT },
    Kind {
        kind: "TokenReview",
        resource: "tokenreviews",
        singular: "tokenreview",
        schema: "authentication/v1.TokenReview",
        ..REVIEW
    },
];

const SELF_SUBJECT: Kind = Kind {
    kind: "SelfSubjectReview",
    resource: "selfsubjectreviews",
    singular: "selfsubjectreview",
    schema: "authentication/v1.SelfSubjectReview",
    ..REVIEW
};

const REVIEW: Kind =
    Kind { group: "authentication", storage: Storage::Review, verbs: REVIEW_VERBS, ..Kind::CLUSTER_SCOPED };

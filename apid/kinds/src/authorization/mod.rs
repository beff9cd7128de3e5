//! API group `authorization`: access reviews.

use crate::{Kind, REVIEW_VERBS, Storage};

/// Kinds of the group, in discovery order. apid evaluates each object and stores none.
pub(crate) const KINDS: &[Kind] = &[
    Kind {
        kind: "LocalSubjectAccessReview",
        resource: "localsubjectaccessreviews",
        singular: "localsubjectaccessreview",
        namespaced: true,
        schema: "authorization/v1.LocalSubjectAccessReview",
        ..REVIEW
    },
    Kind {
        kind: "SelfSubjectAccessReview",
        resource: "selfsubjectaccessreviews",
        singular: "selfsubjectaccessreview",
        schema: "authorization/v1.SelfSubjectAccessReview",
        ..REVIEW
    },
    Kind {
        kind: "SelfSubjectRulesReview",
        resource: "selfsubjectrulesreviews",
        singular: "selfsubjectrulesreview",
        schema: "authorization/v1.SelfSubjectRulesReview",
        ..REVIEW
    },
    Kind {
        kind: "SubjectAccessReview",
        resource: "subjectaccessreviews",
        singular: "subjectaccessreview",
        schema: "authorization/v1.SubjectAccessReview",
        ..REVIEW
    },
];

const REVIEW: Kind =
    Kind { group: "authorization", storage: Storage::Review, verbs: REVIEW_VERBS, ..Kind::CLUSTER_SCOPED };

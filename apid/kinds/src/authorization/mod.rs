//! API group `authorization`: access reviews.

use crate::Kind;

/// Kinds of the group, in discovery order. apid evaluates each object and stores none.
pub(crate) const KINDS: &[Kind] = &[
    Kind {
        namespaced: true,
        ..Kind::review("authorization/v1.LocalSubjectAccessReview", "localsubjectaccessreviews")
    },
    Kind::review("authorization/v1.SelfSubjectAccessReview", "selfsubjectaccessreviews"),
    Kind::review("authorization/v1.SelfSubjectRulesReview", "selfsubjectrulesreviews"),
    Kind::review("authorization/v1.SubjectAccessReview", "subjectaccessreviews"),
];

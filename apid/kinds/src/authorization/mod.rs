//! API group `authorization`: access reviews.

use crate::BuiltInKind;

/// Kinds of the group, in discovery order. apid evaluates each object and stores none.
pub(crate) const KINDS: &[BuiltInKind] = &[
    BuiltInKind {
        namespaced: true,
        ..BuiltInKind::review("authorization/v1.LocalSubjectAccessReview", "localsubjectaccessreviews")
    },
    BuiltInKind::review("authorization/v1.SelfSubjectAccessReview", "selfsubjectaccessreviews"),
    BuiltInKind::review("authorization/v1.SelfSubjectRulesReview", "selfsubjectrulesreviews"),
    BuiltInKind::review("authorization/v1.SubjectAccessReview", "subjectaccessreviews"),
];

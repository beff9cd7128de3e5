//! API group `authentication`: token reviews, subject reviews and token requests.

pub(crate) mod token_request;

use crate::BuiltInKind;

/// Kinds of the group, in discovery order. apid evaluates each object and stores none.
pub(crate) const KINDS: &[BuiltInKind] = &[
    BuiltInKind::review("authentication/v1.SelfSubjectReview", "selfsubjectreviews"),
    BuiltInKind::review("authentication/v1beta1.SelfSubjectReview", "selfsubjectreviews"),
    BuiltInKind::review("authentication/v1alpha1.SelfSubjectReview", "selfsubjectreviews"),
    BuiltInKind::review("authentication/v1.TokenReview", "tokenreviews"),
];

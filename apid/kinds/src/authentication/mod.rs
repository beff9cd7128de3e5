//! API group `authentication`: token reviews, subject reviews and token requests.

pub(crate) mod token_request;

use apimachinery::names::Names;

use crate::same_fields::Deprecation;
use crate::strategy::DefaultStrategy;
use crate::{Kind, REVIEW_VERBS, Storage, Strategy};

/// Kinds of the group, in discovery order. apid evaluates each object and stores none.
pub(crate) const KINDS: &[Kind] = &[
    SELF_SUBJECT,
    Kind {
        versions: &["v1beta1"],
        schema: "authentication/v1beta1.SelfSubjectReview",
        strategy: &DeprecatedReview(Deprecation {
            group: "authentication",
            version_kind: "v1beta1 SelfSubjectReview",
            releases: "v1.30+",
        }),
        ..SELF_SUBJECT
    },
    Kind {
        versions: &["v1alpha1"],
        schema: "authentication/v1alpha1.SelfSubjectReview",
        strategy: &DeprecatedReview(Deprecation {
            group: "authentication",
            version_kind: "v1alpha1 SelfSubjectReview",
            releases: "v1.29+",
        }),
        ..SELF_SUBJECT
    },
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

/// Rules of a review in a deprecated version.
struct DeprecatedReview(Deprecation);

impl Strategy for DeprecatedReview {
    fn deprecation(&self, names: &Names) -> Option<String> {
        Some(self.0.warning(names))
    }
}

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
    strategy: &DefaultStrategy,
};

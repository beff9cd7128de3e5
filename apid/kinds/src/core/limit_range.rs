//! LimitRange: least, most and usual amounts of what pods of a namespace may ask for.

use crate::{Kind, STANDARD_VERBS, Storage, Strategy};

pub(super) const KIND: Kind = Kind {
    group: "",
    versions: &["v1"],
    kind: "LimitRange",
    resource: "limitranges",
    singular: "limitrange",
    short_names: &["limits"],
    categories: &[],
    namespaced: true,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[],
    schema: "core/v1.LimitRange",
    strategy: &LimitRange,
};

struct LimitRange;

impl Strategy for LimitRange {
    fn create_on_update(&self) -> bool {
        true
    }
}

//! Binding: puts a pod on a node. It is a request and never stored.

use crate::strategy::Plain;
use crate::{Kind, REVIEW_VERBS, Storage};

pub(super) const KIND: Kind = Kind {
    group: "",
    versions: &["v1"],
    kind: "Binding",
    resource: "bindings",
    singular: "binding",
    short_names: &[],
    categories: &[],
    namespaced: true,
    storage: Storage::Order,
    verbs: REVIEW_VERBS,
    subresources: &[],
    schema: "core/v1.Binding",
    strategy: &Plain,
};

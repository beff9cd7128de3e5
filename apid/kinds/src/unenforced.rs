//! Kinds that this release stores but does not enforce.
//!
//! # Contract
//!
//! Such a kind names its entry in [`Kind::unenforced`](crate::Kind::unenforced). Every write of
//! such an object returns the warning. apid logs the number of stored objects at start-up. The release that
//! implements a kind removes the entry of the kind.

use apimachinery::object::Object;

/// A kind that apid stores but does not enforce.
#[derive(Debug)]
pub struct UnenforcedKind {
    /// The warning for the client that writes such an object.
    pub warning: &'static str,
    applies_to: Option<fn(&Object) -> bool>,
}

impl UnenforcedKind {
    /// Whether the entry applies to all objects of the kind, so that no caller has to inspect them.
    pub fn applies_to_all(&self) -> bool {
        self.applies_to.is_none()
    }

    /// Whether the entry applies to an object of the kind.
    pub fn applies_to(&self, object: &Object) -> bool {
        self.applies_to.is_none_or(|applies_to| applies_to(object))
    }
}

/// Applies to APIServices with a Service reference; apid itself serves the others.
pub(crate) const AGGREGATION: UnenforcedKind = UnenforcedKind {
    warning: "this server stores APIServices but does not forward requests to their Services yet",
    applies_to: Some(|object| object.at(&["spec", "service"]).is_some_and(|service| service.is_object())),
};

/// Applies to all mutating admission policies and their bindings: the admission plugin is not built.
pub(crate) const MUTATING_POLICIES: UnenforcedKind = UnenforcedKind {
    warning: "this server stores mutating admission policies but does not run them yet",
    applies_to: None,
};

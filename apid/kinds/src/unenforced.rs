//! Kinds that apid stores but does not enforce.
//!
//! # Contract
//!
//! Such a kind names its entry in [`Kind::unenforced`](crate::Kind::unenforced). Every write of
//! such an object returns the warning. apid logs the number of stored objects at start-up. An entry with a feature gate
//! applies while the gate is off. The release that implements a kind removes an entry without a gate.

use apimachinery::object::Object;

/// A kind that apid stores but does not enforce.
#[derive(Debug)]
pub struct UnenforcedKind {
    /// The warning for the client that writes such an object.
    pub warning: &'static str,
    /// Name of the feature gate that enforces the kind; None: no gate does.
    pub gate: Option<&'static str>,
    applies_to: Option<fn(&Object) -> bool>,
}

impl UnenforcedKind {
    /// Whether the entry applies to all objects of the kind, so callers need not inspect them.
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
    gate: None,
    applies_to: Some(|object| object.at(&["spec", "service"]).is_some_and(|service| service.is_object())),
};

/// Applies to all mutating admission policies and their bindings.
pub(crate) const MUTATING_POLICIES: UnenforcedKind = UnenforcedKind {
    warning: "this server does not run mutating admission policies: its feature gate MutatingAdmissionPolicy is off; \
        start it with --feature-gates=MutatingAdmissionPolicy=true",
    gate: Some("MutatingAdmissionPolicy"),
    applies_to: None,
};

//! Kinds that apid stores but does not enforce.
//!
//! # Contract
//!
//! Such a kind refers to its entry in [`Kind::unenforced`](crate::Kind::unenforced). The response to each
//! write of an object to which the entry applies contains the warning of the entry. At start-up, apid logs
//! the number of stored objects of such a kind. An entry with a feature gate applies while the gate is off.
//! An entry without a gate disappears in the release that enforces the kind.

use apimachinery::object::Object;

/// A kind that apid stores but does not enforce.
#[derive(Debug)]
pub struct UnenforcedKind {
    /// The warning for the client that writes such an object.
    pub warning: &'static str,
    /// Name of the feature gate that enforces the kind; None if no gate enforces the kind.
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

/// Applies to APIServices with a Service reference. apid itself serves the API versions of all other
/// APIServices.
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

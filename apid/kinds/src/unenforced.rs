//! Kinds that apid stores but does not enforce.
//!
//! # Contract
//!
//! Such a kind refers to its entry in [`Kind::unenforced`](crate::Kind::unenforced). The response to each
//! write of such an object contains the warning of the entry. At start-up, apid logs
//! the number of stored objects of such a kind. An entry with a feature gate applies while the gate is off.
//! An entry without a gate disappears in the release that enforces the kind.

/// A kind that apid stores but does not enforce.
#[derive(Debug)]
pub struct UnenforcedKind {
    /// The warning for the client that writes such an object.
    pub warning: &'static str,
    /// Name of the feature gate that enforces the kind; None if no gate enforces the kind.
    pub gate: Option<&'static str>,
}

/// Applies to all mutating admission policies and their bindings.
pub(crate) const MUTATING_POLICIES: UnenforcedKind = UnenforcedKind {
    warning: "this server does not run mutating admission policies: its feature gate MutatingAdmissionPolicy is off; \
        start it with --feature-gates=MutatingAdmissionPolicy=true",
    gate: Some("MutatingAdmissionPolicy"),
};

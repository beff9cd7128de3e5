//! Kinds whose objects this release stores without acting on them.
//!
//! # Contract
//!
//! A kind of this sort names its entry in [`Strategy::unenforced`](crate::Strategy::unenforced): every write of such an
//! object carries the warning, and the server logs at its start how many of them are stored. The release that acts on a kind
//! removes the kind's entry.

use apimachinery::object::Object;

/// A kind that the server stores but does not enforce.
#[derive(Debug)]
pub struct Unenforced {
    /// The warning for the client that writes such an object.
    pub warning: &'static str,
    applies_to: Option<fn(&Object) -> bool>,
}

impl Unenforced {
    /// Whether it holds for all objects of the kind, so that nobody needs to look at them.
    pub fn applies_to_all(&self) -> bool {
        self.applies_to.is_none()
    }

    /// Whether it holds for an object of the kind.
    pub fn applies_to(&self, object: &Object) -> bool {
        self.applies_to.is_none_or(|applies_to| applies_to(object))
    }
}

pub(crate) const CUSTOM_RESOURCES: Unenforced = Unenforced {
    warning: "this server stores CustomResourceDefinitions but does not serve custom resources yet",
    applies_to: None,
};

pub(crate) const ADMISSION_WEBHOOKS: Unenforced = Unenforced {
    warning: "this server stores webhook configurations but does not call admission webhooks yet",
    applies_to: None,
};

pub(crate) const ADMISSION_POLICIES: Unenforced = Unenforced {
    warning: "this server stores admission policies and their bindings but does not enforce them yet",
    applies_to: None,
};

/// Of APIServices those that point at a Service: the server answers for the others itself.
pub(crate) const AGGREGATION: Unenforced = Unenforced {
    warning: "this server stores APIServices but does not forward requests to their Services yet",
    applies_to: Some(|object| object.at(&["spec", "service"]).is_some_and(|service| service.is_object())),
};

//! Binding-like kinds: objects that are not stored and whose creation changes another object.
//!
//! # Contract
//!
//! A binding-like kind has [`crate::Storage::BindingLike`] and is the body of a subresource of its target kind. Its
//! name is the name of the target object. The uid and resourceVersion in its metadata are preconditions on
//! the target object.

use apimachinery::field::{FieldErrors, quote};
use apimachinery::object::Object;

use crate::Context;

/// The state of a pod that does not allow its assignment to a node, with the text of kube-apiserver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssignmentError {
    /// The pod is terminating.
    #[error("pod {pod} is being deleted, cannot be assigned to a host")]
    Terminating {
        /// The name of the pod.
        pod: String,
    },
    /// The pod is assigned to a node already.
    #[error("pod {pod} is already assigned to node {}", quote(node))]
    Assigned {
        /// The name of the pod.
        pod: String,
        /// The name of the node.
        node: String,
    },
    /// The pod has a scheduling gate.
    #[error("pod {pod} has non-empty .spec.schedulingGates")]
    Gated {
        /// The name of the pod.
        pod: String,
    },
}

/// Rules of a binding-like kind.
pub trait BindingAction: Send + Sync {
    /// Validates the binding-like object.
    fn validate(&self, binding: &Object) -> FieldErrors;

    /// Changes the target object.
    ///
    /// # Errors
    ///
    /// The state of the target does not allow the change (409).
    fn apply_to_target(
        &self,
        binding: &Object,
        object: &mut Object,
        ctx: &Context<'_>,
    ) -> Result<(), AssignmentError>;
}

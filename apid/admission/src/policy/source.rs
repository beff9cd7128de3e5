//! The stored policies and bindings of one kind of policy.

use std::sync::Arc;

use apimachinery::status::Status;
use kinds::Kind;

use super::expressions::PolicyExpressions;
use super::policies::{Binding, Bindings, Policies, Policy, index_policies};
use crate::{Attributes, CompiledObjects, ObjectKind};

/// The stored policies with the expressions `E`, and their bindings.
pub(crate) struct PolicySource<E> {
    policies: CompiledObjects<Policy<E>, Policies<E>>,
    bindings: CompiledObjects<Binding, Bindings>,
}

impl<E: PolicyExpressions> PolicySource<E> {
    /// Creates the source of the policies and bindings of these kinds.
    pub(crate) fn new(policy: ObjectKind, binding: ObjectKind) -> Self {
        PolicySource {
            policies: CompiledObjects::new(policy, |object| Policy::new(Arc::clone(object)), index_policies),
            bindings: CompiledObjects::new(binding, |object| Binding::new(object), Bindings::new),
        }
    }

    /// All policies, if the rules of at least one match a write; otherwise None.
    ///
    /// # Errors
    ///
    /// The policies cannot be read.
    pub(crate) async fn policies(
        &self,
        attributes: &Attributes<'_>,
    ) -> Result<Option<Arc<Policies<E>>>, Status> {
        if is_exempt(attributes.resource) {
            return Ok(None);
        }
        let policies = self.policies.get(&attributes.environment.reader).await?;
        let has_match = policies
            .candidates(&attributes.served.group_resource.resource)
            .any(|(_, policy)| policy.constraints.rules_match(attributes).is_some());
        Ok(has_match.then_some(policies))
    }

    /// All bindings.
    ///
    /// # Errors
    ///
    /// The bindings cannot be read.
    pub(crate) async fn bindings(&self, attributes: &Attributes<'_>) -> Result<Arc<Bindings>, Status> {
        self.bindings.get(&attributes.environment.reader).await
    }
}

/// Whether no policy applies to writes to a resource.
fn is_exempt(resource: &Kind) -> bool {
    matches!(resource.stem(), Some("admissionregistration" | "authentication" | "authorization"))
}

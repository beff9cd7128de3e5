//! The stored policies and bindings of one kind of policy.

use std::sync::Arc;

use apimachinery::status::Status;
use kinds::Resource;

use super::expressions::PolicyExpressions;
use super::policies::{Bindings, Policies, read_policies};
use crate::matching::Matcher;
use crate::{Attributes, CompiledObjects, Environment, MaybeFuture, ObjectKind};

/// The stored policies with the expressions `E`, and their bindings.
pub(crate) struct PolicySource<E> {
    pub(crate) environment: Environment,
    pub(super) matcher: Matcher,
    policies: CompiledObjects<Policies<E>>,
    bindings: CompiledObjects<Bindings>,
}

impl<E: PolicyExpressions> PolicySource<E> {
    /// Creates the source of the policies and bindings of these kinds.
    pub(crate) fn new(environment: &Environment, policy: ObjectKind, binding: ObjectKind) -> Self {
        let reader = &environment.reader;
        PolicySource {
            matcher: Matcher::new(environment),
            policies: CompiledObjects::new(Arc::clone(reader), policy, read_policies),
            bindings: CompiledObjects::new(Arc::clone(reader), binding, |objects, _| Bindings::new(objects)),
            environment: environment.clone(),
        }
    }

    /// All policies, if the rules of at least one match a write; otherwise None. The result is ready after
    /// the first load of the policies.
    pub(crate) fn policies<'a>(
        &'a self,
        attributes: &'a Attributes<'a>,
    ) -> MaybeFuture<'a, Result<Option<Arc<Policies<E>>>, Status>> {
        if is_exempt(attributes.resource) {
            return MaybeFuture::Ready(Ok(None));
        }
        self.policies.get().map(move |policies| {
            let policies = policies?;
            let mut candidates = policies.candidates(&attributes.served.group_resource.resource);
            let has_match = candidates
                .any(|(_, policy)| self.matcher.rules_match(&policy.constraints, attributes).is_some());
            drop(candidates);
            Ok(has_match.then_some(policies))
        })
    }

    /// All bindings.
    ///
    /// # Errors
    ///
    /// The bindings cannot be read.
    pub(crate) async fn bindings(&self) -> Result<Arc<Bindings>, Status> {
        self.bindings.get().get().await
    }
}

/// Whether no policy applies to writes to a resource.
fn is_exempt(resource: &Resource) -> bool {
    !resource.is_custom()
        && matches!(resource.kind.group(), "admissionregistration" | "authentication" | "authorization")
}

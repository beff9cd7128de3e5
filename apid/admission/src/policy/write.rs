//! The evaluation of policies for one write: invocations, and the values of variables.

use std::sync::Arc;

use apimachinery::object::{Map, Object, Value};
use apimachinery::status::Status;
use expressions::Value as CelValue;
use kinds::Registry;
use kinds::admission_expressions::REQUEST;

use super::expressions::{CommonExpressions, PolicyExpressions};
use super::parameters;
use super::policies::{Binding, Policy};
use super::source::PolicySource;
use crate::admission_request::{condition_request, request_fields};
use crate::authorization::AuthorizationAnswers;
use crate::expression_inputs::{ExpressionInputs, authorizer_variables};
use crate::matching::MatchedResource;
use crate::representation::Representation;
use crate::turn::Turn;
use crate::{Attributes, ObjectKind};

/// A write to which policies apply.
pub(crate) struct PolicyWrite<'w, E> {
    pub(crate) source: &'w PolicySource<E>,
    pub(crate) attributes: &'w Attributes<'w>,
    pub(crate) registry: Arc<Registry>,
    answers: Arc<AuthorizationAnswers>,
}

/// One evaluation of a policy: by a binding, with one parameter or without any.
pub(crate) struct Invocation<'p> {
    pub(crate) binding: &'p Binding,
    pub(crate) param: Option<Arc<Object>>,
}

/// A configuration error of a policy or binding, to which the failure policy applies.
pub(crate) struct ConfigurationError<'p> {
    /// The binding; None for an error of the policy.
    pub(crate) binding: Option<&'p Binding>,
    /// The message for the client.
    pub(crate) message: String,
}

impl<'p> ConfigurationError<'p> {
    /// A configuration error with its reason.
    pub(crate) fn new(binding: Option<&'p Binding>, reason: &str) -> Self {
        let part = if binding.is_some() { "binding" } else { "policy" };
        ConfigurationError { binding, message: format!("failed to configure {part}: {reason}") }
    }
}

/// The invocations of a policy for a write, in the order of bindings and parameters.
pub(crate) struct Invocations<'p> {
    /// The version of the resource that the policy matched.
    pub(crate) matched: MatchedResource,
    /// Invocations and configuration errors.
    pub(crate) all: Vec<Result<Invocation<'p>, ConfigurationError<'p>>>,
}

/// Values of variables that do not depend on the object.
pub(crate) struct FixedValues {
    request: Value,
    condition_request: Value,
    namespace: Option<Arc<Object>>,
}

impl FixedValues {
    /// The data of one evaluation, with the objects of the write in the matched version.
    pub(crate) fn with_objects<'i>(
        &'i self,
        object: Option<&'i Object>,
        old: Option<&'i Object>,
        param: Option<&'i Object>,
    ) -> ExpressionInputs<'i> {
        let (request, namespace) = (&self.request, self.namespace.as_deref());
        ExpressionInputs { object, old, param, request, namespace }
    }
}

/// Data of the variables for one evaluation.
pub(crate) struct Inputs<'v> {
    data: ExpressionInputs<'v>,
    condition_request: &'v Value,
    /// None if no expression calls the authorizer.
    authorizer: Option<(&'v Arc<AuthorizationAnswers>, &'v Attributes<'v>)>,
}

impl<'v> Inputs<'v> {
    /// Values by name, for match conditions.
    pub(crate) fn condition_variables(&self) -> Vec<(&'static str, CelValue<'v>)> {
        let data = ExpressionInputs { namespace: None, request: self.condition_request, ..self.data };
        self.with_authorizer(data.variables())
    }

    /// Values by name, for all other expressions.
    pub(crate) fn expression_variables(&self) -> Vec<(&'static str, CelValue<'v>)> {
        self.with_authorizer(self.data.variables())
    }

    fn with_authorizer(
        &self,
        mut variables: Vec<(&'static str, CelValue<'v>)>,
    ) -> Vec<(&'static str, CelValue<'v>)> {
        if let Some((answers, attributes)) = self.authorizer {
            variables.extend(authorizer_variables(answers, attributes));
        }
        variables
    }
}

impl<'w, E: PolicyExpressions> PolicyWrite<'w, E> {
    pub(crate) fn new(source: &'w PolicySource<E>, attributes: &'w Attributes<'w>) -> Self {
        let registry = source.environment.registry.get();
        PolicyWrite { source, attributes, registry, answers: Arc::default() }
    }

    /// Compares a policy and its bindings with the write. Returns None if the constraints of the policy do
    /// not match, or if the policy has no binding.
    ///
    /// # Errors
    ///
    /// A configuration error of the policy.
    pub(crate) async fn invocations<'p>(
        &self,
        policy: &Policy<E>,
        bindings: &'p [Binding],
        object: Option<&Object>,
    ) -> Result<Option<Invocations<'p>>, ConfigurationError<'p>> {
        if bindings.is_empty() {
            return Ok(None);
        }
        let (matcher, attributes) = (&self.source.matcher, self.attributes);
        let configuration_error = |reason: &str| ConfigurationError::new(None, reason);
        let matched = matcher.matches(&policy.constraints, attributes, object).await;
        let Some(matched) = matched.map_err(|status| configuration_error(&status.message))? else {
            return Ok(None);
        };
        let param_kind = policy.param_kind.as_ref();
        let param_resource = param_kind.map(|kind| kind.resource(&self.registry)).transpose();
        let param_resource = param_resource.map_err(|error| configuration_error(&error.to_string()))?;
        let mut all = Vec::new();
        let mut turn = Turn::new(&*self.source.environment.clock);
        for binding in bindings {
            turn.pause().await;
            let configuration_error = |reason: &str| Err(ConfigurationError::new(Some(binding), reason));
            match matcher.matches(&binding.constraints, attributes, object).await {
                Ok(Some(_)) => {}
                Ok(None) => continue,
                Err(status) => {
                    all.push(configuration_error(&status.message));
                    continue;
                }
            }
            let (reference, namespace) = (binding.param_ref.as_ref(), attributes.request_namespace());
            let params =
                parameters::collect(param_resource, reference, namespace, &self.source.environment).await;
            match params {
                Ok(params) => all.extend(params.into_iter().map(|param| Ok(Invocation { binding, param }))),
                Err(error) => all.push(configuration_error(&error.to_string())),
            }
        }
        Ok(Some(Invocations { matched, all }))
    }

    /// The representation of the objects of the write in a matched version.
    pub(crate) fn representation<'m>(&self, matched: &'m MatchedResource) -> Representation<'m>
    where
        'w: 'm,
    {
        Representation::for_match(matched, self.attributes, &self.registry, &self.source.environment.names)
    }

    /// Reads the values of the variables of a policy that do not depend on the object. `matched` is the
    /// representation in the matched version, `name` the name of the object.
    ///
    /// # Errors
    ///
    /// The namespace is missing or unreadable.
    pub(crate) async fn fixed_values(
        &self,
        common: &CommonExpressions,
        matched: &Representation<'_>,
        name: &str,
    ) -> Result<FixedValues, Status> {
        let request = match common.uses.request {
            true => Value::Object(self.request(matched, name)),
            false => Value::Null,
        };
        let condition_request = match &request {
            Value::Object(fields) if common.conditions.uses(REQUEST) => {
                Value::Object(condition_request(fields.clone()))
            }
            _ => Value::Null,
        };
        let namespace = match namespace_of(self.attributes) {
            name if common.uses.namespace && !name.is_empty() => {
                let namespace = self.source.environment.reader.namespace(name).get().await?;
                Some(self.represent_namespace(namespace)?)
            }
            _ => None,
        };
        Ok(FixedValues { request, condition_request, namespace })
    }

    /// Runs `run`, which evaluates expressions of a policy, until all authorization checks have answers.
    pub(crate) async fn evaluate<T>(
        &self,
        common: &CommonExpressions,
        data: ExpressionInputs<'_>,
        fixed: &FixedValues,
        mut run: impl for<'v> FnMut(&Inputs<'v>) -> T,
    ) -> T {
        let run = || {
            let authorizer = common.uses.authorizer.then_some((&self.answers, self.attributes));
            run(&Inputs { data, condition_request: &fixed.condition_request, authorizer })
        };
        self.answers.evaluate(self.attributes.user, &self.source.environment, run).await
    }

    /// The value of the variable `request`.
    fn request(&self, matched: &Representation<'_>, name: &str) -> Map<String, Value> {
        let requested = self.representation(&MatchedResource::Requested);
        request_fields(self.attributes, matched, &requested, name)
    }

    fn represent_namespace(&self, namespace: Arc<Object>) -> Result<Arc<Object>, Status> {
        match self.registry.find_kind("", "Namespace") {
            Some(resource) => {
                let names = &self.source.environment.names;
                parameters::represent(resource, namespace, names).map_err(Status::internal)
            }
            None => Ok(namespace),
        }
    }
}

/// Name of the namespace of a write; `""` for cluster-scoped objects and for Namespaces.
fn namespace_of<'a>(attributes: &Attributes<'a>) -> &'a str {
    if attributes.is_of(ObjectKind::NAMESPACE) { "" } else { attributes.namespace }
}

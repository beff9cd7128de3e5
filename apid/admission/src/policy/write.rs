//! The evaluation of policies for one write: invocations, and the values of variables.

use std::sync::Arc;

use apimachinery::object::{Map, Object, Value};
use apimachinery::status::Status;
use kinds::admission_expressions::REQUEST;

use super::expressions::{CommonExpressions, PolicyExpressions};
use super::parameters::{self, Parameter, ParametersError};
use super::policies::{Binding, Policy};
use crate::admission_request::{condition_request, request_fields};
use crate::authorization::AuthorizationAnswers;
use crate::expression_inputs::ExpressionInputs;
use crate::matching::{MatchedResource, WriteNamespace};
use crate::representation::Representation;
use crate::turn::Turn;
use crate::{Attributes, ObjectKind};

/// A write to which policies apply.
pub(crate) struct PolicyWrite<'w> {
    pub(crate) attributes: &'w Attributes<'w>,
    answers: Arc<AuthorizationAnswers>,
    namespace: WriteNamespace,
}

/// One evaluation of a policy: by a binding, with one parameter or without any.
pub(crate) struct Invocation<'p> {
    pub(crate) binding: &'p Binding,
    pub(crate) param: Option<Parameter>,
}

/// An invocation with the object of its parameter.
pub(crate) struct ReadInvocation<'p> {
    pub(crate) binding: &'p Binding,
    pub(crate) param: Option<Arc<Object>>,
}

impl<'p> Invocation<'p> {
    /// Reads the parameter.
    ///
    /// # Errors
    ///
    /// A configuration error of the binding: the parameter cannot be read.
    pub(crate) fn read(&self) -> Result<ReadInvocation<'p>, ConfigurationError<'p>> {
        let param = self.param.as_ref().map(Parameter::read).transpose();
        let error = |error: ParametersError| ConfigurationError::new(Some(self.binding), &error.to_string());
        Ok(ReadInvocation { binding: self.binding, param: param.map_err(error)? })
    }
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
        ExpressionInputs {
            object,
            old,
            param,
            request: &self.request,
            condition_request: &self.condition_request,
            namespace: self.namespace.as_deref(),
            authorizer: None,
        }
    }
}

impl<'w> PolicyWrite<'w> {
    pub(crate) fn new(attributes: &'w Attributes<'w>) -> Self {
        PolicyWrite { attributes, answers: Arc::default(), namespace: WriteNamespace::default() }
    }

    /// Compares a policy and its bindings with the write. Returns None if the constraints of the policy do
    /// not match, or if the policy has no binding.
    ///
    /// # Errors
    ///
    /// A configuration error of the policy.
    pub(crate) async fn invocations<'p, E: PolicyExpressions>(
        &self,
        policy: &Policy<E>,
        bindings: &'p [Arc<Binding>],
        object: Option<&Object>,
    ) -> Result<Option<Invocations<'p>>, ConfigurationError<'p>> {
        if bindings.is_empty() {
            return Ok(None);
        }
        let (attributes, environment) = (self.attributes, self.attributes.environment);
        let configuration_error = |reason: &str| ConfigurationError::new(None, reason);
        let matched = policy.constraints.matches(attributes, object, &self.namespace).await;
        let Some(matched) = matched.map_err(|status| configuration_error(&status.message))? else {
            return Ok(None);
        };
        let (param_kind, registry) = (policy.param_kind.as_ref(), environment.registry.get());
        let param_resource = param_kind.map(|kind| kind.resource(&registry)).transpose();
        let param_resource = param_resource.map_err(|error| configuration_error(&error.to_string()))?;
        let mut all = Vec::new();
        let mut turn = Turn::new(&*environment.clock);
        for binding in bindings.iter().map(|binding| &**binding) {
            turn.pause().await;
            let configuration_error = |reason: &str| Err(ConfigurationError::new(Some(binding), reason));
            match binding.constraints.matches(attributes, object, &self.namespace).await {
                Ok(Some(_)) => {}
                Ok(None) => continue,
                Err(status) => {
                    all.push(configuration_error(&status.message));
                    continue;
                }
            }
            let (reference, namespace) = (binding.param_ref.as_ref(), attributes.request_namespace());
            match parameters::collect(param_resource, reference, namespace, environment).await {
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
        Representation::for_match(matched, self.attributes)
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
                let namespace = self.attributes.environment.reader.namespace(name).await?;
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
        mut run: impl for<'v> FnMut(&ExpressionInputs<'v>) -> T,
    ) -> T {
        let authorizer = common.uses.authorizer.then_some((&self.answers, self.attributes));
        self.answers.evaluate(self.attributes, || run(&ExpressionInputs { authorizer, ..data })).await
    }

    /// The value of the variable `request`.
    fn request(&self, matched: &Representation<'_>, name: &str) -> Map<String, Value> {
        let requested = self.representation(&MatchedResource::Requested);
        request_fields(self.attributes, matched, &requested, name)
    }

    fn represent_namespace(&self, namespace: Arc<Object>) -> Result<Arc<Object>, Status> {
        let environment = self.attributes.environment;
        match environment.registry.get().find_kind("", "Namespace") {
            Some(resource) => {
                parameters::represent(resource, namespace, &environment.names).map_err(Status::internal)
            }
            None => Ok(namespace),
        }
    }
}

/// Name of the namespace of a write; `""` for cluster-scoped objects and for Namespaces.
fn namespace_of<'a>(attributes: &Attributes<'a>) -> &'a str {
    if attributes.is_of(ObjectKind::NAMESPACE) { "" } else { attributes.namespace }
}

//! Values of the variables that expressions of webhooks and policies read.

use std::sync::Arc;

use apimachinery::object::{Object, Value};
use expressions::{AuthorizationCheck, Type, Value as CelValue};
use kinds::admission_expressions::{
    AUTHORIZER, NAMESPACE_OBJECT, NAMESPACE_TYPE, OBJECT, OLD_OBJECT, PARAMS, REQUEST, REQUEST_RESOURCE,
};

use crate::Attributes;
use crate::authorization::AuthorizationAnswers;

static DYN: Type = Type::Dyn;

/// The data from which the variables of one evaluation are built.
#[derive(Clone, Copy)]
pub(crate) struct ExpressionInputs<'i> {
    /// The new object in the matched version.
    pub(crate) object: Option<&'i Object>,
    /// The old object in the matched version.
    pub(crate) old: Option<&'i Object>,
    /// The parameter of a policy.
    pub(crate) param: Option<&'i Object>,
    /// The fields of the AdmissionRequest; null if no expression reads them.
    pub(crate) request: &'i Value,
    /// The fields of the AdmissionRequest for match conditions.
    pub(crate) condition_request: &'i Value,
    /// The Namespace object of the write; None if no expression reads it.
    pub(crate) namespace: Option<&'i Object>,
    /// The answers of the authorizer; None if no expression calls the authorizer.
    pub(crate) authorizer: Option<(&'i Arc<AuthorizationAnswers>, &'i Attributes<'i>)>,
}

impl<'i> ExpressionInputs<'i> {
    /// The variables of match conditions with their values.
    pub(crate) fn condition_variables(&self) -> Vec<(&'static str, CelValue<'i>)> {
        ExpressionInputs { namespace: None, request: self.condition_request, ..*self }.variables()
    }

    /// The variables of all other expressions with their values.
    pub(crate) fn variables(&self) -> Vec<(&'static str, CelValue<'i>)> {
        let dynamic = |object: Option<&'i Object>| match object {
            Some(object) => CelValue::object(&object.0, &DYN),
            None => CelValue::Null,
        };
        // As in kube-apiserver, the request is a map without a schema: `options` of a connection is null, not absent.
        let request = match self.request {
            Value::Object(fields) => CelValue::object(fields, &DYN),
            _ => CelValue::Null,
        };
        let namespace = match self.namespace {
            Some(namespace) => CelValue::object(&namespace.0, &NAMESPACE_TYPE),
            None => CelValue::Null,
        };
        let mut variables = vec![
            (OBJECT, dynamic(self.object)),
            (OLD_OBJECT, dynamic(self.old)),
            (PARAMS, dynamic(self.param)),
            (REQUEST, request),
            (NAMESPACE_OBJECT, namespace),
        ];
        if let Some((answers, attributes)) = self.authorizer {
            let authorizer = || Arc::clone(answers) as Arc<dyn expressions::Authorizer>;
            let resource = expressions::request_resource(authorizer(), resource_check(attributes));
            variables.push((AUTHORIZER, expressions::authorizer(authorizer())));
            variables.push((REQUEST_RESOURCE, resource));
        }
        variables
    }
}

/// The check behind `authorizer.requestResource`: the resource of the request, without a verb.
fn resource_check(attributes: &Attributes<'_>) -> AuthorizationCheck {
    AuthorizationCheck {
        group: attributes.served.group_resource.group.clone(),
        resource: attributes.served.group_resource.resource.clone(),
        subresource: attributes.subresource.to_owned(),
        namespace: attributes.request_namespace().to_owned(),
        name: attributes.name.to_owned(),
        ..AuthorizationCheck::default()
    }
}

//! Parameters of a policy: objects that a binding selects by name or by labels.

use std::sync::Arc;

use apimachinery::names::Names;
use apimachinery::object::Object;
use apimachinery::status::Status;
use kinds::{Kind, Registry};
use schema::TypeError;

use super::policies::{ParamKind, ParamRef};
use crate::{Environment, ListedObject};

/// The error of a `paramKind` that is not served, with the text of kube-apiserver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to find resource referenced by paramKind: '{group_version}, Kind={kind}'")]
pub(super) struct UnservedParamKind {
    group_version: String,
    kind: String,
}

/// The reason why a binding has no parameters for a write.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(super) enum ParametersError {
    #[error("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources")]
    NoNamespace,
    #[error("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")]
    ClusterScopedKind,
    #[error(transparent)]
    Read(#[from] Status),
    #[error("no params found for policy binding with `Deny` parameterNotFoundAction")]
    NotFound,
    #[error(transparent)]
    Representation(#[from] TypeError),
}

impl ParamKind {
    /// The served resource of the kind.
    ///
    /// # Errors
    ///
    /// The kind is not served.
    pub(super) fn resource<'r>(&self, registry: &'r Registry) -> Result<&'r Arc<Kind>, UnservedParamKind> {
        let (group, version) = self.api_version.split_once('/').unwrap_or(("", &self.api_version));
        registry.find_kind_version(group, version, &self.kind).ok_or_else(|| {
            let group_version =
                if group.is_empty() { format!("/{version}") } else { self.api_version.clone() };
            UnservedParamKind { group_version, kind: self.kind.clone() }
        })
    }
}

/// A parameter of a binding. The object is decoded for its evaluation alone, so that thousands of parameters take
/// little memory.
pub(crate) struct Parameter {
    object: ListedObject,
    resource: Arc<Kind>,
    names: Arc<Names>,
}

impl Parameter {
    /// Namespace and name of the parameter.
    pub(crate) fn key(&self) -> (&str, &str) {
        (&self.object.namespace, &self.object.name)
    }

    /// Reads the object in the version of `paramKind`, with the names of the preset as in responses.
    ///
    /// # Errors
    ///
    /// The object cannot be decoded, or the version cannot represent the object.
    pub(super) fn read(&self) -> Result<Arc<Object>, ParametersError> {
        Ok(represent(&self.resource, self.object.decode()?, &self.names)?)
    }
}

/// Collects the parameters of a binding. The single item None means one evaluation without a parameter.
///
/// # Errors
///
/// See [`ParametersError`].
pub(super) async fn collect(
    resource: Option<&Arc<Kind>>,
    reference: Option<&ParamRef>,
    namespace: &str,
    environment: &Environment,
) -> Result<Vec<Option<Parameter>>, ParametersError> {
    let (Some(resource), Some(reference)) = (resource, reference) else { return Ok(vec![None]) };
    let namespace = match (resource.namespaced, reference.namespace.as_str()) {
        (true, "") if namespace.is_empty() => return Err(ParametersError::NoNamespace),
        (true, "") => namespace,
        (true, named) => named,
        (false, "") => "",
        (false, _) => return Err(ParametersError::ClusterScopedKind),
    };
    let reader = &environment.reader;
    let found = match &reference.selector {
        Some(selector) => reader.select(resource, namespace, selector).await?,
        None => {
            let found = reader.get_of(resource, namespace, &reference.name).await?;
            found.into_iter().map(ListedObject::from).collect()
        }
    };
    if found.is_empty() && reference.denies_without_parameters {
        return Err(ParametersError::NotFound);
    }
    let parameter = |object: ListedObject| {
        Some(Parameter { object, resource: Arc::clone(resource), names: Arc::clone(&environment.names) })
    };
    Ok(found.into_iter().map(parameter).collect())
}

/// Converts a stored object to the version of a resource, with the names of the preset as in responses.
///
/// # Errors
///
/// The version cannot represent the object.
pub(super) fn represent(
    resource: &Kind,
    object: Arc<Object>,
    names: &Names,
) -> Result<Arc<Object>, TypeError> {
    if resource.is_sent_as_stored(names) {
        return Ok(object);
    }
    let mut object = Arc::unwrap_or_clone(object);
    resource.represent(&mut object, names)?;
    Ok(Arc::new(object))
}

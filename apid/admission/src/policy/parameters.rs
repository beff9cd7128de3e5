//! Parameters of a policy: objects that a binding selects by name or by labels.

use std::sync::Arc;

use apimachinery::names::Names;
use apimachinery::object::Object;
use apimachinery::status::Status;
use kinds::{Registry, Resource};

use super::policies::{ParamKind, ParamRef};
use crate::Environment;

impl ParamKind {
    /// The served resource of the kind.
    ///
    /// # Errors
    ///
    /// The reason for the client.
    pub(super) fn resource<'r>(&self, registry: &'r Registry) -> Result<&'r Arc<Resource>, String> {
        let (group, version) = self.api_version.split_once('/').unwrap_or(("", &self.api_version));
        registry.find_kind_version(group, version, &self.kind).ok_or_else(|| {
            let gvk = if group.is_empty() { format!("/{version}") } else { self.api_version.clone() };
            format!("failed to find resource referenced by paramKind: '{gvk}, Kind={}'", self.kind)
        })
    }
}

/// Collects the parameters of a binding; None stands for an evaluation without a parameter.
///
/// # Errors
///
/// The reason for the client: the configuration of the binding, or no parameter although the binding requires one.
pub(super) async fn collect(
    resource: Option<&Arc<Resource>>,
    reference: Option<&ParamRef>,
    namespace: &str,
    environment: &Environment,
) -> Result<Vec<Option<Arc<Object>>>, String> {
    let (Some(resource), Some(reference)) = (resource, reference) else { return Ok(vec![None]) };
    let namespace = match (resource.kind.namespaced(), reference.namespace.as_str()) {
        (true, "") if namespace.is_empty() => {
            let reason =
                "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources";
            return Err(reason.to_owned());
        }
        (true, "") => namespace,
        (true, named) => named,
        (false, "") => "",
        (false, _) => {
            return Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".to_owned());
        }
    };
    let found = select(resource, reference, namespace, environment).await.map_err(|status| status.message)?;
    if found.is_empty() && reference.denies_without_parameters {
        return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
    }
    let convert = |object: Arc<Object>| represent(resource, object, &environment.names).map(Some);
    found.into_iter().map(convert).collect()
}

async fn select(
    resource: &Arc<Resource>,
    reference: &ParamRef,
    namespace: &str,
    environment: &Environment,
) -> Result<Vec<Arc<Object>>, Status> {
    let reader = &environment.reader;
    let Some(selector) = &reference.selector else {
        let found = reader.get_of(resource, namespace, &reference.name).get().await?;
        return Ok(found.into_iter().collect());
    };
    reader.select_of(resource, namespace, selector).get().await
}

/// An object in the version of a resource, with the names of responses.
///
/// # Errors
///
/// The version cannot represent the object.
pub(super) fn represent(
    resource: &Resource,
    object: Arc<Object>,
    names: &Names,
) -> Result<Arc<Object>, String> {
    if resource.is_sent_as_stored(names) {
        return Ok(object);
    }
    let mut object = Arc::unwrap_or_clone(object);
    resource.represent(&mut object, names).map_err(|error| error.to_string())?;
    Ok(Arc::new(object))
}

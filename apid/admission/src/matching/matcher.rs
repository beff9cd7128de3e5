//! Decision whether constraints match a write.

use std::sync::{Arc, OnceLock};

use apimachinery::object::Object;
use apimachinery::status::Status;
use kinds::{Kind, labels};
use serde_json::Value;

use super::{Constraints, MatchPolicy, Rule, RuleTarget};
use crate::reader::namespace_not_found;
use crate::{Attributes, ObjectKind, Operation};

/// The version of the resource in which a rule matched.
#[derive(Clone)]
pub(crate) enum MatchedResource {
    /// The version of the request.
    Requested,
    /// A version other than that of the request.
    Equivalent {
        /// The resource in that version.
        resource: Arc<Kind>,
        /// The version that a rule matched.
        version: String,
    },
}

impl MatchedResource {
    /// The matched resource and version.
    pub(crate) fn resource_and_version<'a>(&'a self, attributes: &Attributes<'a>) -> (&'a Kind, &'a str) {
        match self {
            MatchedResource::Requested => (attributes.served, attributes.version),
            MatchedResource::Equivalent { resource, version } => (resource, version),
        }
    }
}

/// The namespace of a write, which is read once for all constraints that are compared with the write.
#[derive(Default)]
pub(crate) struct WriteNamespace(OnceLock<Arc<Object>>);

impl WriteNamespace {
    /// Reads the namespace `name`, or returns the namespace of the first call.
    async fn get(&self, attributes: &Attributes<'_>, name: &str) -> Result<&Object, Status> {
        if let Some(read) = self.0.get() {
            return Ok(read);
        }
        match attributes.environment.reader.get(ObjectKind::NAMESPACE, "", name).await? {
            Some(found) => Ok(self.0.get_or_init(|| found)),
            None => Err(namespace_not_found(name)),
        }
    }
}

impl Constraints {
    /// Compares the constraints with a write. Returns the matched resource, None without a match.
    ///
    /// # Errors
    ///
    /// 404: the namespace of the write does not exist. 503: the namespace cannot be read.
    pub(crate) async fn matches(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Object>,
        namespace: &WriteNamespace,
    ) -> Result<Option<MatchedResource>, Status> {
        let Some(matched) = self.rules_match(attributes) else { return Ok(None) };
        let is_selected = selects_object(&self.object_selector, attributes, object)
            && selects_namespace(&self.namespace_selector, attributes, object, namespace).await?;
        Ok(is_selected.then_some(matched))
    }

    /// Compares the rules with a write, without the selectors. None without a match.
    pub(crate) fn rules_match(&self, attributes: &Attributes<'_>) -> Option<MatchedResource> {
        if self.match_any_rule(&self.excluded, attributes).is_some() {
            return None;
        }
        match &self.rules {
            None => Some(MatchedResource::Requested),
            Some(rules) => self.match_any_rule(rules, attributes),
        }
    }

    fn match_any_rule(&self, rules: &[Rule], attributes: &Attributes<'_>) -> Option<MatchedResource> {
        if rules.is_empty() {
            return None;
        }
        let requested_target = RuleTarget::new(attributes);
        if rules.iter().any(|rule| rule.matches(&requested_target)) {
            return Some(MatchedResource::Requested);
        }
        if self.policy == MatchPolicy::Exact {
            return None;
        }
        let registry = attributes.environment.registry.get();
        let versions: Vec<&Arc<Kind>> = registry.versions_of(attributes.served).collect();
        let has_subresource = |resource: &Kind| {
            attributes.subresource.is_empty() || resource.subresource(attributes.subresource).is_some()
        };
        let is_requested = |target: &RuleTarget<'_>| {
            (target.group, target.version) == (requested_target.group, requested_target.version)
        };
        for rule in rules {
            for resource in versions.iter().filter(|version| is_served(version) && has_subresource(version)) {
                for version in resource.versions() {
                    let group = resource.group_resource.group.as_str();
                    let target = RuleTarget { group, version, ..requested_target };
                    if !is_requested(&target) && rule.matches(&target) {
                        let (resource, version) = (Arc::clone(resource), version.to_owned());
                        return Some(MatchedResource::Equivalent { resource, version });
                    }
                }
            }
        }
        None
    }
}

/// Whether a label selector selects the namespace of a write. For a creation or update of a Namespace,
/// the labels of the new Namespace decide. Other cluster-scoped objects always match.
///
/// # Errors
///
/// 404: the namespace does not exist. 503: the namespace cannot be read.
async fn selects_namespace(
    selector: &Value,
    attributes: &Attributes<'_>,
    object: Option<&Object>,
    namespace: &WriteNamespace,
) -> Result<bool, Status> {
    let name = attributes.request_namespace();
    let is_namespace = attributes.is_of(ObjectKind::NAMESPACE);
    if selector.is_null() || (name.is_empty() && !is_namespace) {
        return Ok(true);
    }
    let writes_labels = matches!(attributes.operation, Operation::Create | Operation::Update);
    if is_namespace && attributes.subresource.is_empty() && writes_labels {
        return Ok(object.is_some_and(|object| labels_match(selector, object)));
    }
    Ok(labels_match(selector, namespace.get(attributes, name).await?))
}

/// Whether a label selector selects the new or the old object of a write.
fn selects_object(selector: &Value, attributes: &Attributes<'_>, object: Option<&Object>) -> bool {
    // A Scale has no labels, although the object behind the subresource has labels.
    if attributes.subresource == "scale" && !selector.is_null() {
        return labels::matches(selector, &Value::Null);
    }
    selector.is_null() || [object, attributes.old].into_iter().flatten().any(|o| labels_match(selector, o))
}

fn labels_match(selector: &Value, object: &Object) -> bool {
    labels::matches(selector, object.at(&["metadata", "labels"]).unwrap_or(&Value::Null))
}

/// Whether the server serves this version of the resource to clients.
fn is_served(resource: &Kind) -> bool {
    resource.definition().is_none_or(|definition| definition.is_served)
}

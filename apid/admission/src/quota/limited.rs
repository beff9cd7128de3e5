//! Limited resources: the configuration allows their use only in namespaces with a quota that limits them.

use apimachinery::document::Fields;
use apimachinery::gvk::GroupResource;
use apimachinery::names::Names;

use super::measure::QuotaScope;
use crate::plugin_configuration::ConfigurationType;
use crate::quantity::Amounts;
use crate::{PluginConfiguration, PluginConfigurationError};

/// Type of the configuration.
const TYPE: ConfigurationType =
    ConfigurationType { group: "apiserver.config", versions: &["v1"], kind: "ResourceQuotaConfiguration" };
/// Earlier type of the configuration.
const OLD_TYPE: ConfigurationType = ConfigurationType {
    group: "resourcequota.admission",
    versions: &["v1", "v1beta1", "v1alpha1"],
    kind: "Configuration",
};

/// Operators of scope selectors.
const OPERATORS: [&str; 4] = ["In", "NotIn", "Exists", "DoesNotExist"];

/// An entry of `limitedResources`.
#[derive(Clone, Debug)]
pub(super) struct LimitedResource {
    pub(super) resource: GroupResource,
    /// The entry limits the resource names that contain one of these texts.
    pub(super) contains: Vec<String>,
    /// Scopes of objects; for each one that an object matches, a quota must have the same scope.
    pub(super) scopes: Vec<QuotaScope>,
}

impl LimitedResource {
    /// Names of the used resources that the entry limits.
    pub(super) fn names<'a>(&'a self, usage: &'a Amounts) -> impl Iterator<Item = &'a str> + use<'a> {
        let is_limited = |name: &&String| self.contains.iter().any(|part| name.contains(part.as_str()));
        usage.keys().filter(is_limited).map(String::as_str)
    }

    fn read(fields: &mut Fields<'_>) -> Self {
        let resource = required(fields, "resource");
        let group = fields.text("apiGroup");
        let contains = fields.texts("matchContains");
        let scopes = fields.objects("matchScopes", read_scope);
        LimitedResource { resource: GroupResource { group, resource }, contains, scopes }
    }
}

fn read_scope(fields: &mut Fields<'_>) -> QuotaScope {
    let name = required(fields, "scopeName");
    let operator = fields.text("operator");
    if !OPERATORS.contains(&operator.as_str()) {
        let text = format!("must be one of {}", OPERATORS.join(", "));
        fields.errors().add_text(&fields.path().child("operator"), &text);
    }
    QuotaScope { name, operator, values: fields.texts("values") }
}

/// Reads a string field and records an error if the field is absent or empty.
fn required(fields: &mut Fields<'_>, name: &'static str) -> String {
    let text = fields.text(name);
    if text.is_empty() {
        fields.errors().add_text(&fields.path().child(name), "must be set");
    }
    text
}

/// Parses the configuration of the plugin.
pub(super) fn read(
    names: &Names,
    configuration: Option<&PluginConfiguration>,
) -> Result<Vec<LimitedResource>, PluginConfigurationError> {
    let Some(configuration) = configuration else { return Ok(Vec::new()) };
    let expected = if configuration.has_type(names, OLD_TYPE) { OLD_TYPE } else { TYPE };
    configuration.decode(names, expected, |fields| fields.objects("limitedResources", LimitedResource::read))
}

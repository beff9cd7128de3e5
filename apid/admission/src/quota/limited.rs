//! Limited resources: the configuration allows their use only under a covering quota.

use apimachinery::gvk::GroupResource;
use apimachinery::names::Names;

use super::measure::Scope;
use crate::quantity::Amounts;
use crate::{Fields, PluginConfiguration};

/// Operators of scope selectors.
const OPERATORS: [&str; 4] = ["In", "NotIn", "Exists", "DoesNotExist"];

/// An entry of `limitedResources`.
#[derive(Clone, Debug)]
pub(super) struct LimitedResource {
    pub(super) resource: GroupResource,
    /// Substrings of the limited resource names.
    pub(super) contains: Vec<String>,
    /// Scopes that limit the entry; the covering quota must have the same scope.
    pub(super) scopes: Vec<Scope>,
}

impl LimitedResource {
    /// Names of the used resources that the entry limits.
    pub(super) fn names<'a>(&'a self, uses: &'a Amounts) -> impl Iterator<Item = &'a str> + use<'a> {
        let limited = |name: &&String| self.contains.iter().any(|part| name.contains(part.as_str()));
        uses.keys().filter(limited).map(String::as_str)
    }

    fn read(mut fields: Fields) -> Result<Self, String> {
        let resource = fields.text("resource")?.filter(|resource| !resource.is_empty());
        let resource = resource.ok_or_else(|| fields.error("resource", "must be set"))?;
        let group = fields.text("apiGroup")?.unwrap_or_default();
        let contains = fields.texts("matchContains")?;
        let scopes = fields.objects("matchScopes")?.into_iter().map(scope).collect::<Result<_, _>>()?;
        fields.end()?;
        Ok(LimitedResource { resource: GroupResource { group, resource }, contains, scopes })
    }
}

fn scope(mut fields: Fields) -> Result<Scope, String> {
    let name = fields.text("scopeName")?.filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| fields.error("scopeName", "must be set"))?;
    let operator = fields.text("operator")?.unwrap_or_default();
    if !OPERATORS.contains(&operator.as_str()) {
        return Err(fields.error("operator", &format!("must be one of {}", OPERATORS.join(", "))));
    }
    let values = fields.texts("values")?;
    fields.end()?;
    Ok(Scope { name, operator, values })
}

/// Parses the configuration of the plugin.
pub(super) fn read(
    names: &Names,
    configuration: Option<&PluginConfiguration>,
) -> Result<Vec<LimitedResource>, String> {
    let Some(configuration) = configuration else { return Ok(Vec::new()) };
    let mut fields = configuration
        .typed(names, "apiserver.config", &["v1"], "ResourceQuotaConfiguration")
        .or_else(|mistake| {
            let older = ["v1", "v1beta1", "v1alpha1"];
            configuration
                .typed(names, "resourcequota.admission", &older, "Configuration")
                .map_err(|_| mistake)
        })?;
    let entries = fields.objects("limitedResources")?;
    fields.end()?;
    entries.into_iter().map(LimitedResource::read).collect()
}

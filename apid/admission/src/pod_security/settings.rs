//! Pod Security configuration: default policy and exemptions.

use apimachinery::names::Names;
use kinds::format;

use super::policy::{Level, Mode, Policy, Version};
use crate::Fields;
use crate::PluginConfiguration;

/// Pod Security configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    /// Policy without labels.
    pub(super) defaults: Policy,
    /// Exempt users.
    pub(super) users: Vec<String>,
    /// Exempt namespaces.
    pub(super) namespaces: Vec<String>,
    /// Exempt runtime classes.
    pub(super) runtime_classes: Vec<String>,
}

impl Settings {
    /// Parses a `PodSecurityConfiguration`.
    ///
    /// # Errors
    ///
    /// The first error.
    pub(super) fn read(configuration: &PluginConfiguration, names: &Names) -> Result<Self, String> {
        let versions = ["v1", "v1beta1", "v1alpha1"];
        let mut fields = configuration.typed(
            names,
            "pod-security.admission.config",
            &versions,
            "PodSecurityConfiguration",
        )?;
        let mut settings = Settings::default();
        let mut defaults = fields.object("defaults")?;
        for mode in Mode::ALL {
            let standard = settings.defaults.of_mut(mode);
            if let Some(level) = non_empty_text(&mut defaults, mode.as_str())? {
                standard.level =
                    Level::parse(&level).map_err(|reason| defaults.error(mode.as_str(), reason))?;
            }
            let field = format!("{}-version", mode.as_str());
            if let Some(version) = non_empty_text(&mut defaults, &field)? {
                standard.version =
                    Version::parse(&version).map_err(|reason| defaults.error(&field, reason))?;
            }
        }
        defaults.end()?;
        let mut exemptions = fields.object("exemptions")?;
        settings.users = exempt(&mut exemptions, "usernames", |name| match name {
            "" => vec!["must not be empty".to_owned()],
            _ => Vec::new(),
        })?;
        settings.namespaces = exempt(&mut exemptions, "namespaces", format::label)?;
        settings.runtime_classes = exempt(&mut exemptions, "runtimeClasses", format::subdomain)?;
        exemptions.end()?;
        fields.end()?;
        Ok(settings)
    }
}

/// String field; an empty string counts as absent.
fn non_empty_text(fields: &mut Fields, field: &str) -> Result<Option<String>, String> {
    Ok(fields.text(field)?.filter(|text| !text.is_empty()))
}

fn exempt(
    fields: &mut Fields,
    field: &str,
    check: impl Fn(&str) -> Vec<String>,
) -> Result<Vec<String>, String> {
    let mut all: Vec<String> = Vec::new();
    for (i, name) in fields.texts(field)?.into_iter().enumerate() {
        let path = format!("{field}[{i}]");
        if let Some(reason) = check(&name).first() {
            return Err(fields.error(&path, reason));
        }
        if all.contains(&name) {
            return Err(fields.error(&path, &format!("duplicate entry `{name}`")));
        }
        all.push(name);
    }
    Ok(all)
}

//! Pod Security configuration: default policy and exemptions.

use apimachinery::document::Fields;
use apimachinery::names::Names;
use kinds::format;

use super::policy::{Level, Mode, NamespacePolicy, Version};
use crate::plugin_configuration::ConfigurationType;
use crate::{PluginConfiguration, PluginConfigurationError};

/// Pod Security configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    /// Policy of namespaces without labels.
    pub(super) defaults: NamespacePolicy,
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
    /// All errors.
    pub(super) fn read(
        configuration: &PluginConfiguration,
        names: &Names,
    ) -> Result<Self, PluginConfigurationError> {
        let expected = ConfigurationType {
            group: "pod-security.admission.config",
            versions: &["v1", "v1beta1", "v1alpha1"],
            kind: "PodSecurityConfiguration",
        };
        configuration.decode(names, expected, |fields| {
            let mut settings = Settings::default();
            fields.object("defaults", |fields| {
                for mode in Mode::ALL {
                    let standard = settings.defaults.standard_mut(mode);
                    parse_field(fields, mode.as_str(), &mut standard.level, Level::parse);
                    parse_field(fields, version_field(mode), &mut standard.version, Version::parse);
                }
            });
            fields.object("exemptions", |fields| {
                settings.users = read_exemptions(fields, "usernames", |name| match name {
                    "" => vec!["must not be empty".to_owned()],
                    _ => Vec::new(),
                });
                settings.namespaces = read_exemptions(fields, "namespaces", format::label);
                settings.runtime_classes = read_exemptions(fields, "runtimeClasses", format::subdomain);
            });
            settings
        })
    }
}

/// Name of the configuration field with the version of a mode.
fn version_field(mode: Mode) -> &'static str {
    match mode {
        Mode::Enforce => "enforce-version",
        Mode::Audit => "audit-version",
        Mode::Warn => "warn-version",
    }
}

/// Parses a string field. An absent or empty field leaves the value unchanged.
fn parse_field<T>(
    fields: &mut Fields<'_>,
    field: &'static str,
    value: &mut T,
    parse: impl Fn(&str) -> Result<T, &'static str>,
) {
    let text = fields.text(field);
    if text.is_empty() {
        return;
    }
    match parse(&text) {
        Ok(parsed) => *value = parsed,
        Err(reason) => fields.errors().add_text(&fields.path().child(field), reason),
    }
}

/// Reads a list of exempt names and records errors for invalid and duplicate names.
fn read_exemptions(
    fields: &mut Fields<'_>,
    field: &'static str,
    check: impl Fn(&str) -> Vec<String>,
) -> Vec<String> {
    let names = fields.texts(field);
    for (index, name) in names.iter().enumerate() {
        let path = fields.path().child(field).index(index);
        if let Some(reason) = check(name).first() {
            fields.errors().add_text(&path, reason);
        } else if names.iter().take(index).any(|other| other == name) {
            fields.errors().add_text(&path, &format!("duplicate entry `{name}`"));
        }
    }
    names
}

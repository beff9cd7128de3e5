//! Admission configuration: the file of `--admission-control-config-file`.
//!
//! # Contract
//!
//! apid reads the complete file at start-up, before it serves requests. The file holds an
//! `AdmissionConfiguration` of `apiserver.config/v1` or `apiserver/v1alpha1`, in YAML or JSON. Its list
//! `plugins` names plugins, each with an inline `configuration` or the `path` of a file. The strict reader of
//! [`apimachinery::document`] reads all files. Unknown fields, duplicate fields and unknown plugins are errors,
//! and every error names the file, the line and the field.

use std::collections::BTreeMap;

use apimachinery::document::{Document, DocumentError, Fields};
use apimachinery::names::Names;
use serde_json::{Map, Value};

use crate::plugin_configuration::{PluginConfiguration, ReadFile};
use crate::plugins::PLUGINS;

/// Kind of the file.
const KIND: &str = "AdmissionConfiguration";
/// Groups of the file, as stems, with their versions. As in kube-apiserver, the groups differ.
const VERSIONS: [(&str, &str); 2] = [("apiserver.config", "v1"), ("apiserver", "v1alpha1")];

/// Plugin configurations by plugin name; empty without a file.
#[derive(Clone, Debug, Default)]
pub struct Configuration(BTreeMap<String, PluginConfiguration>);

impl Configuration {
    /// Parses the text of a file. `name` is the file name for messages.
    /// `read` reads a referenced file; relative paths are relative to the main file.
    ///
    /// # Errors
    ///
    /// All errors, each with the name of its file.
    pub fn parse(name: &str, text: &[u8], names: &Names, read: ReadFile<'_>) -> Result<Self, Vec<String>> {
        let message = |error: DocumentError| format!("file `{name}`: {error}");
        let document = Document::read(text).map_err(|error| vec![message(error)])?;
        let versions = VERSIONS.map(|(group, version)| format!("{}/{version}", names.group(group)));
        let plugins = document.decode(KIND, &versions, |fields| {
            let mut plugins = BTreeMap::new();
            let entries = fields.objects("plugins", |entry| {
                let (plugin, configuration) = read_plugin(entry, name, &document, read)?;
                let problem = if !PLUGINS.iter().any(|known| known.name == plugin) {
                    "is unknown"
                } else if plugins.insert(plugin.clone(), configuration).is_some() {
                    "is configured twice"
                } else {
                    return Some(());
                };
                entry.errors().add_text(entry.path(), &format!("plugin `{plugin}` {problem}"));
                None
            });
            drop(entries);
            plugins
        });
        plugins.map(Configuration).map_err(|errors| errors.into_iter().map(message).collect())
    }

    /// Configuration of a plugin, if the file has one.
    pub fn for_plugin(&self, plugin: &str) -> Option<&PluginConfiguration> {
        self.0.get(plugin)
    }

    /// Names of the configured plugins.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

/// Reads an entry of the list `plugins`. Records the errors; None if the entry has no usable configuration.
fn read_plugin(
    entry: &mut Fields<'_>,
    file: &str,
    document: &Document,
    read: ReadFile<'_>,
) -> Option<(String, PluginConfiguration)> {
    let name = entry.text("name");
    let path = entry.text("path");
    let inline = entry.value("configuration");
    let part = |path, value| PluginConfiguration::new(file, document.part(path, value));
    let configuration = match inline {
        Some(_) if !path.is_empty() => Err("excludes `configuration`".to_owned()),
        Some(value) => Ok(part(entry.path().child("configuration"), value.clone())),
        None if path.is_empty() => Ok(part(entry.path().clone(), Value::Object(Map::new()))),
        None => PluginConfiguration::read(&path, read),
    };
    if name.is_empty() {
        entry.errors().add_text(&entry.path().child("name"), "must be set");
        return None;
    }
    match configuration {
        Ok(configuration) => Some((name, configuration)),
        Err(reason) => {
            entry.errors().add_text(&entry.path().child("path"), &reason);
            None
        }
    }
}

#[cfg(test)]
#[path = "tests/configuration.rs"]
mod tests;

//! Admission configuration: the file of `--admission-control-config-file`.
//!
//! # Contract
//!
//! apid reads the complete file at start-up, before it serves requests. The file holds an
//! `AdmissionConfiguration` of the group `apiserver.config`, in YAML or JSON. Its list `plugins` names
//! plugins, each with an inline `configuration` or the `path` of a file. Unknown fields, unknown plugins and
//! duplicate keys are errors; every message names the file and the field.

use std::collections::BTreeMap;

use apimachinery::codec::{Limits, yaml};
use apimachinery::names::Names;
use serde_json::{Map, Value};

use crate::plugins::PLUGINS;

/// Configurations of all plugins; empty without a file.
#[derive(Clone, Debug, Default)]
pub struct Configuration(BTreeMap<String, PluginConfiguration>);

/// Configuration of one plugin.
#[derive(Clone, Debug)]
pub struct PluginConfiguration {
    /// Location for error messages, such as ``file `admission.yaml`, plugins[0].configuration``.
    path: String,
    value: Value,
}

impl Configuration {
    /// Parses the text of a file. `name` is the file name for messages.
    /// `read` reads a referenced file; relative paths are relative to the main file.
    ///
    /// # Errors
    ///
    /// All errors, one per line.
    pub fn parse(
        name: &str,
        text: &[u8],
        names: &Names,
        read: &dyn Fn(&str) -> Result<Vec<u8>, String>,
    ) -> Result<Self, Vec<String>> {
        let whole = PluginConfiguration::read(name, text).map_err(|error| vec![error])?;
        let mut fields = whole
            .typed(names, "apiserver.config", &["v1", "v1alpha1"], "AdmissionConfiguration")
            .map_err(|error| vec![error])?;
        let mut errors = Vec::new();
        let mut plugins = BTreeMap::new();
        for mut entry in fields.objects("plugins").unwrap_or_else(|error| {
            errors.push(error);
            Vec::new()
        }) {
            match plugin(&mut entry, read) {
                Ok((plugin, given)) => {
                    if !PLUGINS.iter().any(|known| known.name == plugin) {
                        errors.push(format!("{}: plugin `{plugin}` is unknown", entry.path));
                    } else if plugins.insert(plugin.clone(), given).is_some() {
                        errors.push(format!("{}: plugin `{plugin}` is configured twice", entry.path));
                    }
                }
                Err(error) => errors.push(error),
            }
        }
        errors.extend(fields.end().err());
        if errors.is_empty() { Ok(Configuration(plugins)) } else { Err(errors) }
    }

    /// Configuration of a plugin, if the file has one.
    pub fn of(&self, plugin: &str) -> Option<&PluginConfiguration> {
        self.0.get(plugin)
    }

    /// Names of the configured plugins.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

fn plugin(
    entry: &mut Fields,
    read: &dyn Fn(&str) -> Result<Vec<u8>, String>,
) -> Result<(String, PluginConfiguration), String> {
    let name = entry.text("name")?.ok_or_else(|| entry.error("name", "must be set"))?;
    let path: Option<String> = entry.text("path")?.filter(|path| !path.is_empty());
    let given = match (entry.take("configuration"), path) {
        (Some(_), Some(_)) => return Err(entry.error("path", "excludes `configuration`")),
        (Some(value), None) => PluginConfiguration { path: entry.path_of("configuration"), value },
        (None, Some(path)) => {
            let text = read(&path).map_err(|reason| entry.error("path", &reason))?;
            PluginConfiguration::read(&path, &text)?
        }
        (None, None) => PluginConfiguration { path: entry.path.clone(), value: Value::Null },
    };
    entry.end()?;
    Ok((name, given))
}

impl PluginConfiguration {
    /// Parses the single document of a file.
    fn read(name: &str, text: &[u8]) -> Result<Self, String> {
        let path = format!("file `{name}`");
        let decoded = yaml::decode(text, Limits::BODY).map_err(|error| format!("{path}: {error}"))?;
        match decoded.duplicates.first() {
            Some(key) => Err(format!("{path}: duplicate key `{key}`")),
            None => Ok(PluginConfiguration { path, value: decoded.value }),
        }
    }

    /// Fields of the configuration.
    ///
    /// # Errors
    ///
    /// The configuration is not an object.
    pub fn fields(&self) -> Result<Fields, String> {
        Fields::of(self.path.clone(), self.value.clone())
    }

    /// Fields of a configuration object of a kind, in one of the versions of a group with the given stem.
    /// Takes `kind` and `apiVersion`.
    ///
    /// # Errors
    ///
    /// The configuration is not an object, or has another kind or apiVersion.
    pub fn typed(&self, names: &Names, group: &str, versions: &[&str], kind: &str) -> Result<Fields, String> {
        let mut fields = self.fields()?;
        let group = names.group(group);
        let have = (fields.text("apiVersion")?.unwrap_or_default(), fields.text("kind")?.unwrap_or_default());
        let fits = versions.iter().any(|version| have.0 == format!("{group}/{version}"));
        if !fits || have.1 != kind {
            let versions: Vec<_> = versions.iter().map(|version| format!("`{group}/{version}`")).collect();
            return Err(format!(
                "{}: is kind `{}` of `{}`, expected kind `{kind}` of {}",
                self.path,
                have.1,
                have.0,
                versions.join(" or ")
            ));
        }
        Ok(fields)
    }
}

/// Strict reader of an object's fields.
/// The caller takes each field once; a field that remains is an error. A null field counts as absent.
#[derive(Clone, Debug)]
pub struct Fields {
    path: String,
    map: Map<String, Value>,
}

impl Fields {
    fn of(path: String, value: Value) -> Result<Self, String> {
        match value {
            Value::Object(map) => Ok(Fields { path, map }),
            Value::Null => Ok(Fields { path, map: Map::new() }),
            _ => Err(format!("{path}: must be an object")),
        }
    }

    /// Formats an error message about a field.
    pub fn error(&self, field: &str, reason: &str) -> String {
        format!("{}: {reason}", self.path_of(field))
    }

    fn path_of(&self, field: &str) -> String {
        let separator = if self.path.starts_with("file `") && self.path.ends_with('`') { ", " } else { "." };
        format!("{}{separator}{field}", self.path)
    }

    /// Takes a field; None if absent.
    pub fn take(&mut self, field: &str) -> Option<Value> {
        self.map.remove(field).filter(|value| !value.is_null())
    }

    fn typed<T>(
        &mut self,
        field: &str,
        reason: &str,
        convert: impl FnOnce(Value) -> Option<T>,
    ) -> Result<Option<T>, String> {
        match self.take(field) {
            None => Ok(None),
            Some(value) => convert(value).map(Some).ok_or_else(|| self.error(field, reason)),
        }
    }

    /// Takes a string field.
    ///
    /// # Errors
    ///
    /// The field has another type.
    pub fn text(&mut self, field: &str) -> Result<Option<String>, String> {
        self.typed(field, "must be a string", |value| match value {
            Value::String(text) => Some(text),
            _ => None,
        })
    }

    /// Takes an integer field.
    ///
    /// # Errors
    ///
    /// The field has another type.
    pub fn integer(&mut self, field: &str) -> Result<Option<i64>, String> {
        self.typed(field, "must be an integer", |value| value.as_i64())
    }

    /// Takes a boolean field.
    ///
    /// # Errors
    ///
    /// The field has another type.
    pub fn boolean(&mut self, field: &str) -> Result<Option<bool>, String> {
        self.typed(field, "must be true or false", |value| value.as_bool())
    }

    /// Takes a list of strings; empty if absent.
    ///
    /// # Errors
    ///
    /// The field has another type.
    pub fn texts(&mut self, field: &str) -> Result<Vec<String>, String> {
        let list = self.typed(field, "must be a list of strings", |value| match value {
            Value::Array(items) => items
                .into_iter()
                .map(|item| match item {
                    Value::String(text) => Some(text),
                    _ => None,
                })
                .collect(),
            _ => None,
        })?;
        Ok(list.unwrap_or_default())
    }

    /// Takes a map of strings; empty if absent.
    ///
    /// # Errors
    ///
    /// The field has another type.
    pub fn text_map(&mut self, field: &str) -> Result<BTreeMap<String, String>, String> {
        let map = self.typed(field, "must be a map of strings", |value| match value {
            Value::Object(map) => map
                .into_iter()
                .map(|(key, value)| match value {
                    Value::String(text) => Some((key, text)),
                    _ => None,
                })
                .collect(),
            _ => None,
        })?;
        Ok(map.unwrap_or_default())
    }

    /// Takes an object field; empty if absent.
    ///
    /// # Errors
    ///
    /// The field has another type.
    pub fn object(&mut self, field: &str) -> Result<Fields, String> {
        let path = self.path_of(field);
        let value = self.take(field).unwrap_or(Value::Null);
        Fields::of(path, value)
    }

    /// Takes a list of objects; empty if absent.
    ///
    /// # Errors
    ///
    /// The field has another type.
    pub fn objects(&mut self, field: &str) -> Result<Vec<Fields>, String> {
        let path = self.path_of(field);
        let items = match self.take(field) {
            None => Vec::new(),
            Some(Value::Array(items)) => items,
            Some(_) => return Err(format!("{path}: must be a list")),
        };
        let each = items.into_iter().enumerate();
        each.map(|(i, item)| Fields::of(format!("{path}[{i}]"), item)).collect()
    }

    /// Checks that no field remains.
    ///
    /// # Errors
    ///
    /// The first unknown field.
    pub fn end(&self) -> Result<(), String> {
        match self.map.keys().next() {
            None => Ok(()),
            Some(field) => Err(self.error(field, "is unknown")),
        }
    }
}

#[cfg(test)]
#[path = "tests/configuration.rs"]
mod tests;

//! Configuration of one plugin: a part of the admission configuration, or a file to which it refers.

use std::io;

use apimachinery::document::{Document, DocumentError, Fields, join_errors};
use apimachinery::names::Names;

/// Configuration of one plugin.
#[derive(Clone, Debug)]
pub struct PluginConfiguration {
    /// The name of the file, for errors.
    file: String,
    document: Document,
}

/// The error of the configuration of a plugin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PluginConfigurationError {
    /// The plugin has no configuration, but requires one.
    #[error("requires a configuration with {content}")]
    Missing {
        /// The content that the plugin requires.
        content: &'static str,
    },
    /// Fields are invalid.
    #[error("file `{file}`: {}", join_errors(errors))]
    Invalid {
        /// The name of the file.
        file: String,
        /// All errors.
        errors: Vec<DocumentError>,
    },
}

/// Reads the content of a referenced file.
pub(crate) type ReadFile<'a> = &'a dyn Fn(&str) -> io::Result<Vec<u8>>;

impl PluginConfiguration {
    /// The configuration in a part of a file, or in a file of its own.
    pub(crate) fn new(file: &str, document: Document) -> Self {
        PluginConfiguration { file: file.to_owned(), document }
    }

    /// Reads a referenced file.
    pub(crate) fn read(path: &str, read: ReadFile<'_>) -> Result<Self, String> {
        let text = read(path).map_err(|error| error.to_string())?;
        let document = Document::read(&text).map_err(|error| format!("file `{path}`: {error}"))?;
        Ok(PluginConfiguration::new(path, document))
    }

    /// Whether the configuration has a kind, and a version of a group with the given stem.
    pub fn has_kind(&self, names: &Names, group: &str, versions: &[&str], kind: &str) -> bool {
        let version = self.document.api_version();
        self.document.kind() == kind
            && api_versions(names, group, versions).iter().any(|known| known == version)
    }

    /// Decodes the configuration as an object of a kind, in one of the versions of a group with the given
    /// stem.
    ///
    /// # Errors
    ///
    /// All errors, with those that `decode` records.
    pub fn decode<T>(
        &self,
        names: &Names,
        (group, versions): (&str, &[&str]),
        kind: &str,
        decode: impl FnOnce(&mut Fields<'_>) -> T,
    ) -> Result<T, PluginConfigurationError> {
        let decoded = self.document.decode(kind, &api_versions(names, group, versions), decode);
        decoded.map_err(|errors| self.invalid(errors))
    }

    /// Decodes the configuration as an object without a type.
    ///
    /// # Errors
    ///
    /// All errors, with those that `decode` records.
    pub fn decode_fields<T>(
        &self,
        decode: impl FnOnce(&mut Fields<'_>) -> T,
    ) -> Result<T, PluginConfigurationError> {
        self.document.decode_fields(decode).map_err(|errors| self.invalid(errors))
    }

    fn invalid(&self, errors: Vec<DocumentError>) -> PluginConfigurationError {
        PluginConfigurationError::Invalid { file: self.file.clone(), errors }
    }
}

/// The `apiVersion` values of the versions of a group with the given stem.
pub(crate) fn api_versions(names: &Names, group: &str, versions: &[&str]) -> Vec<String> {
    let group = names.group(group);
    versions.iter().map(|version| format!("{group}/{version}")).collect()
}

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

    /// Whether the configuration has a type.
    pub(crate) fn has_type(&self, names: &Names, expected: ConfigurationType) -> bool {
        let version = self.document.api_version();
        self.document.kind() == expected.kind && expected.api_versions(names).any(|known| known == version)
    }

    /// Decodes the configuration as an object of a type.
    ///
    /// # Errors
    ///
    /// All errors, with those that `decode` records.
    pub(crate) fn decode<T>(
        &self,
        names: &Names,
        expected: ConfigurationType,
        decode: impl FnOnce(&mut Fields<'_>) -> T,
    ) -> Result<T, PluginConfigurationError> {
        let versions: Vec<String> = expected.api_versions(names).collect();
        let decoded = self.document.decode(expected.kind, &versions, decode);
        decoded.map_err(|errors| self.invalid(errors))
    }

    /// Decodes the configuration as an object without a type.
    ///
    /// # Errors
    ///
    /// All errors, with those that `decode` records.
    pub(crate) fn decode_fields<T>(
        &self,
        decode: impl FnOnce(&mut Fields<'_>) -> T,
    ) -> Result<T, PluginConfigurationError> {
        self.document.decode_fields(decode).map_err(|errors| self.invalid(errors))
    }

    fn invalid(&self, errors: Vec<DocumentError>) -> PluginConfigurationError {
        PluginConfigurationError::Invalid { file: self.file.clone(), errors }
    }
}

/// The type of a configuration.
#[derive(Clone, Copy)]
pub(crate) struct ConfigurationType {
    /// Group stem.
    pub(crate) group: &'static str,
    /// Accepted versions.
    pub(crate) versions: &'static [&'static str],
    pub(crate) kind: &'static str,
}

impl ConfigurationType {
    fn api_versions(self, names: &Names) -> impl Iterator<Item = String> {
        let group = names.group(self.group);
        self.versions.iter().map(move |version| format!("{group}/{version}"))
    }
}

//! Paths and errors of a walk through a schema.
//!
//! # Contract
//!
//! A [`SchemaPath`] is a list on the stack that is rendered only for an error. [`SchemaErrors`] renders an error
//! only if it still keeps errors, so a walk costs the same with and without errors.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::names::{Names, SchemaExtension};

/// Path of a part of a schema.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SchemaPath<'a> {
    parent: Option<&'a SchemaPath<'a>>,
    step: SchemaPathStep<'a>,
}

#[derive(Clone, Copy, Debug)]
enum SchemaPathStep<'a> {
    Root(&'a FieldPath),
    Field(&'a str),
    Key(&'a str),
    Index(usize),
}

impl<'a> SchemaPath<'a> {
    /// The path of the whole schema.
    pub(crate) fn root(path: &'a FieldPath) -> Self {
        SchemaPath { parent: None, step: SchemaPathStep::Root(path) }
    }

    /// The path of a keyword.
    pub(crate) fn field<'b>(&'b self, name: &'b str) -> SchemaPath<'b> {
        SchemaPath { parent: Some(self), step: SchemaPathStep::Field(name) }
    }

    /// The path of an entry of a map.
    pub(crate) fn key<'b>(&'b self, key: &'b str) -> SchemaPath<'b> {
        SchemaPath { parent: Some(self), step: SchemaPathStep::Key(key) }
    }

    /// The path of an item of a list.
    pub(crate) fn index<'b>(&'b self, index: usize) -> SchemaPath<'b> {
        SchemaPath { parent: Some(self), step: SchemaPathStep::Index(index) }
    }

    /// Renders the path.
    pub(crate) fn render(&self) -> FieldPath {
        let parent = self.parent.map_or_else(FieldPath::root, SchemaPath::render);
        match self.step {
            SchemaPathStep::Root(path) => path.clone(),
            SchemaPathStep::Field(name) => parent.child(name),
            SchemaPathStep::Key(key) => parent.key(key),
            SchemaPathStep::Index(index) => parent.index(index),
        }
    }
}

/// The errors of a walk.
pub(crate) struct SchemaErrors<'n> {
    /// Names of the preset, for the texts of errors.
    pub(crate) names: &'n Names,
    /// The errors so far.
    pub(crate) errors: FieldErrors,
}

impl<'n> SchemaErrors<'n> {
    /// No errors.
    pub(crate) fn new(names: &'n Names) -> Self {
        SchemaErrors { names, errors: FieldErrors::new() }
    }

    /// The name of a schema extension in the texts of errors.
    pub(crate) fn extension(&self, extension: SchemaExtension) -> &'static str {
        self.names.schema_extension(extension)
    }

    /// Adds an error; renders it only if the collector keeps it.
    pub(crate) fn add(&mut self, path: &SchemaPath<'_>, error: impl FnOnce(&FieldPath) -> FieldError) {
        if self.errors.is_full() {
            // The collector counts the error and drops its text.
            self.errors.push(FieldError::forbidden(&FieldPath::root(), ""));
        } else {
            self.errors.push(error(&path.render()));
        }
    }

    /// Adds the error of a forbidden field.
    pub(crate) fn forbid(&mut self, path: &SchemaPath<'_>, detail: &str) {
        self.add(path, |path| FieldError::forbidden(path, detail));
    }

    /// Adds the error of a missing field.
    pub(crate) fn require(&mut self, path: &SchemaPath<'_>, detail: &str) {
        self.add(path, |path| FieldError::required(path, detail));
    }

    /// Adds the error of a text without a required value: of a missing text, or of another text.
    pub(crate) fn require_text(&mut self, path: &SchemaPath<'_>, text: &str, detail: &str) {
        self.add(path, |path| match text {
            "" => FieldError::required(path, detail),
            text => FieldError::invalid(path, text, detail),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::names::Preset;

    #[test]
    fn schema_path_renders_all_steps() {
        let start = FieldPath::new("spec").child("schema");
        let root = SchemaPath::root(&start);
        let (properties, key);
        properties = root.field("properties");
        key = properties.key("a.b");
        let any_of = key.field("anyOf");
        assert_eq!(any_of.index(2).render().as_str(), "spec.schema.properties[a.b].anyOf[2]");
    }

    #[test]
    fn schema_errors_count_errors_above_limit() {
        let start = FieldPath::new("spec");
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let mut errors = SchemaErrors::new(&names);
        for _ in 0..150 {
            errors.require(&SchemaPath::root(&start), "");
        }
        assert_eq!((errors.errors.len(), errors.errors.iter().count()), (150, 100));
    }
}

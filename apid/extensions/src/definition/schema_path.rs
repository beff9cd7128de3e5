//! Paths and errors of a walk through a schema.
//!
//! # Contract
//!
//! A [`SchemaPath`] is a list on the stack that is rendered only for an error. [`ErrorSink`] renders an error
//! only if the collector still keeps errors, so a walk costs the same with and without errors.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};

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
    pub(crate) fn field<'b>(&'b self, name: &'b str) -> SchemaPath<'b>
    where
        'a: 'b,
    {
        SchemaPath { parent: Some(self), step: SchemaPathStep::Field(name) }
    }

    /// The path of an entry of a map.
    pub(crate) fn key<'b>(&'b self, key: &'b str) -> SchemaPath<'b>
    where
        'a: 'b,
    {
        SchemaPath { parent: Some(self), step: SchemaPathStep::Key(key) }
    }

    /// The path of an item of a list.
    pub(crate) fn index<'b>(&'b self, index: usize) -> SchemaPath<'b>
    where
        'a: 'b,
    {
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

/// Collector of the errors of a walk.
pub(crate) trait ErrorSink {
    /// Adds an error; renders it only if the collector keeps it.
    fn add(&mut self, path: &SchemaPath<'_>, error: impl FnOnce(&FieldPath) -> FieldError);
}

impl ErrorSink for FieldErrors {
    fn add(&mut self, path: &SchemaPath<'_>, error: impl FnOnce(&FieldPath) -> FieldError) {
        if self.is_full() {
            // The collector counts the error and drops its text.
            self.push(FieldError::forbidden(&FieldPath::root(), ""));
        } else {
            self.push(error(&path.render()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn error_sink_counts_errors_above_limit() {
        let start = FieldPath::new("spec");
        let mut errors = FieldErrors::new();
        for _ in 0..150 {
            errors.add(&SchemaPath::root(&start), |path| FieldError::required(path, ""));
        }
        assert_eq!((errors.len(), errors.iter().count()), (150, 100));
    }
}

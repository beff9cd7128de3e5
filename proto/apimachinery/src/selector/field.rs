//! Field selectors: `metadata.name=x,spec.nodeName!=y`.

use crate::attributes::ParsedSelector;

/// A parsed field selector. The default selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {}

impl FieldSelector {
    /// Parses the query parameter. The error text is what a 400 shows.
    ///
    /// # Errors
    ///
    /// What could not be parsed.
    pub fn parse(_text: &str) -> Result<Self, String> {
        Ok(FieldSelector {})
    }

    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        true
    }

    /// The fields it names, for the check that the kind supports them.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        std::iter::empty()
    }

    /// The one value that a field must have, if the selector says so: `metadata.name=x` gives `x`.
    pub fn exact(&self, _field: &str) -> Option<&str> {
        None
    }

    /// Whether an object matches; `field` answers the value of a field, `""` when unset.
    pub fn matches<'a>(&self, _field: impl Fn(&str) -> &'a str) -> bool {
        true
    }

    /// As authorization sees it.
    pub fn requirements(&self) -> ParsedSelector {
        ParsedSelector::default()
    }
}

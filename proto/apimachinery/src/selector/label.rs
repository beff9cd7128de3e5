//! Label selectors: `a=b,c!=d,e in (f,g),h notin (i),j,!k`.

use crate::attributes::ParsedSelector;

/// A parsed label selector. The default selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {}

impl LabelSelector {
    /// Parses the query parameter. The error text is what a 400 shows.
    ///
    /// # Errors
    ///
    /// What could not be parsed and where.
    pub fn parse(_text: &str) -> Result<Self, String> {
        Ok(LabelSelector {})
    }

    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        true
    }

    /// Whether a label set matches; `label` answers the value of a key.
    pub fn matches<'a>(&self, _label: impl Fn(&str) -> Option<&'a str>) -> bool {
        true
    }

    /// As authorization sees it.
    pub fn requirements(&self) -> ParsedSelector {
        ParsedSelector::default()
    }
}

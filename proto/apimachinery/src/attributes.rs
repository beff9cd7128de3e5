//! Request attributes that authorization examines (specification: access control, "Decision rules").

/// Attributes of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attributes {
    /// Verb of the request.
    ///
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`, a special verb, or
    /// the lower-case HTTP method of a non-resource request.
    pub verb: String,
    /// Whether the resource fields apply: true for `/api/v1/...` and `/apis/<group>/<version>/...`. Otherwise
    /// only `path` applies.
    pub resource_request: bool,
    /// Full group name, `""` for core.
    pub group: String,
    /// API version, without the group: `v1`.
    pub version: String,
    /// Resource, in lower case and plural: `pods`.
    pub resource: String,
    /// Subresource or `""`.
    pub subresource: String,
    /// Namespace or `""`. A request for one Namespace object has the name of that object here.
    pub namespace: String,
    /// Object name or `""`.
    pub name: String,
    /// URL path, without the query.
    pub path: String,
    /// Field selector of a list, watch or deletecollection.
    pub field_selector: ParsedSelector,
    /// Label selector of a list, watch or deletecollection.
    pub label_selector: ParsedSelector,
}

impl Attributes {
    /// Whether the verb is read-only.
    pub fn is_read_only(&self) -> bool {
        matches!(self.verb.as_str(), "get" | "list" | "watch")
    }
}

/// Selector in the form that authorization examines.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ParsedSelector {
    /// Every requirement must be true; an empty list selects everything.
    Requirements(Vec<Requirement>),
    /// Text of a selector that cannot be parsed. Authorizers treat it as no restriction.
    Unparsable(String),
}

impl Default for ParsedSelector {
    fn default() -> Self {
        ParsedSelector::Requirements(Vec::new())
    }
}

/// One requirement of a selector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Requirement {
    /// Label key or field path.
    pub key: String,
    /// Operator that applies to `values`.
    pub operator: Operator,
    /// Values; empty for the existence operators.
    pub values: Vec<String>,
}

/// Selector operators of access reviews.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    /// The value is one of `values`.
    In,
    /// The value is none of `values`, or absent.
    NotIn,
    /// The key is present.
    Exists,
    /// The key is absent.
    DoesNotExist,
}

impl Operator {
    /// Returns the name of the operator in access reviews.
    pub fn as_str(self) -> &'static str {
        match self {
            Operator::In => "In",
            Operator::NotIn => "NotIn",
            Operator::Exists => "Exists",
            Operator::DoesNotExist => "DoesNotExist",
        }
    }

    /// Parses the name of an operator in access reviews; None if there is no such operator.
    pub fn parse(word: &str) -> Option<Self> {
        let all = [Operator::In, Operator::NotIn, Operator::Exists, Operator::DoesNotExist];
        all.into_iter().find(|operator| operator.as_str() == word)
    }
}

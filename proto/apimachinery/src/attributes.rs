//! What a request wants to do: the attributes that authorization examines (access control, "Decision rules").

/// The attributes of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attributes {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`, a special verb, or for
    /// non-resource requests the lower-case HTTP method.
    pub verb: String,
    /// True for `/api/v1/...` and `/apis/<group>/<version>/...`: the resource fields count. False: `path` counts.
    pub resource_request: bool,
    /// Full group name, `""` for core.
    pub group: String,
    /// API version.
    pub version: String,
    /// Lower-case plural.
    pub resource: String,
    /// Subresource or `""`.
    pub subresource: String,
    /// Namespace or `""`. For an item of `namespaces` the namespace itself.
    pub namespace: String,
    /// Object name or `""`.
    pub name: String,
    /// The URL path.
    pub path: String,
    /// The field selector of a list, watch or deletecollection.
    pub field_selector: ParsedSelector,
    /// The label selector of the same.
    pub label_selector: ParsedSelector,
}

impl Attributes {
    /// Whether the verb reads only.
    pub fn is_read_only(&self) -> bool {
        matches!(self.verb.as_str(), "get" | "list" | "watch")
    }
}

/// A selector as authorization sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ParsedSelector {
    /// All must hold; empty selects everything.
    Requirements(Vec<Requirement>),
    /// The text as sent: authorizers treat it as no restriction.
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
    /// How `values` restrict it.
    pub operator: Operator,
    /// Empty for the operators on existence.
    pub values: Vec<String>,
}

/// The operators of selectors in access reviews.
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
    /// The wire's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Operator::In => "In",
            Operator::NotIn => "NotIn",
            Operator::Exists => "Exists",
            Operator::DoesNotExist => "DoesNotExist",
        }
    }

    /// From the wire's word.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "In" => Some(Operator::In),
            "NotIn" => Some(Operator::NotIn),
            "Exists" => Some(Operator::Exists),
            "DoesNotExist" => Some(Operator::DoesNotExist),
            _ => None,
        }
    }
}

//! The compiled form of a schema node. Absent parts take one word, so that an idle schema stays small.

use apimachinery::object::Value;
use expressions::{ListKind, SchemaType, Steps, TooManySteps};

use super::node_rules::Rules;

/// A node of a compiled schema.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) kind: SchemaType,
    pub(super) list: ListType,
    pub(super) flags: u8,
    /// Maximum memory in bytes of the defaults of a null or an object, apart from its fields; see `defaults::bytes_of`.
    pub(super) default_bytes: u32,
    /// Properties, sorted by name.
    pub(super) properties: Box<[Property]>,
    pub(super) additional: Additional,
    pub(super) items: Option<Box<Node>>,
    pub(super) constraints: Option<Box<Constraints>>,
    pub(super) default: Option<Box<Value>>,
    pub(super) rules: Option<Box<Rules>>,
}

/// A declared property.
#[derive(Debug)]
pub(super) struct Property {
    pub(super) name: Box<str>,
    pub(super) node: Node,
}

/// The list type of a node.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum ListType {
    /// Also the type of a list without a list type.
    #[default]
    Atomic,
    Set,
    Map(Box<[Box<str>]>),
}

/// The `additionalProperties` of a node.
#[derive(Debug, Default)]
pub(super) enum Additional {
    #[default]
    Absent,
    Allowed(bool),
    Schema(Box<Node>),
}

/// A flag about the node itself or about its descendants.
#[derive(Clone, Copy)]
pub(super) enum Flag {
    /// `nullable`
    Nullable = 1,
    /// `x-…-preserve-unknown-fields`
    PreservesUnknown = 2,
    /// An embedded object, or the root of a kind.
    Embedded = 4,
    /// `x-…-map-type: atomic`
    AtomicMap = 8,
    /// The node or a descendant has rules.
    HasRules = 16,
    /// The node or a descendant is a set or map list.
    HasUniqueLists = 32,
    /// A descendant is an embedded object.
    HasEmbedded = 64,
    /// A descendant has a default.
    HasDefaults = 128,
}

/// Value validations of a node.
#[derive(Debug, Default)]
pub(super) struct Constraints {
    pub(super) format: Option<Box<str>>,
    pub(super) pattern: Option<Pattern>,
    pub(super) minimum: Option<f64>,
    pub(super) maximum: Option<f64>,
    pub(super) exclusive_minimum: bool,
    pub(super) exclusive_maximum: bool,
    pub(super) unique_items: bool,
    pub(super) multiple_of: Option<f64>,
    pub(super) min_length: Option<u64>,
    pub(super) max_length: Option<u64>,
    pub(super) min_items: Option<u64>,
    pub(super) max_items: Option<u64>,
    pub(super) min_properties: Option<u64>,
    pub(super) max_properties: Option<u64>,
    pub(super) required: Box<[Box<str>]>,
    /// The values of `enum`.
    pub(super) values: Option<Box<[Value]>>,
    pub(super) junctors: Option<Box<Junctors>>,
}

/// The logical combinations of schemas: `allOf`, `anyOf`, `oneOf` and `not`.
#[derive(Debug, Default)]
pub(super) struct Junctors {
    pub(super) all_of: Box<[Node]>,
    pub(super) any_of: Box<[Node]>,
    pub(super) one_of: Box<[Node]>,
    pub(super) not: Option<Box<Node>>,
}

/// A regular expression. Equal expressions share one compiled form, see [`expressions::pattern`].
#[derive(Debug)]
pub(super) struct Pattern {
    pub(super) source: Box<str>,
}

impl Pattern {
    pub(super) fn new(source: &str) -> Pattern {
        Pattern { source: source.into() }
    }

    /// Whether a text contains a match. A malformed pattern matches nothing.
    ///
    /// # Errors
    /// The evaluation takes more steps than there are left.
    pub(super) fn is_match(&self, text: &str, steps: &mut Steps) -> Result<bool, TooManySteps> {
        expressions::pattern(&self.source).map_or(Ok(false), |pattern| pattern.is_match(text, steps))
    }
}

impl Node {
    pub(super) fn has(&self, flag: Flag) -> bool {
        self.flags & flag as u8 != 0
    }

    /// Sets a flag if `is_set`; never clears it.
    pub(super) fn set(&mut self, flag: Flag, is_set: bool) {
        if is_set {
            self.flags |= flag as u8;
        }
    }

    pub(super) fn preserves_unknown(&self) -> bool {
        self.has(Flag::PreservesUnknown)
    }

    /// The schema of a declared property.
    pub(super) fn property(&self, name: &str) -> Option<&Node> {
        let at = self.properties.binary_search_by(|property| property.name.as_ref().cmp(name)).ok()?;
        self.properties.get(at).map(|property| &property.node)
    }

    /// The schema of `additionalProperties`, if it is a schema.
    pub(super) fn additional(&self) -> Option<&Node> {
        match &self.additional {
            Additional::Schema(node) => Some(node),
            _ => None,
        }
    }

    /// The schema of a field: the property, or else the schema of `additionalProperties`.
    pub(super) fn field(&self, name: &str) -> Option<&Node> {
        self.property(name).or_else(|| self.additional())
    }

    /// Child nodes of the structural part, without logical combinations.
    pub(super) fn children(&self) -> impl Iterator<Item = &Node> {
        let properties = self.properties.iter().map(|property| &property.node);
        properties.chain(self.additional()).chain(self.items.as_deref())
    }

    /// Whether the node has any of these flags.
    pub(super) fn has_any(&self, flags: &[Flag]) -> bool {
        flags.iter().any(|flag| self.has(*flag))
    }

    fn constraint<T>(&self, read: impl Fn(&Constraints) -> Option<T>) -> Option<T> {
        self.constraints.as_deref().and_then(read)
    }
}

/// Whether a field of an embedded object belongs to its type and metadata.
pub(super) fn is_type_or_metadata(field: &str) -> bool {
    matches!(field, "apiVersion" | "kind" | "metadata")
}

/// The interface of schemas for CEL types and cost estimates.
impl expressions::Schema for Node {
    fn schema_type(&self) -> SchemaType {
        self.kind
    }

    fn format(&self) -> Option<&str> {
        self.constraints.as_deref().and_then(|constraints| constraints.format.as_deref())
    }

    fn properties(&self) -> Vec<(&str, &dyn expressions::Schema)> {
        self.properties.iter().map(|property| (property.name.as_ref(), &property.node as &_)).collect()
    }

    fn additional_properties(&self) -> Option<&dyn expressions::Schema> {
        self.additional().map(|node| node as &_)
    }

    fn items(&self) -> Option<&dyn expressions::Schema> {
        self.items.as_deref().map(|node| node as &_)
    }

    fn list_kind(&self) -> ListKind {
        match &self.list {
            ListType::Set => ListKind::Set,
            ListType::Map(keys) => ListKind::Map(keys.iter().map(|key| key.to_string()).collect()),
            ListType::Atomic => ListKind::Atomic,
        }
    }

    fn embedded(&self) -> bool {
        self.has(Flag::Embedded)
    }

    fn max_length(&self) -> Option<u64> {
        self.constraint(|constraints| constraints.max_length)
    }

    fn max_items(&self) -> Option<u64> {
        self.constraint(|constraints| constraints.max_items)
    }

    fn max_properties(&self) -> Option<u64> {
        self.constraint(|constraints| constraints.max_properties)
    }

    fn longest_enum(&self) -> Option<u64> {
        let values = self.constraints.as_deref()?.values.as_deref()?;
        values.iter().filter_map(Value::as_str).map(|text| text.len() as u64).max()
    }

    fn requires(&self, property: &str) -> bool {
        let constraints = self.constraints.as_deref();
        constraints.is_some_and(|constraints| constraints.required.iter().any(|name| **name == *property))
    }

    fn has_default(&self) -> bool {
        self.default.is_some()
    }
}

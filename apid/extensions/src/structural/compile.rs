//! Compilation of the JSON of a schema to nodes.
//!
//! # Contract
//!
//! The compiler expects a definition that validation has accepted, and keeps what objects need. It skips
//! keywords without an effect on objects, such as `description`. Malformed keywords have no effect.
//! Extensions have their stored names, the same under both presets.

use apimachinery::names::SchemaExtension;
use apimachinery::object::{Map, Value};
use expressions::SchemaType;

use super::defaults;
use super::node::{Additional, Constraints, Flag, Junctors, ListType, Node, Pattern, Property};
use super::node_rules::Rules;
use super::values::is_supported_format;

/// Maximum number of nested levels of a schema; a deeper schema does not compile.
pub const DEPTH_MAX: usize = 128;

/// The reason why a schema does not compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// A schema is not a JSON object.
    #[error("a schema must be an object")]
    NotAnObject,
    /// A schema is nested too deeply.
    #[error("the schema has more than {DEPTH_MAX} levels; reduce its depth")]
    TooDeep,
}

/// Compiles the schema of a kind.
pub(super) fn root(schema: &Value) -> Result<Node, SchemaError> {
    let mut node = compile_node(schema, 0)?;
    node.set(Flag::Embedded, true);
    Ok(node)
}

/// Compiles one node below `depth` levels, with its descendants.
pub(super) fn compile_node(schema: &Value, depth: usize) -> Result<Node, SchemaError> {
    let Value::Object(schema) = schema else { return Err(SchemaError::NotAnObject) };
    if depth >= DEPTH_MAX {
        return Err(SchemaError::TooDeep);
    }
    let depth = depth + 1;
    let is_set = |keyword: &str| schema.get(keyword).and_then(Value::as_bool).unwrap_or(false);
    let mut node = Node {
        kind: read_kind(schema),
        list: read_list_type(schema),
        additional: match schema.get("additionalProperties") {
            Some(Value::Bool(allowed)) => Additional::Allowed(*allowed),
            Some(values @ Value::Object(_)) => Additional::Schema(Box::new(compile_node(values, depth)?)),
            _ => Additional::Absent,
        },
        items: compile_keyword(schema, "items", depth)?,
        constraints: compile_constraints(schema, depth)?.map(Box::new),
        default: schema.get("default").filter(|value| !value.is_null()).cloned().map(Box::new),
        rules: schema.get(SchemaExtension::Validations.stored_name()).and_then(Rules::read).map(Box::new),
        ..Node::default()
    };
    if let Some(Value::Object(properties)) = schema.get("properties") {
        let mut list = Vec::with_capacity(properties.len());
        for (name, part) in properties {
            list.push(Property { name: name.as_str().into(), node: compile_node(part, depth)? });
        }
        list.sort_by(|a, b| a.name.cmp(&b.name));
        node.properties = list.into();
    }
    node.set(Flag::Nullable, is_set("nullable"));
    node.set(Flag::PreservesUnknown, is_set(SchemaExtension::PreserveUnknownFields.stored_name()));
    node.set(Flag::Embedded, is_set(SchemaExtension::EmbeddedResource.stored_name()));
    node.set(
        Flag::AtomicMap,
        schema.get(SchemaExtension::MapType.stored_name()).and_then(Value::as_str) == Some("atomic"),
    );
    set_summary_flags(&mut node);
    node.default_bytes = defaults::bytes_of(&node);
    Ok(node)
}

/// Compiles the schema of a keyword; None if the keyword has no schema.
fn compile_keyword(
    schema: &Map<String, Value>,
    keyword: &str,
    depth: usize,
) -> Result<Option<Box<Node>>, SchemaError> {
    let part = schema.get(keyword).filter(|part| part.is_object());
    part.map(|part| compile_node(part, depth).map(Box::new)).transpose()
}

fn read_kind(schema: &Map<String, Value>) -> SchemaType {
    if schema.get(SchemaExtension::IntOrString.stored_name()).and_then(Value::as_bool).unwrap_or(false) {
        return SchemaType::IntOrString;
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("object") => SchemaType::Object,
        Some("array") => SchemaType::Array,
        Some("string") => SchemaType::String,
        Some("integer") => SchemaType::Integer,
        Some("number") => SchemaType::Number,
        Some("boolean") => SchemaType::Boolean,
        _ => SchemaType::Unspecified,
    }
}

fn read_list_type(schema: &Map<String, Value>) -> ListType {
    match schema.get(SchemaExtension::ListType.stored_name()).and_then(Value::as_str) {
        Some("set") => ListType::Set,
        Some("map") => ListType::Map(string_items(schema.get(SchemaExtension::ListMapKeys.stored_name()))),
        _ => ListType::Atomic,
    }
}

fn compile_constraints(
    schema: &Map<String, Value>,
    depth: usize,
) -> Result<Option<Constraints>, SchemaError> {
    let number = |keyword: &str| schema.get(keyword).and_then(Value::as_f64);
    let size = |keyword: &str| schema.get(keyword).and_then(Value::as_i64).map(|n| n.max(0).unsigned_abs());
    let is_set = |keyword: &str| schema.get(keyword).and_then(Value::as_bool).unwrap_or(false);
    let text = |keyword: &str| schema.get(keyword).and_then(Value::as_str).filter(|text| !text.is_empty());
    let ty = text("type").unwrap_or_default();
    let constraints = Constraints {
        format: text("format").filter(|format| is_supported_format(format, ty)).map(Into::into),
        pattern: text("pattern").map(Pattern::new),
        minimum: number("minimum"),
        maximum: number("maximum"),
        exclusive_minimum: is_set("exclusiveMinimum"),
        exclusive_maximum: is_set("exclusiveMaximum"),
        unique_items: is_set("uniqueItems"),
        multiple_of: number("multipleOf"),
        min_length: size("minLength"),
        max_length: size("maxLength"),
        min_items: size("minItems"),
        max_items: size("maxItems"),
        min_properties: size("minProperties"),
        max_properties: size("maxProperties"),
        required: string_items(schema.get("required")),
        values: schema
            .get("enum")
            .and_then(Value::as_array)
            .filter(|values| !values.is_empty())
            .map(|values| values.clone().into()),
        junctors: compile_junctors(schema, depth)?,
    };
    Ok(constraints.has_effect().then_some(constraints))
}

fn compile_junctors(schema: &Map<String, Value>, depth: usize) -> Result<Option<Box<Junctors>>, SchemaError> {
    let list = |keyword: &str| -> Result<Box<[Node]>, SchemaError> {
        let parts = schema.get(keyword).and_then(Value::as_array);
        parts.into_iter().flatten().map(|part| compile_node(part, depth)).collect()
    };
    let junctors = Junctors {
        all_of: list("allOf")?,
        any_of: list("anyOf")?,
        one_of: list("oneOf")?,
        not: compile_keyword(schema, "not", depth)?,
    };
    let is_empty = junctors.all_of.is_empty()
        && junctors.any_of.is_empty()
        && junctors.one_of.is_empty()
        && junctors.not.is_none();
    Ok((!is_empty).then(|| Box::new(junctors)))
}

impl Constraints {
    /// Whether any keyword has an effect.
    fn has_effect(&self) -> bool {
        let numbers = [self.minimum, self.maximum, self.multiple_of];
        let sizes = [
            self.min_length,
            self.max_length,
            self.min_items,
            self.max_items,
            self.min_properties,
            self.max_properties,
        ];
        self.format.is_some()
            || self.pattern.is_some()
            || self.unique_items
            || self.values.is_some()
            || self.junctors.is_some()
            || !self.required.is_empty()
            || numbers.iter().any(Option::is_some)
            || sizes.iter().any(Option::is_some)
    }
}

/// Sets the flags that summarize the node and its descendants.
fn set_summary_flags(node: &mut Node) {
    let any_child = |test: &dyn Fn(&Node) -> bool| node.children().any(test);
    let has_rules = node.rules.is_some() || any_child(&|child| child.has(Flag::HasRules));
    let is_unique = matches!(node.list, ListType::Set | ListType::Map(_));
    let has_unique = is_unique || any_child(&|child| child.has(Flag::HasUniqueLists));
    let has_embedded = any_child(&|child| child.has(Flag::Embedded) || child.has(Flag::HasEmbedded));
    let has_defaults = any_child(&|child| child.default.is_some() || child.has(Flag::HasDefaults));
    node.set(Flag::HasRules, has_rules);
    node.set(Flag::HasUniqueLists, has_unique);
    node.set(Flag::HasEmbedded, has_embedded);
    node.set(Flag::HasDefaults, has_defaults);
}

/// The strings of a list.
fn string_items(list: Option<&Value>) -> Box<[Box<str>]> {
    let list = list.and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_str).map(Into::into).collect()
}

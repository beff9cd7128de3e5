//! Facts of the type table beyond validation, for documents that describe the API.
//!
//! # Contract
//!
//! [`fields`] parses the facts of a type at each call, without a cache. Embedded types are flattened, as in
//! JSON. [`is_atomic`] and [`values`] use `data/marks.txt`, whose header describes the format.

use crate::table;

static MARKS: &str = include_str!("../data/marks.txt");

/// The shape of the values of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A string, with the name of its type; `string` is a plain string.
    String(&'static str),
    /// A boolean.
    Bool,
    /// A 32-bit integer.
    Int32,
    /// A 64-bit integer.
    Int64,
    /// A 64-bit float.
    Float64,
    /// Bytes, base64 in JSON.
    Bytes,
    /// A type of the table (`core/v1.PodSpec`), or a special JSON type: `Time`, `Quantity`, `RawExtension`.
    Named(&'static str),
    /// An optional value; absent differs from zero.
    Pointer(Box<Shape>),
    /// A list.
    List(Box<Shape>),
    /// A map with string keys.
    Map(Box<Shape>),
}

/// The facts of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// The JSON name.
    pub name: &'static str,
    /// The shape of its values.
    pub shape: Shape,
    /// Whether an empty value is omitted.
    pub omitted: bool,
    /// Whether OpenAPI documents list the field as required.
    pub required: bool,
    /// The list type: `atomic`, `set` or `map`.
    pub list: Option<&'static str>,
    /// The key fields of a `map` list.
    pub keys: Vec<&'static str>,
    /// The map type: `atomic` or `granular`.
    pub map: Option<&'static str>,
    /// The strategies of strategic merge patch, separated by commas: `merge,retainKeys`.
    pub patch: Option<&'static str>,
    /// The merge key of strategic merge patch.
    pub merge_key: Option<&'static str>,
    /// The documented default, as JSON.
    pub default: Option<String>,
    /// Whether the field has validation tags.
    pub has_validation_tags: bool,
}

/// The fields of a type in declaration order. None for a type that the table lacks.
pub fn fields(type_name: &str) -> Option<Vec<Field>> {
    let mut fields = Vec::new();
    read(type_name, &mut fields).then_some(fields)
}

fn read(type_name: &str, fields: &mut Vec<Field>) -> bool {
    let Some(lines) = lines(type_name) else { return false };
    for line in lines.lines() {
        let mut words = line.split_ascii_whitespace();
        match (words.next(), words.next()) {
            (Some("="), Some(embedded)) => drop(read(embedded, fields)),
            (Some(name), Some(shape)) => fields.push(Field::read(name, Shape::read(shape), words)),
            _ => {}
        }
    }
    true
}

fn lines(type_name: &str) -> Option<&'static str> {
    table::find(type_name).map(|slot| slot.lines)
}

/// Whether a struct type is marked as atomic: a merge replaces such a struct only as a whole.
pub fn is_atomic(type_name: &str) -> bool {
    mark(type_name) == Some("atomic")
}

/// The values of an enumerated string type.
pub fn values(type_name: &str) -> Option<impl Iterator<Item = &'static str>> {
    Some(mark(type_name)?.strip_prefix("one-of ")?.split(' '))
}

fn mark(type_name: &str) -> Option<&'static str> {
    let mut marks = MARKS.lines().filter_map(|line| line.split_once(' '));
    marks.find(|(name, _)| *name == type_name).map(|(_, fact)| fact)
}

impl Field {
    /// Parses the words after the type of a field.
    fn read(name: &'static str, shape: Shape, mut words: impl Iterator<Item = &'static str>) -> Self {
        let omitted = words.next().is_some_and(|word| word != "-");
        let mut field = Field {
            name,
            shape,
            omitted,
            required: false,
            list: None,
            keys: Vec::new(),
            map: None,
            patch: None,
            merge_key: None,
            default: None,
            has_validation_tags: false,
        };
        // The first remaining word is the Protobuf number.
        for fact in words.skip(1) {
            match fact.split_once('=') {
                None if fact == "required" => field.required = true,
                None if fact == "optional" => field.has_validation_tags = true,
                Some(("minimum", _)) => field.has_validation_tags = true,
                Some(("list", list)) => field.list = Some(list),
                Some(("keys", keys)) => field.keys = keys.split('+').collect(),
                Some(("map", map)) => field.map = Some(map),
                Some(("patch", patch)) => field.patch = Some(patch),
                Some(("key", key)) => field.merge_key = Some(key),
                Some(("default", default)) => field.default = field.resolve(default),
                _ => {}
            }
        }
        field
    }

    /// Resolves a default. `ref(NAME)` names a constant: its value is the enumerated value that NAME
    /// contains.
    fn resolve(&self, default: &'static str) -> Option<String> {
        let Some(constant) = default.strip_prefix("ref(") else { return Some(default.to_owned()) };
        let Shape::String(name) = self.shape.target() else { return None };
        values(name)?.find(|value| constant.contains(value)).map(|value| format!("\"{value}\""))
    }
}

impl Shape {
    fn read(text: &'static str) -> Self {
        let boxed = |element| Box::new(Shape::read(element));
        if let Some(element) = text.strip_prefix('*') {
            return Shape::Pointer(boxed(element));
        }
        if let Some(element) = text.strip_prefix("[]") {
            return Shape::List(boxed(element));
        }
        if let Some(element) = text.strip_prefix("{}") {
            return Shape::Map(boxed(element));
        }
        if let Some(name) = text.strip_prefix("string(").and_then(|text| text.strip_suffix(')')) {
            return Shape::String(name);
        }
        match text {
            "string" => Shape::String(text),
            "bool" => Shape::Bool,
            "int32" => Shape::Int32,
            "int64" => Shape::Int64,
            "float64" => Shape::Float64,
            "bytes" => Shape::Bytes,
            "ResourceList" => Shape::Map(Box::new(Shape::Named("Quantity"))),
            _ => Shape::Named(text),
        }
    }

    /// The target of a pointer; the shape itself for other types.
    pub fn target(&self) -> &Shape {
        match self {
            Shape::Pointer(target) => target.target(),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(type_name: &str, name: &str) -> Field {
        let fields = fields(type_name).expect(type_name);
        fields.into_iter().find(|field| field.name == name).expect(name)
    }

    #[test]
    fn field_facts_match_type_table() {
        let ports = field("core/v1.Container", "ports");
        assert_eq!(ports.shape, Shape::List(Box::new(Shape::Named("core/v1.ContainerPort"))));
        assert_eq!((ports.list, ports.map, ports.required, ports.omitted), (Some("map"), None, false, true));
        assert_eq!(ports.keys, ["containerPort", "protocol"]);
        assert_eq!((ports.patch, ports.merge_key), (Some("merge"), Some("containerPort")));
        let name = field("core/v1.Container", "name");
        assert!(name.required && !name.omitted);
        assert!(field("core/v1.EphemeralContainer", "name").required, "a field of an embedded type");
        assert_eq!(field("core/v1.ContainerPort", "protocol").default.as_deref(), Some("\"TCP\""));
        assert_eq!(field("core/v1.AzureDiskVolumeSource", "kind").default.as_deref(), Some("\"Shared\""));
        assert_eq!(
            field("core/v1.AzureDiskVolumeSource", "cachingMode").default.as_deref(),
            Some("\"ReadWrite\"")
        );
        assert_eq!(field("core/v1.PodSpec", "nodeSelector").map, Some("atomic"));
        assert_eq!(
            field("core/v1.ConfigMap", "kind").shape,
            Shape::String("string"),
            "a field of an embedded type"
        );
        assert_eq!(
            field("core/v1.ResourceRequirements", "limits").shape,
            Shape::Map(Box::new(Shape::Named("Quantity")))
        );
        assert_eq!(fields("core/v1.Nothing"), None);
    }

    #[test]
    fn type_marks_name_types_of_the_table() {
        let marks: Vec<_> = MARKS.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(marks.is_sorted(), "sorted");
        for (name, fact) in marks.iter().filter_map(|line| line.split_once(' ')) {
            assert_eq!(is_atomic(name), lines(name).is_some() && fact == "atomic", "{name}");
            assert_eq!(values(name).is_some(), fact.starts_with("one-of "), "{name}");
        }
        assert!(is_atomic("core/v1.ObjectReference") && !is_atomic("core/v1.Pod"));
        assert_eq!(values("core/v1.PullPolicy").expect("known").count(), 3);
    }
}

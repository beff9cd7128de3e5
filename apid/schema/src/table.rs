//! The type table and the schemas compiled from it.
//!
//! # Invariants
//!
//! INVARIANT (lazy): nothing is parsed before its first use. The first use of the table locates the types;
//! the first use of a type parses its lines.

use std::collections::HashMap;
use std::sync::OnceLock;

use apimachinery::object::{Map, Number, Object, Value};

use crate::protobuf::Plan;
use crate::validation_tags::{self, ValidationTag};

static TABLE: &str = include_str!("../data/types.txt");

/// The types by name.
static INDEX: OnceLock<HashMap<&'static str, Slot>> = OnceLock::new();

/// A type with its schema, which is compiled on first use.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) name: &'static str,
    pub(crate) lines: &'static str,
    schema: OnceLock<Schema>,
}

/// The schema of one type.
#[derive(Debug)]
pub struct Schema {
    /// The name in the table: `core/v1.ConfigMap`.
    pub(crate) name: &'static str,
    /// All fields, including embedded ones, sorted by name.
    pub(crate) fields: Box<[SchemaField]>,
    /// Hash table of indexes into `fields`, by name; its size is a power of two.
    places: Box<[u8]>,
    /// Indexes of the fields that the stored form has even when the body lacks them.
    pub(crate) always_written: Box<[usize]>,
    /// Whether empty lists stay empty lists, for the types of groups that are stored as JSON.
    ///
    /// In other groups an empty list in a field that is never omitted becomes null. Protobuf does not
    /// distinguish an empty list from an absent one.
    pub(crate) keeps_empty_lists: bool,
    zero: OnceLock<Value>,
    /// The Protobuf encoding plan.
    plan: OnceLock<Plan>,
}

/// A field of a type.
#[derive(Debug)]
pub(crate) struct SchemaField {
    pub(crate) name: &'static str,
    pub(crate) ty: Type,
    pub(crate) omitted: OmitRule,
    /// The Protobuf field numbers from the outermost to the innermost. Fields of embedded types have several,
    /// because only Protobuf nests those types. Empty for fields without a Protobuf encoding.
    pub(crate) tags: Box<[u32]>,
    /// Whether Protobuf wraps the items of a list in a message.
    pub(crate) wrapped: bool,
    /// The position in the order of declaration.
    pub(crate) rank: u8,
    /// The embedded types that hold the field, from the outermost to the innermost: `VolumeSource`.
    pub(crate) embedded: Box<[&'static str]>,
    /// Whether an empty list that a request sends in this field stays in the object.
    pub(crate) keeps_sent_empty: bool,
    /// Whether the stored form has the field even when the body lacks it; its value is then the zero of its
    /// type.
    pub(crate) is_always_written: bool,
    /// The rules that the validation tags of the field state.
    pub(crate) validation_tags: Box<[ValidationTag]>,
}

/// The rule for omitting a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OmitRule {
    Never,
    /// The field is omitted when empty. Structs, times, quantities, int-or-strings and raw values are never
    /// empty: kube-apiserver always writes them in JSON.
    Empty,
    /// The field is omitted when empty or zero, also when it is a time.
    Zero,
}

/// A type of a field.
#[derive(Debug)]
pub(crate) enum Type {
    /// A string, with the name of its type.
    String(&'static str),
    Bool,
    Int32,
    Int64,
    Float64,
    /// Bytes, as base64.
    Bytes,
    Time,
    MicroTime,
    Quantity,
    /// A map of quantities, rounded up to thousandths.
    ResourceList,
    IntOrString,
    /// Any JSON value.
    Any,
    /// A JSON schema or a boolean.
    SchemaOrBool(Ref),
    /// A JSON schema or a list of JSON schemas.
    SchemaOrArray(Ref),
    /// A JSON schema or a list of strings.
    SchemaOrStrings(Ref),
    Struct(Ref),
    Pointer(Box<Type>),
    List(Box<Type>),
    Map(Box<Type>),
}

/// A reference to a type by name, because types may be recursive.
#[derive(Debug)]
pub(crate) struct Ref {
    pub(crate) name: &'static str,
    slot: OnceLock<Option<&'static Slot>>,
}

impl Ref {
    fn new(name: &'static str) -> Self {
        Ref { name, slot: OnceLock::new() }
    }

    /// None only for a dangling name in the table, which a test excludes.
    pub(crate) fn schema(&self) -> Option<&'static Schema> {
        self.slot.get_or_init(|| find(self.name)).map(Slot::schema)
    }
}

pub(crate) fn index() -> &'static HashMap<&'static str, Slot> {
    INDEX.get_or_init(|| {
        let mut index = HashMap::with_capacity(800);
        let mut rest = TABLE;
        while !rest.is_empty() {
            let (head, after) = rest.split_once('\n').unwrap_or((rest, ""));
            let fields = after.split_inclusive('\n').take_while(|line| line.starts_with(' '));
            let (lines, next) = after.split_at(fields.map(str::len).sum());
            if !head.starts_with('#') {
                index.insert(head, Slot { name: head, lines, schema: OnceLock::new() });
            }
            rest = next;
        }
        index
    })
}

pub(crate) fn find(name: &str) -> Option<&'static Slot> {
    index().get(name)
}

impl Slot {
    fn schema(&'static self) -> &'static Schema {
        self.schema.get_or_init(|| Schema::compile(self))
    }
}

impl Schema {
    /// The schema of a type in the table. None when the table lacks the type.
    pub fn of(type_name: &str) -> Option<&'static Schema> {
        find(type_name).map(Slot::schema)
    }

    /// The schema of objects with these `apiVersion` and `kind`, whatever the domain of the group.
    ///
    /// A custom kind gets the type of a built-in kind with the same first label of the group, version and
    /// kind. Callers that have the resource ask its kind for the schema.
    pub fn of_kind(api_version: &str, kind: &str) -> Option<&'static Schema> {
        let (group, version) = api_version.split_once('/').unwrap_or(("core", api_version));
        // For example `rbac` of `rbac.authorization.<domain>`.
        let stem = group.split('.').next().unwrap_or(group);
        Schema::of(&format!("{stem}/{version}.{kind}")).or_else(|| Schema::of(&format!("meta/v1.{kind}")))
    }

    /// The name in the table: `core/v1.ConfigMap`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The field names, sorted.
    pub fn fields(&self) -> impl Iterator<Item = &'static str> {
        self.fields.iter().map(|field| field.name)
    }

    /// An empty object of the type: only the fields that are always written.
    pub fn empty(&self) -> Object {
        match self.zero() {
            Value::Object(fields) => Object(fields.clone()),
            _ => Object::default(),
        }
    }

    fn compile(slot: &Slot) -> Self {
        let mut fields = Vec::new();
        read_fields(slot, &[], Some(&[]), &mut fields);
        for (rank, field) in (0..NO_FIELD).zip(&mut fields) {
            field.rank = rank;
        }
        fields.sort_by_key(|field| field.name);
        let always_written =
            fields.iter().enumerate().filter(|(_, f)| f.is_always_written).map(|(i, _)| i).collect();
        Schema {
            name: slot.name,
            places: places(&fields),
            fields: fields.into_boxed_slice(),
            always_written,
            keeps_empty_lists: ["apiextensions/", "apiregistration/"]
                .iter()
                .any(|group| slot.name.starts_with(group)),
            zero: OnceLock::new(),
            plan: OnceLock::new(),
        }
    }

    pub(crate) fn field(&self, name: &str) -> Option<&SchemaField> {
        self.fields.get(self.position(name)?)
    }

    /// The index of a field in `fields`.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        let mask = self.places.len().checked_sub(1)?;
        let mut place = hash(name) & mask;
        loop {
            let at = usize::from(*self.places.get(place)?);
            // A free slot holds an index beyond all fields.
            if self.fields.get(at)?.name == name {
                return Some(at);
            }
            place = (place + 1) & mask;
        }
    }

    /// The Protobuf encoding plan of the type.
    pub(crate) fn plan(&self) -> &Plan {
        self.plan.get_or_init(|| Plan::new(self.fields.iter().map(|field| &*field.tags)))
    }

    /// The stored form of an absent value of the type.
    pub(crate) fn zero(&self) -> &Value {
        self.zero.get_or_init(|| {
            let fields = self.always_written.iter().filter_map(|i| self.fields.get(*i));
            Value::Object(fields.map(|field| (field.name.to_owned(), field.ty.zero())).collect())
        })
    }
}

const NO_FIELD: u8 = u8::MAX;

/// Builds the hash table of fields. The table has more than twice as many slots as fields, so probes are
/// short.
fn places(fields: &[SchemaField]) -> Box<[u8]> {
    let mut places = vec![NO_FIELD; (2 * fields.len() + 1).next_power_of_two()];
    let mask = places.len() - 1;
    for (at, field) in fields.iter().enumerate() {
        let mut place = hash(field.name) & mask;
        while places.get(place).is_some_and(|taken| *taken != NO_FIELD) {
            place = (place + 1) & mask;
        }
        if let (Some(free), Ok(at)) = (places.get_mut(place), u8::try_from(at)) {
            *free = at;
        }
    }
    places.into_boxed_slice()
}

/// Hashes the length and three bytes of a name. The field names of one type mostly differ in these values.
fn hash(name: &str) -> usize {
    let bytes = name.as_bytes();
    let byte = |at: usize| usize::from(bytes.get(at).copied().unwrap_or(0));
    let (last, middle) = (bytes.len().saturating_sub(1), bytes.len() / 2);
    bytes.len() ^ (byte(0) << 1) ^ (byte(middle) << 3) ^ (byte(last) << 2)
}

/// Reads the fields of a type, including those of embedded types.
///
/// `embedded` holds the names of the enclosing embedded types and `outer` their Protobuf numbers; None when
/// Protobuf does not encode the type.
fn read_fields(slot: &Slot, embedded: &[&'static str], outer: Option<&[u32]>, fields: &mut Vec<SchemaField>) {
    for line in slot.lines.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(name), Some(ty)) = (words.next(), words.next()) else { continue };
        if name == "=" {
            if let Some(slot) = find(ty) {
                let tags = tags(outer, words.next());
                let name = ty.rsplit('.').next().unwrap_or(ty);
                let embedded = [embedded, &[name]].concat();
                read_fields(slot, &embedded, Some(&*tags).filter(|tags| !tags.is_empty()), fields);
            }
        } else {
            let omitted = match words.next() {
                Some("e") => OmitRule::Empty,
                Some("z") => OmitRule::Zero,
                _ => OmitRule::Never,
            };
            let wire = words.next();
            let wrapped = wire.is_some_and(|wire| wire.ends_with(":items"));
            let (ty, tags, embedded) = (Type::read(ty), tags(outer, wire), embedded.into());
            let is_always_written = is_always_written(omitted, &ty);
            let keeps_sent_empty = words.clone().any(|fact| fact == "sent-empty");
            let validation_tags = validation_tags::read(words, matches!(ty, Type::Pointer(_)));
            fields.push(SchemaField {
                name,
                ty,
                omitted,
                tags,
                wrapped,
                rank: 0,
                embedded,
                keeps_sent_empty,
                is_always_written,
                validation_tags,
            });
        }
    }
}

/// The Protobuf numbers of a field: `outer` and the number in a word like `3:bytes`; empty without a number.
fn tags(outer: Option<&[u32]>, word: Option<&str>) -> Box<[u32]> {
    let number = word.and_then(|word| word.split(':').next()).and_then(|number| number.parse().ok());
    match (outer, number) {
        (Some(outer), Some(number)) => outer.iter().copied().chain([number]).collect(),
        _ => Box::default(),
    }
}

/// Whether the stored form has a field even when the body lacks it.
fn is_always_written(omitted: OmitRule, ty: &Type) -> bool {
    match omitted {
        OmitRule::Never => true,
        OmitRule::Zero => false,
        OmitRule::Empty => matches!(
            ty,
            Type::Struct(_) | Type::Quantity | Type::IntOrString | Type::Time | Type::MicroTime | Type::Any
        ),
    }
}

impl Type {
    fn read(text: &'static str) -> Self {
        let boxed = |element| Box::new(Type::read(element));
        if let Some(element) = text.strip_prefix('*') {
            return Type::Pointer(boxed(element));
        }
        if let Some(element) = text.strip_prefix("[]") {
            return Type::List(boxed(element));
        }
        if let Some(element) = text.strip_prefix("{}") {
            return Type::Map(boxed(element));
        }
        if let Some(name) = text.strip_prefix("string(").and_then(|t| t.strip_suffix(')')) {
            return Type::String(name);
        }
        if let Some((package, "Bool" | "Array" | "StringArray")) = text.split_once(".JSONSchemaPropsOr") {
            return Type::schema_or(text, package.len() + ".JSONSchemaProps".len());
        }
        match text {
            "string" => Type::String("string"),
            "bool" => Type::Bool,
            "int32" => Type::Int32,
            "int64" => Type::Int64,
            "float64" => Type::Float64,
            "bytes" => Type::Bytes,
            "Time" => Type::Time,
            "MicroTime" => Type::MicroTime,
            "Quantity" => Type::Quantity,
            "ResourceList" => Type::ResourceList,
            "IntOrString" => Type::IntOrString,
            "RawExtension" | "FieldsV1" | "interface{}" => Type::Any,
            _ if text.ends_with(".JSON") => Type::Any,
            _ => Type::Struct(Ref::new(text)),
        }
    }

    /// Parses a name like `apiextensions/v1.JSONSchemaPropsOrBool`: the schema name is the part before `Or`.
    fn schema_or(text: &'static str, end: usize) -> Self {
        let (schema, or) = text.split_at(end);
        match or {
            "OrBool" => Type::SchemaOrBool(Ref::new(schema)),
            "OrArray" => Type::SchemaOrArray(Ref::new(schema)),
            _ => Type::SchemaOrStrings(Ref::new(schema)),
        }
    }

    /// The stored form of an absent value.
    pub(crate) fn zero(&self) -> Value {
        match self {
            Type::String(_) => Value::from(""),
            Type::Bool => Value::Bool(false),
            Type::Int32 | Type::Int64 | Type::Float64 | Type::IntOrString => Value::Number(Number::from(0)),
            Type::Quantity => Value::from("0"),
            Type::Struct(r) => {
                r.schema().map_or_else(|| Value::Object(Map::new()), |schema| schema.zero().clone())
            }
            _ => Value::Null,
        }
    }

    /// Whether a conformed value is empty, for fields that are omitted when empty.
    pub(crate) fn is_empty(&self, value: &Value) -> bool {
        match (self, value) {
            (_, Value::Null) => true,
            (Type::Struct(_) | Type::Pointer(_) | Type::Any | Type::Quantity | Type::IntOrString, _) => false,
            (Type::SchemaOrBool(_) | Type::SchemaOrArray(_) | Type::SchemaOrStrings(_), _) => false,
            (_, Value::String(text)) => text.is_empty(),
            (_, Value::Bool(b)) => !b,
            (_, Value::Number(n)) => n.as_f64() == Some(0.0),
            (_, Value::Array(list)) => list.is_empty(),
            (_, Value::Object(map)) => map.is_empty(),
        }
    }

    /// The type name in messages: `map[string]string`, `v1.ObjectMeta`.
    pub(crate) fn display_name(&self) -> String {
        match self {
            Type::String(name) => short(name).to_owned(),
            Type::Bool => "bool".to_owned(),
            Type::Int32 | Type::IntOrString => "int32".to_owned(),
            Type::Int64 => "int64".to_owned(),
            Type::Float64 => "float64".to_owned(),
            Type::Bytes => "[]uint8".to_owned(),
            Type::Time => "v1.Time".to_owned(),
            Type::MicroTime => "v1.MicroTime".to_owned(),
            Type::Quantity => "resource.Quantity".to_owned(),
            Type::ResourceList => "v1.ResourceList".to_owned(),
            Type::Any => "interface {}".to_owned(),
            Type::SchemaOrBool(r) | Type::SchemaOrArray(r) | Type::SchemaOrStrings(r) | Type::Struct(r) => {
                short(r.name).to_owned()
            }
            Type::Pointer(inner) => inner.display_name(),
            Type::List(inner) => format!("[]{}", inner.display_name()),
            Type::Map(inner) => format!("map[string]{}", inner.display_name()),
        }
    }
}

/// Shortens a name: `meta/v1.ObjectMeta` becomes `v1.ObjectMeta`.
fn short(name: &str) -> &str {
    name.rsplit_once('/').map_or(name, |(_, short)| short)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_compiles_and_every_reference_resolves() {
        fn check(ty: &Type, at: &str) {
            match ty {
                Type::Struct(r)
                | Type::SchemaOrBool(r)
                | Type::SchemaOrArray(r)
                | Type::SchemaOrStrings(r) => {
                    assert!(r.schema().is_some(), "{at}: no type {}", r.name);
                }
                Type::Pointer(inner) | Type::List(inner) | Type::Map(inner) => check(inner, at),
                _ => {}
            }
        }
        let heads = TABLE.lines().filter(|line| !line.starts_with([' ', '#']) && !line.is_empty());
        assert_eq!(index().len(), heads.count(), "each name is unique");
        for slot in index().values() {
            let schema = Schema::of(slot.name).unwrap();
            for (a, b) in schema.fields.iter().zip(schema.fields.iter().skip(1)) {
                assert!(a.name < b.name, "{}: {} twice", slot.name, b.name);
            }
            for (at, field) in schema.fields.iter().enumerate() {
                assert_eq!(schema.position(field.name), Some(at), "{}.{}", slot.name, field.name);
                check(&field.ty, &format!("{}.{}", slot.name, field.name));
            }
            assert!(schema.fields.len() < usize::from(NO_FIELD), "{}", slot.name);
            assert_eq!(schema.position("noSuchField"), None);
            assert_eq!(schema.position(""), None);
            schema.zero();
        }
        assert!(index().len() > 700);
        assert!(Schema::of("core/v1.Nothing").is_none());
    }
}

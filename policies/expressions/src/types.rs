//! CEL types, and the declaration notation of library functions.
//!
//! # Contract
//! - [`Type::Dyn`] is compatible with every type; evaluation checks dynamic values.
//! - Two object types are equal if their names are equal; names are schema paths.
//! - [`Type::parse`] parses declaration notation (`list(A)`, `map(string, int)`, `optional(A)`).
//! - In this notation a single capital letter is a type parameter.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The type of an expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Type {
    /// Type known only at evaluation. Integer-or-string fields also have this type.
    Dyn,
    /// The type of `null`.
    Null,
    /// `true` and `false`.
    Bool,
    /// Signed 64-bit integers.
    Int,
    /// Unsigned 64-bit integers.
    Uint,
    /// 64-bit floating point numbers.
    Double,
    /// Unicode text.
    String,
    /// Byte sequences.
    Bytes,
    /// Points in time, years 1 to 9999.
    Timestamp,
    /// Spans of time with nanosecond precision.
    Duration,
    /// Lists.
    List(Arc<ListType>),
    /// Maps: key type and value type.
    Map(Arc<(Type, Type)>),
    /// Objects with declared fields.
    Object(Arc<ObjectType>),
    /// An optional value.
    Optional(Arc<Type>),
    /// The type of type values.
    Type,
    /// A library type, by its name.
    Opaque(&'static str),
    /// A type parameter of a function declaration, such as `A`.
    Param(char),
}

/// A list type: element type and list semantics.
#[derive(Clone, Debug, PartialEq)]
pub struct ListType {
    /// Type of the elements.
    pub element: Type,
    /// Semantics of equality and concatenation.
    pub kind: ListKind,
}

/// List type of a schema.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ListKind {
    /// An ordered list.
    #[default]
    Atomic,
    /// Unique scalars in any order.
    Set,
    /// Objects in any order, identified by these keys (names in the data).
    Map(Vec<String>),
}

/// An object type.
#[derive(Clone, Debug)]
pub struct ObjectType {
    /// Schema path, which identifies the type.
    pub name: String,
    /// Fields by their escaped name in expressions.
    pub fields: BTreeMap<String, Field>,
}

impl PartialEq for ObjectType {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// A declared field of an object.
#[derive(Clone, Debug)]
pub struct Field {
    /// Name in the data.
    pub name: String,
    /// Type of the field.
    pub ty: Type,
}

impl Type {
    /// A list type with the semantics of an ordered list.
    pub fn list(element: Type) -> Type {
        Type::List(Arc::new(ListType { element, kind: ListKind::Atomic }))
    }

    /// A list type with the given semantics.
    pub fn list_of_kind(element: Type, kind: ListKind) -> Type {
        Type::List(Arc::new(ListType { element, kind }))
    }

    /// A map type.
    pub fn map(key: Type, value: Type) -> Type {
        Type::Map(Arc::new((key, value)))
    }

    /// An optional type.
    pub fn optional(inner: Type) -> Type {
        Type::Optional(Arc::new(inner))
    }

    /// An object type; `fields` are pairs of data name and type.
    /// Fields whose names expressions cannot use even with escaping are left out.
    pub fn object(name: impl Into<String>, fields: impl IntoIterator<Item = (String, Type)>) -> Type {
        let fields = fields
            .into_iter()
            .filter_map(|(name, ty)| crate::names::escape(&name).map(|escaped| (escaped, Field { name, ty })))
            .collect();
        Type::Object(Arc::new(ObjectType { name: name.into(), fields }))
    }

    /// Whether an argument of type `self` is assignable to a parameter of type `expected`.
    ///
    /// The call binds type parameters in `bindings`.
    pub(crate) fn is_assignable_to(&self, expected: &Type, bindings: &mut Bindings) -> bool {
        match (self, expected) {
            (_, Type::Param(p)) => match bindings.find(*p) {
                Some(Type::Dyn) | None => {
                    bindings.set(*p, self.clone());
                    true
                }
                Some(binding) => *self == Type::Dyn || self.is_compatible_with(&binding),
            },
            (Type::Dyn, _) | (_, Type::Dyn) => true,
            (Type::List(a), Type::List(b)) => a.element.is_assignable_to(&b.element, bindings),
            (Type::Map(a), Type::Map(b)) => {
                a.0.is_assignable_to(&b.0, bindings) && a.1.is_assignable_to(&b.1, bindings)
            }
            (Type::Optional(a), Type::Optional(b)) => a.is_assignable_to(b, bindings),
            _ => self == expected || self.is_null_assignable_to(expected),
        }
    }

    /// Whether a value of one type can be used where the other type is expected.
    pub(crate) fn is_compatible_with(&self, other: &Type) -> bool {
        match (self, other) {
            (Type::Dyn, _) | (_, Type::Dyn) => true,
            (Type::List(a), Type::List(b)) => a.element.is_compatible_with(&b.element),
            (Type::Map(a), Type::Map(b)) => a.0.is_compatible_with(&b.0) && a.1.is_compatible_with(&b.1),
            (Type::Optional(a), Type::Optional(b)) => a.is_compatible_with(b),
            _ => self == other || self.is_null_assignable_to(other) || other.is_null_assignable_to(self),
        }
    }

    /// Whether both types have the same structure, regardless of object names.
    pub(crate) fn has_same_structure_as(&self, other: &Type) -> bool {
        match (self, other) {
            (Type::List(a), Type::List(b)) => a.element.has_same_structure_as(&b.element),
            (Type::Map(a), Type::Map(b)) => {
                a.0.has_same_structure_as(&b.0) && a.1.has_same_structure_as(&b.1)
            }
            (Type::Optional(a), Type::Optional(b)) => a.has_same_structure_as(b),
            (Type::Object(a), Type::Object(b)) => {
                let mut pairs = a.fields.iter().zip(&b.fields);
                a.fields.len() == b.fields.len()
                    && pairs
                        .all(|((mine, a), (theirs, b))| mine == theirs && a.ty.has_same_structure_as(&b.ty))
            }
            _ => self.is_compatible_with(other),
        }
    }

    /// Whether this is the type of `null`, and `expected` accepts `null`.
    ///
    /// Object, timestamp, duration, optional and library types accept `null`.
    fn is_null_assignable_to(&self, expected: &Type) -> bool {
        *self == Type::Null
            && matches!(
                expected,
                Type::Object(_) | Type::Timestamp | Type::Duration | Type::Optional(_) | Type::Opaque(_)
            )
    }

    /// Replaces type parameters by their bindings; unbound parameters become dynamic.
    pub(crate) fn substitute(&self, bindings: &Bindings) -> Type {
        match self {
            Type::Param(p) => bindings.find(*p).unwrap_or(Type::Dyn),
            Type::List(l) => Type::list_of_kind(l.element.substitute(bindings), l.kind.clone()),
            Type::Map(m) => Type::map(m.0.substitute(bindings), m.1.substitute(bindings)),
            Type::Optional(o) => Type::optional(o.substitute(bindings)),
            other => other.clone(),
        }
    }

    /// Parses the notation of declarations. Unknown names are library types.
    pub(crate) fn parse(text: &'static str) -> Type {
        let text = text.trim();
        if let Some((head, rest)) = text.split_once('(') {
            let inner = rest.strip_suffix(')').unwrap_or(rest);
            return match head {
                "list" => Type::list(Type::parse(inner)),
                "optional" => Type::optional(Type::parse(inner)),
                _ => {
                    let (key, value) = inner.split_once(',').unwrap_or((inner, "dyn"));
                    Type::map(Type::parse(key), Type::parse(value))
                }
            };
        }
        match text {
            "dyn" => Type::Dyn,
            "null" => Type::Null,
            "bool" => Type::Bool,
            "int" => Type::Int,
            "uint" => Type::Uint,
            "double" => Type::Double,
            "string" => Type::String,
            "bytes" => Type::Bytes,
            "timestamp" => Type::Timestamp,
            "duration" => Type::Duration,
            "type" => Type::Type,
            _ => match text.chars().next() {
                Some(first) if text.len() == 1 && first.is_ascii_uppercase() => Type::Param(first),
                _ => Type::Opaque(text),
            },
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Dyn => f.write_str("dyn"),
            Type::Null => f.write_str("null_type"),
            Type::Bool => f.write_str("bool"),
            Type::Int => f.write_str("int"),
            Type::Uint => f.write_str("uint"),
            Type::Double => f.write_str("double"),
            Type::String => f.write_str("string"),
            Type::Bytes => f.write_str("bytes"),
            Type::Timestamp => f.write_str("timestamp"),
            Type::Duration => f.write_str("duration"),
            Type::List(l) => write!(f, "list({})", l.element),
            Type::Map(m) => write!(f, "map({}, {})", m.0, m.1),
            Type::Object(o) => f.write_str(&o.name),
            Type::Optional(o) => write!(f, "optional_type({o})"),
            Type::Type => f.write_str("type"),
            Type::Opaque(name) => f.write_str(name),
            Type::Param(p) => write!(f, "{p}"),
        }
    }
}

/// The type inside an optional, or the type itself.
pub(crate) fn without_optional(ty: &Type) -> &Type {
    match ty {
        Type::Optional(inner) => inner,
        other => other,
    }
}

/// Bindings of type parameters for one call.
#[derive(Default)]
pub(crate) struct Bindings(Vec<(char, Type)>);

impl Bindings {
    fn find(&self, name: char) -> Option<Type> {
        self.0.iter().find(|(n, _)| *n == name).map(|(_, t)| t.clone())
    }

    fn set(&mut self, name: char, ty: Type) {
        match self.0.iter_mut().find(|(n, _)| *n == name) {
            Some(entry) => entry.1 = ty,
            None => self.0.push((name, ty)),
        }
    }
}

/// One overload of a function, parsed from its declaration.
///
/// Examples: `.string.charAt(int) -> string`, `sets.contains(list(A), list(A)) -> bool`,
/// `.list(A).max() -> A`.
#[derive(Clone, Debug)]
pub(crate) struct Overload {
    /// Argument types; the receiver of a member function is the first.
    pub(crate) arguments: Vec<Type>,
    /// Result type.
    pub(crate) result: Type,
}

/// A declaration: function name, member flag and types.
pub(crate) struct Declaration {
    pub(crate) name: &'static str,
    pub(crate) is_member: bool,
    pub(crate) overload: Overload,
}

impl Declaration {
    /// Parses `name(types) -> type` (global) or `.type.name(types) -> type` (member).
    /// The leading `.`, as in `.string.charAt(int) -> string`, keeps dotted global names unambiguous.
    pub(crate) fn parse(text: &'static str) -> Declaration {
        let (call, result) = text.split_once(" -> ").unwrap_or((text, "dyn"));
        let open = matching_open(call);
        let (head, arguments) = call.split_at(open);
        let arguments = arguments.strip_prefix('(').and_then(|a| a.strip_suffix(')')).unwrap_or_default();
        let mut types = Vec::new();
        let (name, is_member) = match head.strip_prefix('.') {
            Some(head) => {
                let (receiver, name) = head.rsplit_once('.').unwrap_or(("dyn", head));
                types.push(Type::parse(receiver));
                (name, true)
            }
            None => (head, false),
        };
        types.extend(split_top_level(arguments).into_iter().map(Type::parse));
        Declaration { name, is_member, overload: Overload { arguments: types, result: Type::parse(result) } }
    }
}

/// Index of the opening parenthesis that matches the last closing one.
fn matching_open(call: &str) -> usize {
    let mut depth = 0usize;
    for (at, c) in call.char_indices().rev() {
        match c {
            ')' => depth += 1,
            '(' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at;
                }
            }
            _ => {}
        }
    }
    call.len()
}

/// Splits at commas outside parentheses.
fn split_top_level(text: &'static str) -> Vec<&'static str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0usize, 0usize);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(text.get(start..at).unwrap_or_default());
                start = at + 1;
            }
            _ => {}
        }
    }
    if !text.trim().is_empty() {
        parts.push(text.get(start..).unwrap_or_default());
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_declarations_are_parsed() {
        let d = Declaration::parse(".list(A).indexOf(A, map(string, list(B))) -> optional(A)");
        assert_eq!((d.name, d.is_member), ("indexOf", true));
        let arguments: Vec<String> = d.overload.arguments.iter().map(ToString::to_string).collect();
        assert_eq!(arguments, ["list(A)", "A", "map(string, list(B))"]);
        assert_eq!(d.overload.result.to_string(), "optional_type(A)");
        let d = Declaration::parse("ip.isCanonical(string) -> bool");
        assert_eq!((d.name, d.is_member, d.overload.arguments.len()), ("ip.isCanonical", false, 1));
        assert_eq!(Declaration::parse("optional.none() -> optional(A)").overload.arguments.len(), 0);
    }

    #[test]
    fn type_parameters_are_bound_once() {
        let mut bindings = Bindings::default();
        let expected = Type::parse("list(A)");
        assert!(Type::list(Type::Int).is_assignable_to(&expected, &mut bindings));
        assert!(!Type::String.is_assignable_to(&Type::Param('A'), &mut bindings));
        assert!(Type::Dyn.is_assignable_to(&Type::Param('A'), &mut bindings));
        assert_eq!(expected.substitute(&bindings).to_string(), "list(int)");
    }
}

//! CEL types, and the declaration notation of library functions.
//!
//! # Contract
//! - [`Type::Dyn`] is compatible with every type; evaluation checks dynamic values.
//! - Two object types are equal if their names are equal; names are schema paths.
//! - [`Type::parse`] parses declaration notation (`list(A)`, `map(string, int)`, `optional(A)`).
//! - In this notation a single capital letter is a type parameter.
//!
//! # Invariants
//! INVARIANT (finite types): no variable is bound to a type that contains the variable, and replaced bindings give at
//! most [`MAX_PARTS`] parts besides dynamic ones. Parts of a type are shared, so a walk over all parts can take far more time than the
//! creation of the type.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Maximum number of parts of the type of an expression. Further parts are dynamic.
const MAX_PARTS: usize = 100;

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
    /// The type of a type value: that of the type.
    Type(Arc<Type>),
    /// A library type, by its name.
    Opaque(&'static str),
    /// A type parameter of a function declaration, such as `A`. [`Type::UNBOUND`] is a type that nothing
    /// determines, as that of the elements of an empty list.
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
    /// A type that nothing determines yet: it accepts every type, and is displayed as `dyn`.
    pub const UNBOUND: Type = Type::Param('_');

    /// The variable with this number: a type that a later use of the value determines.
    pub(crate) fn variable(number: u32) -> Type {
        char::from_u32(FIRST_VARIABLE + number % VARIABLES).map_or(Type::UNBOUND, Type::Param)
    }

    /// Whether only evaluation determines the type.
    pub fn is_dynamic(&self) -> bool {
        matches!(self, Type::Dyn | Type::Param(_))
    }

    /// The type of a type value.
    pub fn type_of(ty: Type) -> Type {
        Type::Type(Arc::new(ty))
    }

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
            (_, Type::Param('_')) | (Type::Param('_'), _) => true,
            (Type::Param(variable), Type::Param(p)) if is_variable(*variable) => {
                match (bindings.find(*variable), bindings.find(*p)) {
                    (Some(own), _) => own.is_assignable_to(expected, bindings),
                    (None, None) => {
                        bindings.set(*p, self.clone());
                        true
                    }
                    (None, Some(binding)) => bindings.bind_variable(*variable, &binding),
                }
            }
            (Type::Param(variable), _) if is_variable(*variable) => match bindings.find(*variable) {
                Some(own) => own.is_assignable_to(expected, bindings),
                None => bindings.bind_variable(*variable, expected),
            },
            (_, Type::Param(p)) => match bindings.find(*p) {
                Some(Type::Param(variable)) if is_variable(variable) => {
                    let is_bound = bindings.bind_variable(variable, self);
                    if is_bound {
                        bindings.set(*p, self.clone());
                    }
                    is_bound
                }
                Some(binding) if !binding.is_dynamic() => {
                    let is_compatible = self.is_compatible_with(&binding);
                    if is_compatible {
                        bindings.set(*p, binding.more_general(self));
                    }
                    is_compatible
                }
                Some(Type::Dyn) => true,
                _ => {
                    bindings.set(*p, self.clone());
                    true
                }
            },
            (Type::Dyn, _) | (_, Type::Dyn) | (Type::Type(_), Type::Type(_)) => true,
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
            (Type::Dyn | Type::Param(_), _) | (_, Type::Dyn | Type::Param(_)) => true,
            (Type::Type(_), Type::Type(_)) => true,
            (Type::List(a), Type::List(b)) => a.element.is_compatible_with(&b.element),
            (Type::Map(a), Type::Map(b)) => a.0.is_compatible_with(&b.0) && a.1.is_compatible_with(&b.1),
            (Type::Optional(a), Type::Optional(b)) => a.is_compatible_with(b),
            _ => self == other || self.is_null_assignable_to(other) || other.is_null_assignable_to(self),
        }
    }

    /// The type that accepts the values of both compatible types.
    pub(crate) fn more_general(&self, other: &Type) -> Type {
        match (self, other) {
            (Type::Param(_), other) => other.clone(),
            (own, Type::Param(_)) => own.clone(),
            (Type::Dyn, _) | (_, Type::Dyn) => Type::Dyn,
            (Type::List(a), Type::List(b)) => {
                Type::list_of_kind(a.element.more_general(&b.element), a.kind.clone())
            }
            (Type::Map(a), Type::Map(b)) => Type::map(a.0.more_general(&b.0), a.1.more_general(&b.1)),
            (Type::Optional(a), Type::Optional(b)) => Type::optional(a.more_general(b)),
            (Type::Null, other) => other.clone(),
            _ => self.clone(),
        }
    }

    /// Whether both types are the same, except for parts that nothing determines.
    pub(crate) fn is_equivalent_to(&self, other: &Type) -> bool {
        match (self, other) {
            (Type::Param(_), _) | (_, Type::Param(_)) => true,
            (Type::List(a), Type::List(b)) => a.element.is_equivalent_to(&b.element),
            (Type::Map(a), Type::Map(b)) => a.0.is_equivalent_to(&b.0) && a.1.is_equivalent_to(&b.1),
            (Type::Optional(a), Type::Optional(b)) | (Type::Type(a), Type::Type(b)) => a.is_equivalent_to(b),
            _ => self == other,
        }
    }

    /// The type with dynamic parts in place of those that nothing determines.
    pub(crate) fn with_dynamic_parts(&self) -> Type {
        match self {
            Type::Param(_) => Type::Dyn,
            Type::List(list) => Type::list_of_kind(list.element.with_dynamic_parts(), list.kind.clone()),
            Type::Map(types) => Type::map(types.0.with_dynamic_parts(), types.1.with_dynamic_parts()),
            Type::Optional(inner) => Type::optional(inner.with_dynamic_parts()),
            Type::Type(of) => Type::type_of(of.with_dynamic_parts()),
            other => other.clone(),
        }
    }

    /// Whether nothing determines the type or a part of the type.
    pub(crate) fn has_unbound(&self) -> bool {
        match self {
            Type::Param(_) => true,
            Type::List(list) => list.element.has_unbound(),
            Type::Map(types) => types.0.has_unbound() || types.1.has_unbound(),
            Type::Optional(inner) | Type::Type(inner) => inner.has_unbound(),
            _ => false,
        }
    }

    /// Whether the type has more than [`MAX_PARTS`] parts. An object is one part.
    pub(crate) fn is_too_large(&self) -> bool {
        let mut parts = 0;
        self.count_parts(&mut parts);
        parts > MAX_PARTS
    }

    /// Counts the parts, up to one above the maximum.
    fn count_parts(&self, parts: &mut usize) {
        *parts += 1;
        if *parts > MAX_PARTS {
            return;
        }
        match self {
            Type::List(list) => list.element.count_parts(parts),
            Type::Map(types) => {
                types.0.count_parts(parts);
                types.1.count_parts(parts);
            }
            Type::Optional(inner) | Type::Type(inner) => inner.count_parts(parts),
            _ => {}
        }
    }

    /// Whether a type parameter is a part of the type.
    fn contains_parameter(&self, name: char) -> bool {
        match self {
            Type::Param(own) => *own == name,
            Type::List(list) => list.element.contains_parameter(name),
            Type::Map(types) => types.0.contains_parameter(name) || types.1.contains_parameter(name),
            Type::Optional(inner) | Type::Type(inner) => inner.contains_parameter(name),
            _ => false,
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
            (Type::Param(_), _) | (_, Type::Param(_)) => true,
            _ => self == other,
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
    ///
    /// Parts above the maximum become dynamic.
    pub(crate) fn substitute(&self, bindings: &Bindings) -> Type {
        self.substitute_parts(bindings, &mut 0)
    }

    fn substitute_parts(&self, bindings: &Bindings, parts: &mut usize) -> Type {
        *parts += 1;
        if *parts > MAX_PARTS {
            return Type::Dyn;
        }
        match self {
            Type::Param(p) if is_variable(*p) => match bindings.find(*p) {
                Some(binding) if binding != *self => binding.substitute_parts(bindings, parts),
                _ => self.clone(),
            },
            Type::Param(p) => bindings.find(*p).map_or(Type::UNBOUND, |binding| match binding {
                Type::Param(variable) if is_variable(variable) => binding.substitute_parts(bindings, parts),
                binding => binding,
            }),
            Type::List(l) => Type::list_of_kind(l.element.substitute_parts(bindings, parts), l.kind.clone()),
            Type::Map(m) => {
                let key = m.0.substitute_parts(bindings, parts);
                Type::map(key, m.1.substitute_parts(bindings, parts))
            }
            Type::Optional(o) => Type::optional(o.substitute_parts(bindings, parts)),
            Type::Type(of) => Type::type_of(of.substitute_parts(bindings, parts)),
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
                "type" => Type::type_of(Type::parse(inner)),
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
            Type::Null => f.write_str("null"),
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
            Type::Type(of) => write!(f, "type({of})"),
            Type::Opaque(name) => f.write_str(name),
            Type::Param(p) if *p == '_' || is_variable(*p) => f.write_str("dyn"),
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

/// First and number of the characters that stand for variables: a private use area of Unicode.
const FIRST_VARIABLE: u32 = 0xf_0000;
const VARIABLES: u32 = 0xffff;

/// Whether the name of a type parameter is that of a variable.
fn is_variable(name: char) -> bool {
    u32::from(name) >= FIRST_VARIABLE
}

/// Bindings of type parameters for one call, and of variables.
#[derive(Clone, Default)]
pub(crate) struct Bindings(Vec<(char, Type)>);

impl Bindings {
    /// Keeps the bindings of variables only.
    pub(crate) fn into_variables(mut self) -> Bindings {
        self.0.retain(|(name, _)| is_variable(*name));
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn find(&self, name: char) -> Option<Type> {
        self.0.iter().find(|(n, _)| *n == name).map(|(_, t)| t.clone())
    }

    /// Binds a variable. Returns false if the type contains the variable.
    fn bind_variable(&mut self, variable: char, ty: &Type) -> bool {
        let ty = ty.substitute(self);
        if ty == Type::Param(variable) {
            return true;
        }
        if ty.contains_parameter(variable) {
            return false;
        }
        self.set(variable, ty);
        true
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

impl Overload {
    /// Declared type of a parameter.
    pub(crate) fn parameter(&self, at: usize) -> &Type {
        self.arguments.get(at).unwrap_or(&Type::Dyn)
    }
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
        assert_eq!(expected.substitute(&bindings).to_string(), "list(int)");
        // A dynamic argument makes the parameter dynamic.
        assert!(Type::Dyn.is_assignable_to(&Type::Param('A'), &mut bindings));
        assert_eq!(expected.substitute(&bindings).to_string(), "list(dyn)");
        // A use determines the element type of an empty list.
        let mut bindings = Bindings::default();
        let empty = Type::list(Type::variable(1));
        assert!(empty.is_assignable_to(&Type::parse("list(int)"), &mut bindings));
        assert_eq!(empty.substitute(&bindings.into_variables()).to_string(), "list(int)");
        let unbound = Type::list(Type::UNBOUND);
        let mut bindings = Bindings::default();
        assert!(unbound.is_assignable_to(&Type::Param('A'), &mut bindings));
        assert!(Type::list(Type::Int).is_assignable_to(&Type::Param('A'), &mut bindings));
        assert_eq!(Type::Param('A').substitute(&bindings).to_string(), "list(int)");
        assert_eq!(unbound.to_string(), "list(dyn)");
    }

    #[test]
    fn variable_is_not_bound_to_type_that_contains_the_variable() {
        let mut bindings = Bindings::default();
        let empty = Type::list(Type::variable(1));
        assert!(empty.is_assignable_to(&Type::Param('A'), &mut bindings));
        assert!(!empty.is_assignable_to(&Type::parse("list(A)"), &mut bindings));
        // Nor through another variable.
        let mut bindings = Bindings::default();
        let nested = Type::list(Type::list(Type::variable(2)));
        assert!(Type::variable(1).is_assignable_to(&Type::Param('A'), &mut bindings));
        assert!(nested.is_assignable_to(&Type::Param('A'), &mut bindings));
        let mut bindings = bindings.into_variables();
        assert!(Type::variable(2).is_assignable_to(&Type::Param('A'), &mut bindings));
        assert!(!Type::list(Type::variable(1)).is_assignable_to(&Type::Param('A'), &mut bindings));
    }

    #[test]
    fn type_with_shared_parts_is_limited() {
        let mut ty = Type::Int;
        for _ in 0..64 {
            ty = Type::map(ty.clone(), ty);
        }
        assert!(ty.is_too_large());
        let limited = ty.substitute(&Bindings::default());
        assert!(limited.to_string().len() < 20 * MAX_PARTS, "{limited}");
    }
}

//! Syntax tree of an expression. Macros are not expanded; positions are byte offsets.

use std::collections::BTreeSet;

/// A node of the syntax tree.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expr {
    /// Byte offset of the node in the source: of the operator of a call, or of the dot of a selection.
    pub(crate) at: usize,
    /// Kind of the node.
    pub(crate) kind: Kind,
}

impl Expr {
    /// Whether the node or a descendant reads a field of a variable. The recursion is as deep as the tree,
    /// which [`guard`](crate::guard) limits.
    pub(crate) fn selects(&self, variable: &str, field: &str) -> bool {
        let is_variable =
            |e: &Expr| matches!(&e.kind, Kind::Ident(name) if name.trim_start_matches('.') == variable);
        let is_field =
            |e: &Expr| matches!(&e.kind, Kind::Literal(Literal::String(text)) if text.as_str() == field);
        let selects_inside = |e: &Expr| e.selects(variable, field);
        match &self.kind {
            Kind::Literal(_) | Kind::Ident(_) => false,
            Kind::Select(operand, name) => (name == field && is_variable(operand)) || selects_inside(operand),
            Kind::Call { target, name, arguments } => {
                let is_access = matches!(name.as_str(), "_[_]" | "_[?_]" | "_?._")
                    && matches!(arguments.as_slice(), [operand, key] if is_variable(operand) && is_field(key));
                is_access
                    || target.as_deref().is_some_and(selects_inside)
                    || arguments.iter().any(selects_inside)
            }
            Kind::List(elements) => elements.iter().any(|(element, _)| selects_inside(element)),
            Kind::Map(entries) => {
                entries.iter().any(|(key, value, _)| selects_inside(key) || selects_inside(value))
            }
            Kind::Struct(_, fields) => fields.iter().any(|field| selects_inside(&field.value)),
        }
    }

    /// Adds the fields of a variable that the node and its descendants select by name.
    ///
    /// A comprehension variable of the same name counts as the variable. [`guard`](crate::guard) limits the
    /// recursion depth.
    pub(crate) fn add_selected_fields<'e>(&'e self, variable: &str, fields: &mut BTreeSet<&'e str>) {
        let is_variable =
            |e: &Expr| matches!(&e.kind, Kind::Ident(name) if name.trim_start_matches('.') == variable);
        match &self.kind {
            Kind::Literal(_) | Kind::Ident(_) => {}
            Kind::Select(operand, name) => {
                if is_variable(operand) {
                    fields.insert(name);
                }
                operand.add_selected_fields(variable, fields);
            }
            Kind::Call { target, arguments, .. } => {
                if let [operand, Expr { kind: Kind::Literal(Literal::String(name)), .. }] =
                    arguments.as_slice()
                    && is_variable(operand)
                {
                    fields.insert(name);
                }
                for part in target.as_deref().into_iter().chain(arguments) {
                    part.add_selected_fields(variable, fields);
                }
            }
            Kind::List(elements) => {
                elements.iter().for_each(|(element, _)| element.add_selected_fields(variable, fields));
            }
            Kind::Struct(_, struct_fields) => {
                struct_fields.iter().for_each(|field| field.value.add_selected_fields(variable, fields));
            }
            Kind::Map(entries) => {
                for (key, value, _) in entries {
                    key.add_selected_fields(variable, fields);
                    value.add_selected_fields(variable, fields);
                }
            }
        }
    }
}

/// Kinds of nodes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    Literal(Literal),
    /// An identifier; a leading dot refers to the outermost scope.
    Ident(String),
    /// `operand.field`
    Select(Box<Expr>, String),
    /// A call, or an operator, whose name has underscores for the operands: `_+_`.
    Call {
        target: Option<Box<Expr>>,
        name: String,
        arguments: Vec<Expr>,
    },
    /// Elements, each with a flag that is true for an optional element (`?x`).
    List(Vec<(Expr, bool)>),
    /// Keys and values of the entries, each with a flag that is true for an optional entry (`?k: v`).
    Map(Vec<(Expr, Expr, bool)>),
    /// Type name and fields of `Type{field: value}`.
    Struct(String, Vec<StructField>),
}

/// A field of a message literal.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StructField {
    /// Name of the field.
    pub(crate) name: String,
    /// Value of the field.
    pub(crate) value: Expr,
    /// Whether the field is optional (`?field: value`).
    pub(crate) is_optional: bool,
}

/// Literals.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(String),
    Bytes(Vec<u8>),
}

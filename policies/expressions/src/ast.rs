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
    /// Adds the fields of a variable that the node and its descendants read by name.
    ///
    /// A comprehension variable of the same name counts as the variable. [`guard`](crate::guard) limits the
    /// recursion depth.
    pub(crate) fn add_selected_fields<'e>(&'e self, variable: &str, fields: &mut BTreeSet<&'e str>) {
        let selection = match &self.kind {
            Kind::Select(operand, field) => Some((operand.as_ref(), field)),
            Kind::Call { name, arguments, .. } if matches!(name.as_str(), "_[_]" | "_[?_]" | "_?._") => {
                match arguments.as_slice() {
                    [operand, Expr { kind: Kind::Literal(Literal::String(field)), .. }] => {
                        Some((operand, field))
                    }
                    _ => None,
                }
            }
            _ => None,
        };
        if let Some((Expr { kind: Kind::Ident(name), .. }, field)) = selection
            && name.trim_start_matches('.') == variable
        {
            fields.insert(field);
        }
        self.children().into_iter().for_each(|child| child.add_selected_fields(variable, fields));
    }

    fn children(&self) -> Vec<&Expr> {
        match &self.kind {
            Kind::Literal(_) | Kind::Ident(_) => Vec::new(),
            Kind::Select(operand, _) => vec![operand],
            Kind::Call { target, arguments, .. } => target.as_deref().into_iter().chain(arguments).collect(),
            Kind::List(elements) => elements.iter().map(|(element, _)| element).collect(),
            Kind::Map(entries) => entries.iter().flat_map(|(key, value, _)| [key, value]).collect(),
            Kind::Struct(_, fields) => fields.iter().map(|field| &field.value).collect(),
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

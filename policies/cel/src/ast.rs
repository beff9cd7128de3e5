//! The tree of an expression as it was written: macros are not expanded, places are byte offsets.

/// A node of the tree.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expr {
    /// Byte offset of the node's token: the operator of a call, the dot of a selection.
    pub(crate) at: usize,
    /// What the node is.
    pub(crate) kind: Kind,
}

/// The kinds of nodes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    Literal(Literal),
    /// A name; a leading dot means the outermost scope.
    Ident(String),
    /// `operand.field`
    Select(Box<Expr>, String),
    /// A call or an operator (named as in `_+_`).
    Call {
        target: Option<Box<Expr>>,
        name: String,
        arguments: Vec<Expr>,
    },
    /// Elements, each with whether it is optional (`?x`).
    List(Vec<(Expr, bool)>),
    /// Keys, values, and whether the entry is optional (`?k: v`).
    Map(Vec<(Expr, Expr, bool)>),
    /// `Type{field: value}`
    Struct(String),
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

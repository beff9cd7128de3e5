//! Type checker: converts the syntax tree to the typed program and reports all errors.
//!
//! # Contract
//! Types are gradual: the checker accepts dynamic parts, and evaluation checks them. Messages have the
//! wording of cel-go's checker. Each message has the position of its node.

mod chain;
mod constants;
mod macros;
mod messages;

use crate::ast::{Expr, Kind, Literal};
use crate::env::{Environment, Parsed};
use crate::error::{CompileError, Issue};
use crate::library::{Function, Table};
use crate::program::{Call, Node, Program};
use crate::types::{Bindings, ListKind, Overload, Type};
use crate::value::{Text, Value};

impl Environment {
    /// Parses and type-checks an expression.
    ///
    /// # Errors
    /// All errors, with their positions.
    pub fn compile(&self, source: &str) -> Result<Program, CompileError> {
        self.check(&Parsed::new(source)?)
    }

    /// Type-checks a parsed expression.
    ///
    /// # Errors
    /// All errors, with their positions; or the error of a constant part, unless the expression is stored.
    pub fn check(&self, parsed: &Parsed) -> Result<Program, CompileError> {
        let variables = self.variables.iter().enumerate();
        let scopes = variables.map(|(slot, (name, ty))| (name.clone(), slot, ty.clone())).collect();
        let slots = self.variables.len();
        let mut checker = Checker {
            has_mutation_types: self.has_mutation_types,
            functions: self.functions,
            source: &parsed.source,
            declared: slots,
            scopes,
            slots,
            allows_mixed: false,
            issues: Vec::new(),
            constant_issues: Vec::new(),
            element_types: Vec::new(),
            variables: Bindings::default(),
            next_variable: 0,
        };
        let (root, result) = checker.check(&parsed.tree);
        let mut issues = checker.issues;
        if issues.is_empty() && !self.is_stored {
            issues = checker.constant_issues;
        }
        if issues.is_empty() {
            let root = crate::plan::plan(root, self.dialect, self.is_stored, &checker.variables)
                .map_err(CompileError::of_plan)?;
            let result = result.substitute(&checker.variables);
            return Ok(Program {
                root,
                variables: self.variables.clone(),
                slots: checker.slots,
                result: result.with_dynamic_parts(),
                list_literal_cost: self.dialect.list_literal_cost,
            });
        }
        issues.sort_by_key(|issue| (issue.line, issue.column));
        Err(CompileError { issues, plan: None })
    }
}

/// Maximum number of empty literals whose type later uses determine; that of others stays dynamic.
const MAX_VARIABLES: u32 = 64;

struct Checker<'e> {
    /// Whether expressions can contain the message types and the functions of mutations.
    has_mutation_types: bool,
    functions: &'static Table,
    source: &'e str,
    /// Number of variables that the environment declares.
    declared: usize,
    /// Name, slot and type of the variables in scope; the innermost is last.
    scopes: Vec<(String, usize, Type)>,
    /// Number of slots used so far.
    slots: usize,
    /// Whether the elements of a list or map literal may have different types.
    allows_mixed: bool,
    issues: Vec<Issue>,
    /// Errors of constant parts, such as literals of mixed types. They count only without other errors, and
    /// not for stored expressions.
    constant_issues: Vec<Issue>,
    /// Types of the elements of the last checked list literal.
    element_types: Vec<Type>,
    /// Types that uses of empty literals determined.
    variables: Bindings,
    next_variable: u32,
}

/// A checked node and its type. After an error the type is dynamic: the error is reported only once.
type TypedNode = (Node, Type);

/// Overloads of a function with their code.
type Overloads = &'static [(Overload, &'static Function)];

impl Checker<'_> {
    /// Returns the overloads of a global or member function, empty if the function has only the other form.
    /// Returns None if the function does not exist.
    fn overloads(&self, name: &str, member: bool) -> Option<(&'static str, Overloads)> {
        let mutations = || self.has_mutation_types.then(Table::for_mutations)?.find(name, member);
        self.functions.find(name, member).or_else(mutations)
    }
}

impl Checker<'_> {
    /// Reports an error and returns a node of dynamic type, which causes no further errors.
    fn report(&mut self, at: usize, message: String) -> TypedNode {
        self.issues.push(Issue::at(self.source, at, message));
        (Node::Const(Value::Null), Type::Dyn)
    }

    /// Reports that no overload of a function accepts the types of its arguments.
    fn report_no_overload(&mut self, at: usize, name: &str, types: &str) -> TypedNode {
        self.report(at, format!("found no matching overload for '{name}' applied to '{types}'"))
    }

    /// Reports an error if a type is not compatible with `expected`.
    fn expect(&mut self, at: usize, found: &Type, expected: &Type) {
        if !found.is_compatible_with(expected) {
            self.report(at, format!("expected type '{expected}' but found '{found}'"));
        }
    }

    /// Checks an expression. A type that is too large becomes dynamic, because its parts can be shared many times.
    fn check(&mut self, expr: &Expr) -> TypedNode {
        let (node, ty) = self.check_node(expr);
        if ty.is_too_large() { (node, Type::Dyn) } else { (node, ty) }
    }

    fn check_node(&mut self, expr: &Expr) -> TypedNode {
        match &expr.kind {
            Kind::Literal(literal) => constant(literal),
            Kind::Ident(name) => self.check_ident(expr.at, name),
            Kind::Select(..) => self.check_chain(expr),
            Kind::Call { target, name, arguments } => {
                self.check_call(expr, target.as_deref(), name, arguments)
            }
            Kind::List(elements) => self.check_list(elements),
            Kind::Map(entries) => self.check_map(entries),
            Kind::Struct(name, fields) => self.check_message(expr.at, name, fields),
        }
    }

    fn lookup(&self, name: &str) -> Option<(usize, Type)> {
        let found = self.scopes.iter().rev().find(|(known, ..)| known == name);
        found.map(|(_, slot, ty)| (*slot, self.resolve(ty.clone())))
    }

    /// Finds a variable with a dotted name, unless a comprehension variable with its first part hides it.
    fn lookup_dotted(&self, path: &str) -> Option<(usize, Type)> {
        let first = path.split('.').next().unwrap_or_default();
        let mut innermost_first = self.scopes.iter().rev();
        let found = innermost_first
            .find(|(known, slot, _)| known == path || (known == first && *slot >= self.declared))?;
        (found.0 == path).then(|| (found.1, found.2.clone()))
    }

    fn check_ident(&mut self, at: usize, name: &str) -> TypedNode {
        let name = name.strip_prefix('.').unwrap_or(name);
        if let Some((slot, ty)) = self.lookup(name) {
            return (Node::Slot(slot), ty);
        }
        match type_constant(name) {
            Some(constant) => constant,
            None => self.report(at, format!("undeclared reference to '{name}' (in container '')")),
        }
    }

    fn check_list(&mut self, elements: &[(Expr, bool)]) -> TypedNode {
        let mut element: Option<Type> = None;
        let mut types = Vec::with_capacity(elements.len());
        let mut nodes = Vec::with_capacity(elements.len());
        for (expr, optional) in elements {
            let (node, ty) = self.check(expr);
            let ty = if *optional { self.unwrap_optional(expr.at, ty) } else { ty };
            element = Some(common_type(element, &ty));
            types.push((expr.at, ty));
            nodes.push((node, *optional));
        }
        self.require_equal_types(&types);
        self.element_types = types.into_iter().map(|(_, ty)| ty).collect();
        let ty = Type::list(element.unwrap_or_else(|| self.new_variable()));
        (Node::List(nodes, ty.clone()), ty)
    }

    fn check_map(&mut self, entries: &[(Expr, Expr, bool)]) -> TypedNode {
        let (mut key, mut value) = (None, None);
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        let mut nodes = Vec::with_capacity(entries.len());
        for (k, v, optional) in entries {
            let (key_node, key_type) = self.check(k);
            let (value_node, value_type) = self.check(v);
            let value_type = if *optional { self.unwrap_optional(v.at, value_type) } else { value_type };
            key = Some(common_type(key, &key_type));
            value = Some(common_type(value, &value_type));
            keys.push((k.at, key_type));
            values.push((v.at, value_type));
            nodes.push((key_node, value_node, *optional));
        }
        self.require_equal_types(&keys);
        self.require_equal_types(&values);
        let key = key.unwrap_or_else(|| self.new_variable());
        let ty = Type::map(key, value.unwrap_or_else(|| self.new_variable()));
        (Node::Map { message: None, entries: nodes, ty: ty.clone() }, ty)
    }

    /// A type that a later use determines.
    ///
    /// The number of variables is limited, because each call copies their types.
    fn new_variable(&mut self) -> Type {
        if self.next_variable >= MAX_VARIABLES {
            return Type::UNBOUND;
        }
        self.next_variable += 1;
        Type::variable(self.next_variable)
    }

    /// The type with the variables that uses have determined.
    fn resolve(&self, ty: Type) -> Type {
        if self.variables.is_empty() || !ty.has_unbound() { ty } else { ty.substitute(&self.variables) }
    }

    /// Reports the first element of a literal whose type differs from that of the first element.
    fn require_equal_types(&mut self, types: &[(usize, Type)]) {
        if self.allows_mixed {
            return;
        }
        let Some(((_, first), rest)) = types.split_first() else { return };
        if let Some((at, other)) = rest.iter().find(|(_, other)| !first.is_equivalent_to(other)) {
            self.report_constant(*at, format!("expected type '{first}' but found '{other}'"));
        }
    }

    /// Reports an error of a constant part.
    fn report_constant(&mut self, at: usize, message: String) {
        self.constant_issues.push(Issue::at(self.source, at, message));
    }

    /// Returns the type inside an optional; reports an error for a type that is not optional.
    fn unwrap_optional(&mut self, at: usize, ty: Type) -> Type {
        match ty {
            Type::Optional(inner) => inner.as_ref().clone(),
            other if other.is_dynamic() => other,
            other => {
                self.report(at, format!("expected type 'optional_type({other})' but found '{other}'"));
                Type::Dyn
            }
        }
    }

    fn check_call(
        &mut self,
        expr: &Expr,
        target: Option<&Expr>,
        name: &str,
        arguments: &[Expr],
    ) -> TypedNode {
        match (target, name, arguments) {
            (None, "_&&_" | "_||_", [left, right]) => {
                let (left_node, left_type) = self.check(left);
                let (right_node, right_type) = self.check(right);
                self.expect(left.at, &left_type, &Type::Bool);
                self.expect(right.at, &right_type, &Type::Bool);
                let operands = Box::new((left_node, right_node));
                return (if name == "_&&_" { Node::And(operands) } else { Node::Or(operands) }, Type::Bool);
            }
            (None, "_?_:_", [condition, yes, no]) => {
                return self.check_conditional(expr.at, condition, yes, no);
            }
            (None, "_[_]" | "_[?_]" | "_?._", [_, _]) => return self.check_chain(expr),
            _ => {}
        }
        if let Some(checked) = self.check_macro(expr, target, name, arguments) {
            return checked;
        }
        // `sets.contains(a, b)` calls the function `sets.contains`, unless `sets` is a variable.
        let qualified = target.and_then(qualified_name).filter(|path| {
            let first = path.split('.').next().unwrap_or_default();
            self.lookup(first).is_none()
        });
        if let Some(path) = qualified {
            let full = format!("{path}.{name}");
            if self.overloads(&full, false).is_some() {
                return self.check_function(expr.at, &full, None, arguments);
            }
        }
        self.check_function(expr.at, name.strip_prefix('.').unwrap_or(name), target, arguments)
    }

    fn check_conditional(&mut self, at: usize, condition: &Expr, yes: &Expr, no: &Expr) -> TypedNode {
        let (condition_node, condition_type) = self.check(condition);
        let (yes_node, yes_type) = self.check(yes);
        let (no_node, no_type) = self.check(no);
        let (yes_type, no_type) = (self.resolve(yes_type), self.resolve(no_type));
        let mut bindings = self.variables.clone();
        let branch = Type::Param('A');
        let is_checked = condition_type.is_compatible_with(&Type::Bool)
            && yes_type.is_assignable_to(&branch, &mut bindings)
            && no_type.is_assignable_to(&branch, &mut bindings);
        if !is_checked {
            let types = format!("({condition_type}, {yes_type}, {no_type})");
            return self.report_no_overload(at, "_?_:_", &types);
        }
        self.variables = bindings.into_variables();
        let result = self.resolve(common_type(Some(yes_type), &no_type));
        (Node::Conditional(Box::new((condition_node, yes_node, no_node)), result.clone()), result)
    }

    /// Checks a call and selects the functions with an overload for its argument types.
    fn check_function(
        &mut self,
        at: usize,
        name: &str,
        target: Option<&Expr>,
        arguments: &[Expr],
    ) -> TypedNode {
        let Some((name, known)) = self.overloads(name, target.is_some()) else {
            // The arguments are checked only to report their errors as well.
            for argument in target.into_iter().chain(arguments) {
                self.check(argument);
            }
            return self.report(at, format!("undeclared reference to '{name}' (in container '')"));
        };
        let mut nodes = Vec::with_capacity(arguments.len() + 1);
        let mut types = Vec::with_capacity(arguments.len() + 1);
        for argument in target.into_iter().chain(arguments) {
            // The list argument of `format` may have elements of different types.
            let allows_mixed = self.allows_mixed;
            self.allows_mixed |= name == "format";
            let (node, ty) = self.check(argument);
            self.allows_mixed = allows_mixed;
            nodes.push(node);
            types.push(ty);
        }
        // The check of a later argument can determine the type of an earlier one.
        let mut types: Vec<Type> = types.into_iter().map(|ty| self.resolve(ty)).collect();
        // Lists of objects with different type names but equal fields can be concatenated. The operand types
        // are made equal here, because the overload requires equal types.
        if name == "_+_"
            && let [left @ Type::List(_), right @ Type::List(_)] = types.as_mut_slice()
            && left.has_same_structure_as(right)
        {
            if left.has_unbound() {
                *left = right.clone();
            } else {
                *right = left.clone();
            }
        }
        let mut candidates: Vec<(&'static Overload, &'static Function)> = Vec::new();
        let mut result: Option<Type> = None;
        for (overload, function) in known {
            let mut bindings = self.variables.clone();
            if overload.arguments.len() != types.len()
                || !types
                    .iter()
                    .zip(&overload.arguments)
                    .all(|(ty, expected)| ty.is_assignable_to(expected, &mut bindings))
            {
                continue;
            }
            candidates.push((overload, function));
            let overload_result = overload.result.substitute(&bindings);
            // The first overload determines the types of variables.
            self.variables = bindings.into_variables();
            result = Some(match result {
                None => overload_result,
                Some(before) if before == overload_result => overload_result,
                Some(_) => Type::Dyn,
            });
        }
        let Some(mut result) = result else {
            return self.report_no_overload(at, name, &argument_types_text(target.is_some(), &types));
        };
        if name == "_+_"
            && let (Some(Type::List(left)), Type::List(sum)) = (types.first(), &result)
            && left.kind != ListKind::Atomic
        {
            result = Type::list_of_kind(sum.element.clone(), left.kind.clone());
        }
        self.check_constant_arguments(name, target, arguments);
        let call = Call { name, candidates, arguments: nodes, ty: result.clone(), is_membership: false };
        (Node::Call(Box::new(call)), result)
    }
}

/// Returns the common type of the elements of a literal so far, or of the branches of a conditional.
fn common_type(before: Option<Type>, ty: &Type) -> Type {
    match before {
        None => ty.clone(),
        Some(before) if before.is_compatible_with(ty) => before.more_general(ty),
        Some(_) => Type::Dyn,
    }
}

/// Formats the argument types of a call for messages.
fn argument_types_text(member: bool, types: &[Type]) -> String {
    let shown: Vec<String> = types.iter().map(ToString::to_string).collect();
    match (member, shown.split_first()) {
        (true, Some((receiver, rest))) => format!("{receiver}.({})", rest.join(", ")),
        _ => format!("({})", shown.join(", ")),
    }
}

/// Returns the dotted name, such as `a.b.c`, if an expression consists only of a name and selections.
fn qualified_name(expr: &Expr) -> Option<String> {
    match &expr.kind {
        Kind::Ident(name) => Some(name.clone()),
        Kind::Select(operand, field) => Some(format!("{}.{field}", qualified_name(operand)?)),
        _ => None,
    }
}

fn constant(literal: &Literal) -> TypedNode {
    let (value, ty) = match literal {
        Literal::Null => (Value::Null, Type::Null),
        Literal::Bool(b) => (Value::Bool(*b), Type::Bool),
        Literal::Int(i) => (Value::Int(*i), Type::Int),
        Literal::Uint(u) => (Value::Uint(*u), Type::Uint),
        Literal::Double(d) => (Value::Double(*d), Type::Double),
        Literal::String(s) => (Value::text(s), Type::String),
        Literal::Bytes(b) => (Value::Bytes(b.as_slice().into()), Type::Bytes),
    };
    (Node::Const(value), ty)
}

/// Returns the type value with this name; None if there is no such type.
fn type_constant(name: &str) -> Option<TypedNode> {
    let ty = match name {
        "bool" => Type::Bool,
        "bytes" => Type::Bytes,
        "double" => Type::Double,
        "google.protobuf.Duration" => Type::Duration,
        "google.protobuf.Timestamp" => Type::Timestamp,
        "int" => Type::Int,
        "list" => Type::list(Type::Dyn),
        "map" => Type::map(Type::Dyn, Type::Dyn),
        "null_type" => Type::Null,
        "optional_type" => Type::optional(Type::Dyn),
        "string" => Type::String,
        "type" => Type::type_of(Type::Dyn),
        "uint" => Type::Uint,
        "net.IP" => Type::Opaque("net.IP"),
        "net.CIDR" => Type::Opaque("net.CIDR"),
        _ => return None,
    };
    let value_name = match &ty {
        Type::Duration => "google.protobuf.Duration",
        Type::Timestamp => "google.protobuf.Timestamp",
        Type::List(_) => "list",
        Type::Map(_) => "map",
        Type::Null => "null_type",
        Type::Optional(_) => "optional_type",
        Type::Type(_) => "type",
        Type::Opaque(name) => name,
        Type::Bool => "bool",
        Type::Bytes => "bytes",
        Type::Double => "double",
        Type::Int => "int",
        Type::Uint => "uint",
        _ => "string",
    };
    let ty = Type::type_of(ty);
    Some((Node::TypeName(Value::Type(Text::Borrowed(value_name)), ty.clone()), ty))
}

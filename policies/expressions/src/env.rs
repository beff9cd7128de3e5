//! CEL environment: variables and functions for expressions.

use std::collections::BTreeSet;

use crate::ast::Expr;
use crate::dialect::Dialect;
use crate::error::CompileError;
use crate::library::Table;
use crate::parse::parse;
use crate::types::Type;

/// Variables and functions for expressions of one API field.
#[derive(Clone)]
pub struct Environment {
    pub(crate) variables: Vec<(String, Type)>,
    pub(crate) functions: &'static Table,
    pub(crate) dialect: Dialect,
    pub(crate) has_mutation_types: bool,
    /// Whether errors of constant parts are errors of evaluation.
    pub(crate) is_stored: bool,
}

impl Environment {
    /// Environment for new expressions: the libraries of the served release (1.33). Compilation evaluates
    /// constant parts and rejects expressions in which one fails.
    pub fn new() -> Environment {
        Environment::of_dialect(Dialect::chosen(), false)
    }

    /// Environment for stored expressions: also includes libraries of newer releases, so that expressions
    /// that a newer server accepted keep working. Constant parts that fail are errors of evaluation.
    pub fn stored() -> Environment {
        Environment::of_dialect(Dialect::chosen(), true)
    }

    fn of_dialect(dialect: Dialect, is_stored: bool) -> Environment {
        let functions = if is_stored { Table::all(dialect) } else { Table::served(dialect) };
        Environment { variables: Vec::new(), functions, dialect, has_mutation_types: false, is_stored }
    }

    /// Replaces the dialect of the process.
    #[must_use]
    pub fn with_dialect(self, dialect: Dialect) -> Environment {
        let Environment { functions, .. } = Environment::of_dialect(dialect, self.is_stored);
        Environment { functions, dialect, ..self }
    }

    /// Declares a variable.
    #[must_use]
    pub fn variable(mut self, name: impl Into<String>, ty: Type) -> Environment {
        self.variables.push((name.into(), ty));
        self
    }

    /// Declares the message types of mutations: `Object`, `Object.field` and `JSONPatch`.
    #[must_use]
    pub fn with_mutation_types(mut self) -> Environment {
        self.has_mutation_types = true;
        self
    }
}

/// A parsed expression, for type checks in one or more environments.
pub struct Parsed {
    pub(crate) source: String,
    pub(crate) tree: Expr,
}

impl Parsed {
    /// Parses an expression.
    ///
    /// # Errors
    /// All errors, with their positions.
    pub fn new(source: &str) -> Result<Parsed, CompileError> {
        Ok(Parsed { source: source.to_owned(), tree: parse(source)? })
    }

    /// Whether the expression, including its macros, reads a field of a variable by name.
    /// The forms are `variable.field`, `variable.?field`, `variable["field"]` and `variable[?"field"]`.
    pub fn selects(&self, variable: &str, field: &str) -> bool {
        self.selected_fields(variable).contains(field)
    }

    /// The fields of a variable that the expression reads by name, in the forms of [`Parsed::selects`].
    pub fn selected_fields(&self, variable: &str) -> BTreeSet<&str> {
        let mut fields = BTreeSet::new();
        self.tree.add_selected_fields(variable, &mut fields);
        fields
    }
}

impl Default for Environment {
    fn default() -> Self {
        Environment::new()
    }
}

#[cfg(test)]
mod tests {
    use super::Parsed;

    #[test]
    fn field_selection_is_detected_in_all_forms() {
        for (expression, found) in [
            ("claims.email", true),
            ("claims.?email.orValue('')", true),
            ("claims['email']", true),
            ("claims[?'email'].hasValue()", true),
            ("has(claims.email) ? 'a' : 'b'", true),
            ("['x'].all(x, x + claims.email == '')", true),
            ("{'a': [claims.email]}", true),
            ("claims.email.startsWith('a')", true),
            ("claims.email_", false),
            ("claims.other.email", false),
            ("other.email", false),
            ("'claims.email'", false),
            ("claims", false),
        ] {
            let parsed = Parsed::new(expression).unwrap();
            assert_eq!(parsed.selects("claims", "email"), found, "{expression}");
            assert_eq!(parsed.selected_fields("claims").contains("email"), found, "{expression}");
        }
    }
}

//! What an expression may use: its variables, and the functions of a release.

use std::sync::Arc;

use crate::ast::Expr;
use crate::check;
use crate::error::CompileError;
use crate::library::Table;
use crate::parse::parse;
use crate::program::Program;
use crate::types::Type;

/// The variables and functions that expressions of one API field may use.
#[derive(Clone)]
pub struct Environment {
    pub(crate) variables: Vec<(String, Type)>,
    pub(crate) functions: Arc<Table>,
}

impl Environment {
    /// For new expressions: the libraries of the release that is served (1.33).
    pub fn new() -> Environment {
        Environment { variables: Vec::new(), functions: Table::served() }
    }

    /// For expressions that are stored already: libraries of newer releases too, so that what a newer
    /// server accepted keeps evaluating.
    pub fn stored() -> Environment {
        Environment { variables: Vec::new(), functions: Table::all() }
    }

    /// Declares a variable.
    #[must_use]
    pub fn variable(mut self, name: impl Into<String>, ty: Type) -> Environment {
        self.variables.push((name.into(), ty));
        self
    }

    /// Parses and type-checks an expression.
    ///
    /// # Errors
    /// Every mistake with its place.
    pub fn compile(&self, source: &str) -> Result<Program, CompileError> {
        self.check(&Parsed::new(source)?)
    }

    /// Type-checks an expression that was parsed before.
    ///
    /// # Errors
    /// Every mistake with its place.
    pub fn check(&self, parsed: &Parsed) -> Result<Program, CompileError> {
        check::compile(self, &parsed.source, &parsed.tree)
    }
}

/// An expression that was parsed, to be checked in one environment or several.
pub struct Parsed {
    source: String,
    tree: Expr,
}

impl Parsed {
    /// Parses an expression.
    ///
    /// # Errors
    /// Every mistake with its place.
    pub fn new(source: &str) -> Result<Parsed, CompileError> {
        Ok(Parsed { source: source.to_owned(), tree: parse(source)? })
    }

    /// Whether the expression reads a field of a variable by its name: `variable.field`, `variable.?field`,
    /// `variable["field"]`, `variable[?"field"]`, also inside of macros.
    pub fn selects(&self, variable: &str, field: &str) -> bool {
        self.tree.selects(variable, field)
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
    fn a_field_that_is_read_is_found_in_any_spelling() {
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
            assert_eq!(Parsed::new(expression).unwrap().selects("claims", "email"), found, "{expression}");
        }
    }
}

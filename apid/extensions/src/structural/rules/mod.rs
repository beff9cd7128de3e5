//! Rules in CEL (`x-…-validations`) of a schema node.
//!
//! # Contract
//!
//! [`validate`] runs the rules on an object without blocking errors. [`check`] validates the expressions of a
//! definition. A node compiles its rules on first use; compiled programs live as long as the schema.
//!
//! # Invariants
//!
//! INVARIANT (budget): one evaluation uses at most [`limits::CALL`] units, all rules on one object at most
//! [`limits::OBJECT`] units.

mod check;
mod field_path;
mod run;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use expressions::{CompileError, Environment, Type};

use super::node::Node;
use super::node_rules::{CompiledRule, CompiledRules, Rule, Rules};

pub(super) use check::check;
pub(super) use field_path::resolve;
pub(super) use run::validate;

/// Name of the CEL variable with the value.
const SELF: &str = "self";
/// Name of the CEL variable with the old value.
const OLD_SELF: &str = "oldSelf";

/// The expressions of a stored definition, which may use functions of newer releases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredRules {
    rules: BTreeSet<String>,
    messages: BTreeSet<String>,
}

impl StoredRules {
    /// Adds the expressions of a further version.
    pub fn extend(&mut self, other: StoredRules) {
        self.rules.extend(other.rules);
        self.messages.extend(other.messages);
    }
}

/// Collects the expressions of a schema.
pub(super) fn stored_rules(root: &Node) -> StoredRules {
    let mut stored = StoredRules::default();
    collect_expressions(root, &mut stored);
    stored
}

fn collect_expressions(node: &Node, stored: &mut StoredRules) {
    for rule in node.rules.iter().flat_map(|rules| &rules.list) {
        stored.rules.insert(rule.rule.to_string());
        if let Some(message) = &rule.message_expression {
            stored.messages.insert(message.to_string());
        }
    }
    node.children().for_each(|child| collect_expressions(child, stored));
}

impl Rules {
    fn compiled(&self, node: &Node) -> &CompiledRules {
        self.compiled
            .get_or_init(|| Box::new(CompiledRules::new(node, &self.list, &|_| Environment::stored())))
    }
}

/// An expression of a rule.
#[derive(Clone, Copy)]
enum Expression<'a> {
    Rule(&'a str),
    Message(&'a str),
}

impl CompiledRules {
    /// Compiles rules; `environment` selects the functions of an expression.
    fn new(
        node: &Node,
        rules: &[Rule],
        environment: &dyn Fn(Expression<'_>) -> Environment,
    ) -> CompiledRules {
        let Some(ty) = Type::of_schema(node, "selfType") else {
            return CompiledRules { ty: None, rules: Vec::new() };
        };
        let compile = |rule: &Rule| CompiledRule::new(node, rule, &ty, environment);
        let rules = rules.iter().map(compile).collect();
        CompiledRules { ty: Some(ty), rules }
    }
}

impl CompiledRule {
    fn new(
        node: &Node,
        rule: &Rule,
        ty: &Type,
        environment: &dyn Fn(Expression<'_>) -> Environment,
    ) -> CompiledRule {
        let old = if rule.has_optional_old_self() { Type::optional(ty.clone()) } else { ty.clone() };
        let declare =
            |environment: Environment| environment.variable(SELF, ty.clone()).variable(OLD_SELF, old.clone());
        let mut compiled = CompiledRule { program: None, message: None, uses_old_self: false, path: None };
        if rule.rule.trim().is_empty() {
            return compiled;
        }
        let program = match declare(environment(Expression::Rule(&rule.rule))).compile(&rule.rule) {
            Err(error) => Err(error.reason()),
            Ok(program) if *program.result_type() != Type::Bool => {
                Err("cel expression must evaluate to a bool".to_owned())
            }
            Ok(program) => Ok(program),
        };
        compiled.uses_old_self = program.as_ref().is_ok_and(|program| program.uses(OLD_SELF));
        // The message expression of a rule that does not compile is not compiled.
        if let (Ok(_), Some(source)) = (&program, &rule.message_expression) {
            let message = declare(environment(Expression::Message(source))).compile(source);
            compiled.message = Some(match message {
                Err(CompileError { plan: Some(reason), .. }) => {
                    Err(format!("messageExpression instantiation failed: {reason}"))
                }
                Err(error) => Err(format!("messageExpression compilation failed: {error}")),
                Ok(program) if *program.result_type() != Type::String => {
                    Err("messageExpression must evaluate to a string".to_owned())
                }
                Ok(program) => Ok(program),
            });
        }
        let path = rule.field_path.as_deref().and_then(|path| resolve(node, path));
        compiled.path = path;
        compiled.program = Some(program);
        compiled
    }
}

//! The rules of a schema node: as the definition writes them, and compiled.

use std::fmt;
use std::sync::OnceLock;

use apimachinery::field::FieldPath;
use apimachinery::object::{Map, Value};
use expressions::{Program, Type};

/// The rules of a node.
pub(super) struct Rules {
    pub(super) list: Box<[Rule]>,
    /// Compiled on first use.
    pub(super) compiled: OnceLock<Box<CompiledRules>>,
}

/// One rule, as the definition writes it.
pub(super) struct Rule {
    pub(super) rule: Box<str>,
    pub(super) message: Option<Box<str>>,
    pub(super) message_expression: Option<Box<str>>,
    pub(super) reason: Option<Box<str>>,
    pub(super) field_path: Option<Box<str>>,
    pub(super) optional_old_self: Option<bool>,
}

/// The compiled rules of a node.
pub(super) struct CompiledRules {
    /// Type of the value; None if the node has no CEL type, so that rules do not run.
    pub(super) ty: Option<Type>,
    pub(super) rules: Vec<CompiledRule>,
}

/// A compiled rule.
pub(super) struct CompiledRule {
    /// The program, or the compile error. None for an empty rule.
    pub(super) program: Option<Result<Program, String>>,
    /// The program of the message expression, or its compile error. None without a message expression.
    pub(super) message: Option<Result<Program, String>>,
    pub(super) uses_old_self: bool,
    /// The path of the field below the value to which errors refer; None for the value itself.
    pub(super) path: Option<FieldPath>,
}

impl Rules {
    /// Reads the rules of a node; None without rules.
    pub(super) fn read(list: &Value) -> Option<Rules> {
        let rules = list.as_array()?.iter().filter_map(Value::as_object).map(Rule::read);
        let list: Box<[Rule]> = rules.collect();
        (!list.is_empty()).then(|| Rules { list, compiled: OnceLock::new() })
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list.iter().map(|rule| &rule.rule)).finish()
    }
}

impl Rule {
    fn read(fields: &Map<String, Value>) -> Rule {
        let text = |name: &str| fields.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        Rule {
            rule: text("rule").unwrap_or_default().into(),
            message: text("message").map(Into::into),
            message_expression: text("messageExpression").map(Into::into),
            reason: fields.get("reason").and_then(Value::as_str).map(Into::into),
            field_path: text("fieldPath").map(Into::into),
            optional_old_self: fields.get("optionalOldSelf").and_then(Value::as_bool),
        }
    }

    pub(super) fn has_optional_old_self(&self) -> bool {
        self.optional_old_self.unwrap_or(false)
    }

    /// The message of a failure, or the text of the rule.
    pub(super) fn description(&self) -> &str {
        self.message.as_deref().unwrap_or(&self.rule).trim()
    }

    /// The detail of a failure without a message expression.
    pub(super) fn detail(&self) -> String {
        match self.message {
            Some(_) => self.description().to_owned(),
            None => format!("failed rule: {}", self.description()),
        }
    }
}

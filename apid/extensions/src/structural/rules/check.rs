//! Validation of the expressions in a definition: compilation and cost estimates.
//!
//! # Reference
//!
//! The errors of a node follow those of its children. The estimate of a rule is multiplied by the number of
//! times that the node can occur in an object.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::names::{Names, SchemaExtension};
use expressions::{Bounds, Environment, EstimateSum, Occurrences, Program, excess, limits};

use super::super::node::{Flag, ListType, Node};
use super::super::node_rules::{CompiledRules, Rule};
use super::{Expression, OLD_SELF, SELF, StoredRules};

/// Validates the rules of a schema at a path, without those of skipped parts.
pub(in super::super) fn check(
    root: &Node,
    path: &FieldPath,
    stored: &StoredRules,
    names: &Names,
    is_skipped: &dyn Fn(&FieldPath) -> bool,
) -> FieldErrors {
    let keyword = names.schema_extension(SchemaExtension::Validations);
    let (sum, errors) = (EstimateSum::default(), FieldErrors::new());
    let mut checker = Checker { keyword, stored, is_skipped, sum, errors };
    checker.check_node(root, path, Occurrences::ONCE, None);
    let Checker { keyword, sum, mut errors, .. } = checker;
    let total = format!("{keyword} estimated rule cost total for entire OpenAPIv3 schema");
    if let Some(text) = excess(&total, sum.total(), limits::SCHEMA_ESTIMATE) {
        for highest_path in sum.highest() {
            errors.push(FieldError::forbidden(
                &FieldPath::new(highest_path),
                "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema",
            ));
        }
        errors.push(FieldError::forbidden(path, &text));
    }
    errors
}

struct Checker<'a> {
    /// Full name of the keyword of rules.
    keyword: &'static str,
    stored: &'a StoredRules,
    is_skipped: &'a dyn Fn(&FieldPath) -> bool,
    sum: EstimateSum,
    errors: FieldErrors,
}

impl Checker<'_> {
    /// Checks a node that occurs at most `occurs` times in an object. `uncorrelated` is the outermost part of
    /// the schema in which old values do not correlate.
    fn check_node(
        &mut self,
        node: &Node,
        path: &FieldPath,
        occurs: Occurrences,
        uncorrelated: Option<&FieldPath>,
    ) {
        if !node.has(Flag::HasRules) {
            return;
        }
        self.check_children(node, path, occurs, uncorrelated);
        if let Some(rules) = node.rules.as_deref()
            && !(self.is_skipped)(path)
        {
            self.check_expressions(node, &rules.list, &path.child(self.keyword), occurs, uncorrelated);
        }
    }

    fn check_children(
        &mut self,
        node: &Node,
        path: &FieldPath,
        occurs: Occurrences,
        uncorrelated: Option<&FieldPath>,
    ) {
        let maximum = |read: fn(&dyn expressions::Schema) -> Option<u64>| read(node);
        if let Some(child) = node.additional() {
            let occurs = occurs.of_each(maximum(|schema| schema.max_properties()));
            self.check_node(child, &path.child("additionalProperties"), occurs, uncorrelated);
        }
        let child_uncorrelated = uncorrelated.or_else(|| node.has(Flag::AtomicMap).then_some(path));
        for property in &node.properties {
            self.check_node(
                &property.node,
                &path.child("properties").key(&property.name),
                occurs,
                child_uncorrelated,
            );
        }
        if let Some(child) = node.items.as_deref() {
            let is_map = matches!(node.list, ListType::Map(_));
            let child_uncorrelated = uncorrelated.or_else(|| (!is_map).then_some(path));
            let occurs = occurs.of_each(maximum(|schema| schema.max_items()));
            self.check_node(child, &path.child("items"), occurs, child_uncorrelated);
        }
    }

    fn check_expressions(
        &mut self,
        node: &Node,
        rules: &[Rule],
        path: &FieldPath,
        occurs: Occurrences,
        uncorrelated: Option<&FieldPath>,
    ) {
        let stored = self.stored;
        let environment = |expression: Expression<'_>| {
            let is_stored = match expression {
                Expression::Rule(text) => stored.rules.contains(text),
                Expression::Message(text) => stored.messages.contains(text),
            };
            if is_stored { Environment::stored() } else { Environment::new() }
        };
        let compiled = CompiledRules::new(node, rules, &environment);
        let bounds = Bounds::of_schema(node).filter(|_| compiled.ty.is_some());
        let Some(bounds) = bounds else {
            let keyword = self.keyword;
            let detail = format!("internal error: failed to retrieve type information for {keyword}");
            return self.errors.push(FieldError::internal(path, &detail));
        };
        let estimate = |program: &Program| program.estimate(&[(SELF, &bounds), (OLD_SELF, &bounds)]).max;
        for (index, (rule, compiled)) in rules.iter().zip(&compiled.rules).enumerate() {
            let path = path.index(index);
            let rule_path = path.child("rule");
            match &compiled.program {
                None => {}
                Some(Ok(program)) => {
                    let cost = estimate(program).saturating_mul(occurs.count(&bounds));
                    self.charge(&rule_path, "estimated rule cost", cost);
                }
                Some(Err(error)) => self.errors.push(invalid_rule_error(&rule_path, rule, error)),
            }
            let message_path = path.child("messageExpression");
            match &compiled.message {
                None => {}
                Some(Ok(program)) => {
                    self.charge(&message_path, "estimated messageExpression cost", estimate(program));
                }
                Some(Err(error)) => self.errors.push(invalid_rule_error(&message_path, rule, error)),
            }
            if let (true, Some(part)) = (compiled.uses_old_self, uncorrelated) {
                let detail = format!(
                    "oldSelf cannot be used on the uncorrelatable portion of the schema within {part}"
                );
                self.errors.push(FieldError::invalid(&rule_path, &*rule.rule, &detail));
            } else if let (false, Some(flag)) = (compiled.uses_old_self, rule.optional_old_self) {
                let detail = "may not be set if oldSelf is not used in rule";
                self.errors.push(FieldError::invalid(&path.child("optionalOldSelf"), flag, detail));
            }
        }
    }

    /// Adds an estimate to the sum, and an error if it exceeds the limit of one expression.
    fn charge(&mut self, path: &FieldPath, phrase: &str, cost: u64) {
        if let Some(text) = excess(phrase, cost, limits::RULE_ESTIMATE) {
            self.errors.push(FieldError::forbidden(path, &text));
        }
        self.sum.add(path.as_str(), cost);
    }
}

/// An error that shows the whole rule.
fn invalid_rule_error(path: &FieldPath, rule: &Rule, detail: &str) -> FieldError {
    let text = |text: &str| {
        // The reference escapes these characters for HTML.
        let json = serde_json::Value::from(text).to_string();
        json.replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e")
    };
    let optional = |value: Option<&str>| text(value.unwrap_or_default());
    let rule_text = format!(
        "{{\"Rule\":{},\"Message\":{},\"MessageExpression\":{},\"Reason\":{},\"FieldPath\":{},\"OptionalOldSelf\":{}}}",
        text(&rule.rule),
        optional(rule.message.as_deref()),
        optional(rule.message_expression.as_deref()),
        rule.reason.as_deref().map_or_else(|| "null".to_owned(), text),
        optional(rule.field_path.as_deref()),
        rule.optional_old_self.map_or_else(|| "null".to_owned(), |flag| flag.to_string()),
    );
    FieldError::invalid_json(path, &rule_text, detail)
}

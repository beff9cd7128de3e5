//! Evaluation of rules on an object.
//!
//! # Reference
//!
//! Transition rules run only where an old value correlates, except rules with `optionalOldSelf`. For rules,
//! list items correlate only in map lists, by their keys. Errors of rules without `oldSelf` on unchanged
//! values become warnings. An exceeded budget ends the validation.

use std::sync::Arc;

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::Value;
use expressions::{Cost, EvalError, Program, SchemaType, Type, Value as CelValue, limits};

use super::super::Validation;
use super::super::node::{Flag, ListType, Node};
use super::super::node_rules::{CompiledRule, Rule};
use super::super::place::{Data, Place, PlaceStep, item_key, items_by_key};
use super::super::values::is_blocking;
use super::{OLD_SELF, SELF};

/// Maximum size of an evaluated message in bytes; a longer message is ignored.
const MESSAGE_MAX: usize = 5 * 1024;
/// Maximum number of warnings about one object; further warnings are omitted.
const WARNINGS_MAX: usize = 100;

/// The error of an object whose blocking errors prevent the rules from running.
const BLOCKED: &str = "some validation rules were not checked because the object was invalid; correct the existing \
    errors to complete validation";
/// The error of an exceeded budget.
const BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// Runs the rules on an object or a single value at a path, unless its other errors are blocking. Returns the
/// other errors and those of the rules.
pub(in super::super) fn validate(
    node: &Node,
    data: Data<'_>,
    old: Option<Data<'_>>,
    base: &FieldPath,
    errors: FieldErrors,
) -> Validation {
    let mut validation = Validation { errors, warnings: Vec::new() };
    if !node.has(Flag::HasRules) {
        return validation;
    }
    if validation.errors.iter().any(is_blocking) {
        let path = if base.as_str().is_empty() { FieldPath::new("<nil>") } else { base.clone() };
        validation.errors.push(FieldError::invalid(&path, "null", BLOCKED));
        return validation;
    }
    let mut run = RuleRun { base, tolerates: old.is_some(), budget: limits::OBJECT, validation };
    // The result is ignored: an early end of the walk has already added its error.
    let _ = run.visit(&Place::root(node, data, old), old);
    run.validation
}

/// Ends the evaluation of all rules because a cost limit is exceeded. The error is reported already.
struct StopRules;

/// The state of a run of the rules on one object.
struct RuleRun<'e> {
    base: &'e FieldPath,
    /// Whether errors on unchanged values are tolerated.
    tolerates: bool,
    /// Remaining cost units for all rules.
    budget: u64,
    validation: Validation,
}

impl RuleRun<'_> {
    fn visit(&mut self, place: &Place<'_, '_>, old: Option<Data<'_>>) -> Result<(), StopRules> {
        let node = place.node;
        if !node.has(Flag::HasRules) || node.kind == SchemaType::Unspecified || place.data.is_null() {
            return Ok(());
        }
        let old = old.filter(|old| !old.is_null());
        self.run_rules(place, old)?;
        match place.data {
            Data::Object(fields) => {
                let old = old.and_then(Data::fields).filter(|_| !node.has(Flag::AtomicMap));
                for (name, value) in fields {
                    let (step, child) = match (node.property(name), node.additional()) {
                        (Some(child), _) => (PlaceStep::Property(name), child),
                        (None, Some(child)) => (PlaceStep::Key(name), child),
                        (None, None) => continue,
                    };
                    if child.has(Flag::HasRules) {
                        let old = old.and_then(|old| old.get(name)).map(Data::from_value);
                        self.visit(&place.child(step, child, value), old)?;
                    }
                }
            }
            Data::Other(Value::Array(items)) => {
                let Some(child) = node.items.as_deref().filter(|child| child.has(Flag::HasRules)) else {
                    return Ok(());
                };
                let correlated = match (&node.list, old.and_then(Data::items)) {
                    (ListType::Map(keys), Some(old)) => Some((keys, items_by_key(node, keys, old))),
                    _ => None,
                };
                for (index, item) in items.iter().enumerate() {
                    let old = correlated
                        .as_ref()
                        .and_then(|(keys, old)| old.get(&item_key(node, keys, item.as_object()?)?).copied());
                    self.visit(
                        &place.child(PlaceStep::Index(index), child, item),
                        old.map(Data::from_value),
                    )?;
                }
            }
            Data::Other(_) => {}
        }
        Ok(())
    }

    /// Runs the rules of one node.
    fn run_rules(&mut self, place: &Place<'_, '_>, old: Option<Data<'_>>) -> Result<(), StopRules> {
        let Some(rules) = place.node.rules.as_deref() else { return Ok(()) };
        let compiled = rules.compiled(place.node);
        let Some(ty) = &compiled.ty else { return Ok(()) };
        let value = cel_value(place.data, ty);
        let old_value = old.map(|old| cel_value(old, ty));
        for (rule, compiled) in rules.list.iter().zip(&compiled.rules) {
            let program = match &compiled.program {
                None => continue,
                Some(Ok(program)) => program,
                Some(Err(error)) => {
                    self.fail(place, &format!("rule compile error: {error}"));
                    continue;
                }
            };
            if compiled.uses_old_self && old.is_none() && !rule.has_optional_old_self() {
                continue;
            }
            let variables = match (&value, old_value.as_ref().map(Result::as_ref).transpose()) {
                (Ok(value), Ok(old)) => variables(rule, value, old),
                (Err(error), _) | (_, Err(error)) => {
                    self.fail(place, &format!("{error} evaluating rule: {}", rule.description()));
                    continue;
                }
            };
            match self.evaluate(place, program, &variables)? {
                Ok(CelValue::Bool(true)) => {}
                Ok(_) => self.report(place, rule, compiled, &variables)?,
                Err(error @ EvalError::NoOverload) => self.fail(
                    place,
                    &format!(
                        "'{error}': call arguments did not match a supported operator, function or macro \
                         signature for rule: {}",
                        rule.description()
                    ),
                ),
                Err(error @ EvalError::CostLimit) => {
                    let text =
                        "no further validation rules will be run due to call cost exceeds limit for rule";
                    self.fail(place, &format!("'{error}': {text}: {}", rule.description()));
                    return Err(StopRules);
                }
                Err(error) => self.fail(place, &format!("{error} evaluating rule: {}", rule.description())),
            }
        }
        Ok(())
    }

    /// Evaluates a rule and charges its cost.
    fn evaluate<'v>(
        &mut self,
        place: &Place<'_, '_>,
        program: &'v Program,
        variables: &[(&str, CelValue<'v>)],
    ) -> Result<Result<CelValue<'v>, EvalError>, StopRules> {
        if self.budget == 0 {
            self.fail(place, BUDGET);
            return Err(StopRules);
        }
        let mut cost = Cost::limit(limits::CALL);
        let outcome = program.evaluate(variables, &mut cost);
        if cost.used() > self.budget {
            self.fail(place, BUDGET);
            return Err(StopRules);
        }
        self.budget -= cost.used();
        Ok(outcome)
    }

    /// Reports a rule that is false.
    fn report(
        &mut self,
        place: &Place<'_, '_>,
        rule: &Rule,
        compiled: &CompiledRule,
        variables: &[(&str, CelValue<'_>)],
    ) -> Result<(), StopRules> {
        let mut path = place.path(self.base);
        if let Some(field_path) = &compiled.path {
            path = path.child(field_path.as_str());
        }
        let mut detail = None;
        if let (Some(Ok(program)), Some(source)) = (&compiled.message, &rule.message_expression) {
            match self.evaluate_message(program, source, variables) {
                Ok(message) => detail = message,
                Err(text) => {
                    let error = FieldError::invalid(&path, place.node.kind.name(), &text);
                    self.add(place, compiled, error);
                    return Err(StopRules);
                }
            }
        }
        let detail = detail.unwrap_or_else(|| rule.detail());
        let error = failure(rule, place.node.kind.name(), &path, &detail);
        self.add(place, compiled, error);
        Ok(())
    }

    /// Evaluates a message expression. None without a usable message; an error if the budget is exceeded.
    fn evaluate_message<'v>(
        &mut self,
        program: &'v Program,
        source: &str,
        variables: &[(&str, CelValue<'v>)],
    ) -> Result<Option<String>, String> {
        let mut cost = Cost::limit(limits::CALL);
        let outcome = program.evaluate(variables, &mut cost);
        if cost.used() > self.budget {
            let text = "messageExpression evaluation failed due to running out of cost budget, no further \
                        validation rules will be run";
            return Err(text.to_owned());
        }
        self.budget -= cost.used();
        match outcome {
            Err(EvalError::CostLimit) => Err(format!(
                "no further validation rules will be run due to call cost exceeds limit for messageExpression: {}",
                apimachinery::field::quote(source)
            )),
            Err(_) => Ok(None),
            Ok(value) => {
                let text = value.as_str().unwrap_or_default().trim();
                let is_usable = !text.is_empty() && text.len() <= MESSAGE_MAX && !text.contains('\n');
                Ok(is_usable.then(|| text.to_owned()))
            }
        }
    }

    /// Adds an error, or a warning if the value is unchanged and the rule is not a transition rule.
    fn add(&mut self, place: &Place<'_, '_>, compiled: &CompiledRule, error: FieldError) {
        let is_tolerated = self.tolerates
            && !compiled.uses_old_self
            && !place.is_type_of_root()
            && place.is_nearest_unchanged();
        if !is_tolerated {
            self.validation.errors.push(error);
        } else if self.validation.warnings.len() < WARNINGS_MAX {
            self.validation.warnings.push(error.to_string());
        }
    }

    /// Adds an error of the evaluation itself, which shows the type of the value.
    fn fail(&mut self, place: &Place<'_, '_>, detail: &str) {
        let path = place.path(self.base);
        self.validation.errors.push(FieldError::invalid(&path, place.node.kind.name(), detail));
    }
}

fn cel_value<'v>(data: Data<'v>, ty: &'v Type) -> Result<CelValue<'v>, EvalError> {
    match data {
        Data::Object(fields) => Ok(CelValue::object(fields, ty)),
        Data::Other(value) => CelValue::of(value, ty),
    }
}

/// The variables of a rule; `oldSelf` has no value on creation unless it is optional.
fn variables<'v>(
    rule: &Rule,
    value: &CelValue<'v>,
    old: Option<&CelValue<'v>>,
) -> Vec<(&'static str, CelValue<'v>)> {
    let mut variables = vec![(SELF, value.clone())];
    if rule.has_optional_old_self() {
        variables.push((OLD_SELF, CelValue::Optional(old.cloned().map(Arc::new))));
    } else if let Some(old) = old {
        variables.push((OLD_SELF, old.clone()));
    }
    variables
}

/// The error of a rule that is false. The error shows the type of the schema in place of the value.
fn failure(rule: &Rule, type_name: &str, path: &FieldPath, detail: &str) -> FieldError {
    match rule.reason.as_deref() {
        Some("FieldValueForbidden") => FieldError::forbidden(path, detail),
        Some("FieldValueRequired") => FieldError::required(path, detail),
        Some("FieldValueDuplicate") => FieldError::duplicate(path, type_name),
        _ => FieldError::invalid(path, type_name, detail),
    }
}

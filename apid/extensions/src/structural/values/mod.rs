//! Validation of values against the keywords of OpenAPI: types, formats, sizes, enumerations, combinations.
//!
//! # Contract
//!
//! Errors have the causes and texts of kube-apiserver. The order for one value is: type, combinations of
//! schemas (`anyOf`, `oneOf`, `allOf`, `not`), text, format, number, list, enumeration, object. With an old
//! value, errors of unchanged values are tolerated; the alternatives of a combination are checked without it.
//!
//! # Reference
//!
//! The text of an error names the path of the field relative to the validated value. An error of the validated
//! value itself has no such path; its text names `<nil>`.
//! If no alternative of a combination matches, the errors of the closest alternative follow: the one with
//! the most passed checks.

mod formats;
mod numbers;

use std::cell::Cell;

use apimachinery::codec::json;
use apimachinery::field::{FieldError, FieldErrorKind, FieldErrors, FieldPath};
use apimachinery::object::{Map, Value};
use expressions::{SchemaType, Steps};

use super::node::{Additional, Constraints, Flag, Junctors, Node, Pattern};
use super::place::{Data, Place, PlaceStep};

pub use formats::is_supported_format;

/// Validates an object or a single value, with the one that it replaces; paths of errors begin with `base`.
pub(super) fn validate(node: &Node, data: Data<'_>, old: Option<Data<'_>>, base: &FieldPath) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let steps = Cell::new(Some(Steps::OBJECT));
    let mut check = Check { base, tolerates: old.is_some(), errors: &mut errors, steps: &steps };
    check.check_value(&Place::root(node, data, old));
    if steps.get().is_none() {
        errors.push(FieldError::invalid(
            base,
            "",
            "the patterns of the schema take too many steps to evaluate",
        ));
    }
    errors
}

/// A walk that collects errors. Methods return the number of passed checks.
struct Check<'e> {
    base: &'e FieldPath,
    /// Whether errors of unchanged values are tolerated.
    tolerates: bool,
    errors: &'e mut FieldErrors,
    /// The steps that patterns have left; None after a pattern needed more.
    steps: &'e Cell<Option<Steps>>,
}

impl Check<'_> {
    /// Adds an error at a place. With tolerance, drops the error of an unchanged value.
    fn fail(&mut self, place: &Place<'_, '_>, error: impl FnOnce(&str, &FieldPath) -> FieldError) {
        if self.is_tolerated(place) {
            return;
        }
        let name = place.name();
        let path = self.path(&name);
        self.errors.push(error(&name, &path));
    }

    /// Adds an error whose cause names no field, as those about the range of a format.
    fn fail_without_field(&mut self, place: &Place<'_, '_>, detail: &str) {
        if !self.is_tolerated(place) {
            self.errors.push(FieldError::invalid(&self.path(""), "", detail));
        }
    }

    /// Whether errors of a place are tolerated, because the value or a part that contains it is unchanged.
    fn is_tolerated(&self, place: &Place<'_, '_>) -> bool {
        self.tolerates && place.is_unchanged()
    }

    /// The path of an error from the position that its text names.
    fn path(&self, name: &str) -> FieldPath {
        match (name, self.base.as_str()) {
            ("", "") => FieldPath::new("<nil>"),
            ("", _) => self.base.clone(),
            (name, _) => self.base.child(name.trim_start_matches('.')),
        }
    }

    fn check_value(&mut self, place: &Place<'_, '_>) -> u64 {
        let (node, data) = (place.node, place.data);
        let mut passed = self.check_kind(place);
        if data.is_null() {
            self.check_enumeration(place);
            return passed;
        }
        let constraints = node.constraints.as_deref();
        if let Some(junctors) = constraints.and_then(|known| known.junctors.as_deref()) {
            passed += self.check_junctors(place, junctors);
        }
        // The reference counts one pass for the combinations, one for each applicable check, and one at the
        // end.
        passed += 4;
        match data {
            Data::Other(Value::String(text)) => {
                passed += 1;
                if let Some(constraints) = constraints {
                    passed += u64::from(constraints.format.as_deref().is_some_and(formats::is_string_format));
                    self.check_text(place, constraints, text);
                }
            }
            Data::Other(Value::Number(number)) => {
                passed += 2;
                if let Some(constraints) = constraints {
                    numbers::check(self, place, constraints, number);
                }
            }
            Data::Other(Value::Array(items)) => {
                passed += 2;
                passed += self.check_list(place, items);
            }
            _ => {}
        }
        self.check_enumeration(place);
        if let Data::Object(fields) = data {
            passed += 1;
            passed += self.check_fields(place, fields);
        }
        passed
    }

    /// Checks the type of a value.
    fn check_kind(&mut self, place: &Place<'_, '_>) -> u64 {
        let (node, data) = (place.node, place.data);
        let format = node.constraints.as_deref().and_then(|known| known.format.as_deref());
        if node.kind == SchemaType::Unspecified && format.is_none() {
            return 0;
        }
        let (ty, number_format) = json_type(data);
        let is_valid_kind = match (node.kind, data) {
            (_, Data::Other(Value::Null)) => node.has(Flag::Nullable) || node.kind == SchemaType::Unspecified,
            // A format replaces the type for texts and lists.
            (kind, Data::Other(Value::String(_) | Value::Array(_)))
                if format.is_some()
                    && !matches!(
                        kind,
                        SchemaType::Number | SchemaType::Integer | SchemaType::IntOrString
                    ) =>
            {
                true
            }
            (SchemaType::Object, Data::Object(_))
            | (SchemaType::Array, Data::Other(Value::Array(_)))
            | (SchemaType::String | SchemaType::IntOrString, Data::Other(Value::String(_)))
            | (SchemaType::Boolean, Data::Other(Value::Bool(_)))
            | (SchemaType::Number, Data::Other(Value::Number(_))) => true,
            (SchemaType::Integer | SchemaType::IntOrString, Data::Other(Value::Number(number))) => {
                numbers::is_integer(number)
            }
            _ => false,
        };
        if is_valid_kind {
            return 2;
        }
        let format =
            format.filter(|_| !matches!(data, Data::Other(Value::String(_) | Value::Array(_) | Value::Null)));
        let expected = match (format, node.kind) {
            (Some(format), _) => format,
            (None, SchemaType::IntOrString) => "integer,string",
            (None, kind) => kind.name(),
        };
        let actual = if format.is_some() { number_format } else { ty };
        self.fail(place, |name, path| {
            let detail = format!("{name} in body must be of type {expected}: \"{actual}\"");
            FieldError::type_invalid(path, actual, &detail)
        });
        1
    }

    /// Checks length, pattern and format of a text. Reports one error about length and pattern.
    fn check_text(&mut self, place: &Place<'_, '_>, constraints: &Constraints, text: &str) {
        let needs_length = constraints.max_length.is_some() || constraints.min_length.is_some();
        let length = if needs_length { text.chars().count() as u64 } else { 0 };
        if let Some(max) = constraints.max_length.filter(|max| length > *max) {
            let max = usize::try_from(max).unwrap_or(usize::MAX);
            self.fail(place, |_, path| FieldError::too_long(path, max));
        } else if let Some(min) = constraints.min_length.filter(|min| length < *min) {
            self.fail(place, |name, path| {
                let detail = format!("{name} in body should be at least {min} chars long");
                FieldError::invalid(path, text, &detail)
            });
        } else if let Some(pattern) = &constraints.pattern
            && !self.is_match(pattern, text)
        {
            self.fail(place, |name, path| {
                let detail = format!("{name} in body should match '{}'", pattern.source);
                FieldError::invalid(path, text, &detail)
            });
        }
        if let Some(format) = constraints.format.as_deref()
            && !formats::is_valid(format, text)
        {
            self.fail(place, |name, path| {
                let detail =
                    format!("{name} in body must be of type {format}: {}", apimachinery::field::quote(text));
                FieldError::type_invalid(path, text, &detail)
            });
        }
    }

    /// Whether a text matches a pattern. Without steps each text matches, and the validation fails at the end.
    fn is_match(&self, pattern: &Pattern, text: &str) -> bool {
        let Some(mut steps) = self.steps.get() else { return true };
        let found = pattern.is_match(text, &mut steps);
        self.steps.set(found.is_ok().then_some(steps));
        found.unwrap_or(true)
    }

    fn check_list<'a>(&mut self, place: &Place<'_, 'a>, items: &'a [Value]) -> u64 {
        let mut passed = 0;
        if let Some(child) = place.node.items.as_deref() {
            for (index, item) in items.iter().enumerate() {
                passed += self.check_value(&place.child(PlaceStep::Index(index), child, item));
                if self.errors.is_full() && !self.tolerates {
                    break;
                }
            }
        }
        let Some(constraints) = place.node.constraints.as_deref() else { return passed };
        let length = items.len();
        if let Some(min) = constraints.min_items.filter(|min| (length as u64) < *min) {
            self.fail(place, |name, path| {
                let detail = format!("{name} in body should have at least {min} items");
                FieldError::invalid(path, length, &detail)
            });
        }
        if let Some(max) = constraints.max_items.filter(|max| length as u64 > *max) {
            let max = usize::try_from(max).unwrap_or(usize::MAX);
            self.fail(place, |_, path| FieldError::too_many(path, length, max));
        }
        if constraints.unique_items && !are_unique(items) {
            self.fail(place, |name, path| {
                FieldError::invalid(path, "", &format!("{name} in body shouldn't contain duplicates"))
            });
        }
        passed
    }

    fn check_fields<'a>(&mut self, place: &Place<'_, 'a>, fields: &'a Map<String, Value>) -> u64 {
        let node = place.node;
        let constraints = node.constraints.as_deref();
        let count = fields.len();
        if let Some(constraints) = constraints {
            if let Some(min) = constraints.min_properties.filter(|min| (count as u64) < *min) {
                self.fail(place, |name, path| {
                    let detail = format!("{name} in body should have at least {min} properties");
                    FieldError::invalid(path, count, &detail)
                });
            }
            if let Some(max) = constraints.max_properties.filter(|max| count as u64 > *max) {
                let max = usize::try_from(max).unwrap_or(usize::MAX);
                self.fail(place, |_, path| FieldError::too_many(path, count, max));
            }
        }
        let mut passed = 0;
        for (name, value) in fields {
            match (node.property(name), &node.additional) {
                (Some(child), _) => {
                    passed += self.check_value(&place.child(PlaceStep::Property(name), child, value))
                }
                (None, Additional::Schema(child)) => {
                    passed += self.check_value(&place.child(PlaceStep::Key(name), child, value));
                }
                (None, Additional::Allowed(false)) => self.fail(place, |position, path| {
                    let detail = format!("{position}.{name} in body is a forbidden property");
                    FieldError::invalid(path, name.as_str(), &detail)
                }),
                (None, Additional::Absent | Additional::Allowed(true)) => {}
            }
        }
        let required = constraints.map_or(&[][..], |constraints| &constraints.required);
        for name in required.iter().filter(|name| !fields.contains_key(&***name)) {
            if !self.is_tolerated(place) {
                let path = self.path(&format!("{}.{name}", place.name()));
                self.errors.push(FieldError::required(&path, ""));
            }
        }
        passed
    }

    fn check_enumeration(&mut self, place: &Place<'_, '_>) {
        let values = place.node.constraints.as_deref().and_then(|known| known.values.as_deref());
        let Some(values) = values else { return };
        // The reference never accepts null, not even if the enumeration lists it.
        let is_allowed = match place.data {
            Data::Object(fields) => values.iter().any(|allowed| allowed.as_object() == Some(fields)),
            Data::Other(Value::Null) => false,
            Data::Other(value) => values.iter().any(|allowed| numbers::is_same(allowed, value)),
        };
        if is_allowed {
            return;
        }
        self.fail(place, |_, path| {
            let texts: Vec<String> = values
                .iter()
                .map(|allowed| allowed.as_str().map_or_else(|| json::to_text(allowed), str::to_owned))
                .collect();
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            FieldError::untyped_not_supported(path, &place.data.to_value(), &texts)
        });
    }

    /// Checks the value of a place against a schema of a combination.
    fn check_alternative<'a>(&self, place: &Place<'_, 'a>, node: &'a Node) -> (FieldErrors, u64) {
        let mut errors = FieldErrors::new();
        let mut check = Check { base: self.base, tolerates: false, errors: &mut errors, steps: self.steps };
        let passed = check.check_value(&place.alternative(node));
        (errors, passed)
    }

    fn check_junctors<'a>(&mut self, place: &Place<'_, 'a>, junctors: &'a Junctors) -> u64 {
        let mut passed = 0;
        let mut errors = FieldErrors::new();
        let failure = |text: &str| {
            let path = self.path("");
            FieldError::invalid(&path, "", &format!("{} {text}", apimachinery::field::quote(&place.name())))
        };
        if !junctors.any_of.is_empty() {
            let mut closest: Option<(FieldErrors, u64)> = None;
            let mut is_valid = false;
            for node in &junctors.any_of {
                let outcome = self.check_alternative(place, node);
                if outcome.0.is_empty() {
                    is_valid = true;
                    passed += outcome.1;
                    break;
                }
                keep_closest(&mut closest, outcome);
            }
            if !is_valid {
                errors.push(failure("must validate at least one schema (anyOf)"));
                add_closest(&mut errors, &mut passed, closest);
            }
        }
        if !junctors.one_of.is_empty() {
            let mut closest: Option<(FieldErrors, u64)> = None;
            let (mut valid, mut first) = (0_usize, 0);
            for node in &junctors.one_of {
                let outcome = self.check_alternative(place, node);
                if outcome.0.is_empty() {
                    first = if valid == 0 { outcome.1 } else { first };
                    valid += 1;
                    closest = None;
                } else if valid == 0 {
                    keep_closest(&mut closest, outcome);
                }
            }
            match valid {
                1 => passed += first,
                0 => {
                    errors.push(failure("must validate one and only one schema (oneOf). Found none valid"));
                    add_closest(&mut errors, &mut passed, closest);
                }
                _ => errors.push(failure(&format!(
                    "must validate one and only one schema (oneOf). Found {valid} valid alternatives"
                ))),
            }
        }
        if !junctors.all_of.is_empty() {
            let mut valid = 0;
            for node in &junctors.all_of {
                let outcome = self.check_alternative(place, node);
                valid += usize::from(outcome.0.is_empty());
                passed += outcome.1;
                errors.extend(outcome.0);
            }
            if valid != junctors.all_of.len() {
                let none = if valid == 0 { ". None validated" } else { "" };
                errors.push(failure(&format!("must validate all the schemas (allOf){none}")));
            }
        }
        if let Some(node) = &junctors.not
            && self.check_alternative(place, node).0.is_empty()
        {
            errors.push(failure("must not validate the schema (not)"));
        }
        if !errors.is_empty() && !self.is_tolerated(place) {
            self.errors.extend(errors);
        }
        passed
    }
}

/// Keeps the alternative with the most passed checks; the first of equal ones.
fn keep_closest(closest: &mut Option<(FieldErrors, u64)>, outcome: (FieldErrors, u64)) {
    if closest.as_ref().is_none_or(|known| outcome.1 > known.1) {
        *closest = Some(outcome);
    }
}

fn add_closest(errors: &mut FieldErrors, passed: &mut u64, closest: Option<(FieldErrors, u64)>) {
    if let Some((found, count)) = closest {
        errors.extend(found);
        *passed += count;
    }
}

/// The JSON type of a value, and the format of a number.
fn json_type(data: Data<'_>) -> (&'static str, &'static str) {
    match data {
        Data::Object(_) | Data::Other(Value::Object(_)) => ("object", ""),
        Data::Other(Value::Null) => ("null", ""),
        Data::Other(Value::Bool(_)) => ("boolean", ""),
        Data::Other(Value::Number(number)) if number.is_i64() => ("integer", "int64"),
        Data::Other(Value::Number(_)) => ("number", "float64"),
        Data::Other(Value::String(_)) => ("string", ""),
        Data::Other(Value::Array(_)) => ("array", ""),
    }
}

fn are_unique(items: &[Value]) -> bool {
    let mut texts: Vec<String> = items.iter().map(json::to_text).collect();
    texts.sort_unstable();
    texts.windows(2).all(|pair| pair.first() != pair.last())
}

/// Whether an error prevents rules from running: a missing, wrong-typed, unsupported or oversized value.
pub(super) fn is_blocking(error: &FieldError) -> bool {
    matches!(
        error.kind,
        FieldErrorKind::NotSupported
            | FieldErrorKind::Required
            | FieldErrorKind::TooLong
            | FieldErrorKind::TooMany
            | FieldErrorKind::TypeInvalid
    )
}

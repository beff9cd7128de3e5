//! Validation of limit ranges.

use std::collections::BTreeSet;

use apimachinery::field::FieldErrors;
use apimachinery::names::Names;
use apimachinery::object::Object;
use apimachinery::quantity;

use crate::format;
use crate::validation::{Field, resource, text};

/// Number of billionths in a unit.
const UNIT: i128 = 1_000_000_000;
/// Number of billionths in a thousandth.
const MILLI: i128 = 1_000_000;
/// Amounts below this number of units can be expressed in thousandths as a signed 64-bit number.
const MILLI_MAX: i128 = i64::MAX as i128 / 1000;

/// Validates the limits.
pub(super) fn validate(object: &Object, names: &Names) -> FieldErrors {
    let spec = Field::new(object.get("spec"), "spec");
    let mut errors = FieldErrors::new();
    let mut types = BTreeSet::new();
    for limit in spec.child("limits").items() {
        let kind = limit.child("type");
        validate_limit_type(&kind, &mut errors);
        if !types.insert(kind.text()) {
            errors.push(kind.duplicate_value(kind.text()));
        }
        validate_limit(&limit, names, &mut errors);
    }
    errors
}

fn validate_limit_type(kind: &Field<'_, '_>, errors: &mut FieldErrors) {
    let name = kind.text();
    let is_valid = text::check_name(kind, name, format::qualified_name, errors);
    let is_standard = matches!(name, "Pod" | "Container" | "PersistentVolumeClaim");
    if is_valid && !name.contains('/') && !is_standard {
        errors.push(kind.invalid("must be a standard limit type or fully qualified"));
    }
}

fn validate_limit(limit: &Field<'_, '_>, names: &Names, errors: &mut FieldErrors) {
    let kind = limit.child("type");
    let is_pod = kind.text() == "Pod";
    let mut resources = BTreeSet::new();
    for list in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
        let field = limit.child(list);
        let is_default = matches!(list, "default" | "defaultRequest");
        if is_pod && is_default {
            if field.entries().next().is_some() {
                errors.push(field.forbidden("may not be specified when `type` is 'Pod'"));
            }
            continue;
        }
        for (name, amount) in field.entries() {
            if matches!(kind.text(), "Pod" | "Container") {
                resource::check_container_resource_name(&amount, name, names, errors);
            } else {
                resource::check_name(&amount, name, errors);
            }
            resources.insert(name);
        }
    }
    let has_storage =
        |list: &str| limit.child(list).value().is_some_and(|list| list.get("storage").is_some());
    if kind.text() == "PersistentVolumeClaim" && !has_storage("min") && !has_storage("max") {
        let detail = "either minimum or maximum storage value is required, but neither was provided";
        errors.push(limit.child("limits").required(detail));
    }
    for name in resources {
        compare(limit, name, names, errors);
    }
}

/// An amount of a resource with its text.
struct Amount<'v> {
    text: &'v str,
    nanos: i128,
}

impl Amount<'_> {
    /// The amount in whole units, rounded up.
    fn units(&self) -> i128 {
        self.nanos.div_euclid(UNIT) + i128::from(self.nanos.rem_euclid(UNIT) != 0)
    }

    /// The amount in thousandths, rounded up.
    fn millis(&self) -> i128 {
        self.nanos.div_euclid(MILLI) + i128::from(self.nanos.rem_euclid(MILLI) != 0)
    }
}

/// Compares the amounts of one resource.
fn compare(limit: &Field<'_, '_>, name: &str, names: &Names, errors: &mut FieldErrors) {
    let amount = |list: &str| {
        let text = limit.value()?.get(list)?.get(name)?.as_str()?;
        Some(Amount { text, nanos: quantity::nanos(text).ok()?.0 })
    };
    let (min, max) = (amount("min"), amount("max"));
    let (default, request) = (amount("default"), amount("defaultRequest"));
    // As in kube-apiserver, an error of `default` shows the minimum or maximum, and an error of
    // `defaultRequest` shows the request.
    let ordered_pairs = [
        (&min, "min value", &max, "max value", "min", &min),
        (&min, "min value", &request, "default request value", "defaultRequest", &request),
        (&request, "default request value", &max, "max value", "defaultRequest", &request),
        (&request, "default request value", &default, "default limit value", "defaultRequest", &request),
        (&min, "min value", &default, "default value", "default", &min),
        (&default, "default value", &max, "max value", "default", &max),
    ];
    for (low, low_name, high, high_name, list, error_value) in ordered_pairs {
        if let (Some(low), Some(high), Some(error_value)) = (low, high, error_value)
            && low.nanos > high.nanos
        {
            let detail = format!("{low_name} {} is greater than {high_name} {}", low.text, high.text);
            errors.push(limit.child(list).entry(name, None).invalid_value(error_value.text, &detail));
        }
    }
    if let Some(ratio) = amount("maxLimitRequestRatio") {
        let list = limit.child("maxLimitRequestRatio");
        compare_ratio(&list.entry(name, None), &ratio, min.as_ref(), max.as_ref(), errors);
    }
    if let (Some(default), Some(request)) = (&default, &request)
        && !resource::allows_overcommit(name, names)
        && default.nanos != request.nanos
    {
        let (default, request) = (default.text, request.text);
        let detail =
            format!("default value {default} must equal to defaultRequest value {request} in {name}");
        errors.push(limit.child("defaultRequest").entry(name, None).invalid_value(request, &detail));
    }
}

#[allow(clippy::cast_precision_loss, reason = "kube-apiserver compares and shows floating-point numbers")]
fn compare_ratio(
    field: &Field<'_, '_>,
    ratio: &Amount<'_>,
    min: Option<&Amount<'_>>,
    max: Option<&Amount<'_>>,
    errors: &mut FieldErrors,
) {
    let text = ratio.text;
    if ratio.nanos < UNIT {
        errors.push(field.invalid_value(text, &format!("ratio {text} is less than 1")));
    }
    let (Some(min), Some(max)) = (min, max) else { return };
    let is_small = [ratio, min, max].iter().all(|amount| amount.units() < MILLI_MAX);
    let (value, limit) = if is_small {
        (ratio.millis() as f64 / 1000.0, max.millis() as f64 / min.millis() as f64)
    } else {
        (ratio.units() as f64, max.units() as f64 / min.units() as f64)
    };
    if value > limit {
        let detail = format!("ratio {text} is greater than max/min = {limit:.6}");
        errors.push(field.invalid_value(text, &detail));
    }
}

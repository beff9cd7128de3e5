//! Tolerations: comparison, merge and validation.

use apimachinery::object::{Object, Value};

use crate::tree::{items_at, text};

/// The error of an invalid list of tolerations.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TolerationsError {
    #[error("must be a list of tolerations")]
    NotAList,
    #[error("toleration {index} {defect}")]
    Toleration { index: usize, defect: TolerationDefect },
}

/// The defect of a toleration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TolerationDefect {
    #[error("must be an object")]
    NotAnObject,
    #[error("has an unknown field `{0}`")]
    UnknownField(String),
    #[error("has a `{0}` of the wrong type")]
    FieldType(String),
    #[error("must have operator `Exists` when it has no key")]
    NoKey,
    #[error("may not have a value with operator `Exists`")]
    ValueWithExists,
    #[error("has the unknown operator `{0}`")]
    UnknownOperator(String),
    #[error("has the unknown effect `{0}`")]
    UnknownEffect(String),
    #[error("may have `tolerationSeconds` only with effect `NoExecute`")]
    SecondsWithoutEviction,
}

/// Tolerations of a pod.
pub(crate) fn pod_tolerations(pod: &Object) -> &[Value] {
    items_at(pod, &["spec", "tolerations"])
}

/// Sets the tolerations of a pod with a spec.
pub(crate) fn set(pod: &mut Object, tolerations: Vec<Value>) {
    if let Some(Value::Object(spec)) = pod.get_mut("spec") {
        spec.insert("tolerations".to_owned(), Value::Array(tolerations));
    }
}

/// Text fields of a toleration, `""` if absent.
fn text_fields(toleration: &Value) -> [&str; 4] {
    ["key", "operator", "value", "effect"].map(|field| text(toleration, field))
}

/// Toleration time in seconds; None if unlimited.
fn seconds(toleration: &Value) -> Option<i64> {
    toleration.get("tolerationSeconds").and_then(Value::as_i64)
}

/// Whether both tolerations are equal.
pub(crate) fn equal(one: &Value, other: &Value) -> bool {
    text_fields(one) == text_fields(other) && seconds(one) == seconds(other)
}

/// Whether `wide` tolerates everything that `narrow` tolerates.
pub(crate) fn covers(wide: &Value, narrow: &Value) -> bool {
    if equal(wide, narrow) {
        return true;
    }
    let ([key, operator, value, effect], [narrow_key, narrow_operator, narrow_value, narrow_effect]) =
        (text_fields(wide), text_fields(narrow));
    let matches_all_keys = key.is_empty() && operator == "Exists";
    let key_covers = key == narrow_key || matches_all_keys;
    let effect_covers = effect.is_empty() || effect == narrow_effect;
    let time_covers = match (effect, seconds(wide)) {
        ("NoExecute", Some(most)) => seconds(narrow).is_some_and(|seconds| seconds <= most),
        _ => true,
    };
    let value_covers = match operator {
        "Exists" => true,
        "Equal" | "" => matches!(narrow_operator, "Equal" | "") && value == narrow_value,
        _ => false,
    };
    key_covers && effect_covers && time_covers && value_covers
}

/// Merges both lists. Omits a toleration if another one [`covers`] it; of equal tolerations the first stays.
pub(crate) fn merge(first: &[Value], second: &[Value]) -> Vec<Value> {
    let all: Vec<&Value> = first.iter().chain(second).collect();
    let mut merged: Vec<&Value> = Vec::new();
    for (i, toleration) in all.iter().enumerate() {
        let later = all.iter().skip(i + 1);
        let is_covered = merged.iter().any(|kept| covers(kept, toleration))
            || later.into_iter().any(|other| !equal(toleration, other) && covers(other, toleration));
        if !is_covered {
            merged.push(toleration);
        }
    }
    merged.into_iter().cloned().collect()
}

/// Validates a list of tolerations from a file or an annotation.
///
/// # Errors
///
/// See [`TolerationsError`].
pub(crate) fn check(list: &Value) -> Result<Vec<Value>, TolerationsError> {
    let items = list.as_array().ok_or(TolerationsError::NotAList)?;
    for (index, item) in items.iter().enumerate() {
        check_toleration(item).map_err(|defect| TolerationsError::Toleration { index, defect })?;
    }
    Ok(items.clone())
}

fn check_toleration(item: &Value) -> Result<(), TolerationDefect> {
    let fields = item.as_object().ok_or(TolerationDefect::NotAnObject)?;
    for (field, value) in fields {
        let fits = match field.as_str() {
            "tolerationSeconds" => value.is_i64() || value.is_null(),
            "key" | "operator" | "value" | "effect" => value.is_string() || value.is_null(),
            _ => return Err(TolerationDefect::UnknownField(field.clone())),
        };
        if !fits {
            return Err(TolerationDefect::FieldType(field.clone()));
        }
    }
    let [key, operator, value, effect] = text_fields(item);
    match operator {
        "" | "Equal" if key.is_empty() => return Err(TolerationDefect::NoKey),
        "" | "Equal" => {}
        "Exists" if !value.is_empty() => return Err(TolerationDefect::ValueWithExists),
        "Exists" => {}
        other => return Err(TolerationDefect::UnknownOperator(other.to_owned())),
    }
    if !matches!(effect, "" | "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
        return Err(TolerationDefect::UnknownEffect(effect.to_owned()));
    }
    if seconds(item).is_some() && effect != "NoExecute" {
        return Err(TolerationDefect::SecondsWithoutEviction);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Parses `key operator value effect seconds`, with `-` for an absent field.
    fn toleration(text: &str) -> Value {
        let mut words = text.split(' ');
        let mut object = json!({});
        for field in ["key", "operator", "value", "effect"] {
            if let Some(word) = words.next().filter(|word| *word != "-") {
                object[field] = json!(word);
            }
        }
        if let Some(seconds) = words.next() {
            object["tolerationSeconds"] = json!(seconds.parse::<i64>().unwrap());
        }
        object
    }

    #[test]
    fn toleration_covers_narrower_tolerations() {
        for (wide, narrow, expected) in [
            ("a Exists", "a Equal v NoSchedule", true),
            ("- Exists", "a Equal v NoExecute 5", true),
            ("- Exists - NoSchedule", "a Exists - NoSchedule", true),
            ("- Exists - NoSchedule", "a Exists - NoExecute", false),
            ("a Exists", "b Exists", false),
            ("a - v", "a Equal v", true),
            ("a Equal v", "a Equal w", false),
            ("a Equal v", "a Exists", false),
            ("a Exists - NoExecute 9", "a Exists - NoExecute 9", true),
            ("a Exists - NoExecute 9", "a Exists - NoExecute 5", true),
            ("a Exists - NoExecute 9", "a Exists - NoExecute 10", false),
            ("a Exists - NoExecute 9", "a Exists - NoExecute", false),
            ("a Exists - NoExecute", "a Exists - NoExecute 5", true),
            ("a Odd", "a Equal v", false),
        ] {
            assert_eq!(covers(&toleration(wide), &toleration(narrow)), expected, "{wide} over {narrow}");
        }
    }

    #[test]
    fn merged_tolerations_omit_covered_ones() {
        let list = |texts: &[&str]| texts.iter().map(|text| toleration(text)).collect::<Vec<_>>();
        for (first, second, expected) in [
            (vec![], vec!["a Exists"], vec!["a Exists"]),
            (vec!["a Exists"], vec!["a Exists"], vec!["a Exists"]),
            (vec!["a Equal v"], vec!["b Exists", "a Exists"], vec!["b Exists", "a Exists"]),
            (vec!["a Exists", "a Equal v"], vec!["- Exists"], vec!["- Exists"]),
            (vec!["a Exists - NoExecute 5"], vec!["a Exists - NoExecute 9"], vec!["a Exists - NoExecute 9"]),
        ] {
            assert_eq!(merge(&list(&first), &list(&second)), list(&expected));
        }
    }

    #[test]
    fn invalid_toleration_list_returns_error() {
        for (list, word) in [
            (json!([{"operator": "Exists"}, {"key": "a", "value": "b", "effect": "NoSchedule"}]), ""),
            (json!([{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}]), ""),
            (json!({}), "list"),
            (json!(["a"]), "object"),
            (json!([{"key": "a"}, {"name": "a"}]), "toleration 1 has an unknown field `name`"),
            (json!([{"key": 1}]), "wrong type"),
            (json!([{"tolerationSeconds": "1"}]), "wrong type"),
            (json!([{}]), "no key"),
            (json!([{"key": "a", "operator": "Exists", "value": "b"}]), "value"),
            (json!([{"key": "a", "operator": "Like"}]), "operator `Like`"),
            (json!([{"key": "a", "effect": "Odd"}]), "effect `Odd`"),
            (json!([{"key": "a", "tolerationSeconds": 5}]), "NoExecute"),
        ] {
            let error = check(&list).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(word) && error.is_empty() == word.is_empty(), "{list}: {error}");
        }
    }
}

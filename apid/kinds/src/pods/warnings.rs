//! Warnings about pod specs.
//!
//! # Reference
//!
//! A list that merges by name may lose the first of two variables with the same name on apply. There is no
//! warning if the value of the second variable refers to the first: `$(NAME)`.

use apimachinery::object::{Object, Value};

use crate::table::cell::PathReader;

/// Warnings about the pod template or pod spec at a path, if it is new or changed.
pub(crate) fn template(new: &Object, old: Option<&Object>, path: &str) -> Vec<String> {
    if old.is_some_and(|old| old.find(path) == new.find(path)) {
        return Vec::new();
    }
    let spec = format!("{path}.spec");
    ["initContainers", "containers"]
        .iter()
        .flat_map(|list| {
            let path = format!("{spec}.{list}");
            let containers = new.items(&path).iter().enumerate();
            containers
                .flat_map(|(i, container)| duplicate_variables(container, &format!("{path}[{i}]")))
                .collect::<Vec<_>>()
        })
        .collect()
}

fn duplicate_variables(container: &Value, path: &str) -> Vec<String> {
    let env = container.get("env").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let name = |variable: &Value| variable.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut seen = std::collections::BTreeSet::new();
    let mut warnings = Vec::new();
    for (i, variable) in env.iter().enumerate() {
        let name = name(variable);
        let value = variable.get("value").and_then(Value::as_str).unwrap_or_default();
        if !seen.insert(name.clone()) && !value.contains(&format!("$({name})")) {
            warnings.push(format!(
                "{path}.env[{i}]: hides previous definition of {}, which may be dropped when using apply",
                Value::from(name)
            ));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn duplicate_environment_variable_returns_warning() {
        let object = |env: Value| {
            Object::from_value(
                json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "env": env}]}}}}),
            )
            .unwrap()
        };
        let twice = object(json!([{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]));
        let want = r#"spec.template.spec.containers[0].env[1]: hides previous definition of "A", which may be dropped when using apply"#;
        assert_eq!(template(&twice, None, "spec.template"), [want]);
        assert_eq!(template(&twice, Some(&twice), "spec.template"), [""; 0]);
        let made_of = object(json!([{"name": "A", "value": "1"}, {"name": "A", "value": "$(A)2"}]));
        assert_eq!(template(&made_of, None, "spec.template"), [""; 0]);
    }
}

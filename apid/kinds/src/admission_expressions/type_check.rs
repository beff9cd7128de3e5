//! Type check of a policy against the kinds that its rules name.
//!
//! # Reference
//!
//! The check skips rules with a wildcard group or version, wildcard resources and subresources, and all but
//! the first [`TYPES_MAX`] kinds of a rule. Its warnings do not change the effect of the policy: evaluation
//! has dynamic types.

use std::collections::BTreeMap;
use std::sync::Arc;

use apimachinery::object::{Object, Value};

use super::object_types::object_type;
use super::{Compiler, ObjectTypes, Purpose};
use crate::{Kind, Registry};

/// Maximum number of kinds that the type check takes from one rule; it ignores further kinds of the rule.
const TYPES_MAX: usize = 10;

/// A warning about an expression of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpressionWarning {
    /// Path of the expression.
    pub field: String,
    /// Errors of the expression, for each kind.
    pub warning: String,
}

/// Checks the validations and messages of a policy.
pub fn type_check(policy: &Object, registry: &Registry) -> Vec<ExpressionWarning> {
    let compilers = compilers(policy, registry);
    let mut warnings = Vec::new();
    for (index, validation) in list(policy, &["spec", "validations"]).iter().enumerate() {
        for field in ["expression", "messageExpression"] {
            let source = text(validation, field);
            let errors: Vec<String> = compilers
                .iter()
                .filter_map(|(kind, compiler)| {
                    let error = compiler.compile(source, Purpose::TypeCheck).err()?;
                    Some(format!("{kind}: {error}\n"))
                })
                .collect();
            if !source.is_empty() && !errors.is_empty() {
                let field = format!("spec.validations[{index}].{field}");
                warnings.push(ExpressionWarning { field, warning: errors.join("\n") });
            }
        }
    }
    warnings
}

/// A compiler with the variables of the policy for each checked kind.
fn compilers(policy: &Object, registry: &Registry) -> Vec<(String, Compiler<'static>)> {
    let params = policy.at(&["spec", "paramKind"]).and_then(|kind| {
        let (group, version) = split(text(kind, "apiVersion"));
        object_type(registry.find_kind_version(group, version, text(kind, "kind"))?)
    });
    let variables = list(policy, &["spec", "variables"]);
    let compiler = |(label, kind): (String, Arc<Kind>)| {
        let types = ObjectTypes { object: object_type(&kind)?, params: params.clone() };
        let mut compiler = Compiler::of_stored(types, !variables.is_empty());
        for variable in variables {
            // The error is not reported here: each expression that reads this variable reports it as missing.
            let _ = compiler.variable(text(variable, "name"), text(variable, "expression"));
        }
        Some((label, compiler))
    };
    kinds(policy, registry).into_iter().filter_map(compiler).collect()
}

/// The kinds that the rules name, each with its label in warnings: `apps/v1, Kind=Deployment`.
fn kinds(policy: &Object, registry: &Registry) -> Vec<(String, Arc<Kind>)> {
    let mut kinds = BTreeMap::new();
    for rule in list(policy, &["spec", "matchConstraints", "resourceRules"]) {
        let texts = |field: &str| {
            let items = rule.get(field).and_then(Value::as_array).into_iter().flatten();
            let mut texts: Vec<&str> = items.filter_map(Value::as_str).collect();
            texts.sort_unstable();
            texts
        };
        let (groups, versions, mut resources) =
            (texts("apiGroups"), texts("apiVersions"), texts("resources"));
        resources.retain(|resource| !resource.contains(['*', '/']));
        if groups.iter().chain(&versions).any(|text| text.contains('*')) {
            continue;
        }
        let resources = &resources;
        let versions = groups.iter().flat_map(|group| versions.iter().map(move |version| (*group, *version)));
        let names = versions
            .flat_map(|(group, version)| resources.iter().map(move |resource| (group, version, *resource)));
        let found = names.filter_map(|(group, version, name)| {
            let kind = registry.find(group, version, name)?;
            Some(((group.to_owned(), version.to_owned(), kind.name().to_owned()), Arc::clone(kind)))
        });
        kinds.extend(found.take(TYPES_MAX));
    }
    let with_label = |((group, version, name), kind)| (format!("{group}/{version}, Kind={name}"), kind);
    kinds.into_iter().map(with_label).collect()
}

fn list<'a>(object: &'a Object, path: &[&str]) -> &'a [Value] {
    object.at(path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn split(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

#[cfg(test)]
mod tests {
    use apimachinery::names::{Names, Preset};
    use serde_json::json;

    use super::*;

    fn warnings(spec: Value) -> Vec<(String, String)> {
        let registry = Registry::new(&Names::new(Preset::Kubernetes, "").unwrap());
        let policy = Object::from_value(json!({"spec": spec})).unwrap();
        let warnings = type_check(&policy, &registry);
        warnings.into_iter().map(|warning| (warning.field, warning.warning)).collect()
    }

    fn rule(groups: &[&str], resources: &[&str]) -> Value {
        json!({"resourceRules": [{"apiGroups": groups, "apiVersions": ["v1"], "operations": ["*"], "resources": resources}]})
    }

    #[test]
    fn expressions_are_checked_against_each_named_kind() {
        let spec = json!({
            "matchConstraints": rule(&["apps"], &["deployments", "daemonsets", "statefulsets/scale"]),
            "variables": [{"name": "replicas", "expression": "object.spec.replicas"}],
            "validations": [
                {"expression": "object.spec.template.spec.containers.all(c, c.image.startsWith('a'))"},
                {"expression": "object.spec.replicas > 1", "messageExpression": "string(object.spec.minReadySeconds)"},
                {"expression": "variables.replicas <= 3"},
                {"expression": "object.spec.template.spec.containers[0].resources.limits['cpu'] == '1'"},
            ],
        });
        let found = warnings(spec);
        let fields: Vec<&str> = found.iter().map(|(field, _)| field.as_str()).collect();
        assert_eq!(fields, ["spec.validations[1].expression", "spec.validations[2].expression"]);
        let expected = "apps/v1, Kind=DaemonSet: compilation failed: ERROR: <input>:1:12: undefined field 'replicas'\n | \
                        object.spec.replicas > 1\n | ...........^\n";
        assert_eq!(found[0].1, expected);
    }

    #[test]
    fn wildcards_and_unknown_kinds_are_not_checked() {
        for constraints in [rule(&["*"], &["deployments"]), rule(&["apps"], &["*"]), rule(&["none"], &["x"])]
        {
            let spec =
                json!({"matchConstraints": constraints, "validations": [{"expression": "object.none == 1"}]});
            assert!(warnings(spec).is_empty());
        }
    }

    #[test]
    fn parameters_have_the_type_of_their_kind() {
        let spec = json!({
            "matchConstraints": rule(&[""], &["configmaps"]),
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "validations": [{"expression": "object.data['a'] == params.data['a']"}, {"expression": "params.spec == 1"}],
        });
        let found = warnings(spec);
        assert_eq!(found.len(), 1);
        assert!(found[0].1.starts_with(
            "/v1, Kind=ConfigMap: compilation failed: ERROR: <input>:1:7: undefined field 'spec'"
        ));
    }
}

//! Default RBAC policy of release 1.33 with default feature gates: ClusterRoles, Roles and bindings.
//! authd creates the objects in an empty store. At each start authd restores missing objects and rules.
//!
//! # Contract
//!
//! [`default_policy`] returns complete API objects under the names of a preset. The files in `policy/` hold
//! the policy, one file per area, in the format of the `parse` module. The files use the names of
//! [`Names::expand`]. They are the only place of the policy.
//!
//! # Invariants
//!
//! INVARIANT (marked): every object has the label of bootstrap defaults and the annotation `autoupdate:
//! "true"`. An administrator sets the annotation to `"false"` to disable restoration.
//! INVARIANT (projection): `admin`, `edit` and `view` have null `rules`, because they aggregate the labelled
//! roles. authd evaluates the aggregation and updates the stored `rules`.
//!
//! # Reference
//!
//! Requirements A-DEF and appendix (e), and the default policy of Kubernetes 1.33, with its order of rules.

mod parse;

use apimachinery::names::Names;
use apimachinery::object::{Map, Object, Value};
use serde_json::json;

use parse::{Binding, Role, Rule, Subject};

/// Policy files in reading order.
const FILES: [(&str, &str); 7] = [
    ("user-facing.policy", include_str!("../policy/user-facing.policy")),
    ("discovery.policy", include_str!("../policy/discovery.policy")),
    ("components.policy", include_str!("../policy/components.policy")),
    ("node.policy", include_str!("../policy/node.policy")),
    ("certificates.policy", include_str!("../policy/certificates.policy")),
    ("controllers.policy", include_str!("../policy/controllers.policy")),
    ("namespaced.policy", include_str!("../policy/namespaced.policy")),
];

/// Default objects by kind, in the order of the policy files.
#[derive(Clone, Debug, Default)]
pub struct DefaultPolicy {
    /// ClusterRoles; aggregated roles have no rules.
    pub cluster_roles: Vec<Object>,
    /// ClusterRoleBindings; the binding of `system:node` has no subjects.
    pub cluster_role_bindings: Vec<Object>,
    /// Roles in the system and the public namespace.
    pub roles: Vec<Object>,
    /// RoleBindings in the system and the public namespace.
    pub role_bindings: Vec<Object>,
}

impl DefaultPolicy {
    /// All objects; roles come before the bindings that reference them.
    pub fn objects(&self) -> impl Iterator<Item = &Object> {
        [&self.cluster_roles, &self.cluster_role_bindings, &self.roles, &self.role_bindings]
            .into_iter()
            .flatten()
    }
}

/// Builds the default policy under the names of a preset. The call takes about 1 ms in a test build.
pub fn default_policy(names: &Names) -> DefaultPolicy {
    let mut policy = DefaultPolicy::default();
    let writer = Writer::new(names);
    for (file, text) in FILES {
        let text = names.expand(text);
        let roles = parse::roles(&text)
            .unwrap_or_else(|problem| unreachable!("{file}: {problem} (the tests read every file)"));
        for role in &roles {
            let (role_list, binding_list) = match role.namespace {
                None => (&mut policy.cluster_roles, &mut policy.cluster_role_bindings),
                Some(_) => (&mut policy.roles, &mut policy.role_bindings),
            };
            role_list.push(writer.role(role));
            binding_list.extend(role.bindings.iter().map(|binding| writer.binding(role, binding)));
        }
    }
    policy
}

/// Builder of API objects from parsed policy files.
struct Writer<'n> {
    names: &'n Names,
    group: String,
    api_version: String,
    bootstrapping: String,
    autoupdate: String,
}

impl<'n> Writer<'n> {
    fn new(names: &'n Names) -> Self {
        let group = names.group("rbac.authorization");
        Writer {
            names,
            api_version: format!("{group}/v1"),
            group,
            bootstrapping: names.bootstrapping_label(),
            autoupdate: names.autoupdate_annotation(),
        }
    }

    fn role(&self, role: &Role<'_>) -> Object {
        let mut object = self.object(kind_of(role), role.namespace, role.name);
        if let Some(which) = role.adds_to {
            let labels = object.meta_mut().get_mut("labels").and_then(Value::as_object_mut);
            if let Some(labels) = labels {
                labels.insert(self.names.aggregate_to_label(which), json!("true"));
            }
        }
        match role.gathers {
            Some(which) => {
                let label = Map::from_iter([(self.names.aggregate_to_label(which), json!("true"))]);
                object.set("aggregationRule", json!({"clusterRoleSelectors": [{"matchLabels": label}]}));
                object.set("rules", Value::Null);
            }
            None => object.set("rules", role.rules.iter().map(rule_value).collect::<Vec<_>>()),
        }
        object
    }

    fn binding(&self, role: &Role<'_>, binding: &Binding<'_>) -> Object {
        let kind = if role.namespace.is_some() { "RoleBinding" } else { "ClusterRoleBinding" };
        let mut object = self.object(kind, role.namespace, binding.name);
        object.set("roleRef", json!({"apiGroup": self.group, "kind": kind_of(role), "name": role.name}));
        if !binding.subjects.is_empty() {
            let subjects: Vec<Value> =
                binding.subjects.iter().map(|subject| self.subject(*subject)).collect();
            object.set("subjects", subjects);
        }
        object
    }

    fn subject(&self, subject: Subject<'_>) -> Value {
        match subject {
            Subject::User(name) => json!({"apiGroup": self.group, "kind": "User", "name": name}),
            Subject::Group(name) => json!({"apiGroup": self.group, "kind": "Group", "name": name}),
            Subject::ServiceAccount { namespace, name } => {
                json!({"kind": "ServiceAccount", "name": name, "namespace": namespace})
            }
        }
    }

    fn object(&self, kind: &str, namespace: Option<&str>, name: &str) -> Object {
        let mut object = Object::default();
        object.set_type(&self.api_version, kind);
        object.set_meta("name", name);
        if let Some(namespace) = namespace {
            object.set_meta("namespace", namespace);
        }
        object.set_meta("labels", Map::from_iter([(self.bootstrapping.clone(), json!("rbac-defaults"))]));
        object.set_meta("annotations", Map::from_iter([(self.autoupdate.clone(), json!("true"))]));
        object
    }
}

fn kind_of(role: &Role<'_>) -> &'static str {
    if role.namespace.is_some() { "Role" } else { "ClusterRole" }
}

/// A PolicyRule with its non-empty fields.
fn rule_value(rule: &Rule<'_>) -> Value {
    let fields = [
        ("verbs", &rule.verbs),
        ("apiGroups", &rule.groups),
        ("resources", &rule.resources),
        ("resourceNames", &rule.names),
        ("nonResourceURLs", &rule.paths),
    ];
    let filled = fields.into_iter().filter(|(_, items)| !items.is_empty());
    Value::Object(filled.map(|(field, items)| (field.to_owned(), json!(items))).collect())
}

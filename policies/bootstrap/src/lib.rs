//! Default RBAC policy of release 1.33 with default feature gates: ClusterRoles, Roles and bindings.
//! authd creates the objects in an empty store. At each start authd restores missing objects and rules.
//!
//! # Contract
//!
//! [`default_policy`] returns complete API objects under the names of a preset. The manifests in `policy/` are
//! the only source of the policy, one file for each area. They are YAML under the Kubernetes names, so that
//! `kubectl diff -f` compares them with a server. [`Names::translate`] and [`Names::translate_group`] produce
//! the names of the other preset. The compiled-in files are parsed once in a process, at the first call.
//!
//! # Invariants
//!
//! INVARIANT (marked): every object has the label `bootstrapping: rbac-defaults` and the annotation
//! `autoupdate: "true"`. An administrator sets the annotation to `"false"` to disable restoration.
//! INVARIANT (projection): `admin`, `edit` and `view` have null `rules`, because they aggregate the labelled
//! roles. authd evaluates the aggregation and updates the stored `rules`. The manifests omit these rules.
//!
//! # Reference
//!
//! Requirements A-DEF and appendix (e), and the default policy of Kubernetes 1.33, with its order of rules.

use std::sync::LazyLock;

use apimachinery::codec::{DecodeError, Limits, yaml};
use apimachinery::names::Names;
use apimachinery::object::{Map, Object, Value};

/// Manifest files in reading order.
const FILES: [(&str, &str); 7] = [
    ("user-facing.yaml", include_str!("../policy/user-facing.yaml")),
    ("discovery.yaml", include_str!("../policy/discovery.yaml")),
    ("components.yaml", include_str!("../policy/components.yaml")),
    ("node.yaml", include_str!("../policy/node.yaml")),
    ("certificates.yaml", include_str!("../policy/certificates.yaml")),
    ("controllers.yaml", include_str!("../policy/controllers.yaml")),
    ("namespaced.yaml", include_str!("../policy/namespaced.yaml")),
];

/// Separator of the documents of a manifest file. The lines of a multi-line value are indented and never
/// match.
const SEPARATOR: &str = "\n---\n";

/// Objects of all manifests under the Kubernetes names, in the order of the files.
static MANIFESTS: LazyLock<Vec<Map<String, Value>>> = LazyLock::new(|| {
    let documents = FILES.iter().map(|(file, text)| {
        documents(text)
            .unwrap_or_else(|error| unreachable!("{file}: {error} (the tests parse every manifest)"))
    });
    documents.flatten().collect()
});

/// Default objects by kind, in the order of the manifests.
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
    /// Iterates over all objects; roles come before the bindings that reference them.
    pub fn objects(&self) -> impl Iterator<Item = &Object> {
        [&self.cluster_roles, &self.cluster_role_bindings, &self.roles, &self.role_bindings]
            .into_iter()
            .flatten()
    }
}

/// Builds the default policy under the names of a preset.
///
/// The first call in a process parses the manifests, which takes about 4 ms in a test build. Later calls only
/// translate names.
pub fn default_policy(names: &Names) -> DefaultPolicy {
    let mut policy = DefaultPolicy::default();
    for manifest in MANIFESTS.iter() {
        let mut object = Object(translate_map(manifest, names));
        if object.get("aggregationRule").is_some() {
            object.set("rules", Value::Null);
        }
        let list = match object.kind() {
            "ClusterRole" => &mut policy.cluster_roles,
            "ClusterRoleBinding" => &mut policy.cluster_role_bindings,
            "Role" => &mut policy.roles,
            "RoleBinding" => &mut policy.role_bindings,
            kind => unreachable!("kind {kind} in the policy (the tests parse every manifest)"),
        };
        list.push(object);
    }
    policy
}

/// Parses the documents of a manifest file. Documents without content are left out.
fn documents(text: &str) -> Result<Vec<Map<String, Value>>, DecodeError> {
    let mut objects = Vec::new();
    for document in text.split(SEPARATOR) {
        if let Value::Object(object) = yaml::decode(document.as_bytes(), Limits::NONE)?.value {
            objects.push(object);
        }
    }
    Ok(objects)
}

/// Translates the keys and values of a map from the Kubernetes names.
fn translate_map(map: &Map<String, Value>, names: &Names) -> Map<String, Value> {
    let fields = map.iter().map(|(key, value)| {
        let value = match key.as_str() {
            "apiGroup" | "apiGroups" => translate_value(value, names, Names::translate_group),
            _ => translate_value(value, names, Names::translate),
        };
        (names.translate(key), value)
    });
    fields.collect()
}

/// Translates a string and the strings of a list with `translate`, and a map with [`translate_map`].
fn translate_value(value: &Value, names: &Names, translate: fn(&Names, &str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(translate(names, text)),
        Value::Array(items) => items.iter().map(|item| translate_value(item, names, translate)).collect(),
        Value::Object(map) => Value::Object(translate_map(map, names)),
        _ => value.clone(),
    }
}

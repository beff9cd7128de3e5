//! The demo of `apid up --demo`: a namespace with three users, a custom kind, a policy that denies, and an issuer.
//!
//! | User | Credentials | Rights |
//! |---|---|---|
//! | alice | client certificate, group `shop-editors` | role `edit` in the namespace `shop` |
//! | bob | client certificate | role `view` in the namespace `shop` |
//! | jane | token of the local OpenID issuer, group `clerks` | may read and create orders |

use std::path::{Path, PathBuf};

use apimachinery::names::{Names, SchemaExtension};
use jiff::Timestamp;
use serde_json::{Value, json};
use serving::certs::ServingPair;
use serving::config_file::FlagValues;

use super::UpError;
use super::api::{Api, ApiError};
use super::credentials::Credentials;
use super::issuer::{ALGORITHM, CLIENT_ID, IssuedUser, Issuer};
use super::kubeconfig::Kubeconfig;
use crate::certs::ensured::ClientCertificates;

/// The namespace of the demo.
const NAMESPACE: &str = "shop";
/// The API group of the custom kind.
const GROUP: &str = "demo.example.com";
/// The annotation that permits a large order.
const APPROVED: &str = "demo.example.com/approved";
/// Prefix of the names that come from the issuer.
const PREFIX: &str = "oidc:";

/// The users and the issuer of the demo.
pub(super) struct Demo {
    alice: Credentials,
    bob: Credentials,
    issuer: Issuer,
    /// The CA bundle of the issuer.
    ca: PathBuf,
    token_file: PathBuf,
}

impl Demo {
    /// Flags of the caller that exclude the demo.
    pub(super) const FIXED_FLAGS: [&str; 9] = [
        "authentication-config",
        "oidc-ca-file",
        "oidc-client-id",
        "oidc-groups-claim",
        "oidc-groups-prefix",
        "oidc-issuer-url",
        "oidc-signing-algs",
        "oidc-username-claim",
        "oidc-username-prefix",
    ];

    /// Issues the certificates of the users and starts the issuer.
    pub(super) fn prepare(
        data_dir: &Path,
        pair: &ServingPair,
        clients: &ClientCertificates,
        now: Timestamp,
    ) -> Result<Self, UpError> {
        let token_file = data_dir.join("jane.token");
        let jane = IssuedUser { name: "jane", groups: &["clerks"], token_file: token_file.clone() };
        Ok(Demo {
            alice: Credentials::ensure(clients, "alice", &["shop-editors"], now)?,
            bob: Credentials::ensure(clients, "bob", &[], now)?,
            issuer: Issuer::start(pair, jane)?,
            ca: pair.ca.clone(),
            token_file,
        })
    }

    /// Returns the flags of authd that accept the tokens of the issuer.
    pub(super) fn server_flags(&self) -> Vec<FlagValues> {
        vec![
            FlagValues::single("oidc-issuer-url", self.issuer.url.clone()),
            FlagValues::single("oidc-client-id", CLIENT_ID),
            FlagValues::single("oidc-signing-algs", ALGORITHM),
            FlagValues::single("oidc-ca-file", self.ca.display().to_string()),
            FlagValues::single("oidc-username-prefix", PREFIX),
            FlagValues::single("oidc-groups-claim", "groups"),
            FlagValues::single("oidc-groups-prefix", PREFIX),
        ]
    }

    /// Adds the users to a kubeconfig, one context each.
    pub(super) fn add_users(&self, kubeconfig: &mut Kubeconfig) {
        kubeconfig.add_client(&self.alice, NAMESPACE);
        kubeconfig.add_client(&self.bob, NAMESPACE);
        kubeconfig.add_token_file("jane", &self.token_file, NAMESPACE);
    }

    /// Creates or updates the objects of the demo. Returns all errors.
    pub(super) async fn create_objects(&self, api: &Api, names: &Names) -> Vec<ApiError> {
        let mut errors = Vec::new();
        for (path, object) in objects(names) {
            errors.extend(api.apply(&path, &object).await.err());
        }
        errors
    }

    /// Returns commands that show the rights of the users and the policy. `kubectl` is the program for the preset.
    pub(super) fn next_steps(&self, kubectl: &str) -> String {
        format!(
            "  {kubectl} get orders -n {NAMESPACE}  # admin: everything\n  \
             {kubectl} --context alice create configmap hours --from-literal=open=9  # alice: edit in {NAMESPACE}\n  \
             {kubectl} --context bob delete order tea  # bob: view in {NAMESPACE}, so 403\n  \
             {kubectl} --context jane get orders  # jane: token of {}\n  \
             # denied by the policy order-limit: more than 10 need the annotation {APPROVED}\n  \
             {kubectl} --context alice patch order tea --type merge -p '{{\"spec\":{{\"quantity\":50}}}}'\n  \
             authd why bob delete orders.{GROUP} tea -n {NAMESPACE}  # why, and which role is missing\n",
            self.issuer.url
        )
    }
}

/// Returns the objects with their paths, in the order of their creation.
fn objects(names: &Names) -> Vec<(String, Value)> {
    [vec![namespace()], definition(names), roles(names), policy(names), orders()].concat()
}

fn namespace() -> (String, Value) {
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    (format!("/api/v1/namespaces/{NAMESPACE}"), object)
}

/// Returns the definition of the kind Order.
fn definition(names: &Names) -> Vec<(String, Value)> {
    let group = names.group("apiextensions");
    let rule = json!([{"rule": "self.item != 'coffee' || self.quantity <= 3", "message": "coffee is rationed: at most 3"}]);
    let spec = json!({"type": "object", "required": ["item", "quantity"],
        "properties": {
            "item": {"type": "string", "minLength": 1, "maxLength": 40},
            "quantity": {"type": "integer", "minimum": 1, "maximum": 1000},
        },
        (names.schema_extension(SchemaExtension::Validations)): rule});
    let schema = json!({"type": "object", "required": ["spec"], "properties": {"spec": spec}});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
        "additionalPrinterColumns": [
            {"name": "Item", "type": "string", "jsonPath": ".spec.item"},
            {"name": "Quantity", "type": "integer", "jsonPath": ".spec.quantity"}]});
    let name = format!("orders.{GROUP}");
    let path = format!("/apis/{group}/v1/customresourcedefinitions/{name}");
    let object = json!({"apiVersion": format!("{group}/v1"), "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": {"group": GROUP, "scope": "Namespaced", "versions": [version],
            "names": {"kind": "Order", "plural": "orders", "singular": "order", "listKind": "OrderList"}}});
    vec![(path, object)]
}

/// Returns the roles of the users and their bindings.
fn roles(names: &Names) -> Vec<(String, Value)> {
    let group = names.group("rbac.authorization");
    let version = format!("{group}/v1");
    let (cluster, local) = (format!("/apis/{version}"), format!("/apis/{version}/namespaces/{NAMESPACE}"));
    let rule = |verbs: &[&str]| json!([{"apiGroups": [GROUP], "resources": ["orders"], "verbs": verbs}]);
    let aggregated = |name: &str, into: &str, verbs: &[&str]| {
        let object = json!({"apiVersion": version, "kind": "ClusterRole", "rules": rule(verbs),
            "metadata": {"name": name, "labels": {(names.aggregate_to_label(into)): "true"}}});
        (format!("{cluster}/clusterroles/{name}"), object)
    };
    let binding = |name: &str, kind: &str, role: &str, subject_kind: &str, subject: &str| {
        let object = json!({"apiVersion": version, "kind": "RoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": kind, "name": role},
            "subjects": [{"apiGroup": group, "kind": subject_kind, "name": subject}]});
        (format!("{local}/rolebindings/{name}"), object)
    };
    let clerk = json!({"apiVersion": version, "kind": "Role", "metadata": {"name": "order-clerk"},
        "rules": rule(&["get", "list", "watch", "create"])});
    vec![
        aggregated("demo-orders-view", "view", &["get", "list", "watch"]),
        aggregated("demo-orders-edit", "edit", &["create", "update", "patch", "delete", "deletecollection"]),
        (format!("{local}/roles/order-clerk"), clerk),
        binding("editors", "ClusterRole", "edit", "Group", "shop-editors"),
        binding("viewers", "ClusterRole", "view", "User", "bob"),
        binding("clerks", "Role", "order-clerk", "Group", &format!("{PREFIX}clerks")),
    ]
}

/// Returns the policy that denies large orders, with its binding.
fn policy(names: &Names) -> Vec<(String, Value)> {
    let version = format!("{}/v1", names.group("admissionregistration"));
    let expression = format!(
        "object.spec.quantity <= 10 || (has(object.metadata.annotations) && '{APPROVED}' in object.metadata.annotations)"
    );
    let policy = json!({"apiVersion": version, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "order-limit"},
        "spec": {
            "matchConstraints": {"resourceRules": [{"apiGroups": [GROUP], "apiVersions": ["v1"],
                "operations": ["CREATE", "UPDATE"], "resources": ["orders"]}]},
            "validations": [{"expression": expression,
                "message": format!("more than 10 need the annotation {APPROVED}")}]}});
    let binding = json!({"apiVersion": version, "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "order-limit"},
        "spec": {"policyName": "order-limit", "validationActions": ["Deny"]}});
    vec![
        (format!("/apis/{version}/validatingadmissionpolicies/order-limit"), policy),
        (format!("/apis/{version}/validatingadmissionpolicybindings/order-limit"), binding),
    ]
}

fn orders() -> Vec<(String, Value)> {
    let order = |name: &str, item: &str, quantity: u32| {
        let object = json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Order", "metadata": {"name": name},
            "spec": {"item": item, "quantity": quantity}});
        (format!("/apis/{GROUP}/v1/namespaces/{NAMESPACE}/orders/{name}"), object)
    };
    vec![order("tea", "green tea", 2), order("coffee", "coffee", 1)]
}

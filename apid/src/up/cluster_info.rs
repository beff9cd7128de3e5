//! The ConfigMap `cluster-info`: address and CA bundle of the server, readable without credentials, for clients that
//! join with a bootstrap token.

use apimachinery::names::Names;
use serde_json::{Value, json};

use super::api::{Api, ApiError};
use super::kubeconfig::Kubeconfig;

/// Publishes `cluster-info` and the right of anonymous clients to read it. Returns all errors.
pub(super) async fn publish(api: &Api, names: &Names, kubeconfig: &Kubeconfig) -> Vec<ApiError> {
    let mut errors = Vec::new();
    for (path, object) in objects(names, &kubeconfig.cluster()) {
        errors.extend(api.apply(&path, &object).await.err());
    }
    errors
}

/// Returns the objects with their paths.
fn objects(names: &Names, kubeconfig: &str) -> [(String, Value); 3] {
    const READER: &str = "system:public-cluster-info-reader";
    let (public, rbac) = (names.public_namespace, names.group("rbac.authorization"));
    let roles = format!("/apis/{rbac}/v1/namespaces/{public}");
    [
        (
            format!("/api/v1/namespaces/{public}/configmaps/cluster-info"),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cluster-info"},
                "data": {"kubeconfig": kubeconfig}}),
        ),
        (
            format!("{roles}/roles/{READER}"),
            json!({"apiVersion": format!("{rbac}/v1"), "kind": "Role", "metadata": {"name": READER}, "rules": [
                {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["cluster-info"], "verbs": ["get"]}]}),
        ),
        (
            format!("{roles}/rolebindings/{READER}"),
            json!({"apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding", "metadata": {"name": READER},
                "roleRef": {"apiGroup": rbac, "kind": "Role", "name": READER},
                "subjects": [{"apiGroup": rbac, "kind": "User", "name": "system:anonymous"}]}),
        ),
    ]
}

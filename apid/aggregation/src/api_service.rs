//! The object APIService, as far as the aggregation needs it.

use apimachinery::object::{Object, Value};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use kinds::ApiPriority;

/// The port of a Service without `spec.service.port`.
const DEFAULT_PORT: u16 = 443;

/// An APIService.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiService {
    /// The name of the object: `VERSION.GROUP`.
    pub name: String,
    /// The API group; `""` for the core group.
    pub group: String,
    /// The version.
    pub version: String,
    /// The priorities in lists of groups and versions.
    pub priority: ApiPriority,
    /// The server behind the APIService; None for a local one.
    pub backend: Option<BackendReference>,
    /// Whether the condition `Available` is true.
    pub is_available: bool,
    /// Whether apid made the object for one of its own kinds.
    pub is_automatic: bool,
}

/// The server that an APIService names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendReference {
    /// The namespace of the Service.
    pub namespace: String,
    /// The name of the Service.
    pub name: String,
    /// The port of the Service.
    pub port: u16,
    /// The CA bundle in PEM; empty for the CAs of the system.
    pub ca_bundle: Bytes,
    /// Whether the certificate of the server is not verified.
    pub is_insecure: bool,
}

impl BackendReference {
    /// Returns the TLS server name: `NAME.NAMESPACE.svc`.
    pub fn server_name(&self) -> String {
        format!("{}.{}.svc", self.name, self.namespace)
    }
}

/// Returns the first segments of the paths of a version: `api/v1`, or `apis/GROUP/VERSION`.
pub(crate) fn root(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

impl ApiService {
    /// Returns the first segments of the paths of the version.
    pub(crate) fn root(&self) -> String {
        root(&self.group, &self.version)
    }

    /// Reads a stored object. `automatic_label`: the label of objects that apid made.
    pub(crate) fn read(object: &Object, automatic_label: &str) -> Self {
        let text = |field: &str| object.str_at(&["spec", field]).unwrap_or_default().to_owned();
        let number = |field: &str| object.at(&["spec", field]).and_then(Value::as_i64).unwrap_or_default();
        let conditions = object.at(&["status", "conditions"]).and_then(Value::as_array).into_iter().flatten();
        let has = |condition: &Value, field: &str, value: &str| {
            condition.get(field).is_some_and(|found| found == value)
        };
        let mut available = conditions.filter(|condition| has(condition, "type", "Available"));
        ApiService {
            name: object.name().to_owned(),
            is_automatic: object.label(automatic_label).is_some(),
            group: text("group"),
            version: text("version"),
            priority: ApiPriority {
                group: number("groupPriorityMinimum"),
                version: number("versionPriority"),
            },
            backend: object.at(&["spec", "service"]).filter(|service| service.is_object()).map(|service| {
                let field =
                    |name: &str| service.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
                let port =
                    service.get("port").and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok());
                BackendReference {
                    namespace: field("namespace"),
                    name: field("name"),
                    port: port.unwrap_or(DEFAULT_PORT),
                    ca_bundle: STANDARD.decode(text("caBundle")).unwrap_or_default().into(),
                    is_insecure: object.at(&["spec", "insecureSkipTLSVerify"]) == Some(&Value::Bool(true)),
                }
            }),
            is_available: available.next().is_some_and(|condition| has(condition, "status", "True")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn remote_and_local_services_are_read() {
        let object = Object::from_value(json!({
            "metadata": {"name": "v1.e.com"},
            "spec": {"group": "e.com", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 7,
                "caBundle": "Y2E=", "service": {"namespace": "n", "name": "s"}},
            "status": {"conditions": [{"type": "Available", "status": "True"}]},
        }));
        let service = ApiService::read(&object.unwrap(), "automatic");
        assert_eq!((service.priority.group, service.priority.version, service.is_available), (100, 7, true));
        let backend = service.backend.unwrap();
        assert_eq!((backend.port, &backend.ca_bundle[..], backend.is_insecure), (443, &b"ca"[..], false));
        assert_eq!(backend.server_name(), "s.n.svc");
        let local = json!({"metadata": {"name": "v1.", "labels": {"automatic": "onstart"}}, "spec": {"version": "v1", "service": null}});
        let local = ApiService::read(&Object::from_value(local).unwrap(), "automatic");
        assert_eq!((local.group.as_str(), local.backend, local.is_available), ("", None, false));
        assert!(local.is_automatic && !service.is_automatic);
    }
}

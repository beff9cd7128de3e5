//! Warnings about services: fields without effect, and addresses that are not in canonical form.

use apimachinery::names::Names;
use apimachinery::object::Object;

use super::service_addresses as addresses;
use crate::validation::{Field, address_form};

/// Warnings about a service.
pub(super) fn spec_warnings(service: &Object, names: &Names) -> Vec<String> {
    let mut warnings = Vec::new();
    let key = |name: &str| names.label_sub_key("service", name);
    let (deprecated, replacement) = (key("topology-aware-hints"), key("topology-mode"));
    if service.annotation(&deprecated).is_some() {
        warnings.push(format!("annotation {deprecated} is deprecated, please use {replacement} instead"));
    }
    let spec = Field::new(service.get("spec"), "spec");
    for address in spec.child("clusterIPs").items() {
        address_form::ip(&address, &mut warnings);
    }
    let external = spec.child("externalIPs");
    if spec.child("type").text() == "ClusterIP" && addresses::is_headless(&spec) {
        warn_of_headless_fields(&spec, &mut warnings);
    }
    for address in external.items() {
        address_form::ip(&address, &mut warnings);
    }
    address_form::ip(&spec.child("loadBalancerIP"), &mut warnings);
    for range in spec.child("loadBalancerSourceRanges").items() {
        address_form::cidr(&range, &mut warnings);
    }
    let is_external_name = spec.child("type").text() == "ExternalName";
    if is_external_name && !external.list().is_empty() {
        warnings.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".to_owned());
    }
    if !is_external_name && !spec.child("externalName").text().is_empty() {
        warnings.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".to_owned());
    }
    warnings
}

fn warn_of_headless_fields(spec: &Field<'_, '_>, warnings: &mut Vec<String>) {
    for (is_set, field) in [
        (!spec.child("loadBalancerIP").text().is_empty(), "loadBalancerIP"),
        (!spec.child("externalIPs").list().is_empty(), "externalIPs"),
        (!matches!(spec.child("sessionAffinity").text(), "" | "None"), "SessionAffinity"),
    ] {
        if is_set {
            warnings.push(format!("spec.{field} is ignored for headless services"));
        }
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;
    use serde_json::json;

    use super::*;

    #[test]
    fn field_without_effect_returns_warning() {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let service = Object::from_value(json!({"spec": {
            "type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"], "loadBalancerIP": "1.2.3.4",
            "externalIPs": ["01.2.3.4"], "sessionAffinity": "ClientIP", "externalName": "a.example"
        }}));
        assert_eq!(
            spec_warnings(&service.unwrap(), &names),
            [
                "spec.loadBalancerIP is ignored for headless services",
                "spec.externalIPs is ignored for headless services",
                "spec.SessionAffinity is ignored for headless services",
                "spec.externalIPs[0]: non-standard IP address \"01.2.3.4\" is invalid: use \"1.2.3.4\"",
                "spec.externalName is ignored when spec.type is not \"ExternalName\"",
            ]
        );
    }
}

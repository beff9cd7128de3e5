//! Validation of services.

use std::collections::BTreeSet;

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::Object;

use serde_json::json;

use super::service_addresses as addresses;
use crate::validation::internal;
use crate::validation::{Field, network, text};
use crate::{Context, format};

/// Port of the kubelet, which a load balancer must not expose.
const KUBELET_PORT: i64 = 10_250;
/// Maximum duration, in seconds, of the session affinity to the IP address of a client.
const AFFINITY_SECONDS_MAX: i64 = 86_400;
/// Message for a field that only load balancers may have.
const ONLY_LOAD_BALANCER: &str = "may only be used when `type` is 'LoadBalancer'";
/// Message for a field that services with an external name do not have.
const NOT_EXTERNAL_NAME: &str = "may not be set for ExternalName services";

/// Validates a service.
pub(super) fn validate(object: &Object, ctx: &Context<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    validate_topology_annotations(object, ctx, &mut errors);
    let field = Field::new(object.get("spec"), "spec");
    let spec = &field;
    let kind = spec.child("type");
    let ports = spec.child("ports");
    let is_headless = addresses::is_headless(spec);
    if ports.list().is_empty() && !is_headless && kind.text() != "ExternalName" {
        errors.push(ports.required(""));
    }
    validate_by_type(spec, is_headless, &mut errors);
    let mut names = BTreeSet::new();
    for port in ports.items() {
        validate_port(&port, ports.list().len() > 1, &mut names, &mut errors);
    }
    text::check_labels(&spec.child("selector"), &mut errors);
    validate_session_affinity(spec, &mut errors);
    addresses::validate(spec, &mut errors);
    for address in spec.child("externalIPs").items() {
        let count = errors.len();
        network::check_ip(&address, &mut errors);
        if errors.len() == count {
            network::check_endpoint_ip(&address, &mut errors);
        }
    }
    text::require_supported(&kind, &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"], &mut errors);
    check_unique_ports(spec, &mut errors);
    validate_source_ranges(object, spec, ctx, &mut errors);
    let allocate = spec.child("allocateLoadBalancerNodePorts");
    let is_load_balancer = kind.text() == "LoadBalancer";
    if allocate.is_present() && !is_load_balancer {
        errors.push(allocate.forbidden(ONLY_LOAD_BALANCER));
    }
    validate_class(spec, &mut errors);
    validate_traffic_policies(spec, &mut errors);
    errors
}

fn validate_class(spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    let class = spec.child("loadBalancerClass");
    if class.is_present() {
        if spec.child("type").text() == "LoadBalancer" {
            text::check_format(&class, format::qualified_name, errors);
        } else {
            errors.push(class.forbidden(ONLY_LOAD_BALANCER));
        }
    }
}

/// Validates that the annotation of the topology mode and its deprecated form are equal.
fn validate_topology_annotations(object: &Object, ctx: &Context<'_>, errors: &mut FieldErrors) {
    let mode = ctx.names.label_sub_key("service", "topology-mode");
    let hints = ctx.names.label_sub_key("service", "topology-aware-hints");
    if let (Some(value), Some(deprecated)) = (object.annotation(&mode), object.annotation(&hints))
        && value != deprecated
    {
        let path = FieldPath::new("metadata").child("annotations").key(&mode);
        let detail = format!("must match annotations[{hints}] when both are specified");
        errors.push(FieldError::invalid(&path, value, &detail));
    }
}

fn validate_by_type(spec: &Field<'_, '_>, is_headless: bool, errors: &mut FieldErrors) {
    let kind = spec.child("type");
    match kind.text() {
        "LoadBalancer" => {
            for port in spec.child("ports").items() {
                let number = port.child("port");
                if number.integer() == Some(KUBELET_PORT) {
                    // As in kube-apiserver, the path of the error does not contain the field.
                    let detail =
                        format!("may not expose port {KUBELET_PORT} externally since it is used by kubelet");
                    errors.push(port.invalid_value(KUBELET_PORT, &detail));
                }
            }
        }
        "NodePort" => {}
        "ExternalName" => return validate_external_name(spec, errors),
        _ => return,
    }
    if is_headless {
        let list = spec.child("clusterIPs");
        for address in list.items().take(1) {
            let detail = format!("may not be set to 'None' for {} services", kind.text());
            errors.push(address.invalid(&detail));
        }
    }
}

fn validate_external_name(spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    for list in ["clusterIPs", "ipFamilies"].map(|name| spec.child(name)) {
        if !list.list().is_empty() {
            errors.push(list.forbidden(NOT_EXTERNAL_NAME));
        }
    }
    spec.child("ipFamilyPolicy").forbid(NOT_EXTERNAL_NAME, errors);
    // The validation ignores a trailing dot, which marks a fully qualified name.
    let name = spec.child("externalName");
    let host = name.text().strip_suffix('.').unwrap_or(name.text());
    if host.is_empty() {
        errors.push(name.required(""));
        return;
    }
    text::check_name(&name, host, format::subdomain, errors);
}

fn validate_port<'v>(
    port: &Field<'v, '_>,
    is_name_required: bool,
    names: &mut BTreeSet<&'v str>,
    errors: &mut FieldErrors,
) {
    let name = port.child("name");
    if !name.text().is_empty() {
        text::check_format(&name, format::label, errors);
        if !names.insert(name.text()) {
            errors.push(name.duplicate());
        }
    } else if is_name_required {
        errors.push(name.required(""));
    }
    network::check_port(&port.child("port"), errors);
    text::require_supported(&port.child("protocol"), &network::PROTOCOLS, errors);
    network::check_port_or_name(&port.child("targetPort"), errors);
    network::check_application_protocol(&port.child("appProtocol"), errors);
}

fn validate_session_affinity(spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    let (affinity, config) = (spec.child("sessionAffinity"), spec.child("sessionAffinityConfig"));
    text::require_supported(&affinity, &["ClientIP", "None"], errors);
    match affinity.text() {
        "ClientIP" => {
            let client = config.child("clientIP");
            let seconds = client.child("timeoutSeconds");
            if !seconds.integer().is_some_and(|seconds| (1..=AFFINITY_SECONDS_MAX).contains(&seconds)) {
                let detail = format!("must be greater than 0 and less than {AFFINITY_SECONDS_MAX}");
                errors.push(seconds.invalid(&detail));
            }
        }
        "None" if config.is_present() => {
            errors.push(config.forbidden("must not be set when session affinity is None"));
        }
        _ => {}
    }
}

fn check_unique_ports(spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    let (mut ports, mut node_ports) = (BTreeSet::new(), BTreeSet::new());
    let list = spec.child("ports");
    for port in list.items() {
        let node_port = port.child("nodePort");
        let number = node_port.integer().unwrap_or(0);
        if number == 0 {
            continue;
        }
        if spec.child("type").text() == "ClusterIP" {
            errors.push(node_port.forbidden("may not be used when `type` is 'ClusterIP'"));
        }
        if !node_ports.insert((port.child("protocol").text(), number)) {
            errors.push(node_port.duplicate());
        }
    }
    for port in list.items() {
        let (protocol, number) = (port.child("protocol").text(), port.child("port").integer().unwrap_or(0));
        if !ports.insert((protocol, number)) {
            // As in kube-apiserver, the error shows only the protocol and the number of the port.
            let repeated = json!({"protocol": protocol, "port": number});
            let port_text = internal::text_of_type(Some(&repeated), "core/v1.ServicePort");
            errors.push(internal::duplicate_value(&port, &port_text));
        }
    }
}

/// Validates the ranges of clients that may use a load balancer: those of the field
/// `loadBalancerSourceRanges`, or those of the annotation if the field is absent or empty.
fn validate_source_ranges(
    object: &Object,
    spec: &Field<'_, '_>,
    ctx: &Context<'_>,
    errors: &mut FieldErrors,
) {
    let is_load_balancer = spec.child("type").text() == "LoadBalancer";
    // kube-apiserver reports errors of this field under its name in Go.
    let ranges = spec.child("LoadBalancerSourceRanges");
    let ranges = ranges.with_value(spec.child("loadBalancerSourceRanges").value());
    if !ranges.list().is_empty() {
        if !is_load_balancer {
            errors.push(ranges.forbidden(ONLY_LOAD_BALANCER));
        }
        for range in ranges.items() {
            let trimmed = json!(range.text().trim());
            let mut found = FieldErrors::new();
            network::check_cidr(&Field::new(Some(&trimmed), range.path().as_str()), &mut found);
            errors.extend(found);
        }
        return;
    }
    let key = ctx.names.label_sub_key("service.beta", "load-balancer-source-ranges");
    let Some(annotation) = object.annotation(&key) else { return };
    let annotations = Field::new(None, "metadata.annotations");
    let field = annotations.entry(&key, None);
    if !is_load_balancer {
        errors.push(field.forbidden(ONLY_LOAD_BALANCER));
    }
    let ranges = annotation.trim();
    if !ranges.is_empty() && ranges.split(',').any(|range| network::parse_cidr(range.trim()).is_none()) {
        let detail = "must be a list of IP ranges. For example, 10.240.0.0/24,10.250.0.0/24";
        errors.push(field.invalid_value(annotation, detail));
    }
}

fn validate_traffic_policies(spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    let (kind, external) = (spec.child("type"), spec.child("externalTrafficPolicy"));
    let is_external = match kind.text() {
        "LoadBalancer" | "NodePort" => true,
        "ClusterIP" => !spec.child("externalIPs").list().is_empty(),
        _ => false,
    };
    if is_external {
        text::require_supported(&external, &["Cluster", "Local"], errors);
    } else if !external.text().is_empty() {
        errors.push(external.invalid("may only be set for externally-accessible services"));
    }
    let check = spec.child("healthCheckNodePort");
    if check.integer().unwrap_or(0) != 0 {
        if kind.text() == "LoadBalancer" && external.text() == "Local" {
            network::check_port(&check, errors);
        } else {
            let detail =
                "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
            errors.push(check.invalid(detail));
        }
    }
    let internal = spec.child("internalTrafficPolicy");
    if internal.is_present() || matches!(kind.text(), "ClusterIP" | "NodePort" | "LoadBalancer") {
        text::require_present_and_supported(&internal, &["Cluster", "Local"], errors);
    }
    text::check_supported(&spec.child("trafficDistribution"), &["PreferClose"], errors);
}

/// Validates the changes of an update.
pub(super) fn validate_update(new: &Object, old: &Object) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let (new, old) = (Field::new(new.get("spec"), "spec"), Field::new(old.get("spec"), "spec"));
    addresses::validate_update(&new, &old, &mut errors);
    let is_load_balancer = |spec: &Field<'_, '_>| spec.child("type").text() == "LoadBalancer";
    let class = new.child("loadBalancerClass");
    if is_load_balancer(&new)
        && is_load_balancer(&old)
        && class.value() != old.child("loadBalancerClass").value()
    {
        errors.push(class.invalid("may not change once set"));
    }
    // As in kube-apiserver, the rules for all services report an error of the class again.
    validate_class(&new, &mut errors);
    let has_health_check = |spec: &Field<'_, '_>| {
        is_load_balancer(spec) && spec.child("externalTrafficPolicy").text() == "Local"
    };
    let check = new.child("healthCheckNodePort");
    if has_health_check(&new)
        && has_health_check(&old)
        && check.value() != old.child("healthCheckNodePort").value()
    {
        errors.push(check.forbidden("field is immutable"));
    }
    errors
}

/// Validates the status.
pub(super) fn validate_status(object: &Object) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let spec = Field::new(object.get("spec"), "spec");
    let status = Field::new(object.get("status"), "status");
    let balancer = status.child("loadBalancer");
    let list = balancer.child("ingress");
    if spec.child("type").text() != "LoadBalancer" && !list.list().is_empty() {
        errors.push(list.forbidden("may only be used when `spec.type` is \"LoadBalancer\""));
        return errors;
    }
    for ingress in list.items() {
        let (address, mode) = (ingress.child("ip"), ingress.child("ipMode"));
        if !address.text().is_empty() {
            network::check_ip(&address, &mut errors);
        }
        match (address.text().is_empty(), mode.is_present()) {
            (false, false) => errors.push(mode.required("must be specified when `ip` is set")),
            (true, true) => errors.push(mode.forbidden("may not be specified when `ip` is not set")),
            (false, true) if !matches!(mode.text(), "VIP" | "Proxy") => {
                errors.push(FieldError::not_supported(&mode.path(), mode.text(), &["Proxy", "VIP"]));
            }
            _ => {}
        }
        network::check_host_name(&ingress.child("hostname"), &mut errors);
    }
    errors
}

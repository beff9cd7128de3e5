//! Rules that containers of all lists share.

use std::collections::BTreeSet;

use apimachinery::field::FieldErrors;

use super::{PodFacts, environment, mounts, resources, security};
use crate::format;
use crate::validation::{Field, network, text};

/// Validates a container.
pub(super) fn validate(container: &Field<'_, '_>, facts: &PodFacts<'_>, errors: &mut FieldErrors) {
    text::require_format(&container.child("name"), format::label, errors);
    text::require(&container.child("image"), errors);
    text::require_supported(
        &container.child("terminationMessagePolicy"),
        &["File", "FallbackToLogsOnError"],
        errors,
    );
    ports(&container.child("ports"), errors);
    environment::variables(&container.child("env"), errors);
    environment::sources(&container.child("envFrom"), errors);
    mounts::mounts(container, &facts.volumes, errors);
    mounts::devices(container, &facts.volumes, errors);
    let policies = ["Always", "IfNotPresent", "Never"];
    text::require_supported(&container.child("imagePullPolicy"), &policies, errors);
    resources::container(&container.child("resources"), facts.names, errors);
    resources::resize_policy(&container.child("resizePolicy"), facts, errors);
    security::container(&container.child("securityContext"), facts, errors);
}

fn ports(ports: &Field<'_, '_>, errors: &mut FieldErrors) {
    let mut names = BTreeSet::new();
    for port in ports.items() {
        let name = port.child("name");
        if !name.text().is_empty() {
            let is_valid = text::check_name(&name, name.text(), format::port_name, errors);
            if is_valid && !names.insert(name.text()) {
                errors.push(name.duplicate());
            }
        }
        let number = port.child("containerPort");
        if number.integer().unwrap_or(0) == 0 {
            errors.push(number.required(""));
        } else {
            network::check_port(&number, errors);
        }
        let host = port.child("hostPort");
        if host.integer().unwrap_or(0) != 0 {
            network::check_port(&host, errors);
        }
        text::require_supported(&port.child("protocol"), &["SCTP", "TCP", "UDP"], errors);
    }
}

/// Reports host ports of a container that are in `seen`, as protocol, address and number. Adds the other host
/// ports to `seen`. The container may be [`Field::with_value`] of another path.
pub(super) fn host_port_conflicts<'v, 'p>(
    container: &'p Field<'v, 'p>,
    seen: &mut BTreeSet<(&'v str, &'v str, i64)>,
    errors: &mut FieldErrors,
) {
    for port in container.child("ports").items() {
        let host = port.child("hostPort");
        let Some(number) = host.integer().filter(|number| *number != 0) else { continue };
        let (protocol, address) = (port.child("protocol").text(), port.child("hostIP").text());
        if !seen.insert((protocol, address, number)) {
            let shown = format!("{protocol}/{address}/{number}");
            errors.push(apimachinery::field::FieldError::duplicate(&host.path(), shown));
        }
    }
}

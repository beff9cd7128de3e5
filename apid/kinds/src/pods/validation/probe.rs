//! Probes and lifecycle handlers of containers.

use apimachinery::field::FieldErrors;

use super::PodFacts;
use crate::format;
use crate::validation::{Field, network, number, text};

/// Kinds of probes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ProbeKind {
    Liveness,
    Readiness,
    Startup,
}

/// Validates a probe, if present.
pub(super) fn probe(probe: &Field<'_, '_>, kind: ProbeKind, facts: &PodFacts<'_>, errors: &mut FieldErrors) {
    if !probe.is_present() {
        return;
    }
    handler(probe, facts, errors);
    for field in
        ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
    {
        number::check_not_negative(&probe.child(field), errors);
    }
    let grace = probe.child("terminationGracePeriodSeconds");
    number::check_positive(&grace, errors);
    if kind == ProbeKind::Readiness {
        if grace.is_present() {
            errors.push(grace.invalid("must not be set for readinessProbes"));
        }
    } else {
        let threshold = probe.child("successThreshold");
        if threshold.integer().unwrap_or(0) != 1 {
            errors.push(threshold.invalid_value(threshold.integer().unwrap_or(0), "must be 1"));
        }
    }
}

/// Validates the lifecycle handlers of a container.
pub(super) fn lifecycle(lifecycle: &Field<'_, '_>, facts: &PodFacts<'_>, errors: &mut FieldErrors) {
    for name in ["postStart", "preStop"] {
        let hook = lifecycle.child(name);
        if hook.is_present() {
            handler(&hook, facts, errors);
        }
    }
}

/// Validates that a probe or hook has exactly one handler, and validates this handler.
fn handler(owner: &Field<'_, '_>, facts: &PodFacts<'_>, errors: &mut FieldErrors) {
    type Rule = fn(&Field<'_, '_>, &PodFacts<'_>, &mut FieldErrors);
    let handlers: [(&str, Rule); 5] = [
        ("exec", exec),
        ("httpGet", http_get),
        ("tcpSocket", |socket, _, errors| network::check_port_or_name(&socket.child("port"), errors)),
        ("grpc", |grpc, _, errors| network::check_port(&grpc.child("port"), errors)),
        ("sleep", sleep),
    ];
    let mut has_handler = false;
    for (name, rule) in handlers {
        let handler = owner.child(name);
        if !handler.is_present() {
            continue;
        }
        if has_handler {
            errors.push(handler.forbidden("may not specify more than 1 handler type"));
        } else {
            has_handler = true;
            rule(&handler, facts, errors);
        }
    }
    if !has_handler {
        errors.push(owner.required("must specify a handler type"));
    }
}

fn exec(exec: &Field<'_, '_>, _facts: &PodFacts<'_>, errors: &mut FieldErrors) {
    exec.child("command").require_items("", errors);
}

fn http_get(get: &Field<'_, '_>, _facts: &PodFacts<'_>, errors: &mut FieldErrors) {
    text::require(&get.child("path"), errors);
    network::check_port_or_name(&get.child("port"), errors);
    let scheme = get.child("scheme");
    if !["HTTP", "HTTPS"].contains(&scheme.text()) {
        errors.push(scheme.not_supported(&["HTTP", "HTTPS"]));
    }
    let headers = get.child("httpHeaders");
    for header in headers.items() {
        let name = header.child("name").text();
        text::check_name(&headers, name, format::http_header_name, errors);
    }
}

fn sleep(sleep: &Field<'_, '_>, facts: &PodFacts<'_>, errors: &mut FieldErrors) {
    let seconds = sleep.child("seconds").integer().unwrap_or(0);
    let max = facts.grace_period_seconds;
    if seconds < 0 || seconds > max {
        let detail = format!("must be non-negative and less than terminationGracePeriodSeconds ({max})");
        errors.push(sleep.invalid_value(seconds, &detail));
    }
}

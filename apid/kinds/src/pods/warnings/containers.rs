//! Warnings about the containers of pods: fractional amounts, hidden variables and overlapping ports.

use std::collections::{BTreeMap, BTreeSet};

use apimachinery::object::Value;
use apimachinery::quantity;

use crate::pods::CONTAINER_LISTS;
use crate::validation::Field;

/// Maximum number of earlier ports, with the same port number and protocol, that a port is compared with.
const COMPARED_MAX: usize = 100;

/// Maximum number of collected warnings about port conflicts; a response of apid has fewer warnings.
const CONFLICTS_MAX: usize = 100;

/// A port with its path.
struct Port<'v> {
    path: String,
    host_ip: &'v str,
    host_port: i64,
}

/// Reports fractional amounts of bytes, and variables that later variables hide.
pub(super) fn resources_and_variables(spec: &Field<'_, '_>, warnings: &mut Vec<String>) {
    for name in ["memory", "ephemeral-storage"] {
        fractional_bytes(&spec.child("overhead"), name, warnings);
    }
    for list in CONTAINER_LISTS {
        for container in spec.child(list).items() {
            let resources = container.child("resources");
            for kind in ["limits", "requests"] {
                for name in ["ephemeral-storage", "memory"] {
                    fractional_bytes(&resources.child(kind), name, warnings);
                }
            }
            hidden_variables(&container.child("env"), warnings);
        }
    }
}

/// Reports a fractional amount of bytes.
///
/// kube-apiserver computes thousandths in 64 bits. If they overflow, it uses the value 2^63 - 1 for a text of
/// more than 18 digits, and 0 for other texts.
pub(super) fn fractional_bytes(amounts: &Field<'_, '_>, name: &str, warnings: &mut Vec<String>) {
    const NANOS_OF_THOUSANDTH: i128 = 1_000_000;
    /// Number of decimal digits that always fit into 64 bits.
    const INT64_DIGITS: usize = 18;
    let amount = amounts.entry(name, amounts.value().and_then(|amounts| amounts.get(name)));
    let Ok((nanos, _)) = quantity::nanos(amount.text()) else { return };
    let max = i128::from(i64::MAX);
    let digits = amount.text().bytes().filter(u8::is_ascii_digit).count();
    let thousandths = match nanos / NANOS_OF_THOUSANDTH {
        exact if exact <= max => exact,
        _ if digits > INT64_DIGITS => max,
        _ => 0,
    };
    if thousandths % 1000 != 0 {
        let (path, text) = (amount.path(), amount.text());
        warnings.push(format!("{path}: fractional byte value \"{text}\" is invalid, must be an integer"));
    }
}

/// Reports variables with the name of an earlier variable, unless the value has a reference to it, `$(NAME)`,
/// and more.
fn hidden_variables(variables: &Field<'_, '_>, warnings: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for variable in variables.items() {
        let name = variable.child("name").text();
        let (value, reference) = (variable.child("value").text(), format!("$({name})"));
        let is_extended = value.contains(&reference) && value != reference;
        if !seen.insert(name) && !is_extended {
            warnings.push(format!(
                "{}: hides previous definition of {}, which may be dropped when using apply",
                variable.path(),
                Value::from(name)
            ));
        }
    }
}

/// Reports ports that conflict with ports of the same or of earlier containers.
pub(super) fn ports(spec: &Field<'_, '_>, warnings: &mut Vec<String>) {
    let mut conflicts = Conflicts::default();
    let mut names: BTreeMap<&str, String> = BTreeMap::new();
    for list in CONTAINER_LISTS {
        for container in spec.child(list).items() {
            let is_long_running = list == "containers" || container.child("restartPolicy").text() == "Always";
            for port in container.child("ports").items() {
                let path = port.path().to_string();
                unused_address(&port, &path, warnings);
                conflicts.add(&port, &path, warnings);
                let name = port.child("name").text();
                if name.is_empty() || !is_long_running {
                    continue;
                }
                if let Some(first) = names.get(name) {
                    warnings.push(format!(
                        "{path}: duplicate port name {name:?} with {first}, services and probes that select ports by name \
                         will use {first}"
                    ));
                } else {
                    names.insert(name, path);
                }
            }
        }
    }
}

/// Reports a host address without a host port. The text shows the port as Go prints a struct.
fn unused_address(port: &Field<'_, '_>, path: &str, warnings: &mut Vec<String>) {
    let (host_ip, host_port) = (port.child("hostIP").text(), port.child("hostPort").integer().unwrap_or(0));
    if !host_ip.is_empty() && host_port == 0 {
        let number = port.child("containerPort").integer().unwrap_or(0);
        let (name, protocol) = (port.child("name").text(), port.child("protocol").text());
        warnings.push(format!(
            "{path}: hostIP set without hostPort: {{Name:{name} HostPort:0 ContainerPort:{number} Protocol:{protocol} \
             HostIP:{host_ip}}}"
        ));
    }
}

/// The ports that have been added, to find conflicts with later ports.
#[derive(Default)]
struct Conflicts<'v> {
    /// The added ports by number and protocol, at most [`COMPARED_MAX`] for each pair.
    seen: BTreeMap<(i64, &'v str), Vec<Port<'v>>>,
    /// Number of reported conflicts.
    reported: usize,
}

impl<'v> Conflicts<'v> {
    /// Adds a port, and reports the earlier ports that conflict with the port.
    fn add(&mut self, port: &Field<'v, '_>, path: &str, warnings: &mut Vec<String>) {
        let number = port.child("containerPort").integer().unwrap_or(0);
        let (host_ip, host_port) =
            (port.child("hostIP").text(), port.child("hostPort").integer().unwrap_or(0));
        let others = self.seen.entry((number, port.child("protocol").text())).or_default();
        for other in others.iter() {
            let conflict = if host_ip == other.host_ip && host_port == other.host_port {
                "duplicate"
            } else if host_port == 0 || other.host_port == 0 {
                "overlapping"
            } else if host_port == other.host_port && host_ip.is_empty() != other.host_ip.is_empty() {
                "dangerously ambiguous"
            } else {
                continue;
            };
            if self.reported == CONFLICTS_MAX {
                return;
            }
            self.reported += 1;
            warnings.push(format!("{path}: {conflict} port definition with {}", other.path));
        }
        if others.len() < COMPARED_MAX {
            others.push(Port { path: path.to_owned(), host_ip, host_port });
        }
    }
}

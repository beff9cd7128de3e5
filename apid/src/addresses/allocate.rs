//! Allocation of the addresses and ports of one Service.
//!
//! # Contract
//!
//! [`Claim`] collects the values of one write while the index is locked. The caller reserves the collected values
//! before it releases the lock. A dry run collects nothing.

use std::net::IpAddr;

use apimachinery::clock::Rng;
use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::{Map, Value};

use super::band::{Band, reserved};
use super::index::{Index, health_check_port, node_ports, number, parse};
use super::range::AddressRange;
use crate::config::NodePortRange;

/// First port that a dry run shows.
const DRY_RUN_PORT: u16 = 32_768;

/// The reason why an allocation failed.
#[derive(Debug)]
pub enum AllocationError {
    /// A field is invalid.
    Invalid(FieldErrors),
    /// No value is free, or a health check port cannot be allocated.
    Internal(String),
}

impl From<FieldError> for AllocationError {
    fn from(error: FieldError) -> Self {
        let mut errors = FieldErrors::new();
        errors.push(error);
        AllocationError::Invalid(errors)
    }
}

/// The values that one write allocates.
pub(super) struct Claim<'a> {
    /// The index, locked.
    pub(super) index: &'a Index,
    /// The ranges of the command line.
    pub(super) defaults: &'a [AddressRange],
    /// The range of node ports.
    pub(super) node_ports: NodePortRange,
    /// The random number generator.
    pub(super) rng: &'a dyn Rng,
    /// Whether the write is a dry run.
    pub(super) is_dry_run: bool,
    /// The collected addresses.
    pub(super) addresses: Vec<IpAddr>,
    /// The collected ports.
    pub(super) ports: Vec<u16>,
}

impl Claim<'_> {
    /// Allocates the cluster IP addresses that a Service lacks.
    pub(super) fn cluster_ips(
        &mut self,
        spec: &mut Map<String, Value>,
        old: Option<&Value>,
    ) -> Result<(), AllocationError> {
        if has(spec, "type", "ExternalName") {
            return Ok(());
        }
        let mut addresses = texts(spec.get("clusterIPs"));
        let old = old.filter(|old| old.get("type").is_none_or(|kind| kind != "ExternalName"));
        let old_addresses = old.map(|old| texts(old.get("clusterIPs"))).unwrap_or_default();
        let is_headless = |list: &[String]| list.first().is_some_and(|address| address == "None");
        if is_headless(&addresses) || is_headless(&old_addresses) {
            return Ok(());
        }
        let families = texts(spec.get("ipFamilies"));
        for (i, family) in families.iter().enumerate().skip(old_addresses.len()) {
            match addresses.get(i).cloned() {
                Some(address) => self.take_address(&address, &addresses)?,
                None => addresses.push(self.next_address(family)?),
            }
        }
        let Some(first) = addresses.first().cloned() else { return Ok(()) };
        spec.insert("clusterIP".to_owned(), first.into());
        spec.insert("clusterIPs".to_owned(), addresses.into());
        Ok(())
    }

    fn ranges(&self) -> impl Iterator<Item = &AddressRange> {
        self.defaults.iter().chain(self.index.ranges.values().flatten())
    }

    fn take_address(&mut self, text: &str, all: &[String]) -> Result<(), AllocationError> {
        let path = FieldPath::new("spec").child("clusterIPs");
        let invalid = |detail: &str| {
            let detail = format!("failed to allocate IP {text}: {detail}");
            AllocationError::from(FieldError::invalid(&path, all.to_vec(), &detail))
        };
        let Some(address) = parse(text) else { return Err(invalid("the IP address is invalid")) };
        if !self.ranges().any(|range| range.contains(address)) {
            let same_family = self.defaults.iter().find(|range| range.cidr.is_ipv4() == address.is_ipv4());
            let detail = match same_family {
                Some(range) if self.is_dry_run => format!(
                    "the provided IP ({address}) is not in the valid range. The range of valid IPs is {}",
                    range.cidr
                ),
                _ => "the provided network does not match the current range".to_owned(),
            };
            return Err(invalid(&detail));
        }
        if self.is_dry_run {
            return Ok(());
        }
        if !self.index.is_free_address(address) || self.addresses.contains(&address) {
            return Err(invalid("provided IP is already allocated"));
        }
        self.addresses.push(address);
        Ok(())
    }

    fn next_address(&mut self, family: &str) -> Result<String, AllocationError> {
        let full = || AllocationError::Internal("failed to allocate a serviceIP: range is full".to_owned());
        if self.is_dry_run {
            let mut ranges = self.ranges().filter(|range| range.family() == family);
            return ranges.next().map(|range| range.cidr.network().to_string()).ok_or_else(full);
        }
        let is_free = |ip| self.index.is_free_address(ip) && !self.addresses.contains(&ip);
        let mut ranges = self.ranges().filter(|range| range.family() == family);
        let address = ranges.find_map(|range| range.pick(self.rng.bits(), is_free));
        drop(ranges);
        let address = address.ok_or_else(full)?;
        self.addresses.push(address);
        Ok(address.to_string())
    }

    /// Allocates the node ports and the health check port that a Service lacks.
    pub(super) fn all_ports(
        &mut self,
        spec: &mut Map<String, Value>,
        old: Option<&Value>,
    ) -> Result<(), AllocationError> {
        if has(spec, "type", "NodePort") || has(spec, "type", "LoadBalancer") {
            let known: Vec<u16> = old.map(|old| node_ports(old).collect()).unwrap_or_default();
            self.service_ports(spec, old.is_some(), &known)?;
        }
        let needed = old.is_some_and(|old| old.as_object().is_some_and(needs_health_check));
        if needs_health_check(spec) && !needed {
            self.health_check(spec)?;
        }
        Ok(())
    }

    /// Allocates node ports. Ports of a new Service with the same number share a node port.
    fn service_ports(
        &mut self,
        spec: &mut Map<String, Value>,
        is_update: bool,
        known: &[u16],
    ) -> Result<(), AllocationError> {
        let allocates = spec.get("allocateLoadBalancerNodePorts") != Some(&Value::Bool(false))
            || !has(spec, "type", "LoadBalancer");
        let Some(Value::Array(ports)) = spec.get_mut("ports") else { return Ok(()) };
        let chosen: Vec<(Option<u16>, Option<u16>)> =
            ports.iter().map(|port| (number(port.get("port")), number(port.get("nodePort")))).collect();
        let mut given: Vec<(u16, u16)> = Vec::new();
        for (i, port) in ports.iter_mut().enumerate() {
            let (Some(&(number, node_port)), Value::Object(port)) = (chosen.get(i), port) else { continue };
            let number = number.unwrap_or_default();
            if out_of_range(port.get("nodePort")) {
                if self.is_dry_run {
                    continue;
                }
                let path = node_port_path(i);
                let shown = port.get("nodePort").cloned().unwrap_or_default();
                return Err(FieldError::invalid(&path, shown, &self.port_range_error()).into());
            }
            if node_port.is_none() && !allocates {
                continue;
            }
            let shared =
                given.iter().find(|(other, _)| !is_update && *other == number).map(|(_, port)| *port);
            let requested = || chosen.iter().find(|(other, port)| *other == Some(number) && port.is_some());
            let node_port = match (node_port, shared) {
                (Some(node_port), Some(shared)) if node_port == shared => node_port,
                (None, Some(shared)) => shared,
                (None, None) if !is_update && requested().is_some() => {
                    let node_port = requested().and_then(|(_, port)| *port).unwrap_or_default();
                    self.take_node_port(i, node_port)?;
                    node_port
                }
                (None, None) => self.next_port().map_err(|error| {
                    AllocationError::Internal(format!("failed to allocate a nodePort: {error}"))
                })?,
                (Some(node_port), _) => {
                    let is_own = known.contains(&node_port)
                        || (is_update && given.iter().any(|(_, other)| *other == node_port));
                    if !is_own {
                        self.take_node_port(i, node_port)?;
                    }
                    node_port
                }
            };
            given.push((number, node_port));
            port.insert("nodePort".to_owned(), node_port.into());
        }
        Ok(())
    }

    fn take_node_port(&mut self, index: usize, port: u16) -> Result<(), AllocationError> {
        self.take_port(port)
            .map_err(|detail| FieldError::invalid(&node_port_path(index), port, &detail).into())
    }

    fn health_check(&mut self, spec: &mut Map<String, Value>) -> Result<(), AllocationError> {
        let chosen = health_check_port(&Value::Object(spec.clone()));
        let port = match chosen {
            Some(port) => self.take_port(port).map(|()| port).map_err(|error| {
                format!("failed to allocate requested HealthCheck NodePort {port}: {error}")
            }),
            None => self
                .next_port()
                .map_err(|error| format!("failed to allocate a HealthCheck NodePort 0: {error}")),
        };
        let port = port.map_err(AllocationError::Internal)?;
        spec.insert("healthCheckNodePort".to_owned(), port.into());
        Ok(())
    }

    fn port_range_error(&self) -> String {
        format!("provided port is not in the valid range. The range of valid ports is {}", self.node_ports)
    }

    fn take_port(&mut self, port: u16) -> Result<(), String> {
        if !self.is_dry_run && !(self.node_ports.first..=self.node_ports.last).contains(&port) {
            return Err(self.port_range_error());
        }
        if !self.index.is_free_port(port) || self.ports.contains(&port) {
            return Err("provided port is already allocated".to_owned());
        }
        self.ports.push(port);
        Ok(())
    }

    fn next_port(&mut self) -> Result<u16, &'static str> {
        if self.is_dry_run {
            // The value is only an example, as in the reference.
            let port = self.ports.iter().max().map_or(DRY_RUN_PORT, |port| port.saturating_add(1));
            self.ports.push(port);
            return Ok(port);
        }
        let (first, last) = (u128::from(self.node_ports.first), u128::from(self.node_ports.last));
        let band = Band { first, last, reserved: reserved(last - first + 1, 16, 128, 32) };
        let port = |number: u128| u16::try_from(number).unwrap_or_default();
        let is_free = |number| self.index.is_free_port(port(number)) && !self.ports.contains(&port(number));
        let found = band.pick(self.rng.bits(), is_free).map(port).ok_or("range is full")?;
        self.ports.push(found);
        Ok(found)
    }
}

fn node_port_path(index: usize) -> FieldPath {
    FieldPath::new("spec").child("ports").index(index).child("nodePort")
}

/// Whether a number other than zero is no port.
fn out_of_range(value: Option<&Value>) -> bool {
    value.is_some_and(|value| value.as_i64().is_some_and(|port| port != 0)) && number(value).is_none()
}

fn has(spec: &Map<String, Value>, field: &str, text: &str) -> bool {
    spec.get(field).is_some_and(|value| value == text)
}

fn needs_health_check(spec: &Map<String, Value>) -> bool {
    has(spec, "type", "LoadBalancer") && has(spec, "externalTrafficPolicy", "Local")
}

fn texts(list: Option<&Value>) -> Vec<String> {
    let list = list.and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

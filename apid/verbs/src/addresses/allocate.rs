//! Allocation of the addresses and ports of one Service.
//!
//! # Contract
//!
//! [`ServiceAllocator`] collects the addresses and ports that one write allocates, while the index is locked.
//! The caller reserves these values before it releases the lock. After a dry run the caller reserves nothing.

use std::net::IpAddr;

use apimachinery::clock::Rng;
use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::{Map, Value};

use super::band::{Band, lower_band_size};
use super::index::{Index, node_ports, port_number};
use super::range::AddressRange;
use super::range::parse_address;
use crate::addresses::NodePortRange;

/// First port that a dry run returns.
const DRY_RUN_PORT: u16 = 32_768;

/// The reason why an allocation failed.
#[derive(Debug)]
pub enum AllocationError {
    /// A field is invalid.
    Invalid(FieldErrors),
    /// No free value is left, or the health check port cannot be allocated. Contains the message of the 500.
    Internal(String),
}

impl From<FieldError> for AllocationError {
    fn from(error: FieldError) -> Self {
        let mut errors = FieldErrors::new();
        errors.push(error);
        AllocationError::Invalid(errors)
    }
}

/// Allocates the addresses and ports of one Service, and collects them for the reservation.
pub(super) struct ServiceAllocator<'a> {
    /// The index; the caller holds its lock.
    pub(super) index: &'a Index,
    /// The address that only the Service of the API gets; None during the allocation for that Service.
    pub(super) unavailable: Option<IpAddr>,
    /// The range of node ports.
    pub(super) node_ports: NodePortRange,
    /// The source of the random numbers at which a search for a free value begins.
    pub(super) rng: &'a dyn Rng,
    /// Whether the write is a dry run.
    pub(super) is_dry_run: bool,
    /// The addresses that this write allocates.
    pub(super) addresses: Vec<IpAddr>,
    /// The ports that this write allocates.
    pub(super) ports: Vec<u16>,
}

/// The numbers of one port of a Service.
#[derive(Clone, Copy)]
struct ServicePort {
    /// The port; 0 if absent.
    number: u16,
    /// The node port that the client requests.
    node_port: Option<u16>,
}

impl ServicePort {
    fn read(port: &Value) -> Self {
        ServicePort {
            number: port_number(port.get("port")).unwrap_or_default(),
            node_port: port_number(port.get("nodePort")),
        }
    }
}

/// The ports of one Service during the allocation of its node ports.
struct NodePorts<'a> {
    /// The node ports of the stored Service; None for a new Service.
    old: Option<&'a [u16]>,
    /// The ports as sent by the client.
    requested: Vec<ServicePort>,
    /// Port number and node port of each port that has a node port already.
    allocated: Vec<(u16, u16)>,
}

impl NodePorts<'_> {
    /// The node port of an earlier port of a new Service with the same number; such ports share a node port.
    fn shared_node_port(&self, number: u16) -> Option<u16> {
        let mut allocated = self.allocated.iter().filter(|_| self.old.is_none());
        allocated.find(|(other, _)| *other == number).map(|(_, node_port)| *node_port)
    }

    /// The node port that another port of a new Service with this number requests.
    fn requested_by_equal_number(&self, number: u16) -> Option<u16> {
        let mut requested = self.requested.iter().filter(|_| self.old.is_none());
        requested.find_map(|port| port.node_port.filter(|_| port.number == number))
    }

    /// Whether the Service has the node port already, so that the port needs no allocation.
    fn is_allocated(&self, number: u16, node_port: u16) -> bool {
        match self.old {
            None => self.shared_node_port(number) == Some(node_port),
            Some(old) => {
                old.contains(&node_port) || self.allocated.iter().any(|(_, other)| *other == node_port)
            }
        }
    }
}

impl ServiceAllocator<'_> {
    /// Allocates the cluster IP addresses that a Service lacks.
    pub(super) fn allocate_cluster_ips(
        &mut self,
        spec: &mut Map<String, Value>,
        old: Option<&Value>,
    ) -> Result<(), AllocationError> {
        if has_text(spec, "type", "ExternalName") {
            return Ok(());
        }
        let mut addresses = string_list(spec.get("clusterIPs"));
        let old = old.filter(|old| old.get("type").is_none_or(|kind| kind != "ExternalName"));
        let old_addresses = old.map(|old| string_list(old.get("clusterIPs"))).unwrap_or_default();
        let is_headless = |list: &[String]| list.first().is_some_and(|address| address == "None");
        if is_headless(&addresses) || is_headless(&old_addresses) {
            return Ok(());
        }
        let families = string_list(spec.get("ipFamilies"));
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
        self.index.usable_ranges()
    }

    fn is_free_address(&self, address: IpAddr) -> bool {
        self.unavailable != Some(address)
            && !self.addresses.contains(&address)
            && self.index.is_free_address(address)
    }

    fn take_address(&mut self, text: &str, requested: &[String]) -> Result<(), AllocationError> {
        let path = FieldPath::new("spec").child("clusterIPs");
        let invalid_address = |detail: &str| {
            let detail = format!("failed to allocate IP {text}: {detail}");
            AllocationError::from(FieldError::invalid(&path, requested.to_vec(), &detail))
        };
        let Some(address) = parse_address(text) else {
            return Err(invalid_address("the IP address is invalid"));
        };
        if !self.ranges().any(|range| range.contains(address)) {
            let same_family =
                self.index.defaults.iter().find(|range| range.cidr.is_ipv4() == address.is_ipv4());
            let detail = match same_family {
                Some(range) if self.is_dry_run => format!(
                    "the provided IP ({address}) is not in the valid range. The range of valid IPs is {}",
                    range.cidr
                ),
                _ => "the provided network does not match the current range".to_owned(),
            };
            return Err(invalid_address(&detail));
        }
        if self.is_dry_run {
            return Ok(());
        }
        if !self.is_free_address(address) {
            return Err(invalid_address("provided IP is already allocated"));
        }
        self.addresses.push(address);
        Ok(())
    }

    fn next_address(&mut self, family: &str) -> Result<String, AllocationError> {
        let range_full =
            || AllocationError::Internal("failed to allocate a serviceIP: range is full".to_owned());
        if self.is_dry_run {
            let mut ranges = self.ranges().filter(|range| range.family() == family);
            return ranges.next().map(|range| range.cidr.network().to_string()).ok_or_else(range_full);
        }
        let mut ranges = self.ranges().filter(|range| range.family() == family);
        let address =
            ranges.find_map(|range| range.pick(self.rng.bits(), |address| self.is_free_address(address)));
        drop(ranges);
        let address = address.ok_or_else(range_full)?;
        self.addresses.push(address);
        Ok(address.to_string())
    }

    /// Allocates the node ports and the health check port that a Service lacks.
    pub(super) fn allocate_ports(
        &mut self,
        spec: &mut Map<String, Value>,
        old: Option<&Value>,
    ) -> Result<(), AllocationError> {
        if has_text(spec, "type", "NodePort") || has_text(spec, "type", "LoadBalancer") {
            let old_ports: Option<Vec<u16>> = old.map(|old| node_ports(old).collect());
            self.allocate_node_ports(spec, old_ports.as_deref())?;
        }
        let had_health_check = old.is_some_and(|old| old.as_object().is_some_and(needs_health_check));
        if needs_health_check(spec) && !had_health_check {
            self.allocate_health_check_port(spec)?;
        }
        Ok(())
    }

    /// Allocates the missing node ports. `old_ports` are the ports of the stored Service; None for a new
    /// Service.
    fn allocate_node_ports(
        &mut self,
        spec: &mut Map<String, Value>,
        old_ports: Option<&[u16]>,
    ) -> Result<(), AllocationError> {
        let allocates_node_ports = spec.get("allocateLoadBalancerNodePorts") != Some(&Value::Bool(false))
            || !has_text(spec, "type", "LoadBalancer");
        let Some(Value::Array(ports)) = spec.get_mut("ports") else { return Ok(()) };
        let mut state = NodePorts {
            old: old_ports,
            requested: ports.iter().map(ServicePort::read).collect(),
            allocated: Vec::with_capacity(ports.len()),
        };
        for (index, port) in ports.iter_mut().enumerate() {
            let (Some(&service_port), Value::Object(port)) = (state.requested.get(index), port) else {
                continue;
            };
            if is_invalid_port(port.get("nodePort")) {
                if self.is_dry_run {
                    continue;
                }
                let value = port.get("nodePort").cloned().unwrap_or_default();
                return Err(
                    FieldError::invalid(&node_port_path(index), value, &self.port_range_error()).into()
                );
            }
            let node_port = match service_port.node_port {
                Some(node_port) => {
                    if !state.is_allocated(service_port.number, node_port) {
                        self.take_node_port(index, node_port)?;
                    }
                    node_port
                }
                None if allocates_node_ports => {
                    self.allocate_missing_node_port(index, service_port.number, &state)?
                }
                None => continue,
            };
            state.allocated.push((service_port.number, node_port));
            port.insert("nodePort".to_owned(), node_port.into());
        }
        Ok(())
    }

    /// Allocates the node port of a port without one.
    ///
    /// The ports of a new Service with one number, such as those of TCP and UDP, share a node port.
    fn allocate_missing_node_port(
        &mut self,
        index: usize,
        number: u16,
        ports: &NodePorts<'_>,
    ) -> Result<u16, AllocationError> {
        if let Some(node_port) = ports.shared_node_port(number) {
            return Ok(node_port);
        }
        if let Some(node_port) = ports.requested_by_equal_number(number) {
            self.take_node_port(index, node_port)?;
            return Ok(node_port);
        }
        let generated = self.next_port();
        generated
            .map_err(|error| AllocationError::Internal(format!("failed to allocate a nodePort: {error}")))
    }

    fn take_node_port(&mut self, index: usize, port: u16) -> Result<(), AllocationError> {
        self.take_port(port)
            .map_err(|detail| FieldError::invalid(&node_port_path(index), port, &detail).into())
    }

    fn allocate_health_check_port(&mut self, spec: &mut Map<String, Value>) -> Result<(), AllocationError> {
        let requested = port_number(spec.get("healthCheckNodePort"));
        let port = match requested {
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
            // As in kube-apiserver, a dry run returns an example that may be in use.
            let port = self.ports.iter().max().map_or(DRY_RUN_PORT, |port| port.saturating_add(1));
            self.ports.push(port);
            return Ok(port);
        }
        let (first, last) = (u128::from(self.node_ports.first), u128::from(self.node_ports.last));
        let band = Band { first, last, reserved: lower_band_size(last - first + 1, 16, 128, 32) };
        let to_port = |number: u128| u16::try_from(number).unwrap_or_default();
        let is_free =
            |number| self.index.is_free_port(to_port(number)) && !self.ports.contains(&to_port(number));
        let free = band.pick(self.rng.bits(), is_free).map(to_port).ok_or("range is full")?;
        self.ports.push(free);
        Ok(free)
    }
}

fn node_port_path(index: usize) -> FieldPath {
    FieldPath::new("spec").child("ports").index(index).child("nodePort")
}

/// Whether the value is a number other than zero, but not a valid port number.
fn is_invalid_port(value: Option<&Value>) -> bool {
    value.is_some_and(|value| value.as_i64().is_some_and(|port| port != 0)) && port_number(value).is_none()
}

fn has_text(spec: &Map<String, Value>, field: &str, text: &str) -> bool {
    spec.get(field).is_some_and(|value| value == text)
}

fn needs_health_check(spec: &Map<String, Value>) -> bool {
    has_text(spec, "type", "LoadBalancer") && has_text(spec, "externalTrafficPolicy", "Local")
}

fn string_list(list: Option<&Value>) -> Vec<String> {
    let list = list.and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

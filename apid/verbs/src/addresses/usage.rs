//! The addresses and ports that a stored Service uses.

use std::borrow::Cow;
use std::net::IpAddr;

use serde::Deserialize;

use super::range::parse_address;

/// The addresses and ports of one Service, sorted and without duplicates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// The cluster IP addresses.
    pub(super) addresses: Vec<IpAddr>,
    /// The node ports and the health check port.
    pub(super) ports: Vec<u16>,
}

/// The fields of a stored Service with addresses and ports. The decoder skips other fields without building a tree.
#[derive(Default, Deserialize)]
#[serde(default)]
struct StoredService<'a> {
    #[serde(borrow)]
    spec: StoredSpec<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct StoredSpec<'a> {
    #[serde(borrow, rename = "type")]
    service_type: Cow<'a, str>,
    #[serde(borrow, rename = "clusterIP")]
    cluster_ip: Cow<'a, str>,
    #[serde(rename = "clusterIPs")]
    cluster_ips: Vec<String>,
    ports: Vec<StoredPort>,
    health_check_node_port: u64,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct StoredPort {
    node_port: u64,
}

impl Usage {
    /// Reads the values from the stored bytes of a Service.
    ///
    /// # Errors
    ///
    /// The bytes are not a Service.
    pub(super) fn read(value: &[u8]) -> Result<Self, serde_json::Error> {
        let StoredService { spec } = serde_json::from_slice(value)?;
        if spec.service_type == "ExternalName" {
            return Ok(Usage::default());
        }
        let texts = spec.cluster_ips.iter().map(String::as_str).chain([&*spec.cluster_ip]);
        let mut addresses: Vec<IpAddr> = texts.filter_map(parse_address).collect();
        let numbers = spec.ports.iter().map(|port| port.node_port).chain([spec.health_check_node_port]);
        let mut ports: Vec<u16> =
            numbers.filter_map(|number| u16::try_from(number).ok()).filter(|port| *port != 0).collect();
        addresses.sort_unstable();
        addresses.dedup();
        ports.sort_unstable();
        ports.dedup();
        Ok(Usage { addresses, ports })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn stored_service_yields_its_addresses_and_ports_once() {
        let check = |spec: serde_json::Value, addresses: &[&str], ports: &[u16]| {
            let stored = json!({"kind": "Service", "metadata": {"name": "s"}, "spec": spec, "status": {}});
            let usage = Usage::read(stored.to_string().as_bytes()).unwrap();
            let texts: Vec<String> = usage.addresses.iter().map(ToString::to_string).collect();
            assert_eq!(
                (texts, usage.ports.as_slice()),
                (addresses.iter().map(ToString::to_string).collect(), ports)
            );
        };
        check(json!({"clusterIP": "None", "clusterIPs": ["None"]}), &[], &[]);
        check(json!({"clusterIP": "10.0.0.1"}), &["10.0.0.1"], &[]);
        check(
            json!({
                "type": "LoadBalancer", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"],
                "healthCheckNodePort": 30_003,
                "ports": [{"port": 1, "nodePort": 30_002}, {"port": 2}, {"port": 3, "nodePort": 30_002}],
            }),
            &["10.0.0.1", "fd00::1"],
            &[30_002, 30_003],
        );
        check(json!({"type": "ExternalName", "clusterIP": "10.0.0.1"}), &[], &[]);
        assert!(Usage::read(b"{").is_err());
    }
}

//! The API's own Service with its endpoints and ServiceCIDR, with which pods find the API server.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use apimachinery::names::Names;
use serde_json::json;

use super::StartObject;
use crate::condition::Condition;
use verbs::addresses::ServiceRange;
use verbs::addresses::family;

/// The port of the Service.
const PORT: u16 = 443;
/// The namespace of the Service.
const DEFAULT: &str = "default";

/// The address under which pods reach this server, and the ranges of Services.
#[derive(Clone, Debug)]
pub struct AdvertisedServer {
    /// The address. None if only the loopback address is known; the Service then has no endpoints.
    pub address: Option<IpAddr>,
    /// The bound port.
    pub port: u16,
    /// The IP ranges of Services. The first range belongs to the primary IP family.
    pub ranges: Vec<ServiceRange>,
}

impl AdvertisedServer {
    /// Selects the published address.
    ///
    /// `configured` is the address of `--advertise-address`. Without this flag, apid publishes the bound
    /// address. If the server is bound to all addresses or to a loopback address, it publishes the source
    /// address of the default route.
    pub fn new(configured: Option<IpAddr>, bound: SocketAddr, ranges: Vec<ServiceRange>) -> Self {
        let is_general = |ip: &IpAddr| ip.is_unspecified() || ip.is_loopback();
        let address = configured.or_else(|| match bound.ip() {
            ip if is_general(&ip) => default_route_address(),
            ip => Some(ip),
        });
        AdvertisedServer { address: address.filter(|ip| !is_general(ip)), port: bound.port(), ranges }
    }
}

/// Returns the source address of the default route. Connecting a datagram socket sends no packet.
fn default_route_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Returns the ServiceCIDR and the Service.
pub(super) fn objects(published: &AdvertisedServer, names: &Names) -> Vec<StartObject> {
    let Some(range) = published.ranges.first() else { return Vec::new() };
    let address = range.first_address();
    vec![service_cidr(published, names), service(published, address, names)]
}

fn service(published: &AdvertisedServer, address: IpAddr, names: &Names) -> StartObject {
    let name = names.api_service;
    let object = json!({
        "metadata": {
            "name": name, "namespace": DEFAULT,
            "labels": {"component": "apiserver", "provider": name},
        },
        "spec": {
            "type": "ClusterIP",
            "clusterIP": address, "clusterIPs": [address],
            "ipFamilies": [family(address)], "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": "Cluster", "sessionAffinity": "None",
            "ports": [{"name": "https", "protocol": "TCP", "port": PORT, "targetPort": published.port}],
        },
        "status": {"loadBalancer": {}},
    });
    StartObject::new("", "Service", object)
}

fn service_cidr(published: &AdvertisedServer, names: &Names) -> StartObject {
    let ranges: Vec<String> = published.ranges.iter().map(ToString::to_string).collect();
    let object = json!({
        "metadata": {
            "name": names.api_service,
            "finalizers": [format!("{}/service-cidr-finalizer", names.group("networking"))],
        },
        "spec": {"cidrs": ranges},
    });
    let message = format!("{} default Service CIDR is ready", names.api_title());
    StartObject::new("networking", "ServiceCIDR", object).with_condition(Condition {
        kind: "Ready",
        status_is_true: true,
        reason: "",
        message,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advertised_address_is_flag_or_bound_address_and_never_loopback() {
        let advertised_address = |bound: &str, flag: Option<&str>| {
            let flag = flag.map(|ip| ip.parse().unwrap());
            AdvertisedServer::new(flag, SocketAddr::new(bound.parse().unwrap(), 6443), Vec::new()).address
        };
        assert_eq!(advertised_address("192.0.2.7", None), Some("192.0.2.7".parse().unwrap()));
        assert_eq!(advertised_address("127.0.0.1", Some("192.0.2.8")), Some("192.0.2.8".parse().unwrap()));
        assert_eq!(advertised_address("192.0.2.7", Some("127.0.0.1")), None);
        for general in ["127.0.0.1", "0.0.0.0", "::"] {
            assert!(
                advertised_address(general, None).is_none_or(|ip| !ip.is_loopback() && !ip.is_unspecified())
            );
        }
    }
}

//! The one list of addresses that no object may direct a connection to.
//!
//! # Contract
//!
//! [`AddressPolicy::check`] rejects addresses of this machine (loopback, unspecified), link-local addresses, multicast
//! and broadcast addresses, and the metadata services of cloud providers. An IPv6 address that contains an IPv4
//! address is checked as this IPv4 address: IPv4-mapped, IPv4-compatible, NAT64 (64:ff9b::/96) and 6to4 (2002::/16).
//! `--forwarding-address-exceptions` lists exceptions, also to the contained addresses.
//!
//! # Reference
//!
//! kube-apiserver allows the addresses for which Go's `IsGlobalUnicast` is true. Unlike kube-apiserver, apid also
//! rejects [`METADATA`], and IPv6 addresses for the IPv4 address that they contain.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Metadata services of cloud providers, which are not link-local: addresses or networks.
const METADATA: [Network; 4] = [
    Network::v6(Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0), 32),
    Network::v6(Ipv6Addr::new(0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x0254), 128),
    Network::v4(Ipv4Addr::new(168, 63, 129, 16), 32),
    Network::v4(Ipv4Addr::new(100, 100, 100, 200), 32),
];

/// Decides which addresses of pods, nodes and endpoints apid connects to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressPolicy {
    exceptions: Vec<Network>,
}

/// An address of an object that the policy rejects. The text is that of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("address not allowed")]
pub struct AddressNotAllowed;

/// A text that is neither an IP address nor a network in CIDR notation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither an IP address nor a network such as 127.0.0.0/8")]
pub struct InvalidNetwork(String);

impl AddressPolicy {
    /// Creates a policy. `exceptions`: IP addresses and networks in CIDR notation that are allowed.
    ///
    /// # Errors
    ///
    /// The first exception that is neither.
    pub fn new(exceptions: &[String]) -> Result<Self, InvalidNetwork> {
        let exceptions = exceptions.iter().map(|text| Network::parse(text));
        Ok(AddressPolicy { exceptions: exceptions.collect::<Result<_, _>>()? })
    }

    /// Rejects an address that no object may direct a connection to.
    ///
    /// # Errors
    ///
    /// The address is in the list and is no exception.
    pub fn check(&self, address: IpAddr) -> Result<(), AddressNotAllowed> {
        let address = address.to_canonical();
        let is_allowed = |address: IpAddr| {
            !is_forbidden(address) || self.exceptions.iter().any(|network| network.contains(address))
        };
        if is_allowed(address) && contained(address).is_none_or(is_allowed) {
            Ok(())
        } else {
            Err(AddressNotAllowed)
        }
    }
}

/// Returns the IPv4 address that an IPv6 address contains, and to which the network or a gateway may translate it.
fn contained(address: IpAddr) -> Option<IpAddr> {
    let IpAddr::V6(address) = address else { return None };
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Some(IpAddr::V4(Ipv4Addr::new(a, b, c, d)))
    };
    match address.segments() {
        // The addresses :: and ::1 are those of IPv6.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        [0, 0, 0, 0, 0, 0, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => v4(high, low),
        [0x2002, high, low, ..] => v4(high, low),
        _ => None,
    }
}

/// Whether an address belongs to this machine or link, or to no single machine. `address` is canonical.
fn is_forbidden(address: IpAddr) -> bool {
    if address.is_loopback() || address.is_unspecified() || address.is_multicast() {
        return true;
    }
    let is_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    is_local || METADATA.iter().any(|network| network.contains(address))
}

/// A network in CIDR notation; an address is a network of one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    address: IpAddr,
    prefix_bits: u32,
}

impl Network {
    const fn v4(address: Ipv4Addr, prefix_bits: u32) -> Self {
        Network { address: IpAddr::V4(address), prefix_bits }
    }

    const fn v6(address: Ipv6Addr, prefix_bits: u32) -> Self {
        Network { address: IpAddr::V6(address), prefix_bits }
    }

    fn parse(text: &str) -> Result<Self, InvalidNetwork> {
        let invalid = || InvalidNetwork(text.to_owned());
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse::<u32>().map_err(|_| invalid())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| invalid())?;
        let max = if address.is_ipv4() { u32::BITS } else { u128::BITS };
        let prefix_bits = prefix.unwrap_or(max);
        if prefix_bits > max { Err(invalid()) } else { Ok(Network { address, prefix_bits }) }
    }

    fn contains(self, address: IpAddr) -> bool {
        let (difference, width) = match (self.address, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(a.to_bits() ^ b.to_bits()), u32::BITS),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits(), u128::BITS),
            _ => return false,
        };
        difference.checked_shr(width - self.prefix_bits).unwrap_or(0) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(exceptions: &[&str], address: &str) -> bool {
        let exceptions: Vec<String> = exceptions.iter().map(|text| (*text).to_owned()).collect();
        AddressPolicy::new(&exceptions).unwrap().check(address.parse().unwrap()).is_ok()
    }

    #[test]
    fn local_and_group_addresses_are_rejected_in_every_notation() {
        for (address, expected) in [
            ("10.0.0.1", true),
            ("192.168.1.1", true),
            ("2001:db8::1", true),
            ("fd00::1", true),
            ("::ffff:10.0.0.1", true),
            ("127.0.0.1", false),
            ("127.8.8.8", false),
            ("::ffff:127.0.0.1", false),
            ("::ffff:169.254.169.254", false),
            ("169.254.169.254", false),
            ("fd00:ec2::254", false),
            ("fd00:ec2::23", false),
            ("fd00:ec3::254", true),
            ("fd20:ce::254", false),
            ("fd20:ce::1", true),
            ("168.63.129.16", false),
            ("168.63.129.17", true),
            ("100.100.100.200", false),
            ("100.100.100.100", true),
            ("::127.0.0.1", false),
            ("::169.254.169.254", false),
            ("::10.0.0.1", true),
            ("64:ff9b::169.254.169.254", false),
            ("64:ff9b::100.100.100.200", false),
            ("64:ff9b::10.0.0.1", true),
            ("2002:a9fe:a9fe::1", false),
            ("2002:7f00:1::", false),
            ("2002:c000:204::1", true),
            ("255.255.255.255", false),
            ("224.0.0.1", false),
            ("0.0.0.0", false),
            ("::", false),
            ("::1", false),
            ("fe80::1", false),
            ("ff02::1", false),
        ] {
            assert_eq!(check(&[], address), expected, "{address}");
        }
    }

    #[test]
    fn exceptions_allow_their_addresses_only() {
        let exceptions = ["127.0.0.0/30", "::1", "169.254.0.0/16"];
        for (address, expected) in [
            ("127.0.0.3", true),
            ("127.0.0.4", false),
            ("::ffff:127.0.0.1", true),
            ("::1", true),
            ("169.254.169.254", true),
            ("64:ff9b::169.254.169.254", true),
            ("::127.0.0.4", false),
            ("fe80::1", false),
        ] {
            assert_eq!(check(&exceptions, address), expected, "{address}");
        }
        assert!(check(&["0.0.0.0/0"], "127.0.0.1") && !check(&["0.0.0.0/0"], "::1"));
        assert!(check(&["::/0"], "::1"));
        for invalid in ["localhost", "127.0.0.1/33", "127.0.0.1/", "::1/129", ""] {
            let error = AddressPolicy::new(&[invalid.to_owned()]).unwrap_err().to_string();
            assert!(error.contains(invalid) && error.contains("127.0.0.0/8"), "{error}");
        }
    }
}

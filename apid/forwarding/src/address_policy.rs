//! The one list of addresses that no object may direct a connection to.
//!
//! # Contract
//!
//! [`AddressPolicy::check`] rejects addresses of this machine (loopback, unspecified), link-local addresses, which
//! include the metadata service of cloud providers, multicast and broadcast addresses. An IPv6 address that contains
//! an IPv4 address is checked as this IPv4 address. `--forwarding-address-exceptions` lists exceptions.
//!
//! # Reference
//!
//! kube-apiserver allows the addresses for which Go's `IsGlobalUnicast` is true. Unlike kube-apiserver, apid also
//! rejects [`IPV6_METADATA`].

use std::net::{IpAddr, Ipv6Addr};

/// The metadata service of a cloud provider in IPv6. The IPv4 address of metadata services is link-local.
const IPV6_METADATA: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x0254);

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
        let is_exception = || self.exceptions.iter().any(|network| network.contains(address));
        if is_forbidden(address) && !is_exception() { Err(AddressNotAllowed) } else { Ok(()) }
    }
}

/// Whether an address belongs to this machine or link, or to no single machine. `address` is canonical.
fn is_forbidden(address: IpAddr) -> bool {
    if address.is_loopback() || address.is_unspecified() || address.is_multicast() {
        return true;
    }
    match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local() || address == IPV6_METADATA,
    }
}

/// A network in CIDR notation; an address is a network of one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    address: IpAddr,
    prefix_bits: u32,
}

impl Network {
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

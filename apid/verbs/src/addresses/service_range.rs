//! IP range of Services, as in `--service-cluster-ip-range`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Minimum number of host bits of a range on the command line. A range with 3 host bits has 8 addresses.
const MIN_HOST_BITS: u32 = 3;

/// A network in CIDR notation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceRange {
    network: IpAddr,
    prefix: u32,
}

/// The error of an invalid range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceRangeError {
    /// The text is not in CIDR notation.
    #[error("`{0}` is not an IP range such as 10.0.0.0/24")]
    Syntax(String),
    /// The range is too small.
    #[error("`{0}` has fewer than 8 addresses")]
    TooSmall(String),
    /// Two ranges of one IP family, or more than two ranges.
    #[error("allowed are one range, or one IPv4 and one IPv6 range")]
    Families,
}

impl ServiceRange {
    /// The default range of Services.
    pub const DEFAULT: ServiceRange =
        ServiceRange { network: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 0)), prefix: 24 };

    /// Creates a range from any address of the network and the prefix length; None if the prefix is too long.
    pub fn new(address: IpAddr, prefix: u32) -> Option<Self> {
        let host_bits = if address.is_ipv4() { 32_u32 } else { 128 }.checked_sub(prefix)?;
        let network = match address {
            IpAddr::V4(ip) => {
                Ipv4Addr::from_bits(ip.to_bits() & u32::MAX.checked_shl(host_bits).unwrap_or(0)).into()
            }
            IpAddr::V6(ip) => {
                Ipv6Addr::from_bits(ip.to_bits() & u128::MAX.checked_shl(host_bits).unwrap_or(0)).into()
            }
        };
        Some(ServiceRange { network, prefix })
    }

    /// Returns the first address after the network address; the Service of the API server gets this address.
    pub fn first_address(&self) -> IpAddr {
        match self.network {
            IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() | 1).into(),
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() | 1).into(),
        }
    }

    /// Returns the network address: the address whose host bits are all 0.
    pub fn network(&self) -> IpAddr {
        self.network
    }

    /// The number of host bits: the bits of an address after the prefix.
    pub fn host_bits(&self) -> u32 {
        let bits = if self.is_ipv4() { 32 } else { 128 };
        bits - self.prefix
    }

    /// Whether this is an IPv4 range.
    pub fn is_ipv4(&self) -> bool {
        self.network.is_ipv4()
    }

    /// Whether the range contains a second range completely.
    pub fn contains(&self, other: &ServiceRange) -> bool {
        let address_bits = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => u128::from(ip.to_bits()),
            IpAddr::V6(ip) => ip.to_bits(),
        };
        let different_bits = address_bits(self.network) ^ address_bits(other.network);
        self.is_ipv4() == other.is_ipv4()
            && self.prefix <= other.prefix
            && different_bits.checked_shr(self.host_bits()).unwrap_or(0) == 0
    }

    /// Parses one range, or one range per IP family separated by a comma.
    ///
    /// # Errors
    ///
    /// A range is invalid, or the ranges have the same IP family.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, ServiceRangeError> {
        let ranges: Vec<Self> =
            text.split(',').map(|range| range.trim().parse()).collect::<Result<_, _>>()?;
        match ranges.as_slice() {
            [_] => Ok(ranges),
            [first, second] if first.network.is_ipv4() != second.network.is_ipv4() => Ok(ranges),
            _ => Err(ServiceRangeError::Families),
        }
    }
}

impl FromStr for ServiceRange {
    type Err = ServiceRangeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || ServiceRangeError::Syntax(text.to_owned());
        let (address, prefix) = kinds::parse_cidr(text).ok_or_else(invalid)?;
        let range = ServiceRange::new(address, prefix).ok_or_else(invalid)?;
        if range.host_bits() < MIN_HOST_BITS {
            return Err(ServiceRangeError::TooSmall(text.to_owned()));
        }
        Ok(range)
    }
}

impl fmt::Display for ServiceRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

/// The range of node ports, as in `--service-node-port-range`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePortRange {
    /// The first port of the range.
    pub first: u16,
    /// The last port of the range, inclusive.
    pub last: u16,
}

impl NodePortRange {
    /// The default range of node ports.
    pub const DEFAULT: NodePortRange = NodePortRange { first: 30_000, last: 32_767 };
}

/// The error of an invalid range of ports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a port range such as 30000-32767 or 30000+100")]
pub struct NodePortRangeError(String);

impl FromStr for NodePortRange {
    type Err = NodePortRangeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || NodePortRangeError(text.to_owned());
        let port = |text: &str| text.trim().parse::<u16>().map_err(|_| invalid());
        let (first, last) = if let Some((first, last)) = text.split_once('-') {
            (port(first)?, port(last)?)
        } else if let Some((first, count)) = text.split_once('+') {
            let first = port(first)?;
            (first, first.checked_add(port(count)?).ok_or_else(invalid)?)
        } else {
            let port = port(text)?;
            (port, port)
        };
        if first == 0 || last < first {
            return Err(invalid());
        }
        Ok(NodePortRange { first, last })
    }
}

impl fmt::Display for NodePortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_port_range_parses_both_forms() {
        let parsed = |text: &str| text.parse::<NodePortRange>().map(|range| range.to_string()).ok();
        for (text, expected) in [("30000-32767", "30000-32767"), ("30000+10", "30000-30010"), ("7", "7-7")] {
            assert_eq!(parsed(text).as_deref(), Some(expected), "{text}");
        }
        for invalid in ["", "0", "2-1", "65530+10", "1-70000", "a-b"] {
            assert_eq!(parsed(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn range_contains_its_parts_only() {
        let range = |text: &str| text.parse::<ServiceRange>().unwrap();
        assert!(range("10.0.0.0/16").contains(&range("10.0.7.0/24")));
        assert!(range("0.0.0.0/0").contains(&range("10.0.7.0/24")));
        assert!(!range("10.0.7.0/24").contains(&range("10.0.0.0/16")));
        assert!(!range("10.1.0.0/16").contains(&range("10.0.7.0/24")));
        assert!(!range("::/0").contains(&range("10.0.7.0/24")));
    }

    #[test]
    fn service_range_parses_cidr_and_returns_first_address() {
        for (text, displayed, first) in [
            ("10.0.0.0/24", "10.0.0.0/24", "10.0.0.1"),
            ("10.1.2.3/16", "10.1.0.0/16", "10.1.0.1"),
            ("0.0.0.0/0", "0.0.0.0/0", "0.0.0.1"),
            ("fd00::7/112", "fd00::/112", "fd00::1"),
        ] {
            let range: ServiceRange = text.parse().unwrap();
            assert_eq!(
                (range.to_string().as_str(), range.first_address().to_string().as_str()),
                (displayed, first)
            );
        }
        assert_eq!(ServiceRange::parse_list("10.0.0.0/24, fd00::/112").unwrap().len(), 2);
        for invalid in
            ["", "10.0.0.0", "10.0.0.0/33", "10.0.0.0/30", "x/24", "10.0.0.0/24,10.1.0.0/24", "a,b,c"]
        {
            assert!(ServiceRange::parse_list(invalid).is_err(), "{invalid}");
        }
    }
}

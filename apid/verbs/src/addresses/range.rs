//! A range of cluster IP addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::band::{Band, lower_band_size};
use crate::addresses::ServiceRange;

/// Size of the band for addresses that clients request: minimum, maximum, divisor of the size of the range.
const LOWER_BAND: (u128, u128, u128) = (16, 256, 16);

/// The usable addresses of a range.
#[derive(Clone, Debug)]
pub(super) struct AddressRange {
    /// The range in CIDR notation.
    pub(super) cidr: ServiceRange,
    band: Band,
}

impl AddressRange {
    /// Builds the range of a network. The network address is not usable, nor the broadcast address of IPv4.
    pub(super) fn new(cidr: ServiceRange) -> Self {
        let network = number(cidr.network());
        let size = 1_u128.checked_shl(cidr.host_bits()).unwrap_or(u128::MAX);
        let broadcast = u128::from(cidr.is_ipv4());
        let last = network.saturating_add(size - 1).saturating_sub(broadcast);
        let (min, max, divisor) = LOWER_BAND;
        let band = Band {
            first: network.saturating_add(1),
            last,
            reserved: lower_band_size(size, min, max, divisor),
        };
        AddressRange { cidr, band }
    }

    /// The IP family, as in `ipFamilies`.
    pub(super) fn family(&self) -> &'static str {
        family(self.cidr.network())
    }

    /// Whether an address is a usable address of the range.
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.cidr.is_ipv4() && self.band.contains(number(address))
    }

    /// Returns a free address; None if no address is free. `random` selects where the search begins.
    pub(super) fn pick(&self, random: u128, is_free: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
        let is_ipv4 = self.cidr.is_ipv4();
        self.band
            .pick(random, |number| is_free(address(number, is_ipv4)))
            .map(|number| address(number, is_ipv4))
    }
}

/// Returns the IP family of an address, as in `ipFamilies`.
pub fn family(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

fn address(number: u128, is_ipv4: bool) -> IpAddr {
    if is_ipv4 {
        Ipv4Addr::from_bits(u32::try_from(number).unwrap_or(u32::MAX)).into()
    } else {
        Ipv6Addr::from_bits(number).into()
    }
}

/// Parses an IP address; an IPv4-mapped address counts as IPv4.
pub(super) fn parse_address(text: &str) -> Option<IpAddr> {
    kinds::parse_ip(text).map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_and_broadcast_addresses_are_not_usable() {
        for (cidr, usable, unusable) in [
            ("10.0.0.0/24", ["10.0.0.1", "10.0.0.254"], ["10.0.0.0", "10.0.0.255"]),
            ("fd00::/120", ["fd00::1", "fd00::ff"], ["fd00::", "fd00::100"]),
            ("0.0.0.0/0", ["0.0.0.1", "255.255.255.254"], ["0.0.0.0", "255.255.255.255"]),
        ] {
            let range = AddressRange::new(cidr.parse().unwrap());
            assert!(usable.iter().all(|ip| range.contains(ip.parse().unwrap())), "{cidr}");
            assert!(!unusable.iter().any(|ip| range.contains(ip.parse().unwrap())), "{cidr}");
        }
    }

    #[test]
    fn generated_address_is_outside_the_band_of_chosen_addresses() {
        let range = AddressRange::new("10.0.0.0/24".parse().unwrap());
        let picked = range.pick(0, |_| true);
        assert_eq!(picked, Some("10.0.0.17".parse().unwrap()));
        let only_low = range.pick(0, |ip| ip < "10.0.0.17".parse::<IpAddr>().unwrap());
        assert_eq!(only_low, Some("10.0.0.1".parse().unwrap()));
    }
}

//! IP addresses and CIDR blocks.
//!
//! The parsers reject IPv4-mapped IPv6 addresses, zones, leading zeros and blocks with host bits.

use std::net::IpAddr;

use crate::cost::CallCost::{Custom, Fixed, Text};
use crate::cost::read_cost;
use crate::error::EvalError;
use crate::types::Type;
use crate::value::{Opaque, Value};
use crate::value_facts::{Estimate, ValueFacts};

use super::{Function, Library, library_value, single_text};

/// IP functions, since 1.31.
pub(super) static IP: Library = Library {
    since: 31,
    functions: &[
        Function::new(&["isIP(string) -> bool"], Text(1), |a| {
            Ok(Value::Bool(parse_ip(single_text(a)?).is_some()))
        }),
        Function::new(&["ip(string) -> net.IP"], Text(1), |a| {
            require_ip(single_text(a)?).map(|ip| Value::opaque(Ip(ip)))
        }),
        Function::new(&["ip.isCanonical(string) -> bool"], Text(2), |a| {
            let text = single_text(a)?;
            Ok(Value::Bool(require_ip(text)?.to_string() == text))
        }),
        Function::new(&["string(net.IP) -> string"], Fixed(1), |a| {
            Ok(Value::text(single_ip(a)?.to_string()))
        }),
        Function::new(&[".net.IP.family() -> int"], Fixed(1), |a| {
            Ok(Value::Int(if single_ip(a)?.is_ipv4() { 4 } else { 6 }))
        }),
        Function::new(&[".net.IP.isUnspecified() -> bool"], Fixed(1), |a| {
            Ok(Value::Bool(single_ip(a)?.is_unspecified()))
        }),
        Function::new(&[".net.IP.isLoopback() -> bool"], Fixed(1), |a| {
            Ok(Value::Bool(single_ip(a)?.is_loopback()))
        }),
        Function::new(&[".net.IP.isLinkLocalMulticast() -> bool"], Fixed(1), |a| {
            Ok(Value::Bool(match single_ip(a)? {
                IpAddr::V4(v4) => v4.octets().starts_with(&[224, 0, 0]),
                IpAddr::V6(v6) => v6.segments().first().is_some_and(|s| s & 0xff0f == 0xff02),
            }))
        }),
        Function::new(&[".net.IP.isLinkLocalUnicast() -> bool"], Fixed(1), |a| {
            Ok(Value::Bool(link_local_unicast(single_ip(a)?)))
        }),
        Function::new(&[".net.IP.isGlobalUnicast() -> bool"], Fixed(1), |a| {
            let ip = single_ip(a)?;
            let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
            let special = ip.is_unspecified() || ip.is_loopback() || ip.is_multicast();
            Ok(Value::Bool(!broadcast && !special && !link_local_unicast(ip)))
        }),
    ],
};

/// CIDR functions, since 1.31.
pub(super) static CIDR: Library = Library {
    since: 31,
    functions: &[
        Function::new(&["isCIDR(string) -> bool"], Text(1), |a| {
            Ok(Value::Bool(parse_cidr(single_text(a)?).is_some()))
        }),
        Function::new(&["cidr(string) -> net.CIDR"], Text(1), |a| {
            require_cidr(single_text(a)?).map(Value::opaque)
        }),
        Function::new(&["string(net.CIDR) -> string"], Fixed(1), |a| {
            let block = library_value::<Cidr>(a)?;
            Ok(Value::text(format!("{}/{}", block.base, block.prefix)))
        }),
        Function::new(&[".net.CIDR.ip() -> net.IP"], Fixed(1), |a| {
            Ok(Value::opaque(Ip(library_value::<Cidr>(a)?.base)))
        }),
        Function::new(&[".net.CIDR.masked() -> net.CIDR"], Fixed(1), |a| {
            Ok(Value::opaque(*library_value::<Cidr>(a)?))
        }),
        Function::new(&[".net.CIDR.prefixLength() -> int"], Fixed(1), |a| {
            Ok(Value::Int(i64::from(library_value::<Cidr>(a)?.prefix)))
        }),
        Function::new(
            &[".net.CIDR.containsIP(net.IP) -> bool", ".net.CIDR.containsIP(string) -> bool"],
            Custom(containment_cost, |a| containment_estimate(a, 32)),
            |a| match a {
                [block, other] => {
                    let block = block.downcast::<Cidr>().ok_or(EvalError::NoOverload)?;
                    let ip = match (other.as_str(), other.downcast::<Ip>()) {
                        (Some(text), _) => require_ip(text)?,
                        (None, Some(ip)) => ip.0,
                        _ => return Err(EvalError::NoOverload),
                    };
                    Ok(Value::Bool(block.contains(ip)))
                }
                _ => Err(EvalError::NoOverload),
            },
        ),
        Function::new(
            &[".net.CIDR.containsCIDR(net.CIDR) -> bool", ".net.CIDR.containsCIDR(string) -> bool"],
            Custom(|a| containment_cost(a) + 1, |a| containment_estimate(a, 33) + Estimate::exactly(1)),
            |a| match a {
                [block, other] => {
                    let block = block.downcast::<Cidr>().ok_or(EvalError::NoOverload)?;
                    let other = match (other.as_str(), other.downcast::<Cidr>()) {
                        (Some(text), _) => require_cidr(text)?,
                        (None, Some(other)) => *other,
                        _ => return Err(EvalError::NoOverload),
                    };
                    Ok(Value::Bool(block.prefix <= other.prefix && block.contains(other.base)))
                }
                _ => Err(EvalError::NoOverload),
            },
        ),
    ],
};

/// Cost of comparing a block with another block or an address; a text argument adds the cost of parsing.
fn containment_cost(arguments: &[Value<'_>]) -> u64 {
    match arguments {
        [block, other @ Value::String(_)] => read_cost(block.size() + other.size()) + read_cost(other.size()),
        [block, other] => read_cost(block.size() + other.size()),
        _ => 1,
    }
}

/// Estimate of [`containment_cost`]. `bytes` is the maximum size of the arguments that are not text.
fn containment_estimate(arguments: &[ValueFacts<'_>], bytes: u64) -> Estimate {
    let comparison = Estimate { min: 1, max: read_cost(bytes) };
    match arguments {
        [_, other] if matches!(other.ty, Type::String | Type::Dyn) => {
            let text_comparison = other.size.map(|size| read_cost(size.saturating_add(bytes)));
            comparison.union(text_comparison) + other.size.map(read_cost)
        }
        _ => comparison,
    }
}

struct Ip(IpAddr);

impl Opaque for Ip {
    fn type_name(&self) -> &'static str {
        "net.IP"
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        other.downcast::<Ip>().is_some_and(|other| other.0 == self.0)
    }

    fn size(&self) -> u64 {
        if self.0.is_ipv4() { 4 } else { 16 }
    }
}

#[derive(Clone, Copy, PartialEq)]
struct Cidr {
    base: IpAddr,
    prefix: u8,
}

impl Opaque for Cidr {
    fn type_name(&self) -> &'static str {
        "net.CIDR"
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        other.downcast::<Cidr>() == Some(self)
    }

    fn size(&self) -> u64 {
        u64::from(self.prefix.div_ceil(8)) + 1
    }
}

impl Cidr {
    fn contains(&self, ip: IpAddr) -> bool {
        self.base.is_ipv4() == ip.is_ipv4() && masked(ip, self.prefix) == self.base
    }
}

/// The address with cleared host bits.
fn masked(ip: IpAddr, prefix: u8) -> IpAddr {
    match ip {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
            IpAddr::V4((u32::from(v4) & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0);
            IpAddr::V6((u128::from(v6) & mask).into())
        }
    }
}

fn link_local_unicast(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

fn parse_ip(text: &str) -> Option<IpAddr> {
    let ip: IpAddr = text.parse().ok()?;
    match ip {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => None,
        ip => Some(ip),
    }
}

fn require_ip(text: &str) -> Result<IpAddr, EvalError> {
    let message = || format!("IP Address {text:?} parse error during conversion from string");
    parse_ip(text).ok_or_else(|| EvalError::failed(message()))
}

fn parse_cidr(text: &str) -> Option<Cidr> {
    let (address, length) = text.split_once('/')?;
    let base = parse_ip(address)?;
    let is_decimal =
        length.bytes().all(|b| b.is_ascii_digit()) && (length == "0" || !length.starts_with('0'));
    let prefix: u8 = length.parse().ok().filter(|_| is_decimal)?;
    let max_prefix = if base.is_ipv4() { 32 } else { 128 };
    (prefix <= max_prefix && masked(base, prefix) == base).then_some(Cidr { base, prefix })
}

fn require_cidr(text: &str) -> Result<Cidr, EvalError> {
    let message = || format!("network address parse error during conversion from string: {text:?}");
    parse_cidr(text).ok_or_else(|| EvalError::failed(message()))
}

fn single_ip<'v>(arguments: &'v [Value<'_>]) -> Result<&'v IpAddr, EvalError> {
    library_value::<Ip>(arguments).map(|ip| &ip.0)
}

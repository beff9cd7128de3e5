//! IP addresses and CIDR blocks.
//!
//! # Contract
//! The syntax and the messages are those of Go's `net/netip`. IPv4-mapped IPv6 addresses and zones are errors.
//! A block keeps the host bits of its text.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::quote::quote;

use crate::cost::CallCost::{Custom, Fixed, Text};
use crate::cost::{READ, read_cost};
use crate::error::EvalError;
use crate::types::{Overload, Type};
use crate::value::{Opaque, Value};
use crate::value_facts::{Estimate, ValueFacts};

use super::{Function, Library, library_value, single_text};

/// IP functions, since 1.31.
pub(super) static IP: Library = Library {
    since: 31,
    functions: &[
        Function::new(&["isIP(string) -> bool"], Text(1), |a| {
            Ok(Value::Bool(require_ip(single_text(a)?).is_ok()))
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
        Function::new(&["string(net.CIDR) -> string"], Fixed(1), |a| {
            Ok(Value::text(library_value::<Cidr>(a)?.text()))
        }),
        Function::new(&[".net.CIDR.ip() -> net.IP"], Fixed(1), |a| {
            Ok(Value::opaque(Ip(library_value::<Cidr>(a)?.address)))
        }),
        Function::new(&[".net.CIDR.masked() -> net.CIDR"], Fixed(1), |a| {
            let block = library_value::<Cidr>(a)?;
            Ok(Value::opaque(Cidr { address: block.base(), prefix: block.prefix }))
        }),
        Function::new(&[".net.CIDR.prefixLength() -> int"], Fixed(1), |a| {
            Ok(Value::Int(i64::from(library_value::<Cidr>(a)?.prefix)))
        }),
        Function::new(
            &[".net.CIDR.containsIP(net.IP) -> bool", ".net.CIDR.containsIP(string) -> bool"],
            Custom("2 x prefix bytes/10, and size/10 of a text", containment_cost, containment_estimate),
            |a| match a {
                [block, other] => {
                    let block = block.downcast::<Cidr>().ok_or(EvalError::NoOverload)?;
                    let ip = match (other.as_str(), other.downcast::<Ip>()) {
                        (Some(text), _) => require_ip(text).map_err(|_| EvalError::NoOverload)?,
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
            Custom(
                "3 x prefix bytes/10 + 1, and size/10 of a text",
                |a, overload| {
                    let block = a.first().map_or(1, Value::size);
                    containment_cost(a, overload) + read_cost(block) + 1
                },
                |a, overload| containment_estimate(a, overload) + ADDRESS_BYTES.scaled(READ) + Estimate::ONE,
            ),
            |a| match a {
                [block, other] => {
                    let block = block.downcast::<Cidr>().ok_or(EvalError::NoOverload)?;
                    let other = match (other.as_str(), other.downcast::<Cidr>()) {
                        (Some(text), _) => require_cidr(text)?,
                        (None, Some(other)) => *other,
                        _ => return Err(EvalError::NoOverload),
                    };
                    Ok(Value::Bool(block.prefix <= other.prefix && block.contains(other.base())))
                }
                _ => Err(EvalError::NoOverload),
            },
        ),
    ],
};

/// Functions that parse a block and accept host bits.
pub(super) static CIDR_TEXT: Library = Library {
    since: 31,
    functions: &[
        Function::new(&["isCIDR(string) -> bool"], Text(1), |a| {
            Ok(Value::Bool(require_cidr(single_text(a)?).is_ok()))
        }),
        Function::new(&["cidr(string) -> net.CIDR"], Text(1), |a| {
            require_cidr(single_text(a)?).map(Value::opaque)
        }),
    ],
};

/// Functions that parse a block without host bits.
pub(super) static CIDR_TEXT_WITHOUT_HOST_BITS: Library = Library {
    since: 31,
    functions: &[
        Function::new(&["isCIDR(string) -> bool"], Text(1), |a| {
            Ok(Value::Bool(require_masked_cidr(single_text(a)?).is_ok()))
        }),
        Function::new(&["cidr(string) -> net.CIDR"], Text(1), |a| {
            require_masked_cidr(single_text(a)?).map(Value::opaque)
        }),
    ],
};

fn require_masked_cidr(text: &str) -> Result<Cidr, EvalError> {
    let block = require_cidr(text)?;
    if block.base() == block.address {
        return Ok(block);
    }
    let shown = quote(text);
    let message = format!("network address parse error during conversion from string: {shown}");
    Err(EvalError::failed(message))
}

/// Bytes of an address.
const ADDRESS_BYTES: Estimate = Estimate { min: 4, max: 16 };

/// Whether the second argument of an overload is a text, whose parsing costs as reading it.
fn parses_text(overload: Option<&Overload>) -> bool {
    overload.is_some_and(|overload| *overload.parameter(1) == Type::String)
}

/// Cost of comparing the prefix of a block with another block or an address.
fn containment_cost(arguments: &[Value<'_>], overload: Option<&Overload>) -> u64 {
    let [block, other] = arguments else { return 1 };
    let parsing = if parses_text(overload) { read_cost(other.size()) } else { 0 };
    read_cost(block.size() * 2) + parsing
}

/// Estimate of [`containment_cost`].
fn containment_estimate(arguments: &[ValueFacts<'_>], overload: &Overload) -> Estimate {
    let comparison = (ADDRESS_BYTES + ADDRESS_BYTES).scaled(READ);
    match arguments {
        [_, other] if parses_text(Some(overload)) => comparison + other.size().scaled(READ),
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

    fn text(&self) -> String {
        self.0.to_string()
    }
}

#[derive(Clone, Copy, PartialEq)]
struct Cidr {
    /// The address of the text, with host bits.
    address: IpAddr,
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
        u64::from(self.prefix.div_ceil(8))
    }

    fn text(&self) -> String {
        format!("{}/{}", self.address, self.prefix)
    }
}

impl Cidr {
    /// First address of the block.
    fn base(&self) -> IpAddr {
        masked(self.address, self.prefix)
    }

    fn contains(&self, ip: IpAddr) -> bool {
        self.address.is_ipv4() == ip.is_ipv4() && masked(ip, self.prefix) == self.base()
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

fn require_ip(text: &str) -> Result<IpAddr, EvalError> {
    let parsed = parse_address(text).map_err(|reason| {
        EvalError::failed(format!(
            "IP Address {} parse error during conversion from string: {reason}",
            quote(text)
        ))
    })?;
    if parsed.has_zone {
        let message = format!("IP address {} with zone value is not allowed", quote(text));
        return Err(EvalError::failed(message));
    }
    reject_mapped(parsed.ip, text).map_err(EvalError::failed)
}

fn reject_mapped(ip: IpAddr, text: &str) -> Result<IpAddr, String> {
    match ip {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            Err(format!("IPv4-mapped IPv6 address {} is not allowed", quote(text)))
        }
        ip => Ok(ip),
    }
}

fn require_cidr(text: &str) -> Result<Cidr, EvalError> {
    const CONTEXT: &str = "network address parse error during conversion from string:";
    let failed = |reason: String| {
        EvalError::failed(format!("{CONTEXT} {CONTEXT} netip.ParsePrefix({}): {reason}", quote(text)))
    };
    let (address, bits) = text.rsplit_once('/').ok_or_else(|| failed("no '/'".to_owned()))?;
    let parsed = parse_address(address).map_err(failed)?;
    if parsed.has_zone {
        return Err(failed("IPv6 zones cannot be present in a prefix".to_owned()));
    }
    let is_plain = bits.len() < 2 || bits.starts_with(|first: char| ('1'..='9').contains(&first));
    let number: Option<i64> = bits.parse().ok().filter(|_| is_plain);
    let number = number.ok_or_else(|| failed(format!("bad bits after slash: {}", quote(bits))))?;
    let max = if parsed.ip.is_ipv4() { 32 } else { 128 };
    let prefix = u8::try_from(number).ok().filter(|prefix| *prefix <= max);
    let prefix = prefix.ok_or_else(|| failed("prefix length out of range".to_owned()))?;
    let address =
        reject_mapped(parsed.ip, text).map_err(|reason| EvalError::failed(format!("{CONTEXT} {reason}")))?;
    Ok(Cidr { address, prefix })
}

fn single_ip<'v>(arguments: &'v [Value<'_>]) -> Result<&'v IpAddr, EvalError> {
    library_value::<Ip>(arguments).map(|ip| &ip.0)
}

/// A parsed address.
struct ParsedAddress {
    ip: IpAddr,
    has_zone: bool,
}

/// Parses an address as Go's `netip.ParseAddr`.
///
/// # Errors
/// The message of Go.
fn parse_address(text: &str) -> Result<ParsedAddress, String> {
    let parsed = match text.bytes().find(|byte| matches!(byte, b'.' | b':' | b'%')) {
        Some(b'.') => parse_v4(text).map(|ip| ParsedAddress { ip: IpAddr::V4(ip), has_zone: false }),
        Some(b':') => parse_v6(text),
        Some(_) => Err(AddressError::new("missing IPv6 address")),
        None => Err(AddressError::new("unable to parse IP")),
    };
    parsed.map_err(|error| {
        let at = if error.at.is_empty() { String::new() } else { format!(" (at {})", quote(&error.at)) };
        format!("ParseAddr({}): {}{at}", quote(text), error.message)
    })
}

/// The reason why a text is no address, and the rest of the text at the error.
struct AddressError {
    message: &'static str,
    at: String,
}

impl AddressError {
    fn new(message: &'static str) -> AddressError {
        AddressError { message, at: String::new() }
    }

    fn at(message: &'static str, rest: &str) -> AddressError {
        AddressError { message, at: rest.to_owned() }
    }
}

fn parse_v4(text: &str) -> Result<Ipv4Addr, AddressError> {
    let bytes = text.as_bytes();
    let mut octets = [0_u8; 4];
    let (mut position, mut value, mut digits) = (0_usize, 0_u32, 0_u32);
    for (at, byte) in bytes.iter().enumerate() {
        let rest = || String::from_utf8_lossy(bytes.get(at..).unwrap_or_default()).into_owned();
        match byte {
            b'0'..=b'9' => {
                if digits == 1 && value == 0 {
                    return Err(AddressError::new("IPv4 field has octet with leading zero"));
                }
                value = value * 10 + u32::from(byte - b'0');
                digits += 1;
                if value > 255 {
                    return Err(AddressError::new("IPv4 field has value >255"));
                }
            }
            b'.' => {
                if at == 0 || at + 1 == bytes.len() || bytes.get(at - 1) == Some(&b'.') {
                    return Err(AddressError::at("IPv4 field must have at least one digit", &rest()));
                }
                if position == 3 {
                    return Err(AddressError::new("IPv4 address too long"));
                }
                if let Some(octet) = octets.get_mut(position) {
                    *octet = u8::try_from(value).unwrap_or(u8::MAX);
                }
                position += 1;
                (value, digits) = (0, 0);
            }
            _ => return Err(AddressError::at("unexpected character", &rest())),
        }
    }
    if position < 3 {
        return Err(AddressError::new("IPv4 address too short"));
    }
    if let Some(octet) = octets.last_mut() {
        *octet = u8::try_from(value).unwrap_or(u8::MAX);
    }
    Ok(Ipv4Addr::from(octets))
}

fn parse_v6(text: &str) -> Result<ParsedAddress, AddressError> {
    let (mut rest, zone) = match text.split_once('%') {
        Some((_, "")) => return Err(AddressError::new("zone must be a non-empty string")),
        Some((address, _)) => (address, true),
        None => (text, false),
    };
    let mut groups: Vec<u16> = Vec::with_capacity(8);
    // Number of groups before `::`.
    let mut ellipsis = None;
    if let Some(after) = rest.strip_prefix("::") {
        (ellipsis, rest) = (Some(0), after);
    }
    while groups.len() < 8 && !(rest.is_empty() && ellipsis == Some(groups.len())) {
        let length = rest.bytes().take_while(u8::is_ascii_hexdigit).count();
        if length > 4 {
            let value = rest.get(..length.min(5)).and_then(|digits| u32::from_str_radix(digits, 16).ok());
            let is_large = value.is_some_and(|value| value > 0xffff);
            let message = if is_large {
                "IPv6 field has value >=2^16"
            } else {
                "each group must have 4 or fewer digits"
            };
            return Err(AddressError::at(message, rest));
        }
        if length == 0 {
            return Err(AddressError::at("each colon-separated field must have at least one digit", rest));
        }
        let (digits, after) = rest.split_at(length);
        if after.starts_with('.') {
            if ellipsis.is_none() && groups.len() != 6 {
                let message = "embedded IPv4 address must replace the final 2 fields of the address";
                return Err(AddressError::at(message, rest));
            }
            if groups.len() > 6 {
                let message = "too many hex fields to fit an embedded IPv4 at the end of the address";
                return Err(AddressError::at(message, rest));
            }
            let [a, b, c, d] = parse_v4(rest)?.octets();
            groups.extend([u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])]);
            rest = "";
            break;
        }
        groups.push(u16::from_str_radix(digits, 16).unwrap_or_default());
        rest = after;
        let Some(after) = rest.strip_prefix(':') else {
            if rest.is_empty() {
                break;
            }
            return Err(AddressError::at("unexpected character, want colon", rest));
        };
        if after.is_empty() {
            return Err(AddressError::at("colon must be followed by more characters", rest));
        }
        rest = after;
        if let Some(after) = rest.strip_prefix(':') {
            if ellipsis.is_some() {
                return Err(AddressError::at("multiple :: in address", rest));
            }
            (ellipsis, rest) = (Some(groups.len()), after);
        }
    }
    if !rest.is_empty() {
        return Err(AddressError::at("trailing garbage after address", rest));
    }
    match ellipsis {
        Some(at) if groups.len() < 8 => {
            let zeros = vec![0; 8 - groups.len()];
            groups.splice(at..at, zeros);
        }
        Some(_) => return Err(AddressError::new("the :: must expand to at least one field of zeros")),
        None if groups.len() < 8 => return Err(AddressError::new("address string too short")),
        None => {}
    }
    let segments: [u16; 8] = groups.try_into().unwrap_or_default();
    Ok(ParsedAddress { ip: IpAddr::V6(Ipv6Addr::from(segments)), has_zone: zone })
}

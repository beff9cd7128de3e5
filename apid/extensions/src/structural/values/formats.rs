//! Formats of strings, and the names of the formats of numbers.
//!
//! # Contract
//!
//! A format outside the table of its type has no effect. Dashes in the names of string formats are ignored.
//!
//! # Reference
//!
//! Addresses follow the lenient parser of kube-apiserver, see [`ip_address`].

use std::net::IpAddr;
use std::sync::LazyLock;

use apimachinery::{duration, ip_address};
use regex::Regex;

/// A format: its name without dashes, and its test.
type Format = (&'static str, fn(&str) -> bool);

static FORMATS: [Format; 24] = [
    ("bsonobjectid", |text| text.len() == 24 && is_hex(text)),
    ("byte", is_base64),
    ("cidr", is_cidr),
    ("creditcard", is_card_number),
    ("date", is_date),
    ("datetime", is_date_time),
    ("duration", |text| duration::parse_nanos(text).is_ok() || has_worded_duration(text)),
    ("email", is_email),
    ("hexcolor", |text| {
        let digits = text.strip_prefix('#').unwrap_or(text);
        matches!(digits.len(), 3 | 6) && is_hex(digits)
    }),
    ("hostname", is_hostname),
    ("ipv4", |text| text.contains('.') && ip_address::parse(text).is_some()),
    ("ipv6", |text| text.contains(':') && ip_address::parse(text).is_some()),
    ("isbn", |text| is_isbn10(text) || is_isbn13(text)),
    ("isbn10", is_isbn10),
    ("isbn13", is_isbn13),
    ("mac", is_mac),
    ("password", |_| true),
    ("rgbcolor", is_rgb_color),
    ("ssn", |text| matches(&SOCIAL_SECURITY_NUMBER, text)),
    ("uri", expressions::is_url),
    ("uuid", |text| is_uuid(text, None)),
    ("uuid3", |text| is_uuid(text, Some('3'))),
    ("uuid4", |text| is_uuid(text, Some('4'))),
    ("uuid5", |text| is_uuid(text, Some('5'))),
];

fn find(name: &str) -> Option<&'static Format> {
    let is_same = |known: &str| known.bytes().eq(name.bytes().filter(|b| *b != b'-'));
    FORMATS.iter().find(|format| is_same(format.0))
}

/// Formats of a value of the type `integer`.
const INTEGER_FORMATS: [&str; 2] = ["int32", "int64"];
/// Formats of a value of the type `number`.
const NUMBER_FORMATS: [&str; 2] = ["float", "double"];

/// Whether validation knows a format of a schema with the keyword `type`; other formats have no effect.
/// A schema without a type has the formats of strings.
pub fn is_supported_format(name: &str, ty: &str) -> bool {
    match ty {
        "" | "string" => find(name).is_some(),
        "integer" => INTEGER_FORMATS.contains(&name),
        "number" => NUMBER_FORMATS.contains(&name),
        _ => false,
    }
}

/// Whether a format has a test for strings.
pub(super) fn is_string_format(name: &str) -> bool {
    find(name).is_some()
}

/// Whether a text conforms to a format.
pub(super) fn is_valid(name: &str, text: &str) -> bool {
    find(name).is_none_or(|format| (format.1)(text))
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_hexdigit())
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// A regular expression, compiled on first use.
type LazyRegex = LazyLock<Option<Regex>>;

/// Numbers of the known card issuers, by their first digits and lengths.
static CARD_NUMBER: LazyRegex = LazyLock::new(|| {
    let of_13_or_16_digits = "4[0-9]{12}(?:[0-9]{3})?";
    let of_14_digits = "3(?:0[0-5]|[68][0-9])[0-9]{11}";
    let of_15_digits = "(?:3[47][0-9]{2}|2131|1800)[0-9]{11}";
    let of_16_digits = "(?:5[1-5][0-9]{2}|6011|65[0-9]{2}|35[0-9]{2})[0-9]{12}";
    Regex::new(&format!("^(?:{of_13_or_16_digits}|{of_14_digits}|{of_15_digits}|{of_16_digits})$")).ok()
});

static SOCIAL_SECURITY_NUMBER: LazyRegex =
    LazyLock::new(|| Regex::new("^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$").ok());

static UUID: LazyRegex = LazyLock::new(|| {
    Regex::new("^[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}$").ok()
});

/// One letter or symbol of any script.
static LETTER_OR_SYMBOL: LazyRegex = LazyLock::new(|| Regex::new(r"^[\p{L}\p{S}]$").ok());

fn matches(pattern: &LazyRegex, text: &str) -> bool {
    pattern.as_ref().is_some_and(|regex| regex.is_match(text))
}

/// Padded standard base64 of at least one group.
fn is_base64(text: &str) -> bool {
    let digits = text.strip_suffix("==").or_else(|| text.strip_suffix('=')).unwrap_or(text);
    let is_digit = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/');
    !text.is_empty() && text.len().is_multiple_of(4) && !digits.is_empty() && digits.bytes().all(is_digit)
}

fn is_cidr(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else { return false };
    let Some(address) = ip_address::parse(address) else { return false };
    let max = if address.is_ipv4() { 32 } else { 128 };
    is_digits(length) && length.parse::<u32>().is_ok_and(|length| length <= max)
}

/// Card numbers of the known issuers with a valid check digit; separators are ignored.
fn is_card_number(text: &str) -> bool {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    let reversed = digits.chars().rev().filter_map(|c| c.to_digit(10)).enumerate();
    let sum: u32 = reversed
        .map(|(at, digit)| match at % 2 {
            0 => digit,
            _ if digit > 4 => digit * 2 - 9,
            _ => digit * 2,
        })
        .sum();
    matches(&CARD_NUMBER, &digits) && sum.is_multiple_of(10)
}

fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let [year, month, day] = parts.as_slice() else { return false };
    let number = |text: &str, length: usize| match is_digits(text) && text.len() == length {
        true => text.parse::<u32>().ok(),
        false => None,
    };
    let (Some(year), Some(month), Some(day)) = (number(year, 4), number(month, 2), number(day, 2)) else {
        return false;
    };
    let is_leap = year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let days = match month {
        2 => 28 + u32::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return false,
    };
    (1..=days).contains(&day)
}

/// A date, `T`, and a time of day with a zone. Only hours, minutes and seconds of the time have limits.
fn is_date_time(text: &str) -> bool {
    let lower = text.to_lowercase();
    let mut parts = lower.split('t');
    let (Some(date), Some(time)) = (parts.next(), parts.next()) else { return false };
    is_date(date) && is_time(time)
}

/// A time of day with an optional fraction, and a zone.
fn is_time(text: &str) -> bool {
    let (Some(clock), Some(rest)) = (text.get(..8), text.get(8..)) else { return false };
    let parts: Vec<&str> = clock.split(':').collect();
    let [hour, minute, second] = parts.as_slice() else { return false };
    let is_at_most = |text: &str, max: &str| text.len() == 2 && is_digits(text) && text <= max;
    if !(is_at_most(hour, "23") && is_at_most(minute, "59") && is_at_most(second, "59")) {
        return false;
    }
    // Any character may separate the fraction.
    let mut rest_chars = rest.chars();
    let zone = match rest_chars.next() {
        Some('z' | '+' | '-') => Some(rest),
        _ => None,
    };
    let fraction = || {
        let after = rest_chars.as_str();
        let zone = after.trim_start_matches(|c: char| c.is_ascii_digit());
        (zone.len() < after.len()).then_some(zone)
    };
    zone.is_some_and(is_zone) || fraction().is_some_and(is_zone)
}

/// `z` or an offset such as `+02:00`.
fn is_zone(text: &str) -> bool {
    let Some(offset) = text.strip_prefix(['+', '-']) else { return text == "z" };
    offset.split_once(':').is_some_and(|(hours, minutes)| {
        hours.len() == 2 && minutes.len() == 2 && is_digits(hours) && is_digits(minutes)
    })
}

/// Whether a text contains a number with a unit such as `5 minutes`.
fn has_worded_duration(text: &str) -> bool {
    const UNITS: [&[&str]; 8] = [
        &["ns", "nano"],
        &["us", "µs", "micro"],
        &["ms", "milli"],
        &["s", "sec"],
        &["m", "min"],
        &["h", "hr", "hour"],
        &["d", "day"],
        &["w", "wk", "week"],
    ];
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        rest = rest.get(start..).unwrap_or_default();
        rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        let after = rest.trim_start_matches([' ', '\t', '\n', '\r', '\u{c}']);
        let is_letter = |c: char| c.is_ascii_alphabetic() || c == 'µ';
        let end = after.find(|c: char| !is_letter(c)).unwrap_or(after.len());
        let unit = after.get(..end).unwrap_or_default().to_lowercase();
        let is_known = UNITS.iter().any(|names| {
            names.contains(&unit.as_str()) || names.last().is_some_and(|long| unit.starts_with(long))
        });
        if is_known {
            return true;
        }
    }
    false
}

/// One mailbox: an address, or a display name with an address in angle brackets.
fn is_email(text: &str) -> bool {
    let text = text.trim_matches([' ', '\t']);
    match text.strip_suffix('>').and_then(|text| text.rsplit_once('<')) {
        Some((name, address)) => is_display_name(name.trim_matches([' ', '\t'])) && is_address(address),
        None => is_address(text),
    }
}

fn is_display_name(name: &str) -> bool {
    is_quoted(name) || name.split([' ', '\t']).all(|word| word.is_empty() || word.chars().all(is_atom))
}

fn is_address(text: &str) -> bool {
    let Some((local, domain)) = text.rsplit_once('@') else { return false };
    let is_literal = domain
        .strip_prefix('[')
        .and_then(|domain| domain.strip_suffix(']'))
        .is_some_and(|inner| inner.strip_prefix("IPv6:").unwrap_or(inner).parse::<IpAddr>().is_ok());
    (is_dot_atom(local) || is_quoted(local)) && (is_dot_atom(domain) || is_literal)
}

fn is_dot_atom(text: &str) -> bool {
    text.split('.').all(|part| !part.is_empty() && part.chars().all(is_atom))
}

fn is_atom(c: char) -> bool {
    !c.is_ascii() || c.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c)
}

fn is_quoted(text: &str) -> bool {
    let Some(inner) = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) else { return false };
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => return false,
            '\\' if chars.next().is_none() => return false,
            '\0'..='\u{8}' | '\n'..='\u{1f}' | '\u{7f}' => return false,
            _ => {}
        }
    }
    true
}

/// Whether a text is a host name of at most 255 bytes. A single label may have one dash, after its first
/// character. The last of several labels has at least two characters and no adjacent dashes.
fn is_hostname(text: &str) -> bool {
    let labels: Vec<&str> = text.split('.').collect();
    if text.len() > 255 || labels.iter().any(|label| label.len() > 63) {
        return false;
    }
    let is_word = |label: &str| {
        let ends =
            label.chars().next().is_some_and(is_host_char) && label.chars().last().is_some_and(is_host_char);
        ends && label.chars().all(|c| c == '-' || is_host_char(c))
    };
    match labels.as_slice() {
        [only] => {
            let mut chars = only.chars();
            let starts = chars.next().is_some_and(is_host_char);
            let rest = chars.as_str();
            let rest = rest.strip_prefix('-').unwrap_or(rest);
            starts && rest.chars().count() <= 62 && rest.chars().all(is_host_char)
        }
        [before @ .., last] => {
            before.iter().all(|label| is_word(label))
                && is_word(last)
                && last.chars().count() > 1
                && !last.contains("--")
        }
        [] => false,
    }
}

/// Whether a character is a letter, an ASCII digit, or a symbol that host names may contain.
fn is_host_char(c: char) -> bool {
    match c.is_ascii() {
        true => c.is_ascii_alphanumeric() || "$+<=>^`|~".contains(c),
        false => matches(&LETTER_OR_SYMBOL, c.encode_utf8(&mut [0; 4])),
    }
}

/// The digits of an ISBN, without spaces and dashes.
fn isbn_digits(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace() && *c != '-').collect()
}

fn is_isbn10(text: &str) -> bool {
    let digits = isbn_digits(text);
    let Some((body, check)) = digits.get(..9).zip(digits.get(9..)) else { return false };
    let check = match check {
        "X" => 10,
        check if check.len() == 1 && is_digits(check) => check.parse().unwrap_or(0),
        _ => return false,
    };
    let sum: u32 =
        (1..).zip(body.chars().filter_map(|c| c.to_digit(10))).map(|(weight, digit)| weight * digit).sum();
    is_digits(body) && (sum + 10 * check).is_multiple_of(11)
}

fn is_isbn13(text: &str) -> bool {
    let digits = isbn_digits(text);
    let weights = [1, 3].into_iter().cycle();
    let sum: u32 = digits
        .chars()
        .filter_map(|c| c.to_digit(10))
        .zip(weights)
        .map(|(digit, weight)| digit * weight)
        .sum();
    digits.len() == 13 && is_digits(&digits) && sum.is_multiple_of(10)
}

/// Hardware addresses of 6, 8 or 20 bytes, in pairs with `:` or `-`, or in groups of four with dots.
fn is_mac(text: &str) -> bool {
    let groups = |separator: char, length: usize| {
        let parts: Vec<&str> = text.split(separator).collect();
        let bytes = parts.len() * length / 2;
        let are_hex = parts.iter().all(|part| part.len() == length && is_hex(part));
        are_hex && matches!(bytes, 6 | 8 | 20)
    };
    groups(':', 2) || groups('-', 2) || groups('.', 4)
}

fn is_rgb_color(text: &str) -> bool {
    let Some(inner) = text.strip_prefix("rgb(").and_then(|text| text.strip_suffix(')')) else { return false };
    let parts: Vec<&str> = inner.split(',').map(str::trim_ascii).collect();
    let is_component = |part: &&str| {
        is_digits(part) && (*part == "0" || !part.starts_with('0')) && part.parse::<u8>().is_ok()
    };
    parts.len() == 3 && parts.iter().all(is_component)
}

/// A UUID with optional dashes. Versions 4 and 5 also have a variant digit.
fn is_uuid(text: &str, version: Option<char>) -> bool {
    let mut digits = text.chars().filter(|c| *c != '-');
    let (version_digit, variant_digit) = (digits.nth(12), digits.nth(3));
    let has_variant = variant_digit.is_some_and(|c| "89abAB".contains(c));
    matches(&UUID, text)
        && (version.is_none() || version == version_digit)
        && (has_variant || !matches!(version, Some('4' | '5')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_table_is_sorted() {
        assert!(FORMATS.is_sorted_by_key(|format| format.0));
    }

    #[test]
    fn durations_within_64_bits_of_nanoseconds_are_valid() {
        let (_, is_duration) = FORMATS.iter().find(|format| format.0 == "duration").unwrap();
        for text in ["2562047h47m16.854775807s", "-9223372036854775808ns"] {
            assert!(is_duration(text), "{text}");
        }
    }
}

//! URLs with the syntax and the messages of Go's `net/url`.
//!
//! `isURL` and `url` accept what can stand in a request line: an absolute URL or an absolute path. A fragment is
//! then part of the text, but not of the parts of the URL.

use std::collections::HashMap;

use crate::quote::quote;

use crate::cost::CallCost::{Custom, Fixed, Text, WithWork};
use crate::cost::{ResultSize, read_cost};
use crate::error::EvalError;
use crate::map::MapBuilder;
use crate::value::{Opaque, Value};
use crate::value_facts::Estimate;

use super::{Function, Library, library_value, single_text};

/// Functions of all releases.
pub(super) static LIBRARY: Library = Library {
    since: 0,
    functions: &[
        Function::new(
            &["isURL(string) -> bool"],
            WithWork(&Fixed(1), |a| a.first().map_or(0, |text| text.text_bytes() / 128)),
            |a| Ok(Value::Bool(is_url(single_text(a)?))),
        ),
        Function::new(&["url(string) -> kubernetes.URL"], Text(1), |a| {
            let text = single_text(a)?;
            match request_uri_error(text) {
                None => Url::parse(text).map(Value::opaque),
                Some(reason) => Err(reason),
            }
            .map_err(|reason| {
                EvalError::failed(format!("URL parse error during conversion from string: {reason}"))
            })
        })
        .with_result_size(ResultSize::First),
        Function::new(&[".kubernetes.URL.getScheme() -> string"], Fixed(1), |a| {
            Ok(Value::text(&library_value::<Url>(a)?.scheme))
        }),
        Function::new(&[".kubernetes.URL.getHost() -> string"], Fixed(1), |a| {
            Ok(Value::text(&library_value::<Url>(a)?.host))
        }),
        Function::new(&[".kubernetes.URL.getHostname() -> string"], Fixed(1), |a| {
            Ok(Value::text(library_value::<Url>(a)?.name_and_port().0))
        }),
        Function::new(&[".kubernetes.URL.getPort() -> string"], Fixed(1), |a| {
            Ok(Value::text(library_value::<Url>(a)?.name_and_port().1))
        }),
        Function::new(&[".kubernetes.URL.getEscapedPath() -> string"], Fixed(1), |a| {
            Ok(Value::text(library_value::<Url>(a)?.escaped_path()))
        }),
        Function::new(
            &[".kubernetes.URL.getQuery() -> map(string, list(string))"],
            Custom("1", query_cost, |_, _| Estimate::ONE),
            |a| library_value::<Url>(a)?.query_map(),
        ),
    ],
};

/// Functions that the library of the served release lacks; stored expressions may use them.
pub(super) static ADDITIONS: Library = Library {
    since: 99,
    functions: &[Function::new(&["string(kubernetes.URL) -> string"], Fixed(1), |a| {
        Ok(Value::text(&library_value::<Url>(a)?.text))
    })],
};

/// Whether a text is an absolute URL or an absolute path.
pub fn is_url(text: &str) -> bool {
    request_uri_error(text).is_none()
}

/// Returns the error of Go for a text that is not valid in a request line; None for a valid text.
pub(super) fn request_uri_error(text: &str) -> Option<String> {
    let error = Url::parse_parts(text, true).err()?;
    Some(format!("parse {}: {error}", quote(text)))
}

/// A parsed URL.
struct Url {
    text: String,
    scheme: String,
    /// Host and port, decoded.
    host: String,
    /// Path of the text, not decoded.
    path: String,
    query: String,
}

impl Opaque for Url {
    fn type_name(&self) -> &'static str {
        "kubernetes.URL"
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        other.downcast::<Url>().is_some_and(|other| other.text == self.text)
    }

    fn text_bytes(&self) -> u64 {
        self.text.len() as u64
    }

    fn text(&self) -> String {
        self.text.clone()
    }
}

/// Cost of `getQuery`: one unit for a short query, otherwise the cost of reading it.
fn query_cost(arguments: &[Value<'_>], _: Option<&crate::types::Overload>) -> u64 {
    let query = arguments.first().and_then(Value::downcast::<Url>).map_or(0, |url| url.query.len());
    read_cost((query as u64).saturating_sub(256)).max(1)
}

impl Url {
    /// Parses a URL or a reference; the fragment is not kept.
    fn parse(text: &str) -> Result<Url, String> {
        let (before, fragment) = text.split_once('#').unwrap_or((text, ""));
        let url =
            Url::parse_parts(before, false).map_err(|error| format!("parse {}: {error}", quote(before)))?;
        decode(fragment, Part::Fragment).map_err(|error| format!("parse {}: {error}", quote(text)))?;
        Ok(Url { text: text.to_owned(), ..url })
    }

    /// Parses the text before a fragment. In a request line, only absolute URLs and paths can stand.
    fn parse_parts(text: &str, is_request: bool) -> Result<Url, String> {
        if text.bytes().any(|b| b < 0x20 || b == 0x7f) {
            return Err("net/url: invalid control character in URL".to_owned());
        }
        if text.is_empty() && is_request {
            return Err("empty url".to_owned());
        }
        let mut url = Url {
            text: text.to_owned(),
            scheme: String::new(),
            host: String::new(),
            path: String::new(),
            query: String::new(),
        };
        if text == "*" {
            url.path = text.to_owned();
            return Ok(url);
        }
        let (scheme, rest) = split_scheme(text)?;
        url.scheme = scheme.to_ascii_lowercase();
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        url.query = query.to_owned();
        if !rest.starts_with('/') {
            if !scheme.is_empty() {
                // `mailto:user` has neither host nor path.
                return Ok(url);
            }
            if is_request {
                return Err("invalid URI for request".to_owned());
            }
            if rest.split('/').next().is_some_and(|segment| segment.contains(':')) {
                return Err("first path segment in URL cannot contain colon".to_owned());
            }
        }
        let may_have_authority = !scheme.is_empty() || (!is_request && !rest.starts_with("///"));
        let path = match rest.strip_prefix("//").filter(|_| may_have_authority) {
            Some(after) => {
                let end = after.find('/').unwrap_or(after.len());
                let (authority, path) = after.split_at(end);
                url.host = parse_authority(authority)?;
                path
            }
            None => rest,
        };
        decode(path, Part::Path)?;
        url.path = path.to_owned();
        Ok(url)
    }

    /// Returns the host name, without the brackets of an IPv6 address, and the port.
    fn name_and_port(&self) -> (&str, &str) {
        let (name, port) = match self.host.rfind(':') {
            Some(colon) => match self.host.split_at(colon) {
                (name, port) if is_optional_port(port) => (name, port.get(1..).unwrap_or_default()),
                _ => (self.host.as_str(), ""),
            },
            None => (self.host.as_str(), ""),
        };
        (name.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(name), port)
    }

    /// The path as written, if it is validly encoded, else an encoding of the path.
    fn escaped_path(&self) -> String {
        let is_valid = |b: u8| b"!$&'()*+,;=:@[]%".contains(&b) || !needs_escape(b, Part::Path);
        if self.path == "*" || self.path.bytes().all(is_valid) {
            return self.path.clone();
        }
        let mut out = String::new();
        for byte in decode(&self.path, Part::Path).unwrap_or_default() {
            if needs_escape(byte, Part::Path) {
                out.push_str(&format!("%{byte:02X}"));
            } else {
                out.push(char::from(byte));
            }
        }
        out
    }

    fn query_map<'a>(&self) -> Result<Value<'a>, EvalError> {
        let mut indexes: HashMap<String, usize> = HashMap::new();
        let mut entries: Vec<(String, Vec<Value<'a>>)> = Vec::new();
        for part in self.query.split('&').filter(|part| !part.is_empty() && !part.contains(';')) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let (Ok(key), Ok(value)) = (decode(key, Part::Query), decode(value, Part::Query)) else {
                continue;
            };
            let key = String::from_utf8_lossy(&key).into_owned();
            let value = Value::text(String::from_utf8_lossy(&value));
            let index = *indexes.entry(key.clone()).or_insert(entries.len());
            match entries.get_mut(index) {
                Some((_, values)) => values.push(value),
                None => entries.push((key, vec![value])),
            }
        }
        let mut map = MapBuilder::default();
        for (key, values) in entries {
            map.insert(Value::text(key), Value::list(values))?;
        }
        Ok(Value::Map(map.finish()))
    }
}

/// Splits a URL into its scheme, `""` if absent, and the rest.
///
/// # Errors
/// The reason why the scheme is malformed, with the text of Go.
pub fn split_scheme(text: &str) -> Result<(&str, &str), String> {
    for (at, c) in text.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            ':' if at == 0 => return Err("missing protocol scheme".to_owned()),
            ':' => return Ok((text.get(..at).unwrap_or_default(), text.get(at + 1..).unwrap_or_default())),
            _ => break,
        }
    }
    Ok(("", text))
}

/// Parses `user:password@host:port` and returns host and port, decoded.
fn parse_authority(authority: &str) -> Result<String, String> {
    let Some((user, host)) = authority.rsplit_once('@') else { return parse_host(authority) };
    let host = parse_host(host)?;
    let is_user = |b: u8| b.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&b);
    if !user.bytes().all(is_user) {
        return Err("net/url: invalid userinfo".to_owned());
    }
    let (name, password) = user.split_once(':').unwrap_or((user, ""));
    decode(name, Part::User)?;
    decode(password, Part::User)?;
    Ok(host)
}

/// Whether a text is empty, or a colon and digits.
fn is_optional_port(port: &str) -> bool {
    port.is_empty() || port.strip_prefix(':').is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_digit()))
}

fn parse_host(host: &str) -> Result<String, String> {
    let check_port = |port: &str| match is_optional_port(port) {
        true => Ok(()),
        false => Err(format!("invalid port {} after host", quote(port))),
    };
    let mut decoded = Vec::new();
    if host.starts_with('[') {
        let end = host.rfind(']').ok_or("missing ']' in host")?;
        let (literal, rest) = host.split_at(end);
        check_port(rest.get(1..).unwrap_or_default())?;
        // `%25` separates a zone, which may contain more characters than a host.
        if let Some(zone) = literal.find("%25") {
            let (address, zone) = literal.split_at(zone);
            decoded.extend(decode(address, Part::Host)?);
            decoded.extend(decode(zone, Part::Zone)?);
            decoded.extend(decode(rest, Part::Host)?);
            return Ok(String::from_utf8_lossy(&decoded).into_owned());
        }
    } else if let Some(colon) = host.rfind(':') {
        check_port(host.get(colon..).unwrap_or_default())?;
    }
    decoded.extend(decode(host, Part::Host)?);
    Ok(String::from_utf8_lossy(&decoded).into_owned())
}

/// A part of a URL, which determines the characters that stand for themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    User,
    Host,
    Zone,
    Path,
    Query,
    Fragment,
}

/// Whether a byte must be written as `%xx` in a part.
fn needs_escape(byte: u8, part: Part) -> bool {
    let is_host = matches!(part, Part::Host | Part::Zone);
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => false,
        b'!' | b'\'' | b'(' | b')' | b'*' if is_host => false,
        b'[' | b']' | b'<' | b'>' | b'"' if is_host => false,
        b'$' | b'&' | b'+' | b',' | b':' | b';' | b'=' if is_host => false,
        b'$' | b'&' | b'+' | b',' | b'/' | b':' | b';' | b'=' | b'?' | b'@' => match part {
            Part::Path => byte == b'?',
            Part::User => matches!(byte, b'@' | b'/' | b'?' | b':'),
            Part::Query => true,
            Part::Fragment => false,
            Part::Host | Part::Zone => true,
        },
        b'!' | b'(' | b')' | b'*' if part == Part::Fragment => false,
        _ => true,
    }
}

/// Decodes `%xx`; in queries also `+` to a space.
fn decode(text: &str, part: Part) -> Result<Vec<u8>, String> {
    let bytes = text.as_bytes();
    let is_host = matches!(part, Part::Host | Part::Zone);
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'%' => {
                let escape = bytes.get(at..bytes.len().min(at + 3)).unwrap_or_default();
                let invalid = || format!("invalid URL escape {}", quote(&String::from_utf8_lossy(escape)));
                let digits = escape.get(1..).filter(|digits| digits.len() == 2);
                let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
                let digits = digits.filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
                let code =
                    digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).ok_or_else(invalid)?;
                let is_percent = escape == b"%25";
                // A host has only escapes of characters beyond ASCII; a zone also those of its characters.
                let is_allowed = match part {
                    Part::Host => code >= 0x80 || is_percent,
                    Part::Zone => is_percent || code == b' ' || !needs_escape(code, Part::Host),
                    _ => true,
                };
                if !is_allowed {
                    return Err(invalid());
                }
                out.push(code);
                at += 3;
                continue;
            }
            b'+' if part == Part::Query => out.push(b' '),
            byte if is_host && *byte < 0x80 && needs_escape(*byte, part) => {
                let shown = quote(&char::from(*byte).to_string());
                return Err(format!("invalid character {shown} in host name"));
            }
            byte => out.push(*byte),
        }
        at += 1;
    }
    Ok(out)
}

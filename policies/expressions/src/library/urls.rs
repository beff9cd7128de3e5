//! URLs: absolute URLs and absolute paths, as in a request line.

use std::collections::HashMap;

use crate::cost::CallCost::{Custom, PassValue, Text};
use crate::cost::read_cost;
use crate::error::EvalError;
use crate::map::MapBuilder;
use crate::value::{Opaque, Value};
use crate::value_facts::Estimate;

use super::{Function, Library, library_value, single_text};

/// Functions of all releases.
pub(super) static LIBRARY: Library = Library {
    since: 0,
    functions: &[
        Function::new(&["isURL(string) -> bool"], Text(1), |a| Ok(Value::Bool(is_url(single_text(a)?)))),
        Function::new(&["url(string) -> net.URL"], Text(1), |a| {
            let text = single_text(a)?;
            Url::parse(text).map(Value::opaque).map_err(|reason| {
                EvalError::failed(format!(
                    "URL parse error during conversion from string: parse {text:?}: {reason}"
                ))
            })
        }),
        Function::new(&["string(net.URL) -> string"], PassValue, |a| {
            Ok(Value::text(&library_value::<Url>(a)?.text))
        }),
        Function::new(&[".net.URL.getScheme() -> string"], PassValue, |a| {
            Ok(Value::text(&library_value::<Url>(a)?.scheme))
        }),
        Function::new(&[".net.URL.getHost() -> string"], PassValue, |a| {
            Ok(Value::text(&library_value::<Url>(a)?.host))
        }),
        Function::new(&[".net.URL.getHostname() -> string"], PassValue, |a| {
            Ok(Value::text(library_value::<Url>(a)?.name_and_port().0))
        }),
        Function::new(&[".net.URL.getPort() -> string"], PassValue, |a| {
            Ok(Value::text(library_value::<Url>(a)?.name_and_port().1))
        }),
        Function::new(&[".net.URL.getEscapedPath() -> string"], PassValue, |a| {
            Ok(Value::text(library_value::<Url>(a)?.escaped_path()))
        }),
        Function::new(
            &[".net.URL.getQuery() -> map(string, list(string))"],
            Custom(query_cost, |_| Estimate::exactly(1)),
            |a| library_value::<Url>(a)?.query_map(),
        ),
    ],
};

/// Whether a text is an absolute URL or an absolute path.
pub fn is_url(text: &str) -> bool {
    Url::parse(text).is_ok()
}

/// A parsed URL.
struct Url {
    text: String,
    scheme: String,
    /// Host and port.
    host: String,
    path: String,
    query: String,
}

impl Opaque for Url {
    fn type_name(&self) -> &'static str {
        "net.URL"
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        other.downcast::<Url>().is_some_and(|other| other.text == self.text)
    }

    fn text_bytes(&self) -> u64 {
        self.text.len() as u64
    }
}

/// Cost of `getQuery`: one unit for a short query, otherwise the cost of reading it.
fn query_cost(arguments: &[Value<'_>]) -> u64 {
    let query = arguments.first().and_then(Value::downcast::<Url>).map_or(0, |url| url.query.len());
    read_cost((query as u64).saturating_sub(256)).max(1)
}

impl Url {
    fn parse(text: &str) -> Result<Url, String> {
        if text.is_empty() {
            return Err("empty url".to_owned());
        }
        if text.bytes().any(|b| b < 0x20 || b == 0x7f) {
            return Err("net/url: invalid control character in URL".to_owned());
        }
        let (scheme, rest) = split_scheme(text)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut url = Url {
            text: text.to_owned(),
            scheme: scheme.to_ascii_lowercase(),
            host: String::new(),
            path: String::new(),
            query: query.to_owned(),
        };
        if text == "*" {
            url.path = rest.to_owned();
            return Ok(url);
        }
        if !rest.starts_with('/') {
            // `mailto:user` has neither host nor path.
            return if scheme.is_empty() { Err("invalid URI for request".to_owned()) } else { Ok(url) };
        }
        let path = match rest.strip_prefix("//") {
            Some(after) if !scheme.is_empty() => {
                let end = after.find('/').unwrap_or(after.len());
                let (authority, path) = after.split_at(end);
                let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
                url.host = parse_host(host)?;
                path
            }
            _ => rest,
        };
        decode(path, false)?;
        url.path = path.to_owned();
        Ok(url)
    }

    /// Returns the host name, without the brackets of an IPv6 address, and the port.
    fn name_and_port(&self) -> (&str, &str) {
        let (name, port) = match self.host.rsplit_once(':') {
            Some((name, port)) if !port.contains(']') => (name, port),
            _ => (self.host.as_str(), ""),
        };
        (name.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(name), port)
    }

    fn escaped_path(&self) -> String {
        let needs_no_escape = |b: u8| b.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:@[]/%".contains(&b);
        if self.path.bytes().all(needs_no_escape) {
            return self.path.clone();
        }
        let mut out = String::new();
        for byte in decode(&self.path, false).unwrap_or_default() {
            if byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&byte) {
                out.push(char::from(byte));
            } else {
                out.push_str(&format!("%{byte:02X}"));
            }
        }
        out
    }

    fn query_map<'a>(&self) -> Result<Value<'a>, EvalError> {
        let mut indexes: HashMap<String, usize> = HashMap::new();
        let mut entries: Vec<(String, Vec<Value<'a>>)> = Vec::new();
        for part in self.query.split('&').filter(|part| !part.is_empty() && !part.contains(';')) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let (Ok(key), Ok(value)) = (decode(key, true), decode(value, true)) else { continue };
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

fn parse_host(host: &str) -> Result<String, String> {
    let port = if host.starts_with('[') {
        let end = host.rfind(']').ok_or("missing ']' in host")?;
        host.get(end + 1..).unwrap_or_default()
    } else {
        host.rfind(':').and_then(|at| host.get(at..)).unwrap_or_default()
    };
    let digits = port.strip_prefix(':').unwrap_or_default();
    if (!port.is_empty() && !port.starts_with(':')) || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("invalid port {port:?} after host"));
    }
    let is_allowed =
        |b: u8| !b.is_ascii() || b.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]<>\"%".contains(&b);
    if let Some(bad) = host.bytes().find(|b| !is_allowed(*b)) {
        return Err(format!("invalid character {:?} in host name", char::from(bad).to_string()));
    }
    Ok(String::from_utf8_lossy(&decode(host, false)?).into_owned())
}

/// Decodes `%xx`; in queries also `+` to a space.
fn decode(text: &str, query: bool) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let digits: String = bytes.by_ref().take(2).map(char::from).collect();
                let valid = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit());
                let code = u8::from_str_radix(&digits, 16).ok().filter(|_| valid);
                out.push(code.ok_or_else(|| format!("invalid URL escape {:?}", format!("%{digits}")))?);
            }
            b'+' if query => out.push(b' '),
            other => out.push(other),
        }
    }
    Ok(out)
}

//! The file of `--service-resolver-file`: addresses of Services.
//!
//! # Contract
//!
//! The file is a map in YAML or JSON. A key is `NAMESPACE/NAME:PORT`, a value is the origin of a URL:
//!
//! ```text
//! policy/validator:443: https://127.0.0.1:8443
//! policy/metrics:80: http://127.0.0.1:8080
//! ```

use std::collections::BTreeMap;

use apimachinery::document::{Document, Fields, join_errors};
use http::Uri;

use crate::target::{Scheme, Target};

/// A port of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServicePort<'a> {
    /// Namespace of the Service.
    pub namespace: &'a str,
    /// Name of the Service.
    pub name: &'a str,
    /// Number of a port of the Service.
    pub port: u16,
}

/// Origins (scheme, host and port of a URL) by `NAMESPACE/NAME:PORT` of the Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceMap(BTreeMap<String, String>);

/// The defects of a file of `--service-resolver-file`, one per line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ServiceMapError(String);

impl ServiceMap {
    /// Parses the text of a file. `name` is the file name for messages.
    ///
    /// # Errors
    ///
    /// All defects of the file.
    pub fn parse(name: &str, text: &[u8]) -> Result<Self, ServiceMapError> {
        let error = |problem: String| ServiceMapError(format!("file `{name}`: {problem}"));
        let document = Document::read(text).map_err(|reason| error(reason.to_string()))?;
        if document.is_empty() {
            return Ok(ServiceMap::default());
        }
        document.decode_fields(origins).map(ServiceMap).map_err(|errors| error(join_errors(&errors)))
    }

    /// Returns the target of a Service; None if the file does not contain the Service.
    pub fn target(&self, service: ServicePort<'_>) -> Option<Target> {
        let uri: Uri = self.origin(service)?.parse().ok()?;
        let (scheme, default_port) = match uri.scheme_str() {
            Some("http") => (Scheme::Http, 80),
            _ => (Scheme::Https, 443),
        };
        let host = uri.host()?.trim_matches(['[', ']']);
        Some(Target::trusted(scheme, host, uri.port_u16().unwrap_or(default_port)))
    }

    fn origin(&self, service: ServicePort<'_>) -> Option<&str> {
        self.0.get(&format!("{}/{}:{}", service.namespace, service.name, service.port)).map(String::as_str)
    }
}

/// Reads the entries of the file and records an error for each invalid one.
fn origins(fields: &mut Fields<'_>) -> BTreeMap<String, String> {
    let mut origins = BTreeMap::new();
    for (service, value) in fields.entries() {
        let path = fields.path().child(service);
        if !is_service(service) {
            fields.errors().add_text(&path, "the key must have the form NAMESPACE/NAME:PORT");
        }
        match value.as_str().and_then(origin) {
            Some(origin) => drop(origins.insert(service.to_owned(), origin)),
            None => {
                fields.errors().add_text(&path, "the value must be https://HOST:PORT or http://HOST:PORT");
            }
        }
    }
    origins
}

fn is_service(key: &str) -> bool {
    let parts = key.split_once('/').and_then(|(namespace, rest)| Some((namespace, rest.rsplit_once(':')?)));
    parts.is_some_and(|(namespace, (name, port))| {
        !namespace.is_empty() && !name.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
    })
}

/// Returns the origin of a URL; None if the URL has a path, a query, credentials or another scheme than
/// http(s).
fn origin(url: &str) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    let scheme = uri.scheme_str().filter(|scheme| matches!(*scheme, "https" | "http"))?;
    let authority = uri.authority()?.as_str();
    let is_plain = !authority.contains('@') && matches!(uri.path(), "" | "/") && uri.query().is_none();
    is_plain.then(|| format!("{scheme}://{authority}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(port: u16) -> ServicePort<'static> {
        ServicePort { namespace: "a", name: "b", port }
    }

    #[test]
    fn service_map_returns_origin_of_namespace_name_and_port() {
        let map =
            ServiceMap::parse("f", b"a/b:443: https://127.0.0.1:8443/\na/b:80: http://[::1]:8080\n").unwrap();
        assert_eq!(map.origin(service(443)), Some("https://127.0.0.1:8443"));
        assert_eq!(map.origin(service(80)), Some("http://[::1]:8080"));
        assert_eq!(map.origin(service(81)), None);
        let target = map.target(service(80)).unwrap();
        assert_eq!((target.scheme(), target.host(), target.port()), (Scheme::Http, "::1", 8080));
        assert_eq!(ServiceMap::parse("f", b"").unwrap(), ServiceMap::default());
    }

    #[test]
    fn invalid_service_map_names_every_defect() {
        for (text, defects) in [
            ("[]", vec!["must be an object"]),
            (
                "a: https://h\nb/c:0: https://h",
                vec!["line 1: a: the key must have the form", "line 2: b/c:0: the key must have the form"],
            ),
            ("a/b:1: h\na/c:1: https://h/path", vec!["line 1: a/b:1: the value", "line 2: a/c:1: the value"]),
            ("a/b:1: https://h\na/b:1: https://i", vec!["line 2: strict decoding error: duplicate field"]),
            ("a/b:1: https://u:p@h", vec!["a/b:1: the value"]),
            ("a/b:1: 5", vec!["a/b:1: the value"]),
        ] {
            let error = ServiceMap::parse("f.yaml", text.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with("file `f.yaml`: "), "{error}");
            assert!(defects.iter().all(|defect| error.contains(defect)), "{text}: {error}");
        }
    }
}

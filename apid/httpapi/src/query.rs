//! The query string of a request, decoded once.

use std::borrow::Cow;

use apimachinery::status::Status;
use percent_encoding::percent_decode_str;

/// Maximum number of parameters of a request. [`Query::check`] rejects a request with more parameters.
const MAX_PARAMETERS: usize = 1_000;

/// Decoded parameters, in the order of the URL.
///
/// As in Go, a pair that is not valid percent-encoded UTF-8 or contains a semicolon is skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Parses the part of a URL after the question mark.
    pub(super) fn parse(raw: Option<&str>) -> Self {
        let pairs = raw.unwrap_or("").split('&').filter(|pair| !pair.is_empty() && !pair.contains(';'));
        Query(
            pairs
                .filter_map(|pair| {
                    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                    Some((decode(name)?, decode(value)?))
                })
                .take(MAX_PARAMETERS + 1)
                .collect(),
        )
    }

    /// Rejects a request with too many parameters.
    ///
    /// # Errors
    ///
    /// 400 with the limit in the message.
    pub(super) fn check(&self) -> Result<(), Status> {
        if self.0.len() <= MAX_PARAMETERS {
            return Ok(());
        }
        Err(Status::bad_request(format!("the request has more than {MAX_PARAMETERS} query parameters")))
    }

    /// The first value of a parameter.
    pub(super) fn first(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The first value, `""` when the parameter is absent.
    pub(super) fn text(&self, name: &str) -> &str {
        self.first(name).unwrap_or("")
    }

    /// All values of a parameter.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Whether the parameter is present, with any value.
    pub(super) fn has(&self, name: &str) -> bool {
        self.first(name).is_some()
    }

    /// Returns a boolean parameter.
    ///
    /// Absent, `0` and `false` are false; every other value is true, also an empty one.
    pub(super) fn switch(&self, name: &str) -> bool {
        self.first(name).is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }
}

fn decode(text: &str) -> Option<String> {
    if !text.contains(['%', '+']) {
        return Some(text.to_owned());
    }
    if !is_well_formed(text) {
        return None;
    }
    let spaced = text.replace('+', " ");
    percent_decode_str(&spaced).decode_utf8().ok().map(Cow::into_owned)
}

/// Whether two hexadecimal digits follow each percent sign.
pub(super) fn is_well_formed(text: &str) -> bool {
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' && !(0..2).all(|_| bytes.next().is_some_and(|b| b.is_ascii_hexdigit())) {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_with_more_than_1000_parameters_is_rejected() {
        let query_of = |pairs: usize| Query::parse(Some(&"a=b&".repeat(pairs)));
        assert_eq!(query_of(MAX_PARAMETERS).check(), Ok(()));
        let status = query_of(20 * MAX_PARAMETERS).check().unwrap_err();
        assert_eq!(status.code, 400);
        assert!(status.message.contains("more than 1000 query parameters"), "{}", status.message);
    }

    #[test]
    fn invalid_query_pairs_are_skipped() {
        let query =
            Query::parse(Some("a=1&b=x%20y+z&a=2&bad=%zz&cut=%4&flag&semi;colon=1&%61%62=ab&utf=%ff&="));
        assert_eq!(query.first("a"), Some("1"));
        assert_eq!(query.all("a").collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(query.first("b"), Some("x y z"));
        assert_eq!(query.first("flag"), Some(""));
        assert_eq!(query.first("ab"), Some("ab"));
        for absent in ["bad", "cut", "utf", "semi", "c"] {
            assert!(!query.has(absent), "{absent}");
        }
        assert_eq!(Query::parse(None), Query::default());
    }

    #[test]
    fn boolean_parameter_is_true_unless_0_or_false() {
        for (raw, on) in [
            ("watch", true),
            ("watch=", true),
            ("watch=1", true),
            ("watch=yes", true),
            ("watch=0", false),
            ("watch=FALSE", false),
            ("", false),
        ] {
            assert_eq!(Query::parse(Some(raw)).switch("watch"), on, "{raw}");
        }
    }
}

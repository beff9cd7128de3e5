//! Table of URLs: which texts `isURL` accepts, and the parts and errors of `url`.
//!
//! A row of `testdata/urls.jsonl` is `[TEXT, OUTCOME]`. The texts follow RFC 3986; the outcomes follow the documented
//! rules of Go's `net/url`.

use std::path::Path;

use expressions::{Cost, Environment, Type, Value};
use serde_json::{Value as Json, json};

#[test]
fn urls_match_table() {
    let environment = Environment::new().variable("s", Type::String);
    let text = |source: &str, data: &Json| {
        let program = environment.compile(source).unwrap();
        let value = Value::of(data, &Type::String).unwrap();
        match program.evaluate(&[("s", value)], &mut Cost::limit(1_000_000)) {
            Ok(value) => value.as_str().map_or_else(|| format!("{value:?}"), str::to_owned),
            Err(error) => format!("error: {error}"),
        }
    };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/urls.jsonl");
    let mut failures = Vec::new();
    let mut rows = 0;
    for line in std::fs::read_to_string(path).unwrap().lines() {
        rows += 1;
        let row: Json = serde_json::from_str(line).unwrap();
        let (data, expected) = (&row[0], row[1].as_str().unwrap());
        let host = text("url(s).getHost()", data);
        let found = match host.strip_prefix("error: URL parse error during conversion from string: ") {
            Some(error) => format!("error: {error}"),
            None => format!(
                "scheme={} host={host} name={} port={} path={}",
                text("url(s).getScheme()", data),
                text("url(s).getHostname()", data),
                text("url(s).getPort()", data),
                text("url(s).getEscapedPath()", data),
            ),
        };
        let expected = expected.split(" query=").next().unwrap();
        let accepted = text("isURL(s)", data);
        if found != expected
            || accepted != (!text("url(s).getScheme()", data).starts_with("error")).to_string()
        {
            failures.push(format!("{data}\n   expected {expected}\n   found    {found}, isURL {accepted}"));
        }
    }
    assert!(rows >= 300, "{rows} rows");
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    let query =
        text("url(s).getQuery() == {'a': ['1', '2'], 'c d': ['']}", &json!("/p?a=1&a=2&b;=3&c+d&%zz=1"));
    assert_eq!(query, "true");
}

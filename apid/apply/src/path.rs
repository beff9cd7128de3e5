//! Path elements: a field, or a list item by its keys, by its value or by its index.
//!
//! # Reference
//!
//! In `fieldsV1` an element is `f:<name>`, `k:{<keys>}`, `v:<value>` or `i:<index>`. In messages a path is
//! `.spec.containers[name="app"].args[0]`, and an item of a set is `[="x"]`.

use std::cmp::Ordering;
use std::fmt::{self, Write as _};

use apimachinery::codec::json;
use apimachinery::field::format_number;
use apimachinery::object::{Map, Value};

/// One step of a path.
#[derive(Clone, Debug, PartialEq)]
pub enum Element {
    /// A field of a struct or a key of a map.
    Field(Box<str>),
    /// A list item by the values of its keys, sorted by name.
    Key(Box<[(Box<str>, Value)]>),
    /// An item of a set.
    Value(Box<Value>),
    /// A list item by its index.
    Index(i64),
}

impl Eq for Element {}

impl Element {
    /// Creates a field element.
    pub fn field(name: &str) -> Self {
        Element::Field(name.into())
    }

    /// The name in `fieldsV1`.
    pub fn name(&self) -> String {
        match self {
            Element::Field(name) => {
                let mut text = String::with_capacity(name.len() + 2);
                text.push_str("f:");
                text.push_str(name);
                text
            }
            Element::Key(keys) => {
                let map: Map<String, Value> =
                    keys.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
                format!("k:{}", json_text(&Value::Object(map)))
            }
            Element::Value(value) => format!("v:{}", json_text(value)),
            Element::Index(index) => format!("i:{index}"),
        }
    }

    /// Parses a name of `fieldsV1`. `Ok(None)` is an element of an unknown kind.
    ///
    /// # Errors
    ///
    /// The name has no prefix, or the text after the prefix is malformed.
    pub fn parse(name: &str) -> Result<Option<Self>, MalformedElement> {
        let malformed = || MalformedElement(name.to_owned());
        let (prefix, rest) = name.split_at_checked(2).ok_or_else(malformed)?;
        match prefix {
            "f:" => Ok(Some(Element::field(rest))),
            "k:" => {
                let Value::Object(keys) = parse_json(rest).ok_or_else(malformed)? else {
                    return Err(malformed());
                };
                Ok(Some(Element::Key(keys.into_iter().map(|(name, value)| (name.into(), value)).collect())))
            }
            "v:" => Ok(Some(Element::Value(Box::new(parse_json(rest).ok_or_else(malformed)?)))),
            "i:" => Ok(Some(Element::Index(rest.parse().map_err(|_| malformed())?))),
            _ if prefix.ends_with(':') => Ok(None),
            _ => Err(malformed()),
        }
    }
}

/// The JSON text of a value in a name, with the escapes of Go.
fn json_text(value: &Value) -> String {
    json::escape_html(&json::to_text(value)).into_owned()
}

/// Reads the JSON text in a name. `1` and `1.0` are the same value.
fn parse_json(text: &str) -> Option<Value> {
    let mut value = serde_json::from_str(text).ok()?;
    json::normalize_numbers(&mut value);
    Some(value)
}

/// A value in a message.
struct DisplayedValue<'v>(&'v Value);

impl fmt::Display for DisplayedValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::Number(number) => f.write_str(&format_number(number)),
            other => write!(f, "{other}"),
        }
    }
}

/// A malformed name in `fieldsV1`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an element of a path")]
pub struct MalformedElement(pub String);

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Element::Field(name) => write!(f, ".{name}"),
            Element::Key(keys) => {
                f.write_char('[')?;
                for (i, (name, value)) in keys.iter().enumerate() {
                    if i > 0 {
                        f.write_char(',')?;
                    }
                    write!(f, "{name}={}", DisplayedValue(value))?;
                }
                f.write_char(']')
            }
            Element::Value(value) => write!(f, "[={}]", DisplayedValue(value)),
            Element::Index(index) => write!(f, "[{index}]"),
        }
    }
}

impl PartialOrd for Element {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The order is: fields, keys, values, indexes.
impl Ord for Element {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Element::Field(a), Element::Field(b)) => a.cmp(b),
            (Element::Key(a), Element::Key(b)) => {
                for ((name, value), (other_name, other_value)) in a.iter().zip(b) {
                    let order = name.cmp(other_name).then_with(|| compare(value, other_value));
                    if order.is_ne() {
                        return order;
                    }
                }
                a.len().cmp(&b.len())
            }
            (Element::Value(a), Element::Value(b)) => compare(a, b),
            (Element::Index(a), Element::Index(b)) => a.cmp(b),
            _ => rank(self).cmp(&rank(other)),
        }
    }
}

fn rank(element: &Element) -> u8 {
    match element {
        Element::Field(_) => 0,
        Element::Key(_) => 1,
        Element::Value(_) => 2,
        Element::Index(_) => 3,
    }
}

/// A total order of values: numbers, strings, booleans, lists, maps, null. Equality is the same as `==`.
fn compare(a: &Value, b: &Value) -> Ordering {
    fn rank(value: &Value) -> u8 {
        match value {
            Value::Number(_) => 0,
            Value::String(_) => 1,
            Value::Bool(_) => 2,
            Value::Array(_) => 3,
            Value::Object(_) => 4,
            Value::Null => 5,
        }
    }
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            if a == b {
                return Ordering::Equal;
            }
            let by_value = match (a.as_i64(), b.as_i64()) {
                (Some(a), Some(b)) => a.cmp(&b),
                _ => a.as_f64().unwrap_or(0.0).total_cmp(&b.as_f64().unwrap_or(0.0)),
            };
            by_value.then_with(|| a.to_string().cmp(&b.to_string()))
        }
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Array(a), Value::Array(b)) => {
            let first = a.iter().zip(b).map(|(a, b)| compare(a, b)).find(|order| order.is_ne());
            first.unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        (Value::Object(a), Value::Object(b)) => {
            let pairs = a.iter().zip(b).map(|((k, a), (l, b))| k.cmp(l).then_with(|| compare(a, b)));
            pairs.into_iter().find(|order| order.is_ne()).unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        _ => rank(a).cmp(&rank(b)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_element_names_round_trip_and_display() {
        for (name, shown) in [
            ("f:spec", ".spec"),
            ("f:app.example.com/x", ".app.example.com/x"),
            ("f:", "."),
            (r#"k:{"containerPort":80,"protocol":"TCP"}"#, r#"[containerPort=80,protocol="TCP"]"#),
            (r#"v:"example.com/one""#, r#"[="example.com/one"]"#),
            ("v:1", "[=1]"),
            ("v:1.5", "[=1.5]"),
            (r#"v:"\u003ca\u0026b\u003e""#, r#"[="<a&b>"]"#),
            (r#"k:{"name":"a\u003cb"}"#, r#"[name="a<b"]"#),
            ("f:a<b", ".a<b"),
            ("i:3", "[3]"),
        ] {
            let element = Element::parse(name).unwrap().unwrap();
            assert_eq!(element.name(), name);
            assert_eq!(element.to_string(), shown);
        }
        for (name, normal) in
            [("v:1.0", "v:1"), (r#"k:{"n":1e2}"#, r#"k:{"n":100}"#), (r#"v:"<""#, r#"v:"\u003c""#)]
        {
            assert_eq!(Element::parse(name), Element::parse(normal));
            assert_eq!(Element::parse(name).unwrap().unwrap().name(), normal);
        }
        assert_eq!(Element::Value(Box::new(Value::from(1.0))).name(), "v:1");
        assert_eq!(Element::parse("z:later").unwrap(), None);
        for wrong in ["", "f", "k:[]", "k:{", "v:", "i:x", "spec"] {
            assert!(Element::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn path_elements_sort_by_kind_then_value() {
        let names =
            ["f:a", "f:b", r#"k:{"port":80}"#, r#"k:{"port":443}"#, "v:1", r#"v:"x""#, "v:true", "i:0"];
        let elements: Vec<Element> =
            names.iter().map(|name| Element::parse(name).unwrap().unwrap()).collect();
        assert!(elements.is_sorted());
    }
}

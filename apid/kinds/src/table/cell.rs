//! Helpers for cells: reading objects by paths, and texts that several kinds share.

use std::collections::BTreeSet;

use apimachinery::names::Names;
use apimachinery::object::Object;
use serde_json::Value;

/// Cell text for an empty value.
pub(crate) const NONE: &str = "<none>";
/// Cell text for an unset value.
pub(crate) const UNSET: &str = "<unset>";
/// Cell text for an unknown value.
pub(crate) const UNKNOWN: &str = "<unknown>";

/// Reads a tree by dotted paths. An absent value reads as the zero of its type.
pub(crate) trait PathReader {
    /// The value at a path.
    fn find(&self, path: &str) -> Option<&Value>;

    /// The string at a path; `""` if absent.
    fn text(&self, path: &str) -> &str {
        self.find(path).and_then(Value::as_str).unwrap_or("")
    }

    /// The string at a path, or `absent` if the string is absent or empty.
    fn text_or<'a>(&'a self, path: &str, absent: &'a str) -> &'a str {
        Some(self.text(path)).filter(|text| !text.is_empty()).unwrap_or(absent)
    }

    /// The whole number at a path; 0 if absent.
    fn integer(&self, path: &str) -> i64 {
        self.find(path).and_then(Value::as_i64).unwrap_or(0)
    }

    /// The boolean at a path; false if absent.
    fn flag(&self, path: &str) -> bool {
        self.find(path).and_then(Value::as_bool).unwrap_or(false)
    }

    /// The items of the list at a path; none if absent.
    fn items(&self, path: &str) -> &[Value] {
        self.find(path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// The entries of the map at a path, in the order of their keys.
    fn entries(&self, path: &str) -> Vec<(&str, &Value)> {
        let map = self.find(path).and_then(Value::as_object);
        let mut entries: Vec<_> =
            map.into_iter().flatten().map(|(key, value)| (key.as_str(), value)).collect();
        entries.sort_unstable_by_key(|(key, _)| *key);
        entries
    }

    /// The string or number at a path as text; `absent` if the value is missing.
    fn text_or_number(&self, path: &str, absent: &str) -> String {
        match self.find(path) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(number)) => number.to_string(),
            _ => absent.to_owned(),
        }
    }

    /// The condition of a type in `status.conditions`.
    fn condition(&self, kind: &str) -> Option<&Value> {
        self.items("status.conditions").iter().find(|condition| condition.text("type") == kind)
    }

    /// Whether a condition has the status `True`.
    fn is_condition_true(&self, condition: &str) -> bool {
        self.condition(condition).is_some_and(|condition| condition.text("status") == "True")
    }
}

impl PathReader for Value {
    fn find(&self, path: &str) -> Option<&Value> {
        path.split('.').try_fold(self, |value, field| value.get(field))
    }
}

impl PathReader for Object {
    fn find(&self, path: &str) -> Option<&Value> {
        match path.split_once('.') {
            Some((first, rest)) => self.get(first)?.find(rest),
            None => self.get(path),
        }
    }
}

/// The text, or `<none>` if empty.
pub(crate) fn or_none(text: String) -> String {
    if text.is_empty() { NONE.to_owned() } else { text }
}

/// Roles of a node in sorted order: the names of labels `node-role.<domain>/<role>`, and the value of the label
/// `<domain>/role`.
pub(crate) fn node_roles(node: &Object, names: &Names) -> String {
    let key_of_role = names.label_key("role");
    let role = |(key, value)| {
        if key == key_of_role { Some(value) } else { names.strip_label_sub_key("node-role", key) }
    };
    let roles: BTreeSet<&str> = node.labels().filter_map(role).filter(|role| !role.is_empty()).collect();
    or_none(roles.into_iter().collect::<Vec<_>>().join(","))
}

/// Strings joined by commas.
pub(crate) fn join(items: &[Value]) -> String {
    items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(",")
}

/// The first three texts, and the number of further texts.
pub(crate) fn first_three(texts: &[String], separator: &str) -> String {
    first_texts(texts, 3, separator)
}

/// The first `max` texts, and the number of further texts.
pub(crate) fn first_texts(texts: &[String], max: usize, separator: &str) -> String {
    let text = texts.iter().take(max).map(String::as_str).collect::<Vec<_>>().join(separator);
    match texts.len().checked_sub(max) {
        None | Some(0) => text,
        Some(more) => format!("{text} + {more} more..."),
    }
}

/// A map of labels: `a=1,b=2`.
pub(crate) fn labels(tree: &impl PathReader, path: &str) -> String {
    let pairs = tree.entries(path);
    let texts = pairs.iter().map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or("")));
    or_none(texts.collect::<Vec<_>>().join(","))
}

/// A label selector with its requirements in key order: `app=web,tier in (a,b),!old`.
pub(crate) fn selector(tree: &impl PathReader, path: &str) -> String {
    let Some(selector) = tree.find(path) else { return NONE.to_owned() };
    let mut requirements: Vec<(String, String)> = selector
        .entries("matchLabels")
        .into_iter()
        .map(|(key, value)| (key.to_owned(), format!("{key}={}", value.as_str().unwrap_or(""))))
        .collect();
    for expression in selector.items("matchExpressions") {
        let key = expression.text("key");
        let mut values: Vec<&str> = expression.items("values").iter().filter_map(Value::as_str).collect();
        values.sort_unstable();
        let values = values.join(",");
        let text = match expression.text("operator") {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.to_owned(),
            "DoesNotExist" => format!("!{key}"),
            _ => return "<error>".to_owned(),
        };
        requirements.push((key.to_owned(), text));
    }
    requirements.sort_by(|a, b| a.0.cmp(&b.0));
    or_none(requirements.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(","))
}

/// Access modes of volumes as distinct short names.
pub(crate) fn access_modes(modes: &[Value]) -> String {
    let short_names = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let present =
        short_names.iter().filter(|(mode, _)| modes.iter().any(|m| m == mode)).map(|(_, short)| *short);
    present.collect::<Vec<_>>().join(",")
}

/// Distinct, sorted addresses of a load balancer.
pub(crate) fn load_balancer(tree: &impl PathReader) -> String {
    let ingress = tree.items("status.loadBalancer.ingress");
    let mut addresses: Vec<&str> =
        ingress.iter().map(|i| i.text_or("ip", i.text("hostname"))).filter(|a| !a.is_empty()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn label_selector_is_formatted_like_kubectl() {
        for (tree, text) in [
            (json!({}), "<none>"),
            (json!({"s": {}}), "<none>"),
            (json!({"s": {"matchLabels": {"b": "2", "a": "1"}}}), "a=1,b=2"),
            (
                json!({"s": {"matchLabels": {"m": "x"}, "matchExpressions": [
                    {"key": "z", "operator": "In", "values": ["b", "a"]},
                    {"key": "c", "operator": "NotIn", "values": ["d"]},
                    {"key": "e", "operator": "Exists"},
                    {"key": "b", "operator": "DoesNotExist"},
                ]}}),
                "!b,c notin (d),e,m=x,z in (a,b)",
            ),
            (json!({"s": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}), "<error>"),
        ] {
            assert_eq!(selector(&tree, "s"), text, "{tree}");
        }
    }

    #[test]
    fn long_cell_list_is_truncated() {
        let texts = |n: usize| (1..=n).map(|i| i.to_string()).collect::<Vec<_>>();
        assert_eq!(first_three(&texts(0), ","), "");
        assert_eq!(first_three(&texts(3), ","), "1,2,3");
        assert_eq!(first_three(&texts(5), ","), "1,2,3 + 2 more...");
    }
}

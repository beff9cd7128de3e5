//! JSONPath of printer columns, the scale subresource and selectable fields.
//!
//! # Contract
//!
//! A path begins with `.`, or is wrapped in braces: `.spec.replicas`, `{.spec.replicas}`. Steps are names
//! (`.name`, `['name']`, with `\.` for a dot in a name), `*`, indexes and unions (`[0]`, `[-1]`, `[0,2]`),
//! slices (`[0:2]`, `[::2]`), filters (`[?(@.type=="Ready")]`) and recursive descent (`..name`). A missing
//! field selects nothing.
//!
//! # Reference
//!
//! The templates of `k8s.io/client-go/util/jsonpath`, without functions, ranges and text.

use std::cmp::Ordering;
use std::iter::Peekable;
use std::str::Chars;

use apimachinery::object::{Map, Object, Value};

/// Maximum number of steps of a path, including the paths in its filters; more steps are an error.
const STEPS_MAX: usize = 64;
/// Maximum number of values that a path selects at any step; the step drops further values.
const SELECTED_MAX: usize = 100_000;

/// A compiled path.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPath {
    steps: Box<[JsonPathStep]>,
}

/// A malformed path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct JsonPathError(String);

#[derive(Clone, Debug, PartialEq)]
enum JsonPathStep {
    Field(Box<str>),
    Wildcard,
    Descent,
    Indexes(Box<[i64]>),
    /// `[start:end:stride]`, without the item at `end`.
    Slice {
        start: Option<i64>,
        end: Option<i64>,
        stride: i64,
    },
    Fields(Box<[Box<str>]>),
    Filter(Box<Filter>),
}

/// A condition on list items.
#[derive(Clone, Debug, PartialEq)]
struct Filter {
    left: Operand,
    /// The comparison; without one the left operand must select a value.
    comparison: Option<(Comparison, Operand)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    /// A path below the item.
    Path(JsonPath),
    /// A path below the whole object.
    Root(JsonPath),
    Literal(Value),
}

impl JsonPath {
    /// Parses a path.
    ///
    /// # Errors
    ///
    /// The reason why the path is malformed.
    pub fn parse(text: &str) -> Result<JsonPath, JsonPathError> {
        let trimmed = text.trim();
        let inner = match trimmed.strip_prefix('{') {
            Some(inner) => inner.strip_suffix('}').ok_or_else(|| error("unclosed action"))?,
            None => trimmed,
        };
        let mut parser = Parser { chars: inner.chars().peekable(), steps_left: STEPS_MAX };
        parser.skip('$');
        let path = parser.parse_steps(&[])?;
        match parser.chars.next() {
            None => Ok(path),
            Some(other) => Err(error(&format!("unrecognized character in action: {other:?}"))),
        }
    }

    /// Returns the first selected value.
    pub fn first<'a>(&self, object: &'a Object) -> Option<&'a Value> {
        self.all(object).into_iter().next()
    }

    /// Returns all selected values in order.
    pub fn all<'a>(&self, object: &'a Object) -> Vec<&'a Value> {
        // The first step applies to the fields of the object, which is not a value itself.
        let Some((first, rest)) = self.steps.split_first() else { return Vec::new() };
        let start: Vec<&Value> = match first {
            JsonPathStep::Field(name) => object.get(name).into_iter().collect(),
            JsonPathStep::Fields(names) => names.iter().filter_map(|name| object.get(name)).collect(),
            JsonPathStep::Wildcard => object.0.values().collect(),
            JsonPathStep::Descent => {
                let mut found = Vec::new();
                if let Some((JsonPathStep::Field(name), _)) = rest.split_first() {
                    found.extend(object.get(name));
                    object.0.values().for_each(|value| descend(value, Some(name), &mut found));
                    return apply(rest.get(1..).unwrap_or_default(), found, object);
                }
                object.0.values().for_each(|value| descend(value, None, &mut found));
                found
            }
            JsonPathStep::Indexes(_) | JsonPathStep::Slice { .. } | JsonPathStep::Filter(_) => Vec::new(),
        };
        apply(rest, start, object)
    }
}

impl JsonPath {
    /// Sets the value at a path of field names, and creates absent objects on the way.
    /// Returns false when a step is no name, or when a value on the way is not an object.
    pub fn set(&self, object: &mut Object, value: Value) -> bool {
        let Some((JsonPathStep::Field(last), parents)) = self.steps.split_last() else { return false };
        let mut fields = &mut object.0;
        for step in parents {
            let JsonPathStep::Field(name) = step else { return false };
            let slot = fields.entry(&**name).or_insert_with(|| Value::Object(Map::new()));
            match slot {
                Value::Object(next) => fields = next,
                _ => return false,
            }
        }
        fields.insert(last.to_string(), value);
        true
    }
}

/// Applies steps to values.
fn apply<'a>(steps: &[JsonPathStep], mut values: Vec<&'a Value>, root: &'a Object) -> Vec<&'a Value> {
    for step in steps {
        let mut next: Vec<&'a Value> = Vec::new();
        for value in values {
            match (step, value) {
                (JsonPathStep::Field(name), Value::Object(fields)) => next.extend(fields.get(&**name)),
                (JsonPathStep::Fields(names), Value::Object(fields)) => {
                    next.extend(names.iter().filter_map(|name| fields.get(&**name)));
                }
                (JsonPathStep::Wildcard, Value::Object(fields)) => next.extend(fields.values()),
                (JsonPathStep::Wildcard, Value::Array(items)) => next.extend(items),
                (JsonPathStep::Descent, value) => descend(value, None, &mut next),
                (JsonPathStep::Indexes(indexes), Value::Array(items)) => {
                    next.extend(indexes.iter().filter_map(|index| items.get(position(*index, items.len())?)));
                }
                (JsonPathStep::Slice { start, end, stride }, Value::Array(items)) => {
                    next.extend(slice(items, *start, *end, *stride));
                }
                (JsonPathStep::Filter(filter), Value::Array(items)) => {
                    next.extend(items.iter().filter(|item| filter.accepts(item, root)));
                }
                (JsonPathStep::Filter(filter), Value::Object(fields)) => {
                    next.extend(fields.values().filter(|item| filter.accepts(item, root)));
                }
                _ => {}
            }
            if next.len() >= SELECTED_MAX {
                next.truncate(SELECTED_MAX);
                break;
            }
        }
        values = next;
    }
    values
}

/// Collects a value and all values below it. With `name`, collects only the values of fields with that name.
fn descend<'a>(value: &'a Value, name: Option<&str>, found: &mut Vec<&'a Value>) {
    if found.len() >= SELECTED_MAX {
        return;
    }
    match (name, value) {
        (None, _) => found.push(value),
        (Some(name), Value::Object(fields)) => found.extend(fields.get(name)),
        (Some(_), _) => {}
    }
    match value {
        Value::Object(fields) => fields.values().for_each(|value| descend(value, name, found)),
        Value::Array(items) => items.iter().for_each(|value| descend(value, name, found)),
        _ => {}
    }
}

/// The position of an index; negative indexes count from the end.
fn position(index: i64, length: usize) -> Option<usize> {
    let length = i64::try_from(length).ok()?;
    let index = if index < 0 { index.checked_add(length)? } else { index };
    usize::try_from(index).ok()
}

fn slice(items: &[Value], start: Option<i64>, end: Option<i64>, stride: i64) -> impl Iterator<Item = &Value> {
    let bound = |index: Option<i64>, default: usize| match index {
        None => default,
        Some(index) => position(index, items.len()).unwrap_or(0).min(items.len()),
    };
    let (start, end) = (bound(start, 0), bound(end, items.len()));
    let stride = usize::try_from(stride).unwrap_or(1).max(1);
    items.get(start..end).unwrap_or_default().iter().step_by(stride)
}

impl Filter {
    fn accepts(&self, item: &Value, root: &Object) -> bool {
        let Some(left) = self.left.value(item, root) else { return false };
        let Some((comparison, right)) = &self.comparison else { return true };
        let Some(right) = right.value(item, root) else { return false };
        let order = compare(left, right);
        match comparison {
            Comparison::Equal => order == Some(Ordering::Equal),
            Comparison::NotEqual => order != Some(Ordering::Equal),
            Comparison::Less => order == Some(Ordering::Less),
            Comparison::LessOrEqual => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            Comparison::Greater => order == Some(Ordering::Greater),
            Comparison::GreaterOrEqual => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
        }
    }
}

impl Operand {
    fn value<'a>(&'a self, item: &'a Value, root: &'a Object) -> Option<&'a Value> {
        match self {
            Operand::Literal(value) => Some(value),
            Operand::Path(path) => apply(&path.steps, vec![item], root).into_iter().next(),
            Operand::Root(path) => path.first(root),
        }
    }
}

fn compare(left: &Value, right: &Value) -> Option<Ordering> {
    match (left, right) {
        (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
        (Value::Number(left), Value::Number(right)) => match (left.as_i64(), right.as_i64()) {
            (Some(left), Some(right)) => Some(left.cmp(&right)),
            _ => left.as_f64()?.partial_cmp(&right.as_f64()?),
        },
        (Value::Bool(left), Value::Bool(right)) => Some(left.cmp(right)),
        _ => (left == right).then_some(Ordering::Equal),
    }
}

fn error(text: &str) -> JsonPathError {
    JsonPathError(text.to_owned())
}

struct Parser<'a> {
    chars: Peekable<Chars<'a>>,
    /// The number of further steps that the path may have.
    steps_left: usize,
}

impl Parser<'_> {
    fn skip(&mut self, c: char) -> bool {
        self.chars.next_if_eq(&c).is_some()
    }

    fn skip_spaces(&mut self) {
        while self.chars.next_if(|c| c.is_whitespace()).is_some() {}
    }

    fn take_while(&mut self, accepts: impl Fn(&char) -> bool) -> String {
        std::iter::from_fn(|| self.chars.next_if(&accepts)).collect()
    }

    /// Parses steps until the end, or until one of `ends`.
    fn parse_steps(&mut self, ends: &[char]) -> Result<JsonPath, JsonPathError> {
        let mut steps = Vec::new();
        loop {
            match self.chars.peek() {
                None => break,
                Some(c) if ends.contains(c) => break,
                Some('.') => {
                    self.chars.next();
                    if self.skip('.') {
                        steps.push(JsonPathStep::Descent);
                    }
                    match self.chars.peek() {
                        Some('[') | None => {}
                        Some(c) if ends.contains(c) => {}
                        Some(_) => steps.push(self.parse_name(ends)?),
                    }
                }
                Some('[') => {
                    self.chars.next();
                    steps.push(self.parse_brackets()?);
                }
                Some(other) => {
                    return Err(error(&format!(
                        "unrecognized character in action: U+{:04X}",
                        u32::from(*other)
                    )));
                }
            }
            self.steps_left =
                self.steps_left.checked_sub(1).ok_or_else(|| error("the path has too many steps"))?;
        }
        Ok(JsonPath { steps: steps.into() })
    }

    /// Parses a name after a dot.
    fn parse_name(&mut self, ends: &[char]) -> Result<JsonPathStep, JsonPathError> {
        let mut name = String::new();
        while let Some(&c) = self.chars.peek() {
            match c {
                '.' | '[' => break,
                c if ends.contains(&c) || c.is_whitespace() => break,
                '\\' => {
                    self.chars.next();
                    name.extend(self.chars.next());
                }
                c => {
                    self.chars.next();
                    name.push(c);
                }
            }
        }
        match name.as_str() {
            "" => Err(error("a name must follow `.`")),
            "*" => Ok(JsonPathStep::Wildcard),
            _ => Ok(JsonPathStep::Field(name.into())),
        }
    }

    /// Parses the content of brackets.
    fn parse_brackets(&mut self) -> Result<JsonPathStep, JsonPathError> {
        self.skip_spaces();
        let step = if self.skip('?') {
            self.parse_filter()?
        } else if self.skip('*') {
            JsonPathStep::Wildcard
        } else if matches!(self.chars.peek(), Some('\'' | '"')) {
            let mut names = vec![self.parse_quoted()?];
            self.skip_spaces();
            while self.skip(',') {
                self.skip_spaces();
                names.push(self.parse_quoted()?);
                self.skip_spaces();
            }
            match names.as_mut_slice() {
                [name] => JsonPathStep::Field(std::mem::take(name)),
                _ => JsonPathStep::Fields(names.into()),
            }
        } else {
            self.parse_indexes()?
        };
        self.skip_spaces();
        match self.skip(']') {
            true => Ok(step),
            false => Err(error("unterminated array")),
        }
    }

    fn parse_indexes(&mut self) -> Result<JsonPathStep, JsonPathError> {
        let first = self.parse_integer()?;
        if self.skip(':') {
            let end = self.parse_integer()?;
            let stride = if self.skip(':') { self.parse_integer()?.unwrap_or(1) } else { 1 };
            return match stride {
                1.. => Ok(JsonPathStep::Slice { start: first, end, stride }),
                _ => Err(error("step must be > 0")),
            };
        }
        let invalid = || error("invalid array index");
        let mut indexes = vec![first.ok_or_else(invalid)?];
        while self.skip(',') {
            self.skip_spaces();
            indexes.push(self.parse_integer()?.ok_or_else(invalid)?);
        }
        Ok(JsonPathStep::Indexes(indexes.into()))
    }

    fn parse_integer(&mut self) -> Result<Option<i64>, JsonPathError> {
        let text = self.take_while(|c| c.is_ascii_digit() || *c == '-');
        self.skip_spaces();
        if text.is_empty() {
            return Ok(None);
        }
        text.parse().map(Some).map_err(|_| error("invalid array index"))
    }

    fn parse_quoted(&mut self) -> Result<Box<str>, JsonPathError> {
        let quote =
            self.chars.next_if(|c| matches!(c, '\'' | '"')).ok_or_else(|| error("expected a quote"))?;
        let mut text = String::new();
        loop {
            match self.chars.next() {
                None => return Err(error("unterminated quoted string")),
                Some(c) if c == quote => return Ok(text.into()),
                Some('\\') => text.extend(self.chars.next()),
                Some(c) => text.push(c),
            }
        }
    }

    fn parse_filter(&mut self) -> Result<JsonPathStep, JsonPathError> {
        if !self.skip('(') {
            return Err(error("unexpected character in filter: expected `(`"));
        }
        let left = self.parse_operand()?;
        self.skip_spaces();
        let symbol = self.take_while(|c| matches!(c, '=' | '!' | '<' | '>'));
        let comparison = match symbol.as_str() {
            "" => None,
            "==" => Some(Comparison::Equal),
            "!=" => Some(Comparison::NotEqual),
            "<" => Some(Comparison::Less),
            "<=" => Some(Comparison::LessOrEqual),
            ">" => Some(Comparison::Greater),
            ">=" => Some(Comparison::GreaterOrEqual),
            other => return Err(error(&format!("unrecognized filter operator {other}"))),
        };
        let comparison =
            comparison.map(|symbol| Ok::<_, JsonPathError>((symbol, self.parse_operand()?))).transpose()?;
        self.skip_spaces();
        match self.skip(')') {
            true => Ok(JsonPathStep::Filter(Box::new(Filter { left, comparison }))),
            false => Err(error("unterminated filter")),
        }
    }

    fn parse_operand(&mut self) -> Result<Operand, JsonPathError> {
        const ENDS: [char; 7] = ['=', '!', '<', '>', ')', ' ', '&'];
        self.skip_spaces();
        if self.skip('$') {
            return self.parse_steps(&ENDS).map(Operand::Root);
        }
        if self.skip('@') || self.chars.peek() == Some(&'.') {
            return self.parse_steps(&ENDS).map(Operand::Path);
        }
        match self.chars.peek() {
            Some('\'' | '"') => Ok(Operand::Literal(Value::from(&*self.parse_quoted()?))),
            _ => {
                let text = self.take_while(|c| !ENDS.contains(c));
                let literal: Option<Value> = serde_json::from_str(&text).ok();
                let scalar = literal.filter(|value| !value.is_object() && !value.is_array());
                scalar.map(Operand::Literal).ok_or_else(|| error("unrecognized value in filter"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object() -> Object {
        Object::from_value(json!({
            "spec": {"size": 3, "list": [{"n": "x", "v": 1}, {"n": "y", "v": 2}, {"v": 3}], "a b": {"c.d": true}},
            "metadata": {"labels": {"a.b/c": "L"}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Synced", "status": "False"}]},
        }))
        .unwrap()
    }

    #[test]
    fn json_paths_select_values() {
        for (path, selected) in [
            (".spec.size", json!([3])),
            ("{.spec.size}", json!([3])),
            ("$.spec.size", json!([3])),
            (".spec.none", json!([])),
            (".spec.size.deeper", json!([])),
            (".spec.list[0].n", json!(["x"])),
            (".spec.list[-1].v", json!([3])),
            (".spec.list[7].v", json!([])),
            (".spec.list[*].n", json!(["x", "y"])),
            (".spec.list[0,2].v", json!([1, 3])),
            (".spec.list[0:2].v", json!([1, 2])),
            (".spec.list[::2].v", json!([1, 3])),
            (".spec.list[?(@.n=='y')].v", json!([2])),
            (".spec.list[?(@.v >= 2)].v", json!([2, 3])),
            (".spec.list[?(@.n)].v", json!([1, 2])),
            (".status.conditions[?(@.type==\"Ready\")].status", json!(["True"])),
            (".status.conditions[?(@.type!='Ready')].status", json!(["False"])),
            (".metadata.labels.a\\.b/c", json!(["L"])),
            (".metadata.labels['a.b/c']", json!(["L"])),
            (".spec['a b']['c.d']", json!([true])),
            ("..n", json!(["x", "y"])),
            (".spec..v", json!([1, 2, 3])),
        ] {
            let parsed = JsonPath::parse(path).unwrap_or_else(|error| panic!("{path}: {error}"));
            assert_eq!(json!(parsed.all(&object())), selected, "{path}");
        }
    }

    #[test]
    fn json_path_sets_value_and_creates_parents() {
        let mut object = object();
        let set = |path: &str, object: &mut Object| JsonPath::parse(path).unwrap().set(object, json!(5));
        assert!(set(".spec.size", &mut object) && set(".status.deep.replicas", &mut object));
        assert_eq!(object.at(&["spec", "size"]), Some(&json!(5)));
        assert_eq!(object.at(&["status", "deep", "replicas"]), Some(&json!(5)));
        assert!(!set(".spec.size.below", &mut object) && !set(".spec.list[0]", &mut object));
    }

    #[test]
    fn malformed_json_paths_are_rejected() {
        for path in
            ["spec.x", ".a[", ".a[x]", ".a['b", ".a[?(@.b==)]", ".a[?(@.b)", ".a[0:2:0]", "{.a", ".a b"]
        {
            assert!(JsonPath::parse(path).is_err(), "{path}");
        }
        assert!(JsonPath::parse(&".a".repeat(STEPS_MAX + 1)).is_err());
    }
}

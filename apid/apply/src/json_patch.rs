//! JSON Patch (RFC 6902).
//!
//! # Contract
//!
//! [`parse`] decodes the operations, and [`apply`] applies all of them or none. The error of a malformed
//! patch is [`Error::Malformed`] (400). The error of a patch that does not fit the document is
//! [`Error::Rejected`] or [`Error::TestFailed`] (422). The error of a patch above a limit is
//! [`Error::TooLarge`] or [`Error::Budget`] (413).
//!
//! # Reference
//!
//! The behaviour beyond the RFC is that of kube-apiserver. A negative index counts from the end. `test` with
//! null succeeds on an absent member of a present object. `test` compares numbers by value. With
//! `replace_missing`, a `replace` of a missing key succeeds (requirements, appendix (g) 26).

use apimachinery::codec::json::is_same;
use apimachinery::codec::{Budget, DecodeError, Limits};
use apimachinery::object::{Map, Value};

use crate::work::{Work, WorkExceeded, value_count};

/// Maximum number of operations in one patch (requirements D-ERR-39).
const OPERATIONS_MAX: usize = 10_000;

/// Maximum size in bytes of the JSON text that all `copy` operations of a patch add together. Without this
/// limit each operation of a small patch could double the document.
const COPIED_MAX: usize = 3 * 1024 * 1024;

/// Maximum number of work units of all operations of a patch. One unit is a list item that an insertion or
/// removal shifts.
///
/// Without this limit a small patch of a large document runs for minutes. Shifting one item takes some
/// nanoseconds.
const WORK_MAX: usize = 32_000_000;

/// Number of work units (see [`WORK_MAX`]) for each value in a tree that a `move` puts at a greater depth. The
/// depth check visits the whole tree.
const MOVE_STEPS_PER_VALUE: usize = 32;

/// The reason why a patch fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The document is not a patch: 400.
    #[error("error decoding patch: {0}")]
    Malformed(String),
    /// An operation is unknown, lacks a member, does not fit the document or nests values too deeply: 422.
    #[error("the server rejected our request due to an error in our request")]
    Rejected,
    /// The document has another value than a `test` operation requires: 422.
    #[error("the server rejected our request due to an error in our request")]
    TestFailed,
    /// The patch exceeds a limit: 413.
    #[error("{0}")]
    TooLarge(String),
    /// The values that `copy` operations add exceed the decode limits: 413.
    #[error("{0}")]
    Budget(#[from] DecodeError),
}

impl From<WorkExceeded> for Error {
    fn from(_: WorkExceeded) -> Self {
        Error::TooLarge(format!("a JSON patch may move at most {WORK_MAX} list items"))
    }
}

/// One operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Sets a key, or inserts an item.
    Add(Pointer, Value),
    /// Removes a value.
    Remove(Pointer),
    /// Replaces a value.
    Replace(Pointer, Value),
    /// Moves a value from the first pointer to the second.
    Move(Pointer, Pointer),
    /// Copies a value from the first pointer to the second.
    Copy(Pointer, Pointer),
    /// Fails unless the document has this value at the pointer.
    Test(Pointer, Value),
}

/// A parsed JSON Pointer: the tokens between the slashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointer(Vec<String>);

/// Parses the operations of a patch.
///
/// # Errors
///
/// The document is not a list of objects, has too many operations, or an operation is unknown or incomplete.
pub fn parse(document: Value) -> Result<Vec<Operation>, Error> {
    let items = match document {
        Value::Array(items) => items,
        // The reference accepts null as an empty patch.
        Value::Null => Vec::new(),
        other => return Err(Error::Malformed(go_type_error(&other, "[]handlers.jsonPatchOp"))),
    };
    if items.len() > OPERATIONS_MAX {
        return Err(Error::TooLarge(format!(
            "The allowed maximum operations in a JSON patch is {OPERATIONS_MAX}, got {}",
            items.len()
        )));
    }
    items
        .into_iter()
        .map(|item| match item {
            Value::Object(members) => parse_operation(members),
            Value::Null => Err(Error::Rejected),
            other => Err(Error::Malformed(go_type_error(&other, "handlers.jsonPatchOp"))),
        })
        .collect()
}

/// The paths of members that no operation has, such as `[0].valeu`, at most 100.
pub fn unknown_members(document: &Value) -> Vec<String> {
    const MEMBERS: [&str; 4] = ["op", "path", "from", "value"];
    const MAX_PATHS: usize = 100;
    let items = document.as_array().into_iter().flatten().enumerate();
    let members = items.flat_map(|(index, item)| {
        let names = item.as_object().into_iter().flatten().map(|(name, _)| name);
        names.filter(|name| !MEMBERS.contains(&name.as_str())).map(move |name| format!("[{index}].{name}"))
    });
    members.take(MAX_PATHS).collect()
}

/// The error of Go for a value that does not fit a Go type.
pub fn go_type_error(value: &Value, go_type: &str) -> String {
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    format!("json: cannot unmarshal {found} into Go value of type {go_type}")
}

fn parse_operation(mut members: Map<String, Value>) -> Result<Operation, Error> {
    let pointer = |members: &Map<String, Value>, name: &str| {
        let text = members.get(name).and_then(Value::as_str);
        text.and_then(Pointer::parse).ok_or(Error::Rejected)
    };
    let path = pointer(&members, "path")?;
    let name = members.get("op").and_then(Value::as_str).unwrap_or("").to_owned();
    match name.as_str() {
        "remove" => Ok(Operation::Remove(path)),
        "move" => Ok(Operation::Move(pointer(&members, "from")?, path)),
        "copy" => Ok(Operation::Copy(pointer(&members, "from")?, path)),
        "add" => Ok(Operation::Add(path, members.remove("value").ok_or(Error::Rejected)?)),
        "replace" => Ok(Operation::Replace(path, members.remove("value").ok_or(Error::Rejected)?)),
        // A missing value means null.
        "test" => Ok(Operation::Test(path, members.remove("value").unwrap_or_default())),
        _ => Err(Error::Rejected),
    }
}

impl Pointer {
    /// Parses a JSON Pointer (RFC 6901): empty, or a token after each slash; `~1` is a slash and `~0` a
    /// tilde.
    fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Pointer(Vec::new()));
        }
        let tokens = text.strip_prefix('/')?.split('/');
        Some(Pointer(tokens.map(|token| token.replace("~1", "/").replace("~0", "~")).collect()))
    }

    /// The tokens of the parent, and the last token; None for the whole document.
    fn split(&self) -> Option<(&[String], &str)> {
        let (last, parents) = self.0.split_last()?;
        Some((parents, last))
    }
}

/// Applies all operations to a document.
///
/// `replace_missing` lets `replace` set a missing key. The values that all `copy` operations add must
/// together fit the decode limits in `limits`. The caller validates the patched document.
///
/// # Errors
///
/// An operation is inapplicable, or the operations exceed a limit.
pub fn apply(
    operations: &[Operation],
    document: Value,
    replace_missing: bool,
    limits: Limits,
) -> Result<Value, Error> {
    run(operations, document, replace_missing, &mut Work(WORK_MAX), limits)
}

fn run(
    operations: &[Operation],
    mut document: Value,
    replace_missing: bool,
    work: &mut Work,
    limits: Limits,
) -> Result<Value, Error> {
    let mut copied = 0;
    let mut copies = Budget::new(limits);
    for operation in operations {
        match operation {
            Operation::Add(path, value) => {
                check_depth(path, value)?;
                add(&mut document, path, value.clone(), work)?;
            }
            Operation::Remove(path) => drop(remove(&mut document, path, work)?),
            Operation::Replace(path, value) => {
                check_depth(path, value)?;
                replace(&mut document, path, value.clone(), replace_missing)?;
            }
            Operation::Move(from, path) => {
                if path.0.starts_with(&from.0) && path != from {
                    return Err(Error::Rejected);
                }
                let value = remove(&mut document, from, work)?;
                // A move to the same or a smaller depth makes nothing deeper.
                if path.0.len() > from.0.len() {
                    work.spend(MOVE_STEPS_PER_VALUE * value_count(&value))?;
                    check_depth(path, &value)?;
                }
                add(&mut document, path, value, work)?;
            }
            Operation::Copy(from, path) => {
                let source = find(&document, &from.0).ok_or(Error::Rejected)?;
                copies.charge_tree(source)?;
                let value = source.clone();
                copied += value.to_string().len();
                if copied > COPIED_MAX {
                    return Err(Error::TooLarge(format!(
                        "copies in a JSON patch may add at most {COPIED_MAX} bytes"
                    )));
                }
                check_depth(path, &value)?;
                add(&mut document, path, value, work)?;
            }
            Operation::Test(path, value) => {
                if !is_same(tested(&document, path)?, value) {
                    return Err(Error::TestFailed);
                }
            }
        }
    }
    Ok(document)
}

/// INVARIANT (no deeper than a body): the depth limit of request bodies applies to patched documents. Without
/// the limit each operation could add a level until a recursive traversal overflows the stack.
fn check_depth(path: &Pointer, value: &Value) -> Result<(), Error> {
    if path.0.len() + depth(value) > Limits::BODY.depth { Err(Error::Rejected) } else { Ok(()) }
}

fn depth(value: &Value) -> usize {
    let deepest = |values: &mut dyn Iterator<Item = &Value>| 1 + values.map(depth).max().unwrap_or(0);
    match value {
        Value::Object(map) => deepest(&mut map.values()),
        Value::Array(items) => deepest(&mut items.iter()),
        _ => 0,
    }
}

/// The value that a `test` compares: null for an absent member of an object.
///
/// An absent parent and an absent list item are errors.
fn tested<'a>(document: &'a Value, path: &Pointer) -> Result<&'a Value, Error> {
    let Some((parents, last)) = path.split() else { return Ok(document) };
    match find(document, parents) {
        Some(Value::Object(map)) => Ok(map.get(last).unwrap_or(&Value::Null)),
        Some(Value::Array(items)) => {
            index(last, items.len()).and_then(|at| items.get(at)).ok_or(Error::Rejected)
        }
        _ => Err(Error::Rejected),
    }
}

fn find<'a>(document: &'a Value, tokens: &[String]) -> Option<&'a Value> {
    tokens.iter().try_fold(document, |value, token| match value {
        Value::Object(map) => map.get(token),
        Value::Array(items) => items.get(index(token, items.len())?),
        _ => None,
    })
}

fn find_mut<'a>(document: &'a mut Value, tokens: &[String]) -> Option<&'a mut Value> {
    tokens.iter().try_fold(document, |value, token| match value {
        Value::Object(map) => map.get_mut(token),
        Value::Array(items) => {
            let at = index(token, items.len())?;
            items.get_mut(at)
        }
        _ => None,
    })
}

/// The list index of a token; a negative index counts from the end.
fn index(token: &str, length: usize) -> Option<usize> {
    match token.strip_prefix('-') {
        Some(back) => length.checked_sub(parse_index(back)?),
        None => parse_index(token),
    }
}

fn parse_index(token: &str) -> Option<usize> {
    let plain = token == "0" || (!token.starts_with('0') && token.bytes().all(|b| b.is_ascii_digit()));
    plain.then(|| token.parse().ok()).flatten()
}

fn add(document: &mut Value, path: &Pointer, value: Value, work: &mut Work) -> Result<(), Error> {
    let Some((parents, last)) = path.split() else {
        *document = value;
        return Ok(());
    };
    match find_mut(document, parents) {
        Some(Value::Object(map)) => drop(map.insert(last.to_owned(), value)),
        Some(Value::Array(items)) if last == "-" => items.push(value),
        Some(Value::Array(items)) => {
            // A negative index refers to the list including the new item.
            let at = index(last, items.len() + usize::from(last.starts_with('-')));
            let at = at.filter(|at| *at <= items.len()).ok_or(Error::Rejected)?;
            work.spend(items.len() - at)?;
            items.insert(at, value);
        }
        _ => return Err(Error::Rejected),
    }
    Ok(())
}

fn remove(document: &mut Value, path: &Pointer, work: &mut Work) -> Result<Value, Error> {
    let (parents, last) = path.split().ok_or(Error::Rejected)?;
    let removed = match find_mut(document, parents) {
        Some(Value::Object(map)) => map.remove(last),
        Some(Value::Array(items)) => {
            let at = index(last, items.len()).filter(|at| *at < items.len()).ok_or(Error::Rejected)?;
            work.spend(items.len() - at)?;
            Some(items.remove(at))
        }
        _ => None,
    };
    removed.ok_or(Error::Rejected)
}

fn replace(document: &mut Value, path: &Pointer, value: Value, missing: bool) -> Result<(), Error> {
    let Some((parents, last)) = path.split() else {
        *document = value;
        return Ok(());
    };
    match find_mut(document, parents) {
        Some(Value::Object(map)) if missing || map.contains_key(last) => {
            drop(map.insert(last.to_owned(), value))
        }
        Some(Value::Array(items)) => {
            let at = index(last, items.len());
            *at.and_then(|at| items.get_mut(at)).ok_or(Error::Rejected)? = value;
        }
        _ => return Err(Error::Rejected),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply_or_code(document: &str, patch: &str, replace_missing: bool) -> Result<Value, u16> {
        let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let code = |error| match error {
            Error::Malformed(_) => 400,
            Error::TooLarge(_) | Error::Budget(_) => 413,
            Error::Rejected | Error::TestFailed => 422,
        };
        let operations = parse(value(patch)).map_err(code)?;
        apply(&operations, value(document), replace_missing, Limits::BODY).map_err(code)
    }

    #[test]
    fn json_patch_operations_apply() {
        for (document, patch, expected) in [
            (r#"{"a":1}"#, r#"[{"op":"add","path":"/b","value":2}]"#, r#"{"a":1,"b":2}"#),
            (r#"{"a":[1,3]}"#, r#"[{"op":"add","path":"/a/1","value":2}]"#, r#"{"a":[1,2,3]}"#),
            (r#"{"a":[1]}"#, r#"[{"op":"add","path":"/a/-","value":2}]"#, r#"{"a":[1,2]}"#),
            (r#"{"a":[1,2]}"#, r#"[{"op":"remove","path":"/a/-1"}]"#, r#"{"a":[1]}"#),
            (r#"{"a":[1,2]}"#, r#"[{"op":"replace","path":"/a/0","value":9}]"#, r#"{"a":[9,2]}"#),
            (r#"{"a":{"b":1}}"#, r#"[{"op":"move","from":"/a/b","path":"/c"}]"#, r#"{"a":{},"c":1}"#),
            (r#"{"a":1}"#, r#"[{"op":"copy","from":"/a","path":"/b"}]"#, r#"{"a":1,"b":1}"#),
            (
                r#"{"x/y":1,"~":2}"#,
                r#"[{"op":"remove","path":"/x~1y"},{"op":"remove","path":"/~0"}]"#,
                r#"{}"#,
            ),
            (
                r#"{"a":1}"#,
                r#"[{"op":"test","path":"/a","value":1},{"op":"test","path":"/none","value":null}]"#,
                r#"{"a":1}"#,
            ),
            (r#"{"a":1}"#, r#"[{"op":"add","path":"","value":{"b":1}}]"#, r#"{"b":1}"#),
            (
                r#"{"a":[1,{"b":1.0}]}"#,
                r#"[{"op":"test","path":"/a","value":[1.0,{"b":1}]},{"op":"test","path":"/a/-2","value":1e0}]"#,
                r#"{"a":[1,{"b":1.0}]}"#,
            ),
            (r#"{"a":1}"#, r#"null"#, r#"{"a":1}"#),
        ] {
            assert_eq!(apply_or_code(document, patch, false).unwrap().to_string(), expected, "{patch}");
        }
    }

    #[test]
    fn inapplicable_json_patch_returns_422_and_malformed_one_400() {
        for (document, patch, code) in [
            (r#"{"a":1}"#, r#"[{"op":"remove","path":"/b"}]"#, 422),
            (r#"{"a":1}"#, r#"[{"op":"replace","path":"/b","value":1}]"#, 422),
            (r#"{"a":1}"#, r#"[{"op":"add","path":"/b/c","value":1}]"#, 422),
            (r#"{"a":[]}"#, r#"[{"op":"add","path":"/a/1","value":1}]"#, 422),
            (r#"{"a":[]}"#, r#"[{"op":"add","path":"/a/01","value":1}]"#, 422),
            (r#"{"a":[]}"#, r#"[{"op":"remove","path":"/a/-1"}]"#, 422),
            (r#"{"a":1}"#, r#"[{"op":"test","path":"/a","value":2}]"#, 422),
            (r#"{"a":1}"#, r#"[{"op":"test","path":"/b/c","value":null}]"#, 422),
            (r#"{"a":1}"#, r#"[{"op":"test","path":"/a/c","value":null}]"#, 422),
            (r#"{"a":[]}"#, r#"[{"op":"test","path":"/a/0","value":null}]"#, 422),
            (r#"{"a":[]}"#, r#"[{"op":"test","path":"/a/0/b","value":null}]"#, 422),
            (r#"{"a":1}"#, r#"[{"op":"move","from":"/a","path":"/a/b"}]"#, 422),
            (r#"{"a":1}"#, r#"[{"op":"increment","path":"/a","value":1}]"#, 422),
            (r#"{"a":1}"#, r#"[{"op":"add","path":"a","value":1}]"#, 422),
            (r#"{"a":1}"#, r#"[{"op":"add","path":"/a"}]"#, 422),
            (r#"{"a":1}"#, r#"{"op":"remove","path":"/a"}"#, 400),
            (r#"{"a":1}"#, r#"[1]"#, 400),
        ] {
            assert_eq!(apply_or_code(document, patch, false), Err(code), "{patch}");
        }
        let replaced = apply_or_code(r#"{"a":1}"#, r#"[{"op":"replace","path":"/b","value":1}]"#, true);
        assert_eq!(replaced.unwrap().to_string(), r#"{"a":1,"b":1}"#);
    }

    #[test]
    fn json_patch_moving_too_many_list_items_is_rejected() {
        let values = vec!["0"; 200_000].join(",");
        let document: Value = serde_json::from_str(&format!(r#"{{"a":[{values}]}}"#)).unwrap();
        for (operation, each) in [
            (r#"{"op":"add","path":"/a/0","value":1}"#, 200_000),
            (r#"{"op":"remove","path":"/a/0"}"#, 199_000),
            (r#"{"op":"move","from":"/a/0","path":"/a/100000"}"#, 290_000),
            (r#"{"op":"copy","from":"/a/0","path":"/a/100000"}"#, 100_000),
            (r#"{"op":"remove","path":"/a/-1"}"#, 1),
            (r#"{"op":"add","path":"/a/-","value":1}"#, 0),
            (r#"{"op":"replace","path":"/a/0","value":1}"#, 0),
        ] {
            let run_repeated = |count: usize| {
                let patch = format!("[{}]", vec![operation; count].join(","));
                let operations = parse(serde_json::from_str(&patch).unwrap()).unwrap();
                let mut work = Work(WORK_MAX);
                let result = run(&operations, document.clone(), false, &mut work, Limits::BODY).map(drop);
                (result, WORK_MAX - work.0)
            };
            let (result, steps) = run_repeated(100);
            assert!(result.is_ok() && steps >= 100 * each, "{operation}: {steps}");
            let (result, steps) = run_repeated(1_000);
            assert_eq!(result.is_err(), each > 50_000, "{operation}");
            assert!(steps <= WORK_MAX);
        }
    }

    #[test]
    fn json_patch_copies_above_decode_limit_are_rejected() {
        let operations = |count: usize| {
            let copy = vec![r#"{"op":"copy","from":"/a","path":"/b/-"}"#; count].join(",");
            parse(serde_json::from_str(&format!("[{copy}]")).unwrap()).unwrap()
        };
        let list = vec!["{}"; 1_000].join(",");
        let document: Value = serde_json::from_str(&format!(r#"{{"a":[{list}],"b":[]}}"#)).unwrap();
        let limits = Limits { elements: 5_000, ..Limits::BODY };
        assert!(apply(&operations(4), document.clone(), false, limits).is_ok());
        assert_eq!(
            apply(&operations(5), document, false, limits),
            Err(Error::Budget(DecodeError::TooManyElements(5_000)))
        );
    }

    #[test]
    fn json_patch_above_size_depth_or_operation_limit_is_rejected() {
        let many = format!("[{}]", vec![r#"{"op":"test","path":"/a"}"#; OPERATIONS_MAX + 1].join(","));
        assert_eq!(apply_or_code(r#"{"a":null}"#, &many, false), Err(413));
        let doubling = format!("[{}]", vec![r#"{"op":"copy","from":"/a","path":"/a/-"}"#; 60].join(","));
        assert_eq!(apply_or_code(r#"{"a":["xxxxxxxxxxxxxxxx"]}"#, &doubling, false), Err(413));
        let nesting = format!("[{}]", vec![r#"{"op":"copy","from":"","path":"/a"}"#; 101].join(","));
        assert_eq!(apply_or_code(r#"{"b":1}"#, &nesting, false), Err(422));
        let values = vec!["0"; 200_000].join(",");
        let document = format!(r#"{{"a":[{values}],"b":{{}}}}"#);
        let moves = |target: &str, rounds: usize| {
            let round = format!(
                r#"{{"op":"move","from":"/a","path":"{target}"}},{{"op":"move","from":"{target}","path":"/a"}}"#
            );
            format!("[{}]", vec![round.as_str(); rounds].join(","))
        };
        assert!(apply_or_code(&document, &moves("/c", 5_000), false).is_ok(), "the document gets no deeper");
        assert!(apply_or_code(&document, &moves("/b/c", 3), false).is_ok());
        assert_eq!(apply_or_code(&document, &moves("/b/c", 10), false), Err(413));
        let deep = format!("{}1{}", "[".repeat(60), "]".repeat(60));
        let path = "/0".repeat(60);
        let twice = format!(r#"[{{"op":"replace","path":"/a{path}","value":{deep}}}]"#);
        assert_eq!(apply_or_code(&format!(r#"{{"a":{deep}}}"#), &twice, false), Err(422));
    }
}

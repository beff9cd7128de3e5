//! Edits of facts: expands abbreviated repetitions, and changes objects at JSON pointers.

use serde_json::{Map, Value};

/// Expands the abbreviations of repetitions: `{"$str": [text, n]}`, `{"$many": [element, n]}`, and keys like
/// `$str:a:64:rest`, that is 64 times `a`, a colon and `rest`.
pub(super) fn expand(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            if let (1, Some(repeat)) = (map.len(), map.get("$str")) {
                return repeat[0].as_str().unwrap().repeat(count(&repeat[1])).into();
            }
            if let (1, Some(repeat)) = (map.len(), map.get("$many")) {
                return (0..count(&repeat[1])).map(|i| insert_index(&repeat[0], i)).collect();
            }
            map.iter().map(|(key, value)| (expand_key(key), expand(value))).collect::<Map<_, _>>().into()
        }
        Value::Array(list) => list.iter().map(expand).collect(),
        value => value.clone(),
    }
}

fn count(value: &Value) -> usize {
    usize::try_from(value.as_u64().unwrap()).unwrap()
}

fn expand_key(key: &str) -> String {
    let Some(rest) = key.strip_prefix("$str:") else { return key.to_owned() };
    let (text, rest) = rest
        .rsplit_once(':')
        .and_then(|(head, tail)| {
            let (text, count) = head.rsplit_once(':')?;
            Some((text.repeat(count.parse().ok()?), tail))
        })
        .unwrap();
    format!("{text}:{rest}")
}

/// Replaces `%d` by the index, and the text `%d#` by the number that counts from 1.
fn insert_index(value: &Value, i: usize) -> Value {
    match value {
        Value::String(text) if text == "%d#" => (i + 1).into(),
        Value::String(text) => text.replace("%d", &i.to_string()).into(),
        Value::Object(map) => {
            let entry =
                |(key, value): (&String, &Value)| (key.replace("%d", &i.to_string()), insert_index(value, i));
            map.iter().map(entry).collect::<Map<_, _>>().into()
        }
        Value::Array(list) => list.iter().map(|value| insert_index(value, i)).collect(),
        value => value.clone(),
    }
}

/// Segments of a JSON pointer.
fn segments(pointer: &str) -> Vec<String> {
    pointer.split('/').skip(1).map(|part| part.replace("~1", "/").replace("~0", "~")).collect()
}

/// The value at a pointer.
pub(super) fn value_at<'v>(value: &'v Value, pointer: &str) -> Option<&'v Value> {
    segments(pointer).iter().try_fold(value, |value, segment| match value {
        Value::Array(list) => list.get(segment.parse::<usize>().ok()?),
        Value::Object(map) => map.get(segment),
        _ => None,
    })
}

/// The edits of a fact: its list `e`; otherwise it sets the value `x` at the pointer `p`, or removes `p` if `m` is
/// `remove`.
pub(super) fn edits_of(fact: &Value) -> Vec<Value> {
    match (fact.get("e"), fact.get("x"), fact["m"].as_str()) {
        (Some(edits), _, _) => edits.as_array().unwrap().clone(),
        (None, Some(value), _) => vec![Value::Array(vec![fact["p"].clone(), value.clone()])],
        (None, None, Some("remove")) => vec![Value::Array(vec![fact["p"].clone()])],
        _ => Vec::new(),
    }
}

/// Applies an edit: `[pointer, value]` sets, `[pointer]` removes, a last segment `-` appends.
/// Returns None if the pointer leads through a value without members.
pub(super) fn apply(object: &mut Value, edit: &Value) -> Option<()> {
    let (pointer, value) = (edit[0].as_str().unwrap(), edit.get(1));
    let segments = segments(pointer);
    let Some((last, parents)) = segments.split_last() else {
        *object = expand(value?);
        return Some(());
    };
    let mut container = object;
    for (i, segment) in parents.iter().enumerate() {
        container = match container {
            Value::Array(list) => {
                let index: usize = segment.parse().ok()?;
                while list.len() <= index {
                    list.push(Value::Object(Map::new()));
                }
                &mut list[index]
            }
            Value::Object(map) => {
                let key = expand_key(segment);
                if map.get(&key).is_none_or(Value::is_null) {
                    value?;
                    let list = matches!(segments[i + 1].as_str(), "-" | "0");
                    let empty = if list { Value::Array(Vec::new()) } else { Value::Object(Map::new()) };
                    map.insert(key.clone(), empty);
                }
                map.get_mut(&key)?
            }
            _ => return None,
        };
    }
    match (container, value) {
        (Value::Array(list), Some(value)) => match last.parse::<usize>() {
            Ok(index) if index < list.len() => list[index] = expand(value),
            _ => list.push(expand(value)),
        },
        (Value::Array(list), None) => {
            if let Ok(index) = last.parse::<usize>()
                && index < list.len()
            {
                list.remove(index);
            }
        }
        (Value::Object(map), Some(value)) => {
            map.insert(expand_key(last), expand(value));
        }
        (Value::Object(map), None) => {
            map.remove(last);
        }
        _ => return None,
    }
    Some(())
}

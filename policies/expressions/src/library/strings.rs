//! String functions of every release, and the strings extension (version 2, since 1.30).
//!
//! Positions and lengths count characters, not bytes.

use crate::cost::CallCost::{Custom, Operator as Priced, Text, Traversal, WithWork};
use crate::cost::{OperatorCost, READ, ResultSize, read_cost};
use crate::error::EvalError;
use crate::eval::{MAX_TEXT_BYTES, too_large};
use crate::types::Overload;
use crate::value::Value;
use crate::value_facts::{Estimate, ValueFacts};

use super::{Function, Library, single_text};

type Outcome<'a> = Result<Value<'a>, EvalError>;

/// Functions of all releases.
pub(super) static STANDARD: Library = Library {
    since: 0,
    functions: &[
        Function::new(&[".string.contains(string) -> bool"], Priced(OperatorCost::Contains), |a| {
            test_texts(a, |s, t| s.contains(t))
        }),
        Function::new(&[".string.startsWith(string) -> bool"], Priced(OperatorCost::Affix), |a| {
            test_texts(a, |s, t| s.starts_with(t))
        }),
        Function::new(&[".string.endsWith(string) -> bool"], Priced(OperatorCost::Affix), |a| {
            test_texts(a, |s, t| s.ends_with(t))
        }),
    ],
};

/// The strings extension: version 1 since 1.25, with the changes of version 2 since 1.30.
pub(super) static LIBRARY: Library = Library {
    since: 25,
    functions: &[
        Function::new(
            &[".string.charAt(int) -> string"],
            Custom("1", char_at_cost, |_, _| Estimate::ONE),
            char_at,
        ),
        Function::new(
            &[".string.indexOf(string) -> int", ".string.indexOf(string, int) -> int"],
            Traversal,
            index_of,
        ),
        Function::new(
            &[".string.lastIndexOf(string) -> int", ".string.lastIndexOf(string, int) -> int"],
            Traversal,
            last_index_of,
        ),
        Function::new(&[".string.lowerAscii() -> string"], Text(1), |a| {
            Ok(Value::text(single_text(a)?.to_ascii_lowercase()))
        })
        .with_result_size(ResultSize::First),
        Function::new(&[".string.upperAscii() -> string"], Text(1), |a| {
            Ok(Value::text(single_text(a)?.to_ascii_uppercase()))
        })
        .with_result_size(ResultSize::First),
        Function::new(&[".string.trim() -> string"], Text(1), |a| Ok(Value::text(single_text(a)?.trim())))
            .with_result_size(ResultSize::First),
        Function::new(
            &[".string.replace(string, string) -> string", ".string.replace(string, string, int) -> string"],
            Custom("2 x size/10", replace_cost, |a, _| {
                a.first().map_or(Estimate::UNKNOWN, |text| text.size().scaled(2.0 * READ))
            }),
            replace,
        )
        .with_result_size(ResultSize::Custom("replacements x size + rest", replaced_size)),
        Function::new(
            &[".string.split(string) -> list(string)", ".string.split(string, int) -> list(string)"],
            Text(2),
            split,
        )
        .with_result_size(ResultSize::Custom("0 to limit or size", split_size)),
        Function::new(
            &[".list(string).join() -> string", ".list(string).join(string) -> string"],
            Custom("2 x size of the result/10; estimate: size of the result/10", join_cost, |a, _| {
                joined_size(a).scaled(READ)
            }),
            join,
        )
        .with_result_size(ResultSize::Custom("parts and separators", |a, _| Some(joined_size(a)))),
        Function::new(
            &[".string.substring(int) -> string", ".string.substring(int, int) -> string"],
            Text(1),
            substring,
        )
        .with_result_size(ResultSize::First),
        Function::new(&["strings.quote(string) -> string"], Text(1), |a| {
            Ok(Value::text(quote(single_text(a)?)))
        })
        // Escaping may double every character; two quotation marks are added.
        .with_result_size(ResultSize::Custom("2 + size to 2 + 2 x size", |a, _| {
            let size = a.first().map_or(Estimate::UNKNOWN, ValueFacts::size);
            let max = size.max.wrapping_mul(2).wrapping_add(2);
            Some(Estimate { min: size.min.saturating_add(2), max })
        })),
        Function::new(
            &[".string.format(list(dyn)) -> string"],
            WithWork(
                &Custom(
                    "1; estimate: size/10",
                    |_, _| 1,
                    |a, _| a.first().map_or(Estimate::UNKNOWN, |text| text.size().scaled(READ)),
                ),
                format_work,
            ),
            |a| match a {
                [Value::String(s), Value::List(values)] => {
                    super::text_format::format(s.as_str(), &values.to_vec()?).map(Value::text)
                }
                _ => Err(EvalError::NoOverload),
            },
        ),
    ],
};

fn test_texts<'a>(arguments: &[Value<'a>], f: fn(&str, &str) -> bool) -> Outcome<'a> {
    match arguments {
        [Value::String(s), Value::String(t)] => Ok(Value::Bool(f(s.as_str(), t.as_str()))),
        _ => Err(EvalError::NoOverload),
    }
}

/// Cost of `charAt`: one unit, and more for many skipped characters.
fn char_at_cost(arguments: &[Value<'_>], _: Option<&Overload>) -> u64 {
    match arguments {
        [Value::String(s), Value::Int(index)] => {
            u64::try_from(*index).unwrap_or(0).min(s.as_str().len() as u64) / 32
        }
        _ => 0,
    }
    .max(1)
}

/// Cost of `replace`: reading the text twice, or writing a result that is many times as long.
fn replace_cost(arguments: &[Value<'_>], _: Option<&Overload>) -> u64 {
    let Some(text) = arguments.first() else { return 1 };
    let [Value::String(s), Value::String(old), Value::String(new), ..] = arguments else {
        return read_cost(text.size() * 2);
    };
    let (s, old, new) = (s.as_str(), old.as_str(), new.as_str());
    let max_count = match arguments.get(3) {
        Some(Value::Int(count)) => usize::try_from(*count).unwrap_or(usize::MAX),
        _ => usize::MAX,
    };
    let result = if new.len() > old.len() {
        let found = s.matches(old).take(max_count).count() as u64;
        found.saturating_mul(new.len() as u64)
    } else {
        0
    };
    read_cost(text.size() * 2).max(result / LONG_RESULT)
}

/// Bytes of a result that cost one unit beyond the cost of the arguments.
const LONG_RESULT: u64 = 1_024;

/// Size of the result of `replace`, with the limits of kube-apiserver.
fn replaced_size(arguments: &[ValueFacts<'_>], _: &Overload) -> Option<Estimate> {
    let [text, old, new, ..] = arguments else { return None };
    let (text, old, new) = (text.size(), old.size(), new.size());
    // An empty old text is found before each character and at the end.
    let (max_count, max_kept) = match old.min {
        0 => (text.max.saturating_add(1), text.max),
        shortest if new.max <= shortest => (0, text.max),
        shortest => (count(text.max, shortest), 0),
    };
    let (min_count, min_kept) = match old.max {
        0 => (text.min.saturating_add(1), text.min),
        longest if longest <= new.min => (0, text.min),
        longest => (count(text.min, longest), 0),
    };
    let counts = Estimate { min: min_count, max: max_count };
    Some(counts.times(new) + Estimate { min: min_kept, max: max_kept })
}

/// Number of texts of a length in a longer text, rounded up with the precision of a floating-point number.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the conversion to an integer saturates"
)]
fn count(whole: u64, part: u64) -> u64 {
    (whole as f64 / part as f64).ceil() as u64
}

/// Size of the result of `split`: a literal limit, or one part for each character.
fn split_size(arguments: &[ValueFacts<'_>], _: &Overload) -> Option<Estimate> {
    let text = arguments.first()?;
    let limit = arguments.get(2).and_then(|limit| limit.literal);
    // As in kube-apiserver, a negative limit is taken for a very large number.
    let max = limit.map_or(text.size().max, i64::cast_unsigned);
    Some(Estimate { min: 0, max })
}

/// Cost of `join`: reading and writing the text; a long list of empty parts also costs.
fn join_cost(arguments: &[Value<'_>], _: Option<&Overload>) -> u64 {
    let Some(Value::List(list)) = arguments.first() else { return 1 };
    let separators = (list.len() as u64).saturating_sub(1);
    let separator = arguments.get(1).map_or(0, Value::size);
    let mut size = separators.saturating_mul(separator);
    for part in list.iter() {
        match part {
            Ok(Value::String(_)) => size = size.saturating_add(part.map_or(0, |part| part.size())),
            // The result is an error, which has size 1.
            _ => return 1,
        }
    }
    read_cost(size.saturating_mul(2)).max(separators / 64)
}

fn joined_size(arguments: &[ValueFacts<'_>]) -> Estimate {
    let Some(list) = arguments.first() else { return Estimate::UNKNOWN };
    let parts = match list.first_parameter() {
        Some(_) => list.size().times(list.element_size()),
        None => Estimate::ZERO,
    };
    let separators = list.size().map(|size| size.saturating_sub(1));
    let separator = arguments.get(1).map_or(Estimate::ZERO, ValueFacts::size);
    parts + separator.times(separators)
}

/// Work of `format` for long texts and arguments.
fn format_work(arguments: &[Value<'_>]) -> u64 {
    let [text, Value::List(values)] = arguments else { return 0 };
    let contents: u64 = values.iter().filter_map(Result::ok).map(|value| value.contents(u64::MAX)).sum();
    let nested = contents.saturating_sub(values.len() as u64);
    let shown: u64 = values.iter().filter_map(Result::ok).map(|value| shown_bytes(&value)).sum();
    let decimals = text.as_str().map_or(0, super::text_format::decimals);
    let result = text.text_bytes().saturating_add(shown).saturating_add(decimals);
    (result / LONG_RESULT).max(nested.saturating_mul(2))
}

/// Bytes of a value in a formatted text: those of a text, or the whole digits of a large number.
fn shown_bytes(value: &Value<'_>) -> u64 {
    match value {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the conversion to an integer saturates"
        )]
        Value::Double(number) => number.abs().log10().min(400.0) as u64,
        value => value.text_bytes(),
    }
}

fn out_of_range(index: i64) -> EvalError {
    EvalError::failed(format!("index out of range: {index}"))
}

/// Returns the byte offset of the character at `index`. The index after the last character gives the end of
/// the text.
fn offset(s: &str, index: i64) -> Result<usize, EvalError> {
    let nth = usize::try_from(index).map_err(|_| out_of_range(index))?;
    let mut offsets = s.char_indices().map(|(at, _)| at).chain(std::iter::once(s.len()));
    offsets.nth(nth).ok_or_else(|| out_of_range(index))
}

/// Returns the character index of a byte offset.
fn character_index<'a>(s: &str, offset: usize) -> Value<'a> {
    let before = s.get(..offset).unwrap_or(s).chars().count();
    Value::Int(i64::try_from(before).unwrap_or(i64::MAX))
}

fn char_at<'a>(arguments: &[Value<'a>]) -> Outcome<'a> {
    let [Value::String(s), Value::Int(index)] = arguments else { return Err(EvalError::NoOverload) };
    let rest = s.as_str().get(offset(s.as_str(), *index)?..).unwrap_or_default();
    Ok(Value::text(rest.chars().next().map(String::from).unwrap_or_default()))
}

fn index_of<'a>(arguments: &[Value<'a>]) -> Outcome<'a> {
    let (s, t, from) = match arguments {
        [Value::String(s), Value::String(t)] => (s.as_str(), t.as_str(), 0),
        [Value::String(s), Value::String(t), Value::Int(from)] => (s.as_str(), t.as_str(), *from),
        _ => return Err(EvalError::NoOverload),
    };
    if t.is_empty() {
        return Ok(Value::Int(from));
    }
    let nth = usize::try_from(from).map_err(|_| out_of_range(from))?;
    let Some((start, _)) = s.char_indices().nth(nth) else { return Ok(Value::Int(-1)) };
    let found = s.get(start..).and_then(|rest| rest.find(t));
    Ok(found.map_or(Value::Int(-1), |at| character_index(s, start + at)))
}

fn last_index_of<'a>(arguments: &[Value<'a>]) -> Outcome<'a> {
    let (s, t, max_start) = match arguments {
        [Value::String(s), Value::String(t)] => (s.as_str(), t.as_str(), None),
        [Value::String(s), Value::String(t), Value::Int(max_start)] => {
            (s.as_str(), t.as_str(), Some(*max_start))
        }
        _ => return Err(EvalError::NoOverload),
    };
    if t.is_empty() {
        return Ok(max_start.map_or_else(|| character_index(s, s.len()), Value::Int));
    }
    let last = match max_start {
        Some(max_start) => {
            let nth = usize::try_from(max_start).map_err(|_| out_of_range(max_start))?;
            match s.char_indices().nth(nth) {
                Some((offset, _)) => offset,
                None => return Ok(Value::Int(-1)),
            }
        }
        None => s.len(),
    };
    if s.is_empty() {
        // As in cel-go, the search begins before the first character.
        return Err(out_of_range(-1));
    }
    // A match may start at this offset at the latest.
    let end = s.len().min(last + t.len());
    let end = (end..=s.len()).find(|at| s.is_char_boundary(*at)).unwrap_or(s.len());
    let mut found = s.get(..end).and_then(|head| head.rfind(t));
    if found.is_some_and(|at| at > last) {
        found = s.get(..last).and_then(|head| head.rfind(t));
    }
    Ok(found.map_or(Value::Int(-1), |at| character_index(s, at)))
}

fn substring<'a>(arguments: &[Value<'a>]) -> Outcome<'a> {
    let (s, start, end) = match arguments {
        [Value::String(s), Value::Int(start)] => (s.as_str(), *start, None),
        [Value::String(s), Value::Int(start), Value::Int(end)] => (s.as_str(), *start, Some(*end)),
        _ => return Err(EvalError::NoOverload),
    };
    if let Some(end) = end.filter(|end| start > *end) {
        return Err(EvalError::failed(format!("invalid substring range. start: {start}, end: {end}")));
    }
    let start_offset = offset(s, start)?;
    let end_offset = match end {
        Some(end) => offset(s, end)?,
        None => s.len(),
    };
    Ok(Value::text(s.get(start_offset..end_offset).unwrap_or_default()))
}

fn replace<'a>(arguments: &[Value<'a>]) -> Outcome<'a> {
    let (s, old, new, count) = match arguments {
        [Value::String(s), Value::String(old), Value::String(new)] => (s, old, new, -1),
        [Value::String(s), Value::String(old), Value::String(new), Value::Int(count)] => {
            (s, old, new, *count)
        }
        _ => return Err(EvalError::NoOverload),
    };
    let (s, old, new) = (s.as_str(), old.as_str(), new.as_str());
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    // The length of the result is checked before memory is reserved.
    let max_found = count.min(s.len() / old.len().max(1) + 1);
    if max_found.saturating_mul(new.len()) > MAX_TEXT_BYTES
        && s.matches(old).take(count).count().saturating_mul(new.len()) > MAX_TEXT_BYTES
    {
        return Err(too_large());
    }
    Ok(Value::text(s.replacen(old, new, count)))
}

fn split<'a>(arguments: &[Value<'a>]) -> Outcome<'a> {
    let (s, separator, limit) = match arguments {
        [Value::String(s), Value::String(separator)] => (s.as_str(), separator.as_str(), -1),
        [Value::String(s), Value::String(separator), Value::Int(limit)] => {
            (s.as_str(), separator.as_str(), *limit)
        }
        _ => return Err(EvalError::NoOverload),
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let parts: Vec<Value<'a>> = if limit == 0 {
        Vec::new()
    } else if separator.is_empty() {
        // Splits between all characters. The last part contains the rest of the text when the limit is
        // reached.
        let mut parts = Vec::new();
        let mut rest = s;
        while let Some(c) = rest.chars().next() {
            if parts.len() + 1 == limit {
                break;
            }
            let (head, tail) = rest.split_at(c.len_utf8());
            parts.push(Value::text(head));
            rest = tail;
        }
        if !rest.is_empty() {
            parts.push(Value::text(rest));
        }
        parts
    } else {
        s.splitn(limit, separator).map(Value::text).collect()
    };
    Ok(Value::list(parts))
}

fn join<'a>(arguments: &[Value<'a>]) -> Outcome<'a> {
    let (list, separator) = match arguments {
        [Value::List(list)] => (list, ""),
        [Value::List(list), Value::String(separator)] => (list, separator.as_str()),
        _ => return Err(EvalError::NoOverload),
    };
    let mut out = String::new();
    for (i, item) in list.iter().enumerate() {
        if i > 0 {
            out.push_str(separator);
        }
        match item? {
            Value::String(s) => out.push_str(s.as_str()),
            _ => return Err(EvalError::NoOverload),
        }
    }
    Ok(Value::text(out))
}

/// Quotes a text with escape sequences.
fn quote(s: &str) -> String {
    let mut out = String::from("\"");
    for c in s.chars() {
        match c {
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

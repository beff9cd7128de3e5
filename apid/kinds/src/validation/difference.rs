//! The difference between two values, as lines of their JSON texts.
//!
//! # Contract
//!
//! [`lines`] compares the JSON texts of two values. It returns hunks in the format of unified diffs, with three lines of
//! context, and at most [`LINES_MAX`] lines. A line shows at most 100 characters of a value.

use std::fmt::Write as _;
use std::ops::Range;

use apimachinery::field::shorten;
use serde::Serialize;
use serde_json::ser::PrettyFormatter;

/// Maximum number of lines that a difference shows.
const LINES_MAX: usize = 100;
/// Maximum number of lines of a text in which the comparison finds all equal lines. In longer texts, it finds
/// only equal lines at the beginning and at the end.
const COMPARED_MAX: usize = 400;
/// Number of equal lines that a difference shows before and after changed lines.
const CONTEXT: usize = 3;

/// A block of equal lines: the index of its first line in the old and in the new text, and the number of
/// lines.
#[derive(Clone, Copy)]
struct EqualLines {
    old: usize,
    new: usize,
    len: usize,
}

/// Returns the changed lines between the JSON texts of two values.
pub(crate) fn lines<T: Serialize>(old: &T, new: &T) -> String {
    let texts = [old, new].map(|value| indented_text(value).unwrap_or_default());
    let [old, new] = texts.each_ref().map(|text| text.lines().collect::<Vec<_>>());
    let all = marked_lines(&old, &new, &equal_blocks(&old, &new));
    let mut out = String::new();
    for hunk in hunks(&all) {
        write_hunk(hunk, &mut out);
    }
    match out.match_indices('\n').nth(LINES_MAX - 1) {
        Some((end, _)) if end + 1 < out.len() => format!("{}\n…\n", out.get(..end).unwrap_or_default()),
        _ => out,
    }
}

/// The JSON text of a value, with a line for each field and item.
fn indented_text<T: Serialize>(value: &T) -> Option<String> {
    let mut out = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, PrettyFormatter::with_indent(b" "));
    value.serialize(&mut serializer).ok()?;
    String::from_utf8(out).ok()
}

/// Finds the equal lines of two texts, in the order of the texts.
fn equal_blocks(old: &[&str], new: &[&str]) -> Vec<EqualLines> {
    if old.len().max(new.len()) <= COMPARED_MAX {
        let mut blocks = Vec::new();
        common_blocks(old, new, (0..old.len(), 0..new.len()), &mut blocks);
        return blocks;
    }
    let start = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let rest = old.len().min(new.len()) - start;
    let end = old.iter().rev().zip(new.iter().rev()).take(rest).take_while(|(a, b)| a == b).count();
    vec![
        EqualLines { old: 0, new: 0, len: start },
        EqualLines { old: old.len() - end, new: new.len() - end, len: end },
    ]
}

/// Finds blocks of equal lines in two ranges: the longest block, and recursively the blocks before and after
/// it.
fn common_blocks(
    old: &[&str],
    new: &[&str],
    ranges: (Range<usize>, Range<usize>),
    blocks: &mut Vec<EqualLines>,
) {
    let (old_range, new_range) = ranges;
    let Some(longest) = longest_block(old, new, &old_range, &new_range) else { return };
    common_blocks(old, new, (old_range.start..longest.old, new_range.start..longest.new), blocks);
    blocks.push(longest);
    let (old_end, new_end) = (longest.old + longest.len, longest.new + longest.len);
    common_blocks(old, new, (old_end..old_range.end, new_end..new_range.end), blocks);
}

/// The first of the longest blocks of equal lines in two ranges; None without equal lines.
fn longest_block(
    old: &[&str],
    new: &[&str],
    old_range: &Range<usize>,
    new_range: &Range<usize>,
) -> Option<EqualLines> {
    let mut longest: Option<EqualLines> = None;
    for i in old_range.clone() {
        for j in new_range.clone() {
            let equal = old.iter().take(old_range.end).skip(i).zip(new.iter().take(new_range.end).skip(j));
            let len = equal.take_while(|(a, b)| a == b).count();
            if len > longest.map_or(0, |longest| longest.len) {
                longest = Some(EqualLines { old: i, new: j, len });
            }
        }
    }
    longest
}

/// A line of the old text (`-`), of the new text (`+`) or of both texts (space), with the number of preceding
/// lines in each text.
struct Line<'t> {
    mark: char,
    text: &'t str,
    old: usize,
    new: usize,
}

/// All lines of the old and the new text, in the order of a unified diff. An equal line occurs once.
fn marked_lines<'t>(old: &[&'t str], new: &[&'t str], blocks: &[EqualLines]) -> Vec<Line<'t>> {
    let mut all = Vec::with_capacity(old.len().max(new.len()));
    let (mut i, mut j) = (0, 0);
    let end = EqualLines { old: old.len(), new: new.len(), len: 0 };
    for block in blocks.iter().chain([&end]) {
        for text in old.iter().take(block.old).skip(i) {
            all.push(Line { mark: '-', text, old: i, new: j });
            i += 1;
        }
        for text in new.iter().take(block.new).skip(j) {
            all.push(Line { mark: '+', text, old: i, new: j });
            j += 1;
        }
        for text in old.iter().skip(block.old).take(block.len) {
            all.push(Line { mark: ' ', text, old: i, new: j });
            (i, j) = (i + 1, j + 1);
        }
    }
    all
}

/// Changed lines with their context: runs of lines that are at most [`CONTEXT`] lines away from a change.
fn hunks<'l, 't>(all: &'l [Line<'t>]) -> Vec<&'l [Line<'t>]> {
    let mut hunks: Vec<Range<usize>> = Vec::new();
    for (index, _) in all.iter().enumerate().filter(|(_, line)| line.mark != ' ') {
        let context = index.saturating_sub(CONTEXT)..(index + CONTEXT + 1).min(all.len());
        match hunks.last_mut().filter(|hunk| hunk.end >= context.start) {
            Some(hunk) => hunk.end = context.end,
            None => hunks.push(context),
        }
    }
    hunks.into_iter().filter_map(|hunk| all.get(hunk)).collect()
}

fn write_hunk(hunk: &[Line<'_>], out: &mut String) {
    let Some(first) = hunk.first() else { return };
    let count = |absent: char| hunk.iter().filter(|line| line.mark != absent).count();
    let (old, new) = (format_range(first.old, count('+')), format_range(first.new, count('-')));
    let _ = writeln!(out, "@@ -{old} +{new} @@");
    for line in hunk {
        let _ = writeln!(out, "{}{}", line.mark, shorten(line.text));
    }
}

/// A range of lines in a hunk header: the number of its first line, counted from 1, and its length unless the
/// length is 1.
fn format_range(lines_before: usize, len: usize) -> String {
    match len {
        0 => format!("{lines_before},0"),
        1 => (lines_before + 1).to_string(),
        _ => format!("{},{len}", lines_before + 1),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::*;

    /// Five fields in order, some of which are null.
    fn fields(value: &Value) -> BTreeMap<&'static str, Value> {
        [("A", "a"), ("B", "b"), ("C", "c"), ("D", "d"), ("E", "e")]
            .map(|(name, key)| (name, value.get(key).cloned().unwrap_or_default()))
            .into()
    }

    #[test]
    fn changed_lines_have_context() {
        let (old, new) = (json!({"a": 1, "c": [1]}), json!({"a": {"x": "\"{"}, "c": []}));
        assert_eq!(
            lines(&fields(&old), &fields(&new)),
            "@@ -1,9 +1,9 @@\n {\n- \"A\": 1,\n+ \"A\": {\n+  \"x\": \"\\\"{\"\n+ },\n  \"B\": null,\n- \"C\": [\n-  1\n- ],\n\
             + \"C\": [],\n  \"D\": null,\n  \"E\": null\n }\n"
        );
        assert_eq!(lines(&fields(&old), &fields(&old)), "");
        let (old, new) = (json!({"e": 1}), json!({"e": 2}));
        assert_eq!(
            lines(&fields(&old), &fields(&new)),
            "@@ -3,5 +3,5 @@\n  \"B\": null,\n  \"C\": null,\n  \"D\": null,\n- \"E\": 1\n+ \"E\": 2\n }\n"
        );
    }

    #[test]
    fn long_difference_is_cut() {
        let long: Vec<u32> = (0..1000).collect();
        let text = lines(&fields(&json!({})), &fields(&json!({ "a": long })));
        assert_eq!(text.lines().count(), LINES_MAX + 1);
        assert!(text.ends_with("…\n"));
    }

    #[test]
    fn difference_of_long_lists_shows_appended_item() {
        let list = |len: usize| json!({"a": vec!["x"; len]});
        let text = lines(&fields(&list(200_000)), &fields(&list(200_001)));
        assert_eq!(
            text,
            "@@ -199999,6 +199999,7 @@\n   \"x\",\n   \"x\",\n   \"x\",\n+  \"x\",\n   \"x\"\n  ],\n  \"B\": null,\n"
        );
        let [old, new] = ["y", "z"].map(|text| json!({"a": vec![text; 20_000]}));
        assert_eq!(lines(&fields(&old), &fields(&new)).lines().count(), LINES_MAX + 1);
    }

    #[test]
    fn long_value_in_difference_is_shortened() {
        let (old, new) = (json!({"e": "x"}), json!({"e": "y".repeat(1000)}));
        let text = lines(&fields(&old), &fields(&new));
        assert!(text.contains("\n- \"E\": \"x\"\n+ \"E\": \"yyy") && text.len() < 300, "{text}");
    }
}

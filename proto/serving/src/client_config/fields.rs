//! Typed access to the fields of a decoded document; collects all mistakes. Messages name the field and never
//! quote a value.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use apimachinery::object::{Map, Value};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::Secret;

/// Mistakes and warnings collected while a document is read.
#[derive(Debug, Default)]
pub(super) struct ParseReport {
    pub(super) mistakes: Vec<String>,
    pub(super) warnings: Vec<String>,
}

/// Mapping in the document. [`Fields::end`] reports unknown fields.
pub(super) struct Fields<'a> {
    map: &'a Map<String, Value>,
    path: String,
    known: BTreeSet<&'static str>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(map: &'a Map<String, Value>, path: String) -> Self {
        Fields { map, path, known: BTreeSet::new() }
    }

    /// Path of a field, for example `users[0].user.token`.
    pub(super) fn at(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }

    /// Returns a field that is present and not null.
    pub(super) fn any(&mut self, field: &'static str) -> Option<&'a Value> {
        self.known.insert(field);
        self.map.get(field).filter(|value| !value.is_null())
    }

    fn report_type_mismatch(&self, field: &str, expected: &str, value: &Value, report: &mut ParseReport) {
        report.mistakes.push(format!("{}: must be {expected}, not {}", self.at(field), json_type(value)));
    }

    /// Returns a string; an absent field is an empty string.
    pub(super) fn string(&mut self, field: &'static str, report: &mut ParseReport) -> String {
        match self.any(field) {
            Some(Value::String(text)) => text.clone(),
            Some(other) => {
                self.report_type_mismatch(field, "a string", other, report);
                String::new()
            }
            None => String::new(),
        }
    }

    pub(super) fn secret(&mut self, field: &'static str, report: &mut ParseReport) -> Option<Secret> {
        let text = self.string(field, report);
        (!text.is_empty()).then(|| Secret::new(text))
    }

    pub(super) fn boolean(&mut self, field: &'static str, report: &mut ParseReport) -> bool {
        match self.any(field) {
            Some(Value::Bool(value)) => *value,
            Some(other) => {
                self.report_type_mismatch(field, "true or false", other, report);
                false
            }
            None => false,
        }
    }

    /// Returns a path; relative paths start at the directory of the document.
    pub(super) fn file(
        &mut self,
        field: &'static str,
        dir: &Path,
        report: &mut ParseReport,
    ) -> Option<PathBuf> {
        let text = self.string(field, report);
        (!text.is_empty()).then(|| dir.join(text))
    }

    /// Returns bytes encoded as base64.
    pub(super) fn data(&mut self, field: &'static str, report: &mut ParseReport) -> Option<Secret> {
        let mut text = self.string(field, report);
        text.retain(|c| !c.is_ascii_whitespace());
        if text.is_empty() {
            return None;
        }
        match STANDARD.decode(text) {
            Ok(bytes) => Some(Secret::new(bytes)),
            // The message of the decoder quotes a byte.
            Err(_) => {
                report.mistakes.push(format!("{}: must be base64", self.at(field)));
                None
            }
        }
    }

    pub(super) fn strings(&mut self, field: &'static str, report: &mut ParseReport) -> Vec<String> {
        match self.any(field) {
            None => Vec::new(),
            Some(value) => match list_of_strings(value) {
                Some(list) => list,
                None => {
                    self.report_type_mismatch(field, "a list of strings", value, report);
                    Vec::new()
                }
            },
        }
    }

    pub(super) fn lists(
        &mut self,
        field: &'static str,
        report: &mut ParseReport,
    ) -> BTreeMap<String, Vec<String>> {
        let Some(value) = self.any(field) else { return BTreeMap::new() };
        let lists = value.as_object().and_then(|map| {
            map.iter().map(|(key, list)| Some((key.clone(), list_of_strings(list)?))).collect()
        });
        lists.unwrap_or_else(|| {
            self.report_type_mismatch(field, "a mapping to lists of strings", value, report);
            BTreeMap::new()
        })
    }

    /// Returns a nested mapping.
    pub(super) fn part(&mut self, field: &'static str, report: &mut ParseReport) -> Option<Fields<'a>> {
        match self.any(field)? {
            Value::Object(map) => Some(Fields::new(map, self.at(field))),
            other => {
                self.report_type_mismatch(field, "a mapping", other, report);
                None
            }
        }
    }

    /// Returns the mappings of a list.
    pub(super) fn items(&mut self, field: &'static str, report: &mut ParseReport) -> Vec<Fields<'a>> {
        let list = match self.any(field) {
            None => return Vec::new(),
            Some(Value::Array(list)) => list,
            Some(other) => {
                self.report_type_mismatch(field, "a list", other, report);
                return Vec::new();
            }
        };
        let mut items = Vec::with_capacity(list.len());
        for (index, item) in list.iter().enumerate() {
            let path = format!("{}[{index}]", self.at(field));
            match item {
                Value::Object(map) => items.push(Fields::new(map, path)),
                other => report.mistakes.push(format!("{path}: must be a mapping, not {}", json_type(other))),
            }
        }
        items
    }

    /// Reports unknown fields, with the known field of a similar name.
    pub(super) fn end(self, report: &mut ParseReport) {
        for field in self.map.keys().filter(|field| !self.known.contains(field.as_str())) {
            let similar = self.known.iter().find(|known| is_near(known, field));
            let hint = similar.map_or(String::new(), |known| format!("; is `{known}` meant?"));
            // A misplaced key may be a secret: the message shows at most 40 characters of it.
            let name: String = field.chars().take(40).filter(|c| !c.is_control()).collect();
            report.warnings.push(format!("{}: unknown field, ignored{hint}", self.at(&name)));
        }
    }
}

fn list_of_strings(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
}

/// Returns the type of a value, for messages that must not show the value.
pub(super) fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    }
}

/// Whether two names differ only in case, dashes and underscores.
fn is_near(known: &str, written: &str) -> bool {
    let plain = |text: &str| -> String {
        text.chars().filter(|c| !matches!(c, '-' | '_')).map(|c| c.to_ascii_lowercase()).collect()
    };
    plain(known) == plain(written)
}

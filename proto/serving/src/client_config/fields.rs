//! Reading fields out of a tree, with all mistakes collected: each names the field, none quotes a value.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use apimachinery::object::{Map, Value};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::Secret;

/// What is found on the way through a document.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) mistakes: Vec<String>,
    pub(super) warnings: Vec<String>,
}

/// One mapping of the document. Fields that nobody asked for are found by [`Fields::end`].
pub(super) struct Fields<'a> {
    map: &'a Map<String, Value>,
    path: String,
    known: BTreeSet<&'static str>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(map: &'a Map<String, Value>, path: String) -> Self {
        Fields { map, path, known: BTreeSet::new() }
    }

    /// `users[0].user.token`
    pub(super) fn at(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }

    /// A field that is there; null is not.
    pub(super) fn any(&mut self, field: &'static str) -> Option<&'a Value> {
        self.known.insert(field);
        self.map.get(field).filter(|value| !value.is_null())
    }

    fn wrong(&self, field: &str, wanted: &str, value: &Value, found: &mut Findings) {
        found.mistakes.push(format!("{}: {wanted} is needed, not {}", self.at(field), what(value)));
    }

    /// An absent string is empty.
    pub(super) fn string(&mut self, field: &'static str, found: &mut Findings) -> String {
        match self.any(field) {
            Some(Value::String(text)) => text.clone(),
            Some(other) => {
                self.wrong(field, "a string", other, found);
                String::new()
            }
            None => String::new(),
        }
    }

    pub(super) fn secret(&mut self, field: &'static str, found: &mut Findings) -> Option<Secret> {
        let text = self.string(field, found);
        (!text.is_empty()).then(|| Secret::new(text))
    }

    pub(super) fn boolean(&mut self, field: &'static str, found: &mut Findings) -> bool {
        match self.any(field) {
            Some(Value::Bool(value)) => *value,
            Some(other) => {
                self.wrong(field, "true or false", other, found);
                false
            }
            None => false,
        }
    }

    /// A path, relative ones from the folder of the document.
    pub(super) fn file(&mut self, field: &'static str, dir: &Path, found: &mut Findings) -> Option<PathBuf> {
        let text = self.string(field, found);
        (!text.is_empty()).then(|| dir.join(text))
    }

    /// Bytes written in base64.
    pub(super) fn data(&mut self, field: &'static str, found: &mut Findings) -> Option<Secret> {
        let mut text = self.string(field, found);
        text.retain(|c| !c.is_ascii_whitespace());
        if text.is_empty() {
            return None;
        }
        match STANDARD.decode(text) {
            Ok(bytes) => Some(Secret::new(bytes)),
            // The decoder's own words quote a byte.
            Err(_) => {
                found.mistakes.push(format!("{}: is not base64", self.at(field)));
                None
            }
        }
    }

    pub(super) fn strings(&mut self, field: &'static str, found: &mut Findings) -> Vec<String> {
        match self.any(field) {
            None => Vec::new(),
            Some(value) => match list_of_strings(value) {
                Some(list) => list,
                None => {
                    self.wrong(field, "a list of strings", value, found);
                    Vec::new()
                }
            },
        }
    }

    pub(super) fn lists(
        &mut self,
        field: &'static str,
        found: &mut Findings,
    ) -> BTreeMap<String, Vec<String>> {
        let Some(value) = self.any(field) else { return BTreeMap::new() };
        let lists = value.as_object().and_then(|map| {
            map.iter().map(|(key, list)| Some((key.clone(), list_of_strings(list)?))).collect()
        });
        lists.unwrap_or_else(|| {
            self.wrong(field, "a mapping to lists of strings", value, found);
            BTreeMap::new()
        })
    }

    /// A mapping within.
    pub(super) fn part(&mut self, field: &'static str, found: &mut Findings) -> Option<Fields<'a>> {
        match self.any(field)? {
            Value::Object(map) => Some(Fields::new(map, self.at(field))),
            other => {
                self.wrong(field, "a mapping", other, found);
                None
            }
        }
    }

    /// The mappings of a list.
    pub(super) fn items(&mut self, field: &'static str, found: &mut Findings) -> Vec<Fields<'a>> {
        let list = match self.any(field) {
            None => return Vec::new(),
            Some(Value::Array(list)) => list,
            Some(other) => {
                self.wrong(field, "a list", other, found);
                return Vec::new();
            }
        };
        let mut items = Vec::with_capacity(list.len());
        for (index, item) in list.iter().enumerate() {
            let path = format!("{}[{index}]", self.at(field));
            match item {
                Value::Object(map) => items.push(Fields::new(map, path)),
                other => found.mistakes.push(format!("{path}: a mapping is needed, not {}", what(other))),
            }
        }
        items
    }

    /// Notes the fields that nobody asked for, with the one that was probably meant.
    pub(super) fn end(self, found: &mut Findings) {
        for field in self.map.keys().filter(|field| !self.known.contains(field.as_str())) {
            let meant = self.known.iter().find(|known| is_near(known, field));
            let hint = meant.map_or(String::new(), |known| format!("; is `{known}` meant?"));
            // A key in the wrong place may be a secret: a long one is not repeated.
            let shown: String = field.chars().take(40).filter(|c| !c.is_control()).collect();
            found.warnings.push(format!("{}: is not known and has no effect{hint}", self.at(&shown)));
        }
    }
}

fn list_of_strings(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
}

/// The kind of a value, for messages that must not show it.
pub(super) fn what(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    }
}

/// Whether two names are the same but for case, dashes and underscores.
fn is_near(known: &str, written: &str) -> bool {
    let plain = |text: &str| -> String {
        text.chars().filter(|c| !matches!(c, '-' | '_')).map(|c| c.to_ascii_lowercase()).collect()
    };
    plain(known) == plain(written)
}

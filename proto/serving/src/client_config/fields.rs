//! Types of fields that only client configuration files have. Errors never quote a value.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use apimachinery::document::Fields;
use apimachinery::object::Value;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::Secret;

/// Returns a secret; None for an absent or empty field.
pub(super) fn secret(fields: &mut Fields<'_>, name: &'static str) -> Option<Secret> {
    non_empty_text(fields, name).map(Secret::new)
}

/// Returns a string; None for an absent or empty field.
pub(super) fn non_empty_text(fields: &mut Fields<'_>, name: &'static str) -> Option<String> {
    fields.optional_text(name).filter(|text| !text.is_empty())
}

/// Returns a path; a relative path starts at `dir`, the directory of the configuration file.
pub(super) fn file(fields: &mut Fields<'_>, name: &'static str, dir: &Path) -> Option<PathBuf> {
    non_empty_text(fields, name).map(|text| dir.join(text))
}

/// Returns the bytes of a base64 text; None if the field is absent, empty, or not base64, for which an error is
/// recorded.
pub(super) fn base64_data(fields: &mut Fields<'_>, name: &'static str) -> Option<Secret> {
    let mut text = fields.text(name);
    text.retain(|c| !c.is_ascii_whitespace());
    if text.is_empty() {
        return None;
    }
    match STANDARD.decode(text) {
        Ok(bytes) => Some(Secret::new(bytes)),
        // The message of the decoder is not used, because it quotes a byte of the value.
        Err(_) => {
            fields.errors().add_text(&fields.path().child(name), "must be base64");
            None
        }
    }
}

/// Returns a map of lists of strings; empty if absent.
pub(super) fn string_lists(fields: &mut Fields<'_>, name: &'static str) -> BTreeMap<String, Vec<String>> {
    let lists = fields.typed(name, "a map of lists of strings", |value| {
        let map = value.as_object()?;
        map.iter().map(|(key, list)| Some((key.clone(), list_of_strings(list)?))).collect()
    });
    lists.unwrap_or_default()
}

fn list_of_strings(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
}

//! Configuration files as documents: YAML or JSON, strictly decoded, each error with its path and line.
//!
//! # Contract
//!
//! Both processes read all YAML configuration files with this module. [`Document::read`] parses the first
//! document into a tree. [`Fields`] decodes an object field by field and records wrong types, unknown fields
//! and duplicate fields. Decoding continues after an error, so that one run reports all errors. The caller
//! validates values beyond their type, with [`ErrorList::add`] or [`ErrorList::add_text`]. The texts of this
//! module contain no value of the file except `apiVersion` and `kind`, because a value may be a secret.
//!
//! # Invariants
//!
//! INVARIANT (strict): a field that no caller consumes is an error, and so is a duplicate field (as in strict
//! decoding of kube-apiserver). [`Document::decode_lenient`] makes both a warning, for formats whose readers
//! ignore unknown fields.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::codec::yaml::{self, Lines};
use crate::codec::{DecodeError, Decoded, Limits};
use crate::field::{FieldError, FieldPath};

/// Limits of a configuration file, well beyond any legitimate configuration.
pub const LIMITS: Limits = Limits { depth: 32, ..Limits::BODY };
/// Maximum number of errors, and of warnings, that an [`ErrorList`] records; it drops further ones.
const MAX_DOCUMENT_ERRORS: usize = 100;
/// Maximum number of characters that a text shows of the name of an unknown field, which may be a misplaced
/// secret.
const MAX_NAME_CHARS: usize = 40;

/// An error of a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("{}{text}", .line.map(|line| format!("line {line}: ")).unwrap_or_default())]
pub struct DocumentError {
    /// The line in the file, from 1; None if unknown.
    pub line: Option<usize>,
    /// The path of the field, if the error concerns a field, and the problem.
    pub text: String,
}

/// Formats the errors of a file in one line, for the log.
pub fn join_errors(errors: &[DocumentError]) -> String {
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

/// The errors and warnings recorded so far.
#[derive(Debug, Default)]
pub struct ErrorList {
    lines: Arc<Lines>,
    /// Whether unknown and duplicate fields are warnings.
    is_lenient: bool,
    errors: RefCell<Vec<DocumentError>>,
    warnings: RefCell<Vec<DocumentError>>,
    /// The paths of fields with a wrong type.
    wrong_types: RefCell<Vec<FieldPath>>,
}

impl ErrorList {
    /// Records an error of a field.
    ///
    /// Further errors of a field with a wrong type are ignored, because its reader sees an absent field.
    pub fn add(&self, error: &FieldError) {
        self.add_text(&error.path, &error.body());
    }

    /// Records an error of a field like [`ErrorList::add`]. `text` follows the path in the message.
    pub fn add_text(&self, path: &FieldPath, text: &str) {
        if self.has_wrong_type(path) {
            return;
        }
        self.push(DocumentError { line: self.lines.line_of(path.as_str()), text: format!("{path}: {text}") });
    }

    fn push(&self, error: DocumentError) {
        push_bounded(&self.errors, error);
    }

    /// Whether a wrong type is recorded for a field or for a field around it.
    fn has_wrong_type(&self, path: &FieldPath) -> bool {
        self.wrong_types.borrow().iter().any(|wrong| {
            path.as_str()
                .strip_prefix(wrong.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        })
    }

    /// Records the error of a wrong type.
    fn add_wrong_type(&self, error: &FieldError) {
        self.add(error);
        let mut wrong_types = self.wrong_types.borrow_mut();
        if wrong_types.len() < MAX_DOCUMENT_ERRORS {
            wrong_types.push(error.path.clone());
        }
    }

    /// Records an unknown or duplicate field. `description` names the field.
    fn add_unexpected(&self, path: &str, description: &str) {
        let line = self.lines.line_of(path);
        if self.is_lenient {
            push_bounded(&self.warnings, DocumentError { line, text: format!("{description}; ignored") });
        } else {
            self.push(DocumentError { line, text: format!("strict decoding error: {description}") });
        }
    }

    /// Whether no error is recorded.
    pub fn is_empty(&self) -> bool {
        self.errors.borrow().is_empty()
    }

    /// Returns all errors, sorted by line.
    pub fn into_list(self) -> Vec<DocumentError> {
        sorted(self.errors)
    }
}

fn push_bounded(list: &RefCell<Vec<DocumentError>>, error: DocumentError) {
    let mut list = list.borrow_mut();
    if list.len() < MAX_DOCUMENT_ERRORS {
        list.push(error);
    }
}

fn sorted(list: RefCell<Vec<DocumentError>>) -> Vec<DocumentError> {
    let mut list = list.into_inner();
    list.sort();
    list.dedup();
    list
}

/// A file, or a part of a file, as a tree.
#[derive(Clone, Debug)]
pub struct Document {
    /// The path of the part; empty for a file.
    root: FieldPath,
    value: Value,
    lines: Arc<Lines>,
    duplicates: Vec<String>,
}

impl Document {
    /// Reads the first document of a file.
    ///
    /// # Errors
    ///
    /// The file is not YAML, too large, or nested too deeply.
    pub fn read(bytes: &[u8]) -> Result<Self, DocumentError> {
        let decoded = yaml::decode(bytes, LIMITS).map_err(|error| DocumentError {
            line: match &error {
                DecodeError::Syntax(text) => {
                    text.strip_prefix("yaml: line ").and_then(|rest| rest.split(':').next()?.parse().ok())
                }
                _ => None,
            },
            text: error.to_string(),
        })?;
        Ok(Document::from_decoded(decoded, bytes))
    }

    /// Creates a document from a decoded file. `bytes` is the text of the file, for the line numbers.
    pub fn from_decoded(decoded: Decoded, bytes: &[u8]) -> Self {
        let lines = Arc::new(yaml::lines(bytes, LIMITS));
        Document { root: FieldPath::root(), value: decoded.value, lines, duplicates: decoded.duplicates }
    }

    /// Creates a document from the value of a field of this document.
    ///
    /// Only this document reports the duplicate fields of the file; the part reports none.
    pub fn part(&self, path: FieldPath, value: Value) -> Self {
        Document { root: path, value, lines: Arc::clone(&self.lines), duplicates: Vec::new() }
    }

    /// Whether the document has no content.
    pub fn is_empty(&self) -> bool {
        self.value.is_null()
    }

    /// The `apiVersion`; `""` if absent.
    pub fn api_version(&self) -> &str {
        self.value.get("apiVersion").and_then(Value::as_str).unwrap_or_default()
    }

    /// The `kind`; `""` if absent.
    pub fn kind(&self) -> &str {
        self.value.get("kind").and_then(Value::as_str).unwrap_or_default()
    }

    /// The line of a field, from 1; None if neither the field nor a field around it has a known line.
    pub fn line(&self, path: &str) -> Option<usize> {
        self.lines.line_of(path)
    }

    /// Decodes the document as an object of a kind in one of these versions.
    ///
    /// # Errors
    ///
    /// All errors: those that the closure `decode` records, another kind or version, unknown and duplicate
    /// fields, and a document that is not an object.
    pub fn decode<T>(
        &self,
        kind: &str,
        versions: &[String],
        decode: impl FnOnce(&mut Fields<'_>) -> T,
    ) -> Result<T, Vec<DocumentError>> {
        self.decode_fields(|fields| {
            let (version, found) = (fields.text("apiVersion"), fields.text("kind"));
            if !versions.contains(&version) {
                let versions: Vec<&str> = versions.iter().map(String::as_str).collect();
                let path = fields.path().child("apiVersion");
                fields.errors().add(&FieldError::not_supported(&path, version.as_str(), &versions));
            }
            if found != kind {
                let path = fields.path().child("kind");
                fields.errors().add(&FieldError::not_supported(&path, found.as_str(), &[kind]));
            }
            decode(fields)
        })
    }

    /// Decodes the document as an object without `apiVersion` and `kind`.
    ///
    /// # Errors
    ///
    /// All errors: those that the closure `decode` records, unknown and duplicate fields, and a document that
    /// is not an object.
    pub fn decode_fields<T>(
        &self,
        decode: impl FnOnce(&mut Fields<'_>) -> T,
    ) -> Result<T, Vec<DocumentError>> {
        self.decode_object(false, decode).map(|(decoded, _)| decoded)
    }

    /// Decodes the document as an object; returns unknown and duplicate fields as warnings with the result.
    ///
    /// # Errors
    ///
    /// All errors: those that the closure `decode` records, and a document that is not an object.
    pub fn decode_lenient<T>(
        &self,
        decode: impl FnOnce(&mut Fields<'_>) -> T,
    ) -> Result<(T, Vec<DocumentError>), Vec<DocumentError>> {
        self.decode_object(true, decode)
    }

    /// Decodes the document as an object; returns the warnings with the result.
    fn decode_object<T>(
        &self,
        is_lenient: bool,
        decode: impl FnOnce(&mut Fields<'_>) -> T,
    ) -> Result<(T, Vec<DocumentError>), Vec<DocumentError>> {
        let errors = self.error_list(is_lenient);
        let Some(object) = self.object(&errors) else { return Err(errors.into_list()) };
        let decoded = Fields::decode(object, self.root.clone(), &errors, decode);
        if errors.is_empty() { Ok((decoded, sorted(errors.warnings))) } else { Err(errors.into_list()) }
    }

    /// Creates the list of errors and records the duplicate fields in it.
    fn error_list(&self, is_lenient: bool) -> ErrorList {
        let errors = ErrorList { lines: Arc::clone(&self.lines), is_lenient, ..ErrorList::default() };
        for path in &self.duplicates {
            errors.add_unexpected(path, &format!("duplicate field \"{path}\""));
        }
        errors
    }

    /// Returns the tree as an object, or records an error.
    fn object(&self, errors: &ErrorList) -> Option<&Map<String, Value>> {
        let object = self.value.as_object();
        if object.is_none() && self.root.as_str().is_empty() {
            errors.push(DocumentError { line: Some(1), text: "the file must be an object".to_owned() });
        } else if object.is_none() {
            errors.add_text(&self.root, "must be an object");
        }
        object
    }
}

/// An object that is decoded field by field. Null equals an absent field.
#[derive(Debug)]
pub struct Fields<'d> {
    object: &'d Map<String, Value>,
    path: FieldPath,
    errors: &'d ErrorList,
    known: Vec<&'static str>,
    /// Whether the object is a map, which has no unknown fields.
    is_map: bool,
}

impl<'d> Fields<'d> {
    /// Decodes an object, and records its unknown fields.
    fn decode<T>(
        object: &'d Map<String, Value>,
        path: FieldPath,
        errors: &'d ErrorList,
        read: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let mut fields = Fields { object, path, errors, known: Vec::new(), is_map: false };
        let decoded = read(&mut fields);
        fields.finish();
        decoded
    }

    /// The path of the object.
    pub fn path(&self) -> &FieldPath {
        &self.path
    }

    /// The list that records errors.
    pub fn errors(&self) -> &'d ErrorList {
        self.errors
    }

    /// A field of any type; None if absent.
    pub fn value(&mut self, name: &'static str) -> Option<&'d Value> {
        self.known.push(name);
        self.object.get(name).filter(|value| !value.is_null())
    }

    /// A field of one type; a wrong type records an error and returns None.
    ///
    /// `description` follows "must be" in the error.
    pub fn typed<T>(
        &mut self,
        name: &'static str,
        description: &str,
        read: impl Fn(&'d Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.value(name)?;
        let read = read(value);
        if read.is_none() {
            self.add_wrong_type(&self.path.child(name), value, description);
        }
        read
    }

    fn add_wrong_type(&self, path: &FieldPath, value: &Value, description: &str) {
        let type_name = match value {
            Value::Object(_) => "object",
            Value::Array(_) => "array",
            Value::String(_) => "string",
            Value::Number(_) => "number",
            Value::Bool(_) => "boolean",
            Value::Null => "null",
        };
        self.errors.add_wrong_type(&FieldError::type_invalid(
            path,
            type_name,
            &format!("must be {description}"),
        ));
    }

    /// A string; None if absent.
    pub fn optional_text(&mut self, name: &'static str) -> Option<String> {
        self.typed(name, "a string", |value| value.as_str().map(str::to_owned))
    }

    /// A string; `""` if absent.
    pub fn text(&mut self, name: &'static str) -> String {
        self.optional_text(name).unwrap_or_default()
    }

    /// All fields of an object that is a map. None of them is unknown afterwards.
    pub fn entries(&mut self) -> impl Iterator<Item = (&'d str, &'d Value)> + use<'d> {
        self.is_map = true;
        self.object.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// A map of strings; empty if absent.
    pub fn text_map(&mut self, name: &'static str) -> BTreeMap<String, String> {
        let Some(object) = self.typed(name, "a map of strings", Value::as_object) else {
            return BTreeMap::new();
        };
        let mut map = BTreeMap::new();
        for (key, value) in object {
            match value.as_str() {
                Some(text) => drop(map.insert(key.clone(), text.to_owned())),
                None => self.add_wrong_type(&self.path.child(name).child(key), value, "a string"),
            }
        }
        map
    }

    /// An integer; None if absent.
    pub fn integer(&mut self, name: &'static str) -> Option<i64> {
        self.typed(name, "an integer", Value::as_i64)
    }

    /// A boolean; None if absent.
    pub fn boolean(&mut self, name: &'static str) -> Option<bool> {
        self.typed(name, "true or false", Value::as_bool)
    }

    /// A list of strings; empty if absent.
    pub fn texts(&mut self, name: &'static str) -> Vec<String> {
        self.items(name, "a list of strings", "a string", |_, item| item.as_str().map(str::to_owned))
    }

    /// An object; None if absent.
    pub fn object<T>(&mut self, name: &'static str, read: impl FnOnce(&mut Fields<'d>) -> T) -> Option<T> {
        let object = self.typed(name, "an object", Value::as_object)?;
        Some(Fields::decode(object, self.path.child(name), self.errors, read))
    }

    /// A list of objects; empty if absent.
    pub fn objects<T>(&mut self, name: &'static str, mut read: impl FnMut(&mut Fields<'d>) -> T) -> Vec<T> {
        let errors = self.errors;
        self.items(name, "a list of objects", "an object", |path, item| {
            Some(Fields::decode(item.as_object()?, path.clone(), errors, &mut read))
        })
    }

    /// A list whose items have one type; empty if absent. For an item of a wrong type `read` returns
    /// None; the list lacks the item, and the error is recorded.
    fn items<T>(
        &mut self,
        name: &'static str,
        description: &str,
        item_description: &str,
        mut read: impl FnMut(&FieldPath, &'d Value) -> Option<T>,
    ) -> Vec<T> {
        let Some(items) = self.typed(name, description, Value::as_array) else { return Vec::new() };
        let mut decoded = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let path = self.path.child(name).index(index);
            match read(&path, item) {
                Some(value) => decoded.push(value),
                None => self.add_wrong_type(&path, item, item_description),
            }
        }
        decoded
    }

    /// Records the unknown fields, each with a known field of a similar name if there is one.
    fn finish(&self) {
        if self.is_map {
            return;
        }
        for name in self.object.keys().filter(|name| !self.known.contains(&name.as_str())) {
            let shown: String = name.chars().take(MAX_NAME_CHARS).filter(|c| !c.is_control()).collect();
            let mut description = format!("unknown field \"{}\"", self.path.child(&shown));
            if let Some(similar) = self.known.iter().find(|known| is_similar(known, name)) {
                description.push_str(&format!(" (a similar field is \"{similar}\")"));
            }
            self.errors.add_unexpected(self.path.child(name).as_str(), &description);
        }
    }
}

/// Whether two names differ only in case, dashes and underscores.
fn is_similar(known: &str, name: &str) -> bool {
    let letters = |text: &str| -> String {
        text.chars().filter(|c| !matches!(c, '-' | '_')).map(|c| c.to_ascii_lowercase()).collect()
    };
    letters(known) == letters(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The decoded test file: name, tags and items.
    type Sample = (String, Vec<String>, Vec<Option<bool>>);

    fn read(text: &str) -> Result<Sample, Vec<String>> {
        let document = Document::read(text.as_bytes()).map_err(|error| vec![error.to_string()])?;
        let decoded = document.decode("Thing", &["a/v1".to_owned()], |fields| {
            let name = fields.object("spec", |spec| spec.text("name")).unwrap_or_default();
            let items = fields.objects("items", |item| item.boolean("enabled"));
            (name, fields.texts("tags"), items)
        });
        decoded.map_err(|errors| errors.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn valid_document_is_decoded() {
        let text =
            "apiVersion: a/v1\nkind: Thing\nspec: {name: x}\ntags: [a, b]\nitems:\n- enabled: true\n- {}\n";
        let expected = ("x".to_owned(), vec!["a".to_owned(), "b".to_owned()], vec![Some(true), None]);
        assert_eq!(read(text), Ok(expected));
        assert_eq!(read(r#"{"apiVersion":"a/v1","kind":"Thing","spec":null}"#), Ok(Default::default()));
    }

    #[test]
    fn part_of_a_document_has_the_paths_and_lines_of_the_file() {
        let document = Document::read(b"a: 1\nb:\n  c: {d: 3, e: x}\n  f: 4\n").unwrap();
        let path = FieldPath::new("b");
        let decode = |value: Value| {
            document
                .part(path.clone(), value)
                .decode_fields(|fields| (fields.text_map("c"), fields.integer("f")))
        };
        let errors = decode(document.value["b"].clone()).unwrap_err();
        assert_eq!(join_errors(&errors), "line 3: b.c.d: Invalid value: \"number\": must be a string");
        assert_eq!(join_errors(&decode(Value::Null).unwrap_err()), "line 2: b: must be an object");
        let (map, number) = decode(serde_json::json!({"c": {"e": "x"}, "f": 4})).unwrap();
        assert_eq!((map.get("e").map(String::as_str), number), (Some("x"), Some(4)));
        let document =
            document.decode_fields(|fields| fields.entries().map(|(name, _)| name.to_owned()).collect());
        assert_eq!(document, Ok(vec!["a".to_owned(), "b".to_owned()]), "all names of a map are known");
    }

    #[test]
    fn document_errors_have_line_numbers() {
        let text = "\
apiVersion: a/v2
kind: Thing
spec:
  name: 3
  name: 4
tags: x
items:
- enabled: maybe
- {Enabled: true}
- 5
more: {}
";
        assert_eq!(
            read(text).unwrap_err(),
            [
                "line 1: apiVersion: Unsupported value: \"a/v2\": supported values: \"a/v1\"",
                "line 5: spec.name: Invalid value: \"number\": must be a string",
                "line 5: strict decoding error: duplicate field \"spec.name\"",
                "line 6: tags: Invalid value: \"string\": must be a list of strings",
                "line 8: items[0].enabled: Invalid value: \"string\": must be true or false",
                "line 9: strict decoding error: unknown field \"items[1].Enabled\" (a similar field is \"enabled\")",
                "line 10: items[2]: Invalid value: \"number\": must be an object",
                "line 11: strict decoding error: unknown field \"more\"",
            ]
        );
    }

    #[test]
    fn field_with_wrong_type_has_no_further_errors() {
        let document = Document::read(b"name: n\nother: {}\nlist: 3\n").unwrap();
        let errors = document.decode_fields(|fields| {
            let has_name = !fields.text("name").is_empty();
            let (other, list) = (fields.object("other", |_| ()), fields.texts("list"));
            assert!(!has_name && other.is_some() && list.is_empty());
            for path in ["name", "list.item", "list[0]", "names", "other.name"] {
                fields.errors().add(&FieldError::required(&FieldPath::new(path), ""));
            }
        });
        let texts: Vec<String> = errors.unwrap_err().into_iter().map(|error| error.text).collect();
        assert_eq!(
            texts,
            [
                "names: Required value",
                "name: Invalid value: \"boolean\": must be a string",
                "other.name: Required value",
                "list: Invalid value: \"number\": must be a list of strings",
            ]
        );
    }

    #[test]
    fn lenient_decoding_returns_unknown_and_duplicate_fields_as_warnings() {
        let document = Document::read(b"name: a\nname: b\nsecret-of-a-user: {}\nNAME: c\n").unwrap();
        let (name, warnings) = document.decode_lenient(|fields| fields.text("name")).unwrap();
        assert_eq!(name, "b");
        let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(
            warnings,
            [
                "line 2: duplicate field \"name\"; ignored",
                "line 3: unknown field \"secret-of-a-user\"; ignored",
                "line 4: unknown field \"NAME\" (a similar field is \"name\"); ignored",
            ]
        );
        let wrong = Document::read(b"name: [a]").unwrap().decode_lenient(|fields| fields.text("name"));
        assert_eq!(wrong.unwrap_err()[0].text, "name: Invalid value: \"array\": must be a string");
    }

    #[test]
    fn non_object_document_is_rejected() {
        for (text, expected) in [
            ("", "line 1: the file must be an object"),
            ("- a", "line 1: the file must be an object"),
            ("a:\n- [", "line 2: yaml: line 2"),
            ("a: &a [*a]", "line 1: yaml: line 1"),
        ] {
            let errors = read(text).unwrap_err();
            assert!(errors.first().is_some_and(|error| error.starts_with(expected)), "{text}: {errors:?}");
        }
        let deep = "[".repeat(1000);
        assert_eq!(read(&deep).unwrap_err(), ["the document is nested deeper than 32 levels"]);
    }
}

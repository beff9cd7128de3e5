//! Field paths and validation errors, with the texts of Kubernetes, which clients show and tests compare.

use std::fmt;
use std::ops::Deref;

use serde::Serialize;
use serde_json::Value;

pub use crate::message_value::{
    format_go_fields, format_go_value, format_number, quote, quote_name, shorten, shorten_json, shorten_name,
};

use crate::message_value::{format_collection, format_go_syntax, format_value};

/// Path of a field as text: `spec.containers[0].name`, `data[key]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FieldPath(String);

impl FieldPath {
    /// Returns the path of the object itself, which renders as `""`.
    pub fn root() -> Self {
        FieldPath::default()
    }

    /// Creates the path of a top-level field, or a dotted path of names.
    pub fn new(name: &str) -> Self {
        FieldPath(name.to_owned())
    }

    /// Returns the path of a field of the object at this path.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        let mut path = self.clone();
        path.push_child(name);
        path
    }

    /// Returns the path of an item of the list at this path.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        let mut path = self.clone();
        path.push_index(index);
        path
    }

    /// Returns the path of an entry of the map at this path.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        let mut path = self.clone();
        path.push_key(key);
        path
    }

    /// Continues the path with a field of the object at this path.
    pub fn push_child(&mut self, name: &str) {
        if !self.0.is_empty() {
            self.0.push('.');
        }
        self.0.push_str(name);
    }

    /// Continues the path with an item of the list at this path.
    pub fn push_index(&mut self, index: usize) {
        self.push_in_brackets(&index.to_string());
    }

    /// Continues the path with an entry of the map at this path.
    pub fn push_key(&mut self, key: &str) {
        self.push_in_brackets(&shorten_name(key));
    }

    fn push_in_brackets(&mut self, text: &str) {
        self.0.push('[');
        self.0.push_str(text);
        self.0.push(']');
    }

    /// Returns the path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Kinds of validation errors; each kind is the `reason` of a cause in a 422 Status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldErrorKind {
    /// `FieldValueNotFound`
    NotFound,
    /// `FieldValueRequired`
    Required,
    /// `FieldValueDuplicate`
    Duplicate,
    /// `FieldValueInvalid`
    Invalid,
    /// `FieldValueNotSupported`
    NotSupported,
    /// `FieldValueForbidden`
    Forbidden,
    /// `FieldValueTooLong`
    TooLong,
    /// `FieldValueTooMany`
    TooMany,
    /// `FieldValueTypeInvalid`
    TypeInvalid,
    /// `InternalError`
    Internal,
}

impl FieldErrorKind {
    /// Returns the `reason` of a cause of this kind.
    pub fn reason(self) -> &'static str {
        self.texts().0
    }

    /// Returns the `reason` of a cause, and the beginning of the message, which follows the path.
    fn texts(self) -> (&'static str, &'static str) {
        match self {
            FieldErrorKind::NotFound => ("FieldValueNotFound", "Not found"),
            FieldErrorKind::Required => ("FieldValueRequired", "Required value"),
            FieldErrorKind::Duplicate => ("FieldValueDuplicate", "Duplicate value"),
            FieldErrorKind::Invalid => ("FieldValueInvalid", "Invalid value"),
            FieldErrorKind::NotSupported => ("FieldValueNotSupported", "Unsupported value"),
            FieldErrorKind::Forbidden => ("FieldValueForbidden", "Forbidden"),
            FieldErrorKind::TooLong => ("FieldValueTooLong", "Too long"),
            FieldErrorKind::TooMany => ("FieldValueTooMany", "Too many"),
            FieldErrorKind::TypeInvalid => ("FieldValueTypeInvalid", "Invalid value"),
            FieldErrorKind::Internal => ("InternalError", "Internal error"),
        }
    }
}

/// Validation error. [`FieldError::body`] is the `message` of its cause.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    /// Kind of the error.
    pub kind: FieldErrorKind,
    /// Path of the field.
    pub path: FieldPath,
    /// Rest of the message after its prefix: the value if the message shows it, then the detail, with `: `
    /// between.
    tail: String,
    /// Declarative validation tag of the API type, such as `minimum`, that finds the same error; None means no tag
    /// finds it.
    tag: Option<&'static str>,
}

impl FieldError {
    /// `Required value[: detail]`.
    pub fn required(path: &FieldPath, detail: &str) -> Self {
        Self::without_value(FieldErrorKind::Required, path, detail)
    }

    /// `Invalid value: <value>: detail`.
    pub fn invalid(path: &FieldPath, value: impl Into<Value>, detail: &str) -> Self {
        Self::with_value(FieldErrorKind::Invalid, path, &value.into(), detail)
    }

    /// `Invalid value: "<name>": detail`, for a name, a key or a label value. Shows up to 512 characters.
    pub fn invalid_name(path: &FieldPath, name: &str, detail: &str) -> Self {
        Self::without_value(FieldErrorKind::Invalid, path, &format!("{}: {detail}", quote_name(name)))
    }

    /// `Invalid value: <json>: detail`, for a value that the caller has formatted as JSON.
    ///
    /// The messages of kube-apiserver show some structs with the fields in the order of declaration, not as
    /// sorted JSON.
    pub fn invalid_json(path: &FieldPath, json: &str, detail: &str) -> Self {
        Self::with_text(FieldErrorKind::Invalid, path, &shorten_json(json), detail)
    }

    /// Like [`Self::invalid`], for a value that only serializes as a list or an object.
    pub fn invalid_collection(path: &FieldPath, collection: &impl Serialize, detail: &str) -> Self {
        Self::with_text(FieldErrorKind::Invalid, path, &format_collection(collection), detail)
    }

    /// `Invalid value: detail`, without a value.
    ///
    /// kube-apiserver passes a Go error as the value in these cases, and its message shows no value.
    pub fn invalid_without_value(path: &FieldPath, detail: &str) -> Self {
        Self::without_value(FieldErrorKind::Invalid, path, detail)
    }

    /// An error like [`FieldError::invalid`], of the kind for a value of the wrong JSON type.
    pub fn type_invalid(path: &FieldPath, value: impl Into<Value>, detail: &str) -> Self {
        Self::with_value(FieldErrorKind::TypeInvalid, path, &value.into(), detail)
    }

    /// `Duplicate value: <value>`.
    pub fn duplicate(path: &FieldPath, value: impl Into<Value>) -> Self {
        Self::with_value(FieldErrorKind::Duplicate, path, &value.into(), "")
    }

    /// `Not found: <value>`.
    pub fn not_found(path: &FieldPath, value: impl Into<Value>) -> Self {
        Self::with_value(FieldErrorKind::NotFound, path, &value.into(), "")
    }

    /// An error of any kind about a value of a custom object, which has no Go type.
    ///
    /// The message shows lists and objects in the syntax of Go, and null as `"null"`.
    pub fn untyped(kind: FieldErrorKind, path: &FieldPath, value: &Value, detail: &str) -> Self {
        Self::with_text(kind, path, &format_go_syntax(value), detail)
    }

    /// `Unsupported value: <value>: supported values: "a", "b"`. The caller sorts the supported values.
    pub fn not_supported(path: &FieldPath, value: impl Into<Value>, supported: &[&str]) -> Self {
        let detail = supported_values(supported);
        Self::with_value(FieldErrorKind::NotSupported, path, &value.into(), &detail)
    }

    /// Like [`Self::not_supported`], for a value of a custom object; see [`Self::untyped`].
    pub fn untyped_not_supported(path: &FieldPath, value: &Value, supported: &[&str]) -> Self {
        Self::untyped(FieldErrorKind::NotSupported, path, value, &supported_values(supported))
    }

    /// `Forbidden: detail`.
    pub fn forbidden(path: &FieldPath, detail: &str) -> Self {
        Self::without_value(FieldErrorKind::Forbidden, path, detail)
    }

    /// `Too long: may not be more than <max> bytes`.
    pub fn too_long(path: &FieldPath, max: usize) -> Self {
        let unit = if max == 1 { "byte" } else { "bytes" };
        Self::without_value(FieldErrorKind::TooLong, path, &format!("may not be more than {max} {unit}"))
    }

    /// `Too many: <actual>: must have at most <max> items`.
    pub fn too_many(path: &FieldPath, actual: usize, max: usize) -> Self {
        let detail = format!("must have at most {max} items");
        Self::with_value(FieldErrorKind::TooMany, path, &Value::from(actual), &detail)
    }

    /// `Internal error: detail`.
    pub fn internal(path: &FieldPath, detail: &str) -> Self {
        Self::without_value(FieldErrorKind::Internal, path, detail)
    }

    /// An error of any kind that shows no value.
    pub fn without_value(kind: FieldErrorKind, path: &FieldPath, detail: &str) -> Self {
        FieldError { kind, path: path.clone(), tail: detail.to_owned(), tag: None }
    }

    fn with_value(kind: FieldErrorKind, path: &FieldPath, value: &Value, detail: &str) -> Self {
        Self::with_text(kind, path, &format_value(value), detail)
    }

    fn with_text(kind: FieldErrorKind, path: &FieldPath, value_text: &str, detail: &str) -> Self {
        let tail = if detail.is_empty() { value_text.to_owned() } else { format!("{value_text}: {detail}") };
        FieldError { kind, path: path.clone(), tail, tag: None }
    }

    /// Marks an error of hand-written validation that the declarative validation tag `tag` finds too.
    #[must_use]
    pub fn with_tag(mut self, tag: &'static str) -> Self {
        self.tag = Some(tag);
        self
    }

    /// Returns the declarative validation tag that finds the same error; None for rules without a tag.
    pub fn tag(&self) -> Option<&'static str> {
        self.tag
    }

    /// Returns the message without the path, for a cause.
    pub fn body(&self) -> String {
        let (_, prefix) = self.kind.texts();
        if self.tail.is_empty() { prefix.to_owned() } else { format!("{prefix}: {}", self.tail) }
    }
}

/// The detail `supported values: "a", "b"`; empty without a value.
fn supported_values(supported: &[&str]) -> String {
    if supported.is_empty() {
        return String::new();
    }
    let quoted: Vec<String> = supported.iter().map(|s| quote(s)).collect();
    format!("supported values: {}", quoted.join(", "))
}

impl fmt::Display for FieldError {
    /// Formats the message with its path, for a Status message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.body())
    }
}

/// Maximum number of errors that [`FieldErrors`] keeps.
pub const ERRORS_MAX: usize = 100;

/// Errors of one validation: the first [`ERRORS_MAX`] errors, and the number of further errors.
///
/// An update may tolerate errors of unchanged values. Their texts become warnings instead of errors.
///
/// # Invariants
///
/// INVARIANT (bounded): an object with a million errors produces a list of 100 errors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FieldErrors {
    kept: Vec<FieldError>,
    /// The number of errors without a tag beyond those that are kept.
    more: usize,
    /// The number of errors with a tag beyond those that are kept.
    more_tagged: usize,
    /// The texts of errors that an update tolerates.
    tolerated: Vec<String>,
}

impl FieldErrors {
    /// Creates an empty list.
    pub const fn new() -> Self {
        FieldErrors { kept: Vec::new(), more: 0, more_tagged: 0, tolerated: Vec::new() }
    }

    /// Adds an error.
    pub fn push(&mut self, error: FieldError) {
        if !self.is_full() {
            self.kept.push(error);
        } else if error.tag.is_some() {
            self.more_tagged += 1;
        } else {
            self.more += 1;
        }
    }

    /// Adds the errors of a part of the object, in order.
    pub fn extend<M>(&mut self, errors: impl FieldErrorSource<M>) {
        errors.add_to(self);
    }

    /// Adds the text of a tolerated error.
    pub fn tolerate(&mut self, text: String) {
        self.tolerated.push(text);
    }

    /// Removes the errors that declarative validation tags find too. The errors without a tag stay, kept or
    /// only counted.
    #[must_use]
    pub fn without_tagged(mut self) -> Self {
        self.kept.retain(|error| error.tag.is_none());
        self.more_tagged = 0;
        self
    }

    /// Removes and returns the texts of tolerated errors.
    pub fn take_tolerated(&mut self) -> Vec<String> {
        std::mem::take(&mut self.tolerated)
    }

    /// Whether further errors are only counted.
    pub fn is_full(&self) -> bool {
        self.kept.len() >= ERRORS_MAX
    }

    /// Returns the number of errors, including those that were not kept.
    pub fn len(&self) -> usize {
        self.kept.len() + self.more + self.more_tagged
    }

    /// Whether there are no errors.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Dereferences to the kept errors.
impl Deref for FieldErrors {
    type Target = [FieldError];

    fn deref(&self) -> &[FieldError] {
        &self.kept
    }
}

impl FromIterator<FieldError> for FieldErrors {
    fn from_iter<I: IntoIterator<Item = FieldError>>(errors: I) -> Self {
        let mut all = FieldErrors::new();
        all.extend(errors);
        all
    }
}

/// Joins the errors of all parts, in order.
impl FromIterator<FieldErrors> for FieldErrors {
    fn from_iter<I: IntoIterator<Item = FieldErrors>>(parts: I) -> Self {
        let mut all = FieldErrors::new();
        parts.into_iter().for_each(|errors| all.extend(errors));
        all
    }
}

impl From<Vec<FieldError>> for FieldErrors {
    fn from(errors: Vec<FieldError>) -> Self {
        errors.into_iter().collect()
    }
}

impl From<FieldError> for FieldErrors {
    fn from(error: FieldError) -> Self {
        FieldErrors { kept: vec![error], ..FieldErrors::new() }
    }
}

/// Source of errors for [`FieldErrors::extend`]: another [`FieldErrors`] with its number of further errors,
/// or any iterator of errors.
///
/// `M` is a marker type that keeps the two implementations apart.
pub trait FieldErrorSource<M> {
    /// Adds the errors of the source to `errors`.
    fn add_to(self, errors: &mut FieldErrors);
}

/// Marker type of the source [`FieldErrors`].
pub struct Collector;
/// Marker type of iterators of errors.
pub struct Items;

impl FieldErrorSource<Collector> for FieldErrors {
    fn add_to(self, errors: &mut FieldErrors) {
        let FieldErrors { kept, more, more_tagged, tolerated } = self;
        kept.into_iter().for_each(|error| errors.push(error));
        errors.more += more;
        errors.more_tagged += more_tagged;
        errors.tolerated.extend(tolerated);
    }
}

impl<I: IntoIterator<Item = FieldError>> FieldErrorSource<Items> for I {
    fn add_to(self, errors: &mut FieldErrors) {
        self.into_iter().for_each(|error| errors.push(error));
    }
}

impl AsRef<[FieldError]> for FieldErrors {
    fn as_ref(&self) -> &[FieldError] {
        &self.kept
    }
}

/// List of errors for [`Status::invalid`](crate::status::Status::invalid), which reports the first [`ERRORS_MAX`]
/// errors of the slice.
pub trait FieldErrorList: AsRef<[FieldError]> {
    /// Returns the number of errors beyond those of the slice.
    fn more(&self) -> usize {
        0
    }
}

impl FieldErrorList for FieldErrors {
    fn more(&self) -> usize {
        self.more + self.more_tagged
    }
}

impl FieldErrorList for [FieldError] {}
impl FieldErrorList for Vec<FieldError> {}
impl<const N: usize> FieldErrorList for [FieldError; N] {}

/// Joins errors as kube-apiserver does: one error has no brackets, several errors have.
pub fn aggregate(errors: &[impl fmt::Display]) -> String {
    match errors {
        [single] => single.to_string(),
        several => {
            let texts: Vec<String> = several.iter().map(ToString::to_string).collect();
            format!("[{}]", texts.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_errors_keep_first_100_and_count_rest() {
        let error = |i: usize| FieldError::required(&FieldPath::new("list").index(i), "");
        let mut part = FieldErrors::new();
        part.extend((0..150).map(error));
        let mut all = FieldErrors::from(error(1_000));
        assert!(!all.is_full() && !all.is_empty());
        all.extend(part);
        all.extend(Some(error(151)));
        assert!(all.is_full());
        assert_eq!((all.len(), all.iter().count()), (152, 100));
        assert_eq!(all.first().map(|error| error.path.as_str()), Some("list[1000]"));
        let joined: FieldErrors = [FieldErrors::new(), all].into_iter().collect();
        assert_eq!(joined.len(), 152);
    }

    #[test]
    fn error_beyond_limit_remains_after_tagged_errors_are_removed() {
        let error = |i: usize| FieldError::required(&FieldPath::new("list").index(i), "");
        let tagged = (0..ERRORS_MAX + 7).map(|i| error(i).with_tag("required"));
        let only_tagged: FieldErrors = tagged.clone().collect();
        let both: FieldErrors = tagged.chain([error(1_000)]).collect();
        assert_eq!((only_tagged.len(), both.len()), (ERRORS_MAX + 7, ERRORS_MAX + 8));
        assert!(only_tagged.without_tagged().is_empty());
        let rest = both.without_tagged();
        assert_eq!((rest.len(), rest.is_empty()), (1, false));
    }

    #[test]
    fn field_error_messages_match_kubernetes() {
        let name = FieldPath::new("metadata").child("name");
        for (error, expected) in [
            (
                FieldError::required(&name, "name or generateName is required"),
                "metadata.name: Required value: name or generateName is required",
            ),
            (
                FieldError::invalid(&name, "A\"b", "must be lower case"),
                r#"metadata.name: Invalid value: "A\"b": must be lower case"#,
            ),
            (
                FieldError::not_supported(&name, "x", &["All"]),
                r#"metadata.name: Unsupported value: "x": supported values: "All""#,
            ),
            (
                FieldError::too_long(&FieldPath::new("data").key("a.b"), 3),
                "data[a.b]: Too long: may not be more than 3 bytes",
            ),
        ] {
            assert_eq!(error.to_string(), expected);
        }
    }
}

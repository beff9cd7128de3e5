//! Paths of values in a body, and the errors that show them.

use apimachinery::field::shorten_name;
use apimachinery::object::{Number, Value};

use crate::error::TypeError;
use crate::table::{Schema, Type};

/// The path of a value as a linked list on the stack. It is rendered only for errors and unknown fields.
pub(crate) struct Path<'a> {
    pub(crate) parent: Option<&'a Path<'a>>,
    pub(crate) step: PathStep<'a>,
}

/// One step of a path.
pub(crate) enum PathStep<'a> {
    /// A field of a struct type.
    Field(&'a str, &'static Schema),
    Key(&'a str),
    Index(usize),
}

impl Path<'_> {
    /// Renders the path: `spec.containers[0].name`.
    pub(crate) fn render(&self) -> String {
        let mut text = self.parent.map_or_else(String::new, Path::render);
        match self.step {
            PathStep::Field(name, _) | PathStep::Key(name) => {
                if !text.is_empty() {
                    text.push('.');
                }
                text.push_str(&shorten_name(name));
            }
            PathStep::Index(i) => text.push_str(&format!("[{i}]")),
        }
        text
    }

    /// The path in the messages of Go: the struct type of the innermost field, then the names of fields and
    /// embedded types from the root to the value: `Volume.spec.volumes.VolumeSource.secret`.
    fn go_field(&self) -> String {
        let mut names = Vec::new();
        let mut owner = None;
        let mut at = Some(self);
        while let Some(path) = at {
            if let PathStep::Field(name, schema) = path.step {
                names.push(name);
                let embedded = schema.field(name).map_or(&[][..], |field| &field.embedded);
                names.extend(embedded.iter().rev());
                owner = owner.or(Some(schema.name));
            }
            at = path.parent;
        }
        names.push(owner.and_then(|name| name.rsplit('.').next()).unwrap_or(""));
        names.reverse();
        names.join(".")
    }

    /// The error for a value of the wrong JSON type.
    pub(crate) fn mismatch(&self, value: &Value, ty: &Type) -> TypeError {
        let found = match (value, ty) {
            (Value::Number(n), Type::Int32 | Type::Int64 | Type::IntOrString | Type::Float64) => {
                format!("number {}", format_number(n))
            }
            (value, _) => json_type(value).to_owned(),
        };
        self.unmarshal_error(&found, &ty.display_name())
    }

    /// The error for an item of an array of numbers that stands for bytes.
    pub(crate) fn not_a_byte(&self, item: &Value) -> TypeError {
        let found = match item {
            Value::Number(n) => format!("number {}", format_number(n)),
            item => json_type(item).to_owned(),
        };
        self.unmarshal_error(&found, "uint8")
    }

    fn unmarshal_error(&self, found: &str, type_name: &str) -> TypeError {
        let field = self.go_field();
        let message =
            format!("json: cannot unmarshal {found} into Go struct field {field} of type {type_name}");
        TypeError::new(self.render(), message)
    }

    /// The error for a text in the wrong format.
    pub(crate) fn malformed(&self, message: impl Into<String>) -> TypeError {
        TypeError::new(self.render(), message)
    }
}

/// The name of a JSON type in messages.
fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Number(_) => "number",
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Renders a number as in the request. The tree does not keep the spelling of a number beyond 64 bits: below
/// 1e21 such a number is rendered as an integer without exponent.
fn format_number(number: &Number) -> String {
    /// Go renders numbers from this magnitude on with an exponent.
    const DIGITS_MAX: f64 = 1e21;
    let is_large = |n: &f64| n.abs() >= 2_f64.powi(63) && n.abs() < DIGITS_MAX;
    match number.as_f64().filter(|_| number.is_f64()).filter(is_large) {
        Some(large) => format!("{large:.0}"),
        None => number.to_string(),
    }
}

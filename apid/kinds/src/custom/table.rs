//! Table of a custom kind: the name, and the printer columns of the definition or the age.
//!
//! # Reference
//!
//! A cell has the type of its column. A string column shows a value of another JSON type as JSON text; in
//! other columns such a value becomes null. An integer column drops the fraction of a number. A date column
//! shows the time since the date.

use apimachinery::clock::Clock;
use apimachinery::codec;
use apimachinery::object::Object;
use apimachinery::time;
use extensions::structural::{JsonPath, JsonPathError};
use serde_json::{Value, json};

use crate::table::cell::PathReader;
use crate::table::{Column, NAME, since};

/// A column of a Table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CustomColumn {
    /// Title.
    pub name: String,
    /// Type: `string`, `integer`, `number`, `boolean`, `date`.
    pub kind: String,
    /// Format, or `""`.
    pub format: String,
    /// Description.
    pub description: String,
    /// Priority: clients always show columns with priority 0, and other columns only in wide output.
    pub priority: i64,
}

impl From<&Column> for CustomColumn {
    fn from(column: &Column) -> Self {
        CustomColumn {
            name: column.name.to_owned(),
            kind: column.kind.to_owned(),
            format: column.format.to_owned(),
            description: column.description.to_owned(),
            priority: column.priority.into(),
        }
    }
}

/// Columns and cells of a custom kind. A definition without columns has the columns Name and Age.
pub struct CustomTable {
    columns: Vec<(CustomColumn, JsonPath)>,
}

impl CustomTable {
    /// Reads the printer columns of a version.
    ///
    /// # Errors
    ///
    /// A path is malformed.
    pub fn new(columns: &[Value]) -> Result<Self, JsonPathError> {
        let column = |column: &Value| {
            let path = column.text("jsonPath");
            let description = match column.text("description") {
                "" => format!("Custom resource definition column (in JSONPath format): {path}"),
                description => description.to_owned(),
            };
            let definition = CustomColumn {
                name: column.text("name").to_owned(),
                kind: column.text("type").to_owned(),
                format: column.text("format").to_owned(),
                description,
                priority: column.find("priority").and_then(Value::as_i64).unwrap_or(0),
            };
            Ok((definition, JsonPath::parse(path)?))
        };
        Ok(CustomTable { columns: columns.iter().map(column).collect::<Result<_, JsonPathError>>()? })
    }

    /// The column Name, and then the columns of the definition, or Age if the definition has no columns.
    pub fn columns(&self) -> Vec<CustomColumn> {
        let name = CustomColumn::from(&NAME);
        let age = self.columns.is_empty().then(|| CustomColumn {
            name: "Age".to_owned(),
            kind: "date".to_owned(),
            description: "Time at which the object was created.".to_owned(),
            ..CustomColumn::default()
        });
        let definition_columns = self.columns.iter().map(|(column, _)| column.clone());
        std::iter::once(name).chain(definition_columns).chain(age).collect()
    }

    /// Cells of an object, one per column.
    pub fn cells(&self, object: &Object, clock: &dyn Clock) -> Vec<Value> {
        let mut cells = vec![json!(object.name())];
        if self.columns.is_empty() {
            cells.push(since(object.meta_str("creationTimestamp"), clock).into());
        }
        let column_cells = self.columns.iter().map(|(column, path)| match path.first(object) {
            Some(value) => cell(&column.kind, value, clock),
            None => Value::Null,
        });
        cells.extend(column_cells);
        cells
    }
}

fn cell(kind: &str, value: &Value, clock: &dyn Clock) -> Value {
    match (kind, value) {
        (_, Value::Null) => Value::Null,
        ("string", Value::String(_)) | ("boolean", Value::Bool(_)) => value.clone(),
        ("string", _) => codec::json::to_text(value).into(),
        ("number", Value::Number(_)) => value.clone(),
        ("integer", Value::Number(number)) => {
            #[expect(clippy::cast_possible_truncation, reason = "an integer column cuts the fraction")]
            let whole = number.as_i64().or_else(|| number.as_f64().map(|number| number as i64));
            whole.map_or(Value::Null, Value::from)
        }
        ("date", Value::String(text)) if text.is_empty() => "<unknown>".into(),
        ("date", Value::String(text)) => match time::parse(text) {
            Some(_) => since(text, clock).into(),
            None => "<invalid>".into(),
        },
        _ => Value::Null,
    }
}

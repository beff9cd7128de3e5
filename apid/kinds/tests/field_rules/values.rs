//! Values of fields that rules may refuse.

use serde_json::{Value, json};

use super::fields::{Shape, Types};

/// Maximum depth of nested structs in the values of a field.
const LEVELS: usize = 3;

/// Values of the type of a field, most of them invalid for the field.
pub(super) fn values_of_shape(shape: &Shape, types: &Types) -> Vec<Value> {
    let mut items = scalar_values(shape);
    if items.is_empty() {
        // A struct, or alternatives of JSON values.
        let item = Shape { is_list: false, is_map: false, ..shape.clone() };
        items = vec![json!({}), types.filled(&item, LEVELS), json!("a"), json!([]), json!(true)];
    }
    if shape.is_list {
        let mut lists = vec![json!([])];
        lists.extend(items.iter().map(|item| json!([item])));
        lists.extend(items.iter().take(2).map(|item| json!([item, item])));
        return lists;
    }
    if shape.is_map {
        let mut maps = vec![json!({})];
        maps.extend(items.iter().map(|item| json!({"a": item})));
        maps.extend(items.first().map(|item| json!({"~ not a key": item})));
        return maps;
    }
    items
}

impl Types {
    /// A value of a shape, in which structs have all their fields, nested at most `levels` deep.
    pub(super) fn filled(&self, shape: &Shape, levels: usize) -> Value {
        let item = match scalar_values(shape).into_iter().next() {
            Some(scalar) => scalar,
            None => {
                let fields = self.fields(&shape.item_type).into_iter().filter(|_| levels > 0);
                fields.map(|(_, field, shape)| (field, self.filled(&shape, levels - 1))).collect()
            }
        };
        match shape {
            Shape { is_list: true, .. } => json!([item]),
            Shape { is_map: true, .. } => json!({"a": item}),
            _ => item,
        }
    }

    /// A struct with all its fields.
    pub(super) fn filled_struct(&self, name: &str) -> Value {
        let shape =
            Shape { is_list: false, is_map: false, item_type: name.to_owned(), enum_values: Vec::new() };
        self.filled(&shape, 1)
    }
}

/// Values of a scalar type, beginning with the value that most rules accept; none for a struct.
pub(super) fn scalar_values(shape: &Shape) -> Vec<Value> {
    // The table names times of the package `meta` in two ways.
    match shape.item_type.strip_prefix("meta/v1.").unwrap_or(&shape.item_type) {
        "string" => {
            let mut texts: Vec<Value> = shape.enum_values.iter().map(|value| json!(value)).collect();
            texts.extend(
                ["a", "", "~ not a name/", "-1", "/a/../b", "10.0.0.1", "a\nb"]
                    .iter()
                    .map(|text| json!(text)),
            );
            texts.extend([300, 2_000].map(|length| json!("a".repeat(length))));
            texts
        }
        "bool" => vec![json!(true), json!(false)],
        "int32" => [1, -1, 0, 2, 100_000, i32::MAX].iter().map(|number| json!(number)).collect(),
        "int64" => [1, -1, 0, 2, 100_000, i64::MAX].iter().map(|number| json!(number)).collect(),
        "float64" => vec![json!(1.5), json!(0), json!(-1.5)],
        "Quantity" => ["1", "-1", "0", "1500m", "1m"].iter().map(|text| json!(text)).collect(),
        "IntOrString" => {
            vec![json!(1), json!(-1), json!(0), json!(100_000), json!("150%"), json!("0%"), json!("~ x")]
        }
        "Time" => vec![json!("2024-01-02T03:04:05Z"), json!("1970-01-01T00:00:00Z")],
        "MicroTime" => vec![json!("2024-01-02T03:04:05.000000Z"), json!("1970-01-01T00:00:00.000000Z")],
        "bytes" => vec![json!("YQ=="), json!(""), json!("YQ==".repeat(300_000))],
        "RawExtension" | "interface{}" | "FieldsV1" | "runtime.Unknown" => {
            vec![json!({"a": 1}), json!({}), json!({"kind": "A", "apiVersion": "a/v1"})]
        }
        _ => Vec::new(),
    }
}

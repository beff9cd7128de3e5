//! Manifests of a file: YAML documents, JSON texts and lists.

use apimachinery::codec::{DecodeError, Limits, yaml};
use apimachinery::object::{Object, Value};

/// The reason why a text cannot be split into manifests.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum DocumentError {
    /// A document has invalid syntax.
    #[error("document {document}: {error}")]
    Syntax {
        /// Number of the document, from 1.
        document: usize,
        /// The error of the decoder.
        error: DecodeError,
    },
    /// A document or an item of a list is not an object.
    #[error("document {0}: a manifest must be an object")]
    NotAnObject(usize),
}

/// Splits a text into manifests. Each item of a list is its own manifest; an empty document has none.
///
/// # Errors
///
/// The first document that is not a manifest.
pub fn split(text: &str) -> Result<Vec<Object>, DocumentError> {
    let mut objects = Vec::new();
    for (number, value) in (1..).zip(decode_documents(text)?) {
        add_manifests(value, number, &mut objects)?;
    }
    Ok(objects)
}

/// The decoded documents.
fn decode_documents(text: &str) -> Result<Vec<Value>, DocumentError> {
    // A JSON text can contain several objects in a row.
    if text.trim_start().starts_with(['{', '[']) {
        let values: Result<Vec<Value>, _> = serde_json::Deserializer::from_str(text).into_iter().collect();
        if let Ok(values) = values {
            return Ok(values);
        }
    }
    let limits = Limits { bytes: usize::MAX, ..Limits::BODY };
    let decode = |(document, text): (usize, String)| {
        let decoded = yaml::decode(text.as_bytes(), limits);
        decoded.map(|decoded| decoded.value).map_err(|error| DocumentError::Syntax { document, error })
    };
    (1..).zip(yaml_documents(text)).map(decode).collect()
}

/// The texts between the separator lines, which begin with `---`.
fn yaml_documents(text: &str) -> Vec<String> {
    let mut documents = vec![String::new()];
    for line in text.lines() {
        let rest =
            line.strip_prefix("---").filter(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace));
        if let Some(rest) = rest {
            documents.push(rest.trim().to_owned() + "\n");
        } else if let Some(document) = documents.last_mut() {
            document.push_str(line);
            document.push('\n');
        }
    }
    documents
}

fn add_manifests(value: Value, document: usize, objects: &mut Vec<Object>) -> Result<(), DocumentError> {
    let Value::Object(mut fields) = value else {
        return if value.is_null() { Ok(()) } else { Err(DocumentError::NotAnObject(document)) };
    };
    let is_list = fields.get("kind").and_then(Value::as_str).is_some_and(|kind| kind.ends_with("List"));
    match fields.get_mut("items") {
        Some(Value::Array(items)) if is_list => {
            let items = std::mem::take(items);
            items.into_iter().try_for_each(|item| match item {
                Value::Object(_) => add_manifests(item, document, objects),
                _ => Err(DocumentError::NotAnObject(document)),
            })
        }
        _ => {
            objects.push(Object(fields));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<String> {
        split(text).unwrap().iter().map(|object| object.kind().to_owned()).collect()
    }

    #[test]
    fn documents_and_items_of_lists_are_manifests() {
        let yaml = "# comment\n---\nkind: A\n---\n---\nkind: List\nitems:\n- kind: B\n- kind: CList\n  items: [{kind: D}]\n--- # end\nkind: E\ntext: |\n  ---- no end\n";
        assert_eq!(kinds(yaml), ["A", "B", "D", "E"]);
        assert_eq!(kinds("{\"kind\":\"A\"}\n{\"kind\":\"B\"}"), ["A", "B"]);
        assert_eq!(kinds("{kind: A}\n---\n{kind: B}"), ["A", "B"]);
        assert_eq!(kinds(""), [""; 0]);
    }

    #[test]
    fn invalid_document_is_named_by_number() {
        assert_eq!(split("kind: A\n---\n- a\n"), Err(DocumentError::NotAnObject(2)));
        let error = split("kind: A\n---\nkind: [\n").unwrap_err();
        assert!(matches!(error, DocumentError::Syntax { document: 2, .. }), "{error}");
    }
}

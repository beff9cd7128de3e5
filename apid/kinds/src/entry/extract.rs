//! Extraction of a few paths of a JSON document; the parser skips all other fields.

use apimachinery::object::{Map, Object};
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

/// Tree of field paths to extract from a JSON object. A leaf selects the whole value.
#[derive(Default)]
pub(super) struct FieldSelection {
    fields: Vec<(String, FieldSelection)>,
}

impl FieldSelection {
    /// Adds a path. If one path is a prefix of another, the longer path takes effect.
    pub(super) fn add(&mut self, path: &[&str]) {
        let Some((first, rest)) = path.split_first() else { return };
        let position = self.fields.iter().position(|(field, _)| field == first);
        let index = position.unwrap_or_else(|| {
            self.fields.push(((*first).to_owned(), FieldSelection::default()));
            self.fields.len() - 1
        });
        if let Some((_, selection)) = self.fields.get_mut(index) {
            selection.add(rest);
        }
    }

    /// Extracts the selected fields of a document.
    ///
    /// # Errors
    ///
    /// The document is not a JSON object.
    pub(super) fn extract(&self, document: &[u8]) -> serde_json::Result<Object> {
        let mut deserializer = serde_json::Deserializer::from_slice(document);
        let value = self.deserialize(&mut deserializer)?;
        deserializer.end()?;
        Object::from_value(value).map_err(|_| serde_json::Error::custom("is not a JSON object"))
    }

    fn get(&self, field: &str) -> Option<&FieldSelection> {
        self.fields.iter().find(|(f, _)| f == field).map(|(_, selection)| selection)
    }
}

impl<'de> DeserializeSeed<'de> for &FieldSelection {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        if self.fields.is_empty() {
            serde::Deserialize::deserialize(deserializer)
        } else {
            deserializer.deserialize_any(self)
        }
    }
}

impl<'de> Visitor<'de> for &FieldSelection {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON object")
    }

    /// A null value has no fields to extract.
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(field) = access.next_key_seed(KeySeed)? {
            match self.get(&field) {
                Some(selection) => {
                    map.insert(field.into_owned(), access.next_value_seed(selection)?);
                }
                None => {
                    access.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Value::Object(map))
    }
}

/// Seed for a key, borrowed unless the key has escapes.
struct KeySeed;

impl<'de> DeserializeSeed<'de> for KeySeed {
    type Value = std::borrow::Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for KeySeed {
    type Value = std::borrow::Cow<'de, str>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Self::Value, E> {
        Ok(key.into())
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(key.to_owned().into())
    }
}

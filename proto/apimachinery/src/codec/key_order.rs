//! The order of chosen keys in a JSON document.
//!
//! A decoded tree has sorted keys. The order of the document matters only for messages, so this second pass
//! over the document runs only when a message names paths.

use std::collections::HashSet;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::duplicates::Path;

/// Returns each occurrence of the wanted paths in the order of the document.
///
/// A path is, for example, `spec.containers[0].name`.
///
/// A malformed document ends the search.
pub fn occurrences(json: &[u8], wanted: &HashSet<&str>) -> Vec<String> {
    let names = wanted.iter().map(|path| last_name(path)).collect();
    let mut search = Search { wanted, names, found: Vec::new() };
    let mut parser = serde_json::Deserializer::from_slice(json);
    // An error ends the search. The caller has decoded the same bytes, so no error is expected.
    let _ = Node { search: &mut search, path: Path::Root }.deserialize(&mut parser);
    search.found
}

/// The part of a path after its last dot. A key that contains dots still ends with this part.
fn last_name(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// State of a search for the occurrences of paths.
struct Search<'w> {
    wanted: &'w HashSet<&'w str>,
    /// The last names of the wanted paths. The search renders the path of a field only if this set contains
    /// its name.
    names: HashSet<&'w str>,
    /// The occurrences so far.
    found: Vec<String>,
}

struct Node<'s, 'w, 'p> {
    search: &'s mut Search<'w>,
    path: Path<'p>,
}

impl<'de> DeserializeSeed<'de> for Node<'_, '_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Node { search, path } = self;
        let mut index = 0;
        while items.next_element_seed(Node { search, path: Path::Item(&path, index) })?.is_some() {
            index += 1;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let Node { search, path } = self;
        while let Some(key) = entries.next_key::<String>()? {
            let path_of_value = Path::Field(&path, &key);
            if search.names.contains(last_name(&key)) {
                let text = path_of_value.text();
                if search.wanted.contains(text.as_str()) {
                    search.found.push(text);
                }
            }
            entries.next_value_seed(Node { search, path: path_of_value })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn occurrences_follow_the_document() {
        let json = br#"{"z":{"b":1,"b":2},"a":[{"n":1},{"n":2,"c.d":3}],"z2":0,"q":null}"#;
        let wanted = HashSet::from(["a[1].n", "z.b", "z2", "a[1].c.d", "absent"]);
        assert_eq!(occurrences(json, &wanted), ["z.b", "z.b", "a[1].n", "a[1].c.d", "z2"]);
        assert!(occurrences(b"{", &wanted).is_empty());
    }
}

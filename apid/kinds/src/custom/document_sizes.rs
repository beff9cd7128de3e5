//! Sizes of the OpenAPI documents that describe custom kinds, and their limit.
//!
//! # Contract
//!
//! Each group version has an OpenAPI 3 document, and one OpenAPI 2 document describes all kinds. The estimates here
//! decide which documents are built. A definition whose kinds belong to a document above the limit gets a condition,
//! and requests for the document get 503.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::Kind;

/// Maximum size in bytes of the text of an OpenAPI document.
pub const MAX_DOCUMENT_BYTES: usize = 256 << 20;

/// Estimated size in bytes of the paths and of the list type of a custom kind in a document.
const PATHS_BYTES: usize = 8 << 10;

/// Estimates the bytes of custom kinds in an OpenAPI document.
pub fn document_bytes<'a>(kinds: impl IntoIterator<Item = &'a Kind>) -> usize {
    let schemas = kinds.into_iter().filter_map(|kind| kind.schema.definition());
    schemas.map(|schema| schema.text_bytes() + PATHS_BYTES).sum()
}

/// The OpenAPI documents above a limit.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct OversizedDocuments {
    /// Whether the OpenAPI 2 document is above the limit.
    is_v2_oversized: bool,
    /// Group and version of the OpenAPI 3 documents above the limit.
    group_versions: HashSet<(String, String)>,
}

impl OversizedDocuments {
    /// Finds the documents of custom kinds above `max` bytes.
    pub fn find<'a>(kinds: impl IntoIterator<Item = &'a Kind>, max: usize) -> Self {
        let mut total = 0;
        let mut sizes: HashMap<(&str, &str), usize> = HashMap::new();
        for kind in kinds {
            let bytes = document_bytes([kind]);
            total += bytes;
            *sizes.entry((&kind.group_resource.group, kind.version())).or_default() += bytes;
        }
        let oversized = sizes.into_iter().filter(|(_, bytes)| *bytes > max);
        let owned = |((group, version), _): ((&str, &str), usize)| (group.to_owned(), version.to_owned());
        OversizedDocuments { is_v2_oversized: total > max, group_versions: oversized.map(owned).collect() }
    }

    /// Returns the names of the documents above the limit that describe some of the kinds.
    pub fn of_resources(&self, kinds: &[Arc<Kind>]) -> Vec<String> {
        let mut names = Vec::new();
        for kind in kinds {
            let key = (kind.group_resource.group.clone(), kind.version().to_owned());
            if self.group_versions.contains(&key) {
                names.push(format!("/openapi/v3/apis/{}/{}", key.0, key.1));
            }
        }
        if self.is_v2_oversized && !kinds.is_empty() {
            names.push("/openapi/v2".to_owned());
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::{Names, Preset};
    use apimachinery::object::Object;
    use serde_json::{Value, json};

    use super::*;
    use crate::custom;

    /// The kinds of a definition with a schema of about `bytes` bytes in each version.
    fn kinds(group: &str, versions: &[&str], bytes: usize) -> Vec<Arc<Kind>> {
        let schema = json!({"openAPIV3Schema": {"type": "object", "description": "x".repeat(bytes)}});
        let version = |(index, name): (usize, &&str)| json!({"name": name, "served": true, "storage": index == 0, "schema": schema});
        let versions: Vec<Value> = versions.iter().enumerate().map(version).collect();
        let definition = json!({
            "metadata": {"name": format!("widgets.{group}")},
            "spec": {"group": group, "scope": "Cluster", "versions": versions},
            "status": {"acceptedNames": {"plural": "widgets", "kind": "Widget"}},
        });
        let names = Arc::new(Names::new(Preset::Kubernetes, "").unwrap());
        custom::resources(&Object::from_value(definition).unwrap(), &names).unwrap()
    }

    #[test]
    fn documents_above_the_limit_are_named() {
        let large = kinds("large.example.com", &["v2", "v1"], 60_000);
        let small = kinds("small.example.com", &["v1"], 1_000);
        let all = || large.iter().chain(&small).map(|kind| &**kind);
        let bytes = document_bytes(all());
        assert!((145_000..160_000).contains(&bytes), "{bytes}");
        let of = |max, kinds: &[Arc<Kind>]| OversizedDocuments::find(all(), max).of_resources(kinds);
        assert_eq!(OversizedDocuments::find(all(), bytes), OversizedDocuments::default());
        assert_eq!(of(bytes - 1, &small), ["/openapi/v2"]);
        let v3 = "/openapi/v3/apis/large.example.com";
        let expected = [format!("{v3}/v2"), format!("{v3}/v1"), "/openapi/v2".to_owned()];
        assert_eq!(of(65_000, &large), expected);
        assert_eq!(of(65_000, &small), ["/openapi/v2"]);
    }
}

//! The metadata of stored objects, parsed without copies of irrelevant fields.

use std::borrow::Cow;
use std::collections::BTreeMap;

use authproto::auth::{MirrorObject, mirror_object::Kind};
use serde::Deserialize;
use serde_json::value::RawValue;

/// The policy-relevant metadata. Labels and annotations are parsed on demand.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Meta<'a> {
    #[serde(borrow, default)]
    pub(super) namespace: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) name: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(super) uid: Cow<'a, str>,
    pub(super) deletion_timestamp: Option<String>,
    #[serde(borrow)]
    labels: Option<&'a RawValue>,
    #[serde(borrow)]
    annotations: Option<&'a RawValue>,
}

/// The metadata of a stored object; nothing else of the object is parsed.
#[derive(Deserialize)]
pub(super) struct MetadataOnly<'a> {
    #[serde(borrow)]
    pub(super) metadata: Meta<'a>,
}

pub(super) type StringMap = BTreeMap<String, String>;

impl Meta<'_> {
    /// The labels. None when they are not a map of strings.
    pub(super) fn labels(&self) -> Option<StringMap> {
        parse_map(self.labels)
    }

    /// The annotations. None when they are not a map of strings.
    pub(super) fn annotations(&self) -> Option<StringMap> {
        parse_map(self.annotations)
    }

    /// Whether an annotation with this key exists, or may exist in annotations that are no map of strings.
    pub(super) fn is_annotated(&self, key: &str) -> bool {
        // The search in the text avoids the parsing of the annotations of most pods.
        self.annotations.is_some_and(|text| text.get().contains(key))
            && self.annotations().is_none_or(|annotations| annotations.contains_key(key))
    }

    /// Builds the mirrored object with this metadata.
    pub(super) fn object(self, labels: StringMap, annotations: StringMap, kind: Kind) -> MirrorObject {
        let deleted_at = self.deletion_timestamp.as_deref().and_then(|text| text.parse().ok());
        MirrorObject {
            namespace: self.namespace.into_owned(),
            name: self.name.into_owned(),
            uid: self.uid.into_owned(),
            labels,
            annotations,
            terminating: self.deletion_timestamp.is_some(),
            deleted_at_ms: deleted_at.map_or(0, |at: jiff::Timestamp| at.as_millisecond()),
            kind: Some(kind),
        }
    }
}

fn parse_map(map: Option<&RawValue>) -> Option<StringMap> {
    match map {
        None => Some(StringMap::new()),
        Some(text) => serde_json::from_str(text.get()).ok(),
    }
}

/// Keeps only the entries with these keys.
pub(super) fn select_entries<K: AsRef<str>>(
    mut map: StringMap,
    keys: impl IntoIterator<Item = K>,
) -> StringMap {
    keys.into_iter().filter_map(|key| map.remove_entry(key.as_ref())).collect()
}

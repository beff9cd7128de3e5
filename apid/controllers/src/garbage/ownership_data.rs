//! Ownership data of a stored object: its uid, its owners, and how its deletion proceeds.
//!
//! # Contract
//!
//! [`OwnershipData::parse`] parses only the metadata. [`may_have_owners_or_deletion`] searches for
//! substrings, so that most objects, which have neither owners nor a deletion timestamp, are not parsed. The bytes of
//! an object in CBOR are converted to JSON first.

use std::sync::LazyLock;

use kinds::metadata::{FOREGROUND, ORPHAN};
use memchr::memmem::Finder;
use serde::Deserialize;

/// The state of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnerState {
    /// The owner exists.
    Exists,
    /// The owner is being deleted in the foreground: it exists until its blocking dependents are gone.
    Waiting,
    /// The owner does not exist.
    Gone,
    /// The owner's kind is not served in the version of the owner reference.
    NotServed,
    /// The owner's kind is namespaced and the dependent is cluster-scoped.
    InvalidScope,
}

/// The text before the metadata in the JSON of a stored object.
const METADATA: &str = "\"metadata\":";

/// Compact uid of an object or owner, as a key of the index. Texts that are no UUIDs may become equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Uid(u128);

impl Uid {
    /// Converts the 32 hexadecimal digits of a UUID to a number; hashes any other text.
    pub(super) fn from_text(text: &str) -> Self {
        let add_digit = |number: u128, byte: u8| match char::from(byte).to_digit(16) {
            Some(digit) => number.rotate_left(4) ^ u128::from(digit),
            None if byte == b'-' => number,
            None => number.rotate_left(7) ^ u128::from(byte),
        };
        Uid(text.bytes().fold(0, add_digit))
    }
}

/// An owner reference in the metadata of a dependent.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Owner {
    /// Group and version of the owner.
    pub(super) api_version: String,
    /// The kind of the owner.
    pub(super) kind: String,
    /// The name of the owner.
    pub(super) name: String,
    /// The uid of the owner.
    pub(super) uid: String,
    /// Whether the dependent blocks a foreground deletion of the owner.
    #[serde(rename = "blockOwnerDeletion", deserialize_with = "deserialize_optional_flag")]
    pub(super) blocks: bool,
}

/// Reads a boolean that may be null.
fn deserialize_optional_flag<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::<bool>::deserialize(deserializer)? == Some(true))
}

/// The state of the deletion of a terminating object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeletionState {
    /// The references to the object in its dependents are removed first.
    Orphaning,
    /// The dependents of the object are deleted first.
    WaitingForDependents,
    /// Other finalizers or a grace period may block the deletion, dependents do not.
    Independent,
    /// Nothing blocks the deletion; only the removal of the object from the store is left.
    Complete,
}

/// Ownership data of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnershipData {
    /// The uid of the object.
    pub(super) uid: String,
    /// The owners of the object.
    pub(super) owners: Vec<Owner>,
    /// The state of the deletion of the object; None if the object is not terminating.
    pub(super) deletion_state: Option<DeletionState>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    uid: String,
    owner_references: Vec<Owner>,
    finalizers: Vec<String>,
    deletion_timestamp: Option<String>,
    deletion_grace_period_seconds: Option<i64>,
}

/// Whether stored bytes may contain owner references or a deletion timestamp.
pub(super) fn may_have_owners_or_deletion(stored: &[u8]) -> bool {
    if kinds::entry::is_cbor(stored) {
        let has = |field: &str| memchr::memmem::find(stored, field.as_bytes()).is_some();
        return has("ownerReferences") || has("deletionTimestamp");
    }
    static OWNERS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"ownerReferences\":["));
    static DELETION: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"deletionTimestamp\":\""));
    OWNERS.find(stored).is_some() || DELETION.find(stored).is_some()
}

impl OwnershipData {
    /// Parses the metadata in the bytes of a stored object. Returns None if the metadata cannot be parsed.
    pub(super) fn parse(stored: &[u8]) -> Option<Self> {
        let stored = kinds::entry::to_json(stored).ok()?;
        let position = memchr::memmem::find(&stored, METADATA.as_bytes())?;
        let metadata = stored.get(position + METADATA.len()..)?;
        // The parser stops after the metadata.
        let mut values = serde_json::Deserializer::from_slice(metadata).into_iter::<Metadata>();
        let Metadata {
            uid,
            owner_references: owners,
            finalizers,
            deletion_timestamp,
            deletion_grace_period_seconds,
        } = values.next()?.ok()?;
        let has_finalizer = |finalizer: &str| finalizers.iter().any(|f| f == finalizer);
        let deletion_state = deletion_timestamp.map(|_| match () {
            () if has_finalizer(ORPHAN) => DeletionState::Orphaning,
            () if has_finalizer(FOREGROUND) => DeletionState::WaitingForDependents,
            () if finalizers.is_empty() && deletion_grace_period_seconds == Some(0) => {
                DeletionState::Complete
            }
            () => DeletionState::Independent,
        });
        Some(OwnershipData { uid, owners, deletion_state })
    }

    /// Whether the object is terminating and its deletion waits for its dependents.
    pub(super) fn waits_for_dependents(&self) -> bool {
        matches!(self.deletion_state, Some(DeletionState::Orphaning | DeletionState::WaitingForDependents))
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::object::Object;
    use serde_json::{Value, json};

    use super::*;

    fn stored(metadata: Value) -> bytes::Bytes {
        let object = json!({"kind": "X", "apiVersion": "v1", "metadata": metadata, "spec": {"metadata": 1}});
        kinds::entry::encode(&Object::from_value(object).unwrap())
    }

    #[test]
    fn ownership_data_parses_owners_and_deletion_state() {
        let owner = |uid: &str, blocks: Value| json!({"apiVersion": "v1", "kind": "K", "name": "n\"", "uid": uid, "blockOwnerDeletion": blocks});
        let bytes = stored(
            json!({"uid": "u", "ownerReferences": [owner("a", json!(true)), owner("b", json!(null))]}),
        );
        assert!(may_have_owners_or_deletion(&bytes));
        let ownership = OwnershipData::parse(&bytes).unwrap();
        let seen: Vec<_> =
            ownership.owners.iter().map(|o| (o.uid.as_str(), o.name.as_str(), o.blocks)).collect();
        assert_eq!(seen, [("a", "n\"", true), ("b", "n\"", false)]);
        assert_eq!((ownership.uid.as_str(), ownership.deletion_state), ("u", None));

        let now = "2026-01-01T00:00:00Z";
        for (metadata, want) in [
            (
                json!({"deletionTimestamp": now, "finalizers": ["a/b", "orphan"]}),
                Some(DeletionState::Orphaning),
            ),
            (
                json!({"deletionTimestamp": now, "finalizers": ["foregroundDeletion"]}),
                Some(DeletionState::WaitingForDependents),
            ),
            (json!({"deletionTimestamp": now, "finalizers": ["a/b"]}), Some(DeletionState::Independent)),
            (
                json!({"deletionTimestamp": now, "deletionGracePeriodSeconds": 3}),
                Some(DeletionState::Independent),
            ),
            (json!({"deletionTimestamp": now}), Some(DeletionState::Independent)),
            (
                json!({"deletionTimestamp": now, "deletionGracePeriodSeconds": 0}),
                Some(DeletionState::Complete),
            ),
            (json!({"finalizers": ["orphan"]}), None),
        ] {
            let bytes = stored(metadata.clone());
            assert_eq!(OwnershipData::parse(&bytes).unwrap().deletion_state, want, "{metadata}");
            assert_eq!(may_have_owners_or_deletion(&bytes), want.is_some(), "{metadata}");
            let cbor = kinds::entry::encode_cbor(kinds::entry::parse(&bytes).unwrap());
            assert_eq!(OwnershipData::parse(&cbor), OwnershipData::parse(&bytes), "{metadata}");
            assert_eq!(may_have_owners_or_deletion(&cbor), want.is_some(), "{metadata}");
        }
        assert!(!may_have_owners_or_deletion(&stored(
            json!({"uid": "u", "labels": {"ownerReferences": "\"deletionTimestamp\":\""}})
        )));
        assert_eq!(OwnershipData::parse(b"{}"), None);
        assert_eq!(OwnershipData::parse(br#"{"metadata":{"uid":"#), None);
    }

    #[test]
    fn compact_uid_of_uuid_is_unique() {
        let uid = Uid::from_text("11111111-2222-3333-4444-555555555555");
        assert_eq!(uid, Uid(0x1111_1111_2222_3333_4444_5555_5555_5555));
        assert_ne!(uid, Uid::from_text("11111111-2222-3333-4444-555555555556"));
        assert_ne!(Uid::from_text("a"), Uid::from_text("b"));
    }
}

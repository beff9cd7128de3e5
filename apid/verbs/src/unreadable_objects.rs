//! The failures of reads of stored objects that cannot be decrypted or decoded (requirement D-DEL-21).
//!
//! # Reference
//!
//! With the gate AllowUnsafeMalformedObjectDeletion, the failure of a list has the reason `StorageReadError`
//! and one cause for each key. An administrator can then delete the objects. Without the gate, it names the
//! first object. kube-apiserver names no key of an object that cannot be decoded; here each message has the
//! key.

use apimachinery::gvk::GroupResource;
use apimachinery::status::{Cause, Details, Reason, Status};
use kinds::REFERENCE_ROOT;
use serving::gates::Gate;
use storage::{Revision, unreadable_reason};

use crate::{Call, Item};

/// Maximum number of keys in a failure, as in kube-apiserver.
pub const MAX_KEYS: usize = 100;

/// Reason of a cause for one key.
const CAUSE_REASON: &str = "UnexpectedServerResponse";

/// Name in the details of the failure: the name of the operation, as in kube-apiserver.
const DETAILS_NAME: &str = "list";

/// Builds the failure of a list whose objects cannot be read.
#[derive(Clone, Debug, Default)]
pub struct UnreadableObjects {
    /// The listed resource; None without the gate.
    listed: Option<GroupResource>,
}

impl UnreadableObjects {
    /// Reads the gate and the resource of a list.
    pub(crate) fn of_list(call: &Call<'_>) -> Self {
        let listed = names_all_keys(call).then(|| call.collection.kind.internal().group_resource.clone());
        UnreadableObjects { listed }
    }

    /// Returns the failure for objects that cannot be read. It names the first [`MAX_KEYS`] keys, and a last cause says
    /// that there are more.
    pub fn status(&self, items: &[&Item]) -> Status {
        for item in items {
            let (key, reason) = (item.key(), unreadable_reason(item.value()));
            tracing::error!(%key, reason, "stored object cannot be read; the list returns 500");
        }
        let Some(resource) = &self.listed else {
            return Status::internal(items.first().map_or_else(String::new, |item| first_failure(item)));
        };
        let cause = |item: &&Item| {
            let key = [REFERENCE_ROOT, &item.decoder().reference_key(item.key())].concat();
            Cause {
                reason: CAUSE_REASON.to_owned(),
                message: message(&key, &text(item.value(), item.revision())),
                field: key,
            }
        };
        let mut causes: Vec<Cause> = items.iter().take(MAX_KEYS).map(cause).collect();
        if items.len() > MAX_KEYS {
            causes.push(Cause {
                reason: "FieldValueTooMany".to_owned(),
                message: "too many errors, the list is truncated".to_owned(),
                ..Cause::default()
            });
        }
        let details = Details {
            name: DETAILS_NAME.to_owned(),
            group: resource.group.clone(),
            kind: resource.resource.clone(),
            causes,
            ..Details::default()
        };
        let text = format!("failed to read one or more {resource} from the storage");
        Status::failure(Reason::StorageReadError, text).with_details(details)
    }
}

/// Whether the failures name all keys.
fn names_all_keys(call: &Call<'_>) -> bool {
    call.api_state.gates.enabled(Gate::AllowUnsafeMalformedObjectDeletion)
}

/// The message about the first object of a list without the gate.
fn first_failure(item: &Item) -> String {
    let key = item.decoder().reference_key(item.key());
    match unreadable_reason(item.value()) {
        Some(reason) => format!("unable to transform key \"{REFERENCE_ROOT}{key}\": {reason}"),
        None => message(&key, &text(item.value(), item.revision())),
    }
}

/// The text about a stored value. A decoding error stays in the log, because it can quote the object.
fn text(value: &[u8], revision: Revision) -> String {
    match unreadable_reason(value) {
        Some(reason) => transformation_text(reason),
        None => format!("object not decodable revision={revision}"),
    }
}

fn transformation_text(reason: &str) -> String {
    format!("data from the storage is not transformable revision=0: {reason}")
}

/// The message about a key of kube-apiserver.
fn message(key: &str, text: &str) -> String {
    format!(
        "StorageError: corrupt object, Code: 7, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: {text}"
    )
}

/// The message about the stored value of a key of kube-apiserver.
pub(crate) fn value_message(key: &str, value: &[u8], revision: Revision) -> String {
    message(key, &text(value, revision))
}

impl Call<'_> {
    /// The failure of a get or delete of an object that cannot be decrypted; None for any other object.
    pub(crate) fn untransformable(&self, item: &Item) -> Option<Status> {
        let reason = unreadable_reason(item.value())?;
        tracing::error!(key = %item.key(), reason, "stored object cannot be decrypted; returning 500");
        if !names_all_keys(self) {
            return Some(Status::internal(reason));
        }
        let key = item.decoder().reference_key(item.key());
        Some(Status::internal(message(&key, &transformation_text(reason))))
    }

    /// The failure of an update of an object that cannot be decrypted; None for any other value.
    pub(crate) fn untransformable_update(&self, value: &[u8]) -> Option<Status> {
        let reason = unreadable_reason(value)?;
        tracing::error!(key = self.key(), reason, "stored object cannot be decrypted; returning 500");
        let text = if names_all_keys(self) { transformation_text(reason) } else { reason.to_owned() };
        Some(Status::internal(text))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use apimachinery::names::{Names, Preset};
    use bytes::Bytes;
    use kinds::{Registry, entry::Decoder};
    use storage::{Row, unreadable_value};

    use super::*;

    /// An item of the resource Secrets.
    fn item(value: Bytes) -> Arc<Item> {
        let registry = Registry::new(&Names::new(Preset::Kubernetes, "").unwrap());
        let decoder = Arc::new(Decoder::new(registry.find("", "v1", "secrets").unwrap()));
        let row = Row { key: "core/secrets/team/x".into(), value, revision: Revision(7) };
        Item::detached(row, &decoder)
    }

    #[test]
    fn failure_without_the_gate_names_the_first_object() {
        let unreadable = UnreadableObjects::default();
        for (value, expected) in [
            (
                unreadable_value("wrong tag"),
                "unable to transform key \"/registry/secrets/team/x\": wrong tag",
            ),
            (
                Bytes::from("k8s:enc:aesgcm:v1:g1:abcdefgh"),
                "unable to transform key \"/registry/secrets/team/x\": identity transformer tried to read encrypted data",
            ),
            (
                Bytes::from("{"),
                "StorageError: corrupt object, Code: 7, Key: /secrets/team/x, ResourceVersion: 0, AdditionalErrorMsg: \
                 object not decodable revision=7",
            ),
        ] {
            let status = unreadable.status(&[&item(value)]);
            assert_eq!(status.message, format!("Internal error occurred: {expected}"));
        }
    }

    #[test]
    fn keys_beyond_the_limit_are_one_cause() {
        let resource = GroupResource { group: "g".to_owned(), resource: "things".to_owned() };
        let unreadable = UnreadableObjects { listed: Some(resource) };
        for (count, expected, last) in [
            (1, 1, "UnexpectedServerResponse"),
            (MAX_KEYS, MAX_KEYS, "UnexpectedServerResponse"),
            (MAX_KEYS + 1, MAX_KEYS + 1, "FieldValueTooMany"),
            (MAX_KEYS + 2, MAX_KEYS + 1, "FieldValueTooMany"),
        ] {
            let damaged = item(unreadable_value("wrong tag"));
            let status = unreadable.status(&vec![&*damaged; count]);
            assert_eq!(status.message, "failed to read one or more things.g from the storage");
            let causes = status.details.unwrap().causes;
            assert_eq!(causes[0].field, "/registry/secrets/team/x");
            let got = (causes.len(), causes.last().map(|cause| cause.reason.as_str()));
            assert_eq!(got, (expected, Some(last)), "{count}");
        }
    }
}

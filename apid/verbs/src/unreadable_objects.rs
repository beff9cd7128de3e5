//! The failure of a list with stored objects that cannot be decoded (requirement D-DEL-21).
//!
//! # Reference
//!
//! With the gate AllowUnsafeMalformedObjectDeletion, the failure has the reason `StorageReadError` and one cause
//! for each key, so that an administrator can delete the objects. Without the gate, it is the failure of a get of
//! the first object, which names the key in its message.

use apimachinery::gvk::GroupResource;
use apimachinery::status::{Cause, Details, Reason, Status};
use serving::gates::Gate;

use crate::Call;

/// Maximum number of keys in a failure, as in kube-apiserver.
pub const MAX_KEYS: usize = 100;

/// Reason of a cause for one key.
const CAUSE_REASON: &str = "UnexpectedServerResponse";

/// Name in the details of the failure: the name of the operation, as in kube-apiserver.
const DETAILS_NAME: &str = "list";

/// Builds the failure of a list whose objects cannot be decoded.
#[derive(Clone, Debug, Default)]
pub struct UnreadableObjects {
    /// The listed resource; None without the gate.
    listed: Option<GroupResource>,
}

impl UnreadableObjects {
    /// Reads the gate and the resource of a list.
    pub(crate) fn of_list(call: &Call<'_>) -> Self {
        let names_all = call.api_state.gates.enabled(Gate::AllowUnsafeMalformedObjectDeletion);
        let listed = names_all.then(|| call.collection.resource.group_resource.clone());
        UnreadableObjects { listed }
    }

    /// Returns the failure for the keys of objects that cannot be decoded. It names the first [`MAX_KEYS`] keys, and
    /// a last cause says that there are more.
    pub fn status(&self, keys: &[&str]) -> Status {
        for key in keys {
            tracing::error!(key, "stored object cannot be decoded; the list returns 500");
        }
        let Some(resource) = &self.listed else {
            return Status::internal(keys.first().map_or_else(String::new, |key| message(key)));
        };
        let cause = |key: &&str| Cause {
            reason: CAUSE_REASON.to_owned(),
            message: message(key),
            field: (*key).to_owned(),
        };
        let mut causes: Vec<Cause> = keys.iter().take(MAX_KEYS).map(cause).collect();
        if keys.len() > MAX_KEYS {
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

/// The message about one key. The decoding error stays in the log, because it can quote the object.
pub(crate) fn message(key: &str) -> String {
    let text = "object not decodable";
    format!(
        "StorageError: corrupt object, Code: 7, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: {text}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let status = unreadable.status(&vec!["g/things/a/x"; count]);
            assert_eq!(status.message, "failed to read one or more things.g from the storage");
            let causes = status.details.unwrap().causes;
            let got = (causes.len(), causes.last().map(|cause| cause.reason.as_str()));
            assert_eq!(got, (expected, Some(last)), "{count}");
        }
    }
}

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

/// Builds the failure of a list whose objects cannot be decoded.
#[derive(Clone, Debug, Default)]
pub struct UnreadableObjects {
    /// The listed resource and the key prefix of the list; None without the gate.
    listed: Option<(GroupResource, String)>,
}

impl UnreadableObjects {
    /// Reads the gate and the scope of a list.
    pub(crate) fn of_list(call: &Call<'_>) -> Self {
        let names_all = call.api_state.gates.enabled(Gate::AllowUnsafeMalformedObjectDeletion);
        let listed = names_all.then(|| (call.collection.resource.group_resource.clone(), call.scope()));
        UnreadableObjects { listed }
    }

    /// Returns the failure for the keys of objects that cannot be decoded, at most [`MAX_KEYS`].
    pub fn status(&self, keys: &[&str]) -> Status {
        for key in keys {
            tracing::error!(key, "stored object cannot be decoded; the list returns 500");
        }
        let Some((resource, prefix)) = &self.listed else {
            return Status::internal(keys.first().map_or_else(String::new, |key| message(key)));
        };
        let messages: Vec<String> = keys.iter().map(|key| message(key)).collect();
        let cause = |(key, message): (&&str, &String)| Cause {
            reason: CAUSE_REASON.to_owned(),
            message: message.clone(),
            field: (*key).to_owned(),
        };
        let details = Details {
            name: prefix.clone(),
            group: resource.group.clone(),
            kind: resource.resource.clone(),
            causes: keys.iter().zip(&messages).map(cause).collect(),
            ..Details::default()
        };
        let text = format!(
            "failed to read one or more {resource} from the storage: unable to transform or decode {} objects: \
             {{\n\t{}\n}}",
            keys.len(),
            messages.join("\n\t")
        );
        Status::failure(Reason::StorageReadError, text).with_details(details)
    }
}

/// The message about one key. The decoding error stays in the log, because it can quote the object.
pub(crate) fn message(key: &str) -> String {
    format!("StorageError: corrupt object, Key: {key}, AdditionalErrorMsg: object not decodable")
}

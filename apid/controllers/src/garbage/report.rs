//! Warning events for owner references that cannot be resolved.

use std::collections::VecDeque;

use apimachinery::object::Object;
use apimachinery::status::Reason;
use apimachinery::time;
use serde_json::{Value, json};

use super::ownership_data::{Owner, OwnershipData, Uid};
use super::{Collector, Subject};
use crate::actor::Target;
use crate::stored;

/// Component name in the events.
const COMPONENT: &str = "garbage-collector-controller";
/// The namespace of events about cluster-scoped objects.
const DEFAULT_NAMESPACE: &str = "default";
/// Maximum number of references in [`ReportedReferences`].
const REPORTED_MAX: usize = 1024;

/// Uids of dependent and owner of the recently reported references, oldest first.
#[derive(Debug, Default)]
pub(super) struct ReportedReferences(VecDeque<(Uid, Uid)>);

impl ReportedReferences {
    /// Records that a reference is reported. Returns false if the same reference was reported recently.
    fn insert(&mut self, dependent: Uid, owner: Uid) -> bool {
        if self.0.contains(&(dependent, owner)) {
            return false;
        }
        if self.0.len() == REPORTED_MAX {
            self.0.pop_front();
        }
        self.0.push_back((dependent, owner));
        true
    }
}

impl Collector {
    /// Creates a warning event for an owner reference, if none was created recently. A failure is only
    /// logged.
    pub(super) async fn report(&self, dependent: &Subject<'_>, ownership: &OwnershipData, owner: &Owner) {
        let is_new = self.reported.lock().insert(Uid::from_text(&ownership.uid), Uid::from_text(&owner.uid));
        let Some(collection) = stored::core(self.api_state(), "events").ok().filter(|_| is_new) else {
            return;
        };
        let namespace = match dependent.namespace {
            "" => DEFAULT_NAMESPACE,
            namespace => namespace,
        };
        let event = self.event(dependent, ownership, owner, namespace);
        let target = Target { collection: &collection, namespace, name: "", subresource: "" };
        match self.actor.create(target, event).await {
            // `Forbidden` and `NotFound` mean that the namespace is being deleted or does not exist.
            Err(status) if !matches!(status.reason, Reason::Forbidden | Reason::NotFound) => {
                tracing::warn!(reason = %status, "creating the event for an invalid owner reference failed");
            }
            _ => {}
        }
    }

    fn event(
        &self,
        dependent: &Subject<'_>,
        ownership: &OwnershipData,
        owner: &Owner,
        namespace: &str,
    ) -> Object {
        let resource = dependent.collection.kind.internal();
        let now = time::time(self.api_state().clock.now());
        let suffix = self.api_state().rng.name_suffix();
        let dependent_namespace = dependent.namespace;
        let reference = format!(
            "[{}/{}, namespace: {dependent_namespace}, name: {}, uid: {}]",
            owner.api_version, owner.kind, owner.name, owner.uid
        );
        let mut involved = json!({
            "apiVersion": resource.api_version(),
            "kind": resource.name(),
            "name": dependent.name,
            "uid": ownership.uid,
        });
        if !dependent_namespace.is_empty()
            && let Value::Object(involved) = &mut involved
        {
            involved.insert("namespace".to_owned(), dependent_namespace.into());
        }
        let message = format!("ownerRef {reference} does not exist in namespace \"{dependent_namespace}\"");
        let event = json!({
            "metadata": {"name": format!("{}.{suffix}", dependent.name), "namespace": namespace},
            "involvedObject": involved,
            "type": "Warning",
            "reason": "OwnerRefInvalidNamespace",
            "message": message,
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        });
        Object::from_value(event).unwrap_or_default()
    }
}

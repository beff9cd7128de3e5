//! Service account controller: creates and restores the service account `default` of every namespace.

use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::status::{Reason, Status};

use super::actor::{Actor, Target};
use super::reflector::ObjectEvent;
use super::runner::{Reconcile, Requeue, Runner};
use super::stored;
use verbs::Collection;

use crate::ControllerState;

/// Name of the service account in each namespace.
const DEFAULT: &str = "default";

/// The controller; its keys are names of namespaces.
struct DefaultAccounts {
    actor: Actor,
    namespaces: Arc<Collection>,
    accounts: Arc<Collection>,
}

/// Creates missing service accounts `default` until the process ends.
pub(super) async fn run(state: Arc<ControllerState>) {
    let core = |resource| stored::core(&state.api_state, resource);
    let (Ok(namespaces), Ok(accounts)) = (core("namespaces"), core("serviceaccounts")) else { return };
    let runner = Runner::new(&state, "serviceaccount")
        .watch(&namespaces.items, |event| event.existing_name().filter(|_| !event.entry().is_terminating()))
        .watch(&accounts.items, |event| match event {
            ObjectEvent::Deleted(account) if account.name() == DEFAULT => {
                Some(account.namespace().to_owned())
            }
            _ => None,
        });
    let actor = state.controller("service-account-controller");
    runner.run(Arc::new(DefaultAccounts { actor, namespaces, accounts })).await;
}

impl Reconcile for DefaultAccounts {
    type Key = String;

    async fn reconcile(&self, namespace: &String) -> Result<Requeue, Status> {
        ensure_default_account(&self.actor, &self.namespaces, &self.accounts, namespace).await?;
        Ok(Requeue::No)
    }
}

/// Creates the service account `default` of a namespace if it is missing and the namespace is not
/// terminating.
async fn ensure_default_account(
    actor: &Actor,
    namespaces: &Collection,
    accounts: &Collection,
    namespace: &str,
) -> Result<(), Status> {
    let account = stored::item(accounts, namespace, DEFAULT).await?;
    let namespace_item = stored::item(namespaces, "", namespace).await?;
    let is_namespace_active = match &namespace_item {
        Some(item) => !item.entry().map_err(stored::unavailable)?.is_terminating(),
        None => false,
    };
    if account.is_some() || !is_namespace_active {
        return Ok(());
    }
    let mut object = Object::default();
    object.set_meta("name", DEFAULT);
    object.set_meta("namespace", namespace);
    match actor.create(Target { collection: accounts, namespace, name: "", subresource: "" }, object).await {
        // The other reasons need no retry: another client created the account, or the namespace is
        // terminating.
        Err(status)
            if !matches!(status.reason, Reason::AlreadyExists | Reason::Forbidden | Reason::NotFound) =>
        {
            Err(status)
        }
        _ => Ok(()),
    }
}

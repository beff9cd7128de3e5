//! Service account controller: creates and restores the service account `default` of every namespace.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::object::Object;
use apimachinery::status::{Reason, Status};
use tokio::sync::mpsc;

use super::actor::{Actor, Target};
use super::reflector::{ObjectEvent, reflect};
use super::retries::RetryQueue;
use super::stored;
use verbs::Collection;

use crate::ControllerState;

/// Name of the service account in each namespace.
const DEFAULT: &str = "default";
/// Pause before a failed creation is repeated.
const RETRY: Duration = Duration::from_secs(1);

/// Creates missing service accounts `default` until the process ends.
pub(super) async fn run(state: Arc<ControllerState>) {
    let (Ok(namespaces), Ok(accounts)) =
        (stored::core(&state.api_state, "namespaces"), stored::core(&state.api_state, "serviceaccounts"))
    else {
        return;
    };
    let (namespace_sender, namespace_names) = mpsc::unbounded_channel::<String>();
    let follow_namespaces = {
        let namespace_sender = namespace_sender.clone();
        reflect(namespaces.items.clone(), move |event| {
            if let ObjectEvent::Exists(namespace) = event
                && !namespace.is_terminating()
            {
                let _ = namespace_sender.send(namespace.name().to_owned());
            }
        })
    };
    let follow_accounts = reflect(accounts.items.clone(), move |event| {
        if let ObjectEvent::Deleted(account) = event
            && account.name() == DEFAULT
        {
            let _ = namespace_sender.send(account.namespace().to_owned());
        }
    });
    let actor = state.controller("service-account-controller");
    let create_missing = async {
        let mut queue = RetryQueue::new(namespace_names, RETRY);
        while let Some(namespace) = queue.next().await {
            match ensure_default_account(&actor, &namespaces, &accounts, &namespace).await {
                Ok(()) => queue.forget_failures(&namespace),
                Err(status) => {
                    tracing::warn!(namespace, reason = %status, "creating the default service account failed; retrying");
                    queue.retry(namespace);
                }
            }
        }
    };
    tokio::join!(follow_namespaces, follow_accounts, create_missing);
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

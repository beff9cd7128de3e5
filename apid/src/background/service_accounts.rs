//! Service account controller: creates and restores the service account `default` of every namespace.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::object::Object;
use apimachinery::status::{Reason, Status};
use tokio::sync::mpsc;

use super::actor::{Actor, Target};
use super::reflector::{ObjectEvent, reflect};
use super::stored;
use crate::server_state::{Collection, ServerState};

/// Name of the service account.
const DEFAULT: &str = "default";
/// Pause after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// Follows namespaces and service accounts until the process ends.
pub(super) async fn run(server_state: Arc<ServerState>, own_account: bool) {
    let (Ok(namespaces), Ok(accounts)) =
        (stored::core(&server_state, "namespaces"), stored::core(&server_state, "serviceaccounts"))
    else {
        return;
    };
    let (wanted, mut queue) = mpsc::unbounded_channel::<String>();
    let again = wanted.clone();
    let of_namespaces = {
        let wanted = wanted.clone();
        reflect(namespaces.items.clone(), move |seen| {
            if let ObjectEvent::Exists(namespace) = seen
                && !namespace.is_terminating()
            {
                let _ = wanted.send(namespace.name().to_owned());
            }
        })
    };
    let of_accounts = reflect(accounts.items.clone(), move |seen| {
        if let ObjectEvent::Deleted(account) = seen
            && account.name() == DEFAULT
        {
            let _ = wanted.send(account.namespace().to_owned());
        }
    });
    let actor = Actor::controller(server_state.clone(), "service-account-controller", own_account);
    let make = async {
        while let Some(namespace) = queue.recv().await {
            if let Err(status) = ensure(&actor, &namespaces, &accounts, &namespace).await {
                tracing::warn!(namespace, reason = %status, "creating the default service account failed; retrying");
                let again = again.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(RETRY).await;
                    let _ = again.send(namespace);
                });
            }
        }
    };
    tokio::join!(of_namespaces, of_accounts, make);
}

/// Creates the service account if it is missing and its namespace exists and is not terminating.
async fn ensure(
    actor: &Actor,
    namespaces: &Collection,
    accounts: &Collection,
    namespace: &str,
) -> Result<(), Status> {
    let (account, _) =
        accounts.items.get(&accounts.resource.key(namespace, DEFAULT)).await.map_err(stored::unavailable)?;
    let (home, _) =
        namespaces.items.get(&namespaces.resource.key("", namespace)).await.map_err(stored::unavailable)?;
    let home_stays = match &home {
        Some(item) => !item.entry().map_err(stored::unavailable)?.is_terminating(),
        None => false,
    };
    if account.is_some() || !home_stays {
        return Ok(());
    }
    let mut object = Object::default();
    object.set_meta("name", DEFAULT);
    object.set_meta("namespace", namespace);
    match actor.create(Target { collection: accounts, namespace, name: "", subresource: "" }, object).await {
        // Another client created it meanwhile, or the namespace is terminating.
        Err(status)
            if !matches!(status.reason, Reason::AlreadyExists | Reason::Forbidden | Reason::NotFound) =>
        {
            Err(status)
        }
        _ => Ok(()),
    }
}

//! What the server tells about itself in ConfigMaps, for programs that run beside it.
//!
//! # Contract
//!
//! - [`root_ca`]: the authority with which pods verify this server, in every namespace and in token Secrets, where
//!   `--root-ca-file` names it;
//! - [`authentication`]: whom extension servers may believe, in the system namespace;
//! - [`legacy_tokens`]: since when the use of token Secrets is noted; those that nobody used for a year go.
//!
//! Each is put back when somebody changes or deletes it, and follows its files.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use apimachinery::object::{Map, Object, Value};
use apimachinery::status::{Reason, Status};
use serving::reload::{Snapshot, Watch};
use tokio::sync::mpsc::UnboundedSender;

use super::actor::{Actor, Target};
use super::stored;
use crate::config::Publications;
use crate::plane::{Collection, Plane};

mod authentication;
mod legacy_tokens;
mod root_ca;

/// How often files are looked at.
const EVERY: Duration = Duration::from_secs(1);
/// After a failure.
const RETRY: Duration = Duration::from_secs(1);

/// Starts the publishers, until the process ends.
pub fn publish(plane: &Arc<Plane>, own_accounts: bool, publications: Publications) {
    if let Some(file) = publications.root_ca.clone() {
        tokio::spawn(root_ca::run(Arc::clone(plane), own_accounts, file));
    }
    tokio::spawn(authentication::run(Arc::clone(plane), publications));
    tokio::spawn(legacy_tokens::run(Arc::clone(plane), own_accounts));
}

/// Puts something into a queue when a file has another content, and once at the beginning.
fn when_changed<T: Clone + Send + 'static>(files: Vec<PathBuf>, queue: UnboundedSender<T>, what: T) -> Watch {
    let snapshot = Snapshot::new(files);
    let _ = queue.send(what.clone());
    snapshot.watch(EVERY, move || {
        let _ = queue.send(what.clone());
        true
    })
}

/// Makes a ConfigMap, or gives it these entries; `exactly`: and no others.
async fn put(
    actor: &Actor,
    maps: &Collection,
    (namespace, name): (&str, &str),
    data: Map<String, Value>,
    exactly: bool,
) -> Result<(), Status> {
    let (item, _) = maps.items.get(&maps.resource.key(namespace, name)).await.map_err(stored::unavailable)?;
    let target = |name| Target { collection: maps, namespace, name, subresource: "" };
    let written = match item.as_deref().and_then(stored::object) {
        None => {
            let mut object = Object::default();
            object.set_meta("name", name);
            object.set_meta("namespace", namespace);
            object.set("data", data);
            actor.create(target(""), object).await
        }
        Some(mut object) => {
            let held = object.get("data").and_then(Value::as_object);
            let has = |(key, value): (&String, &Value)| held.is_some_and(|held| held.get(key) == Some(value));
            if data.iter().all(has) && (!exactly || held.is_some_and(|held| held.len() == data.len())) {
                return Ok(());
            }
            if exactly {
                object.set("data", data);
            } else {
                object.part_mut("data").extend(data);
            }
            actor.update(target(name), object).await
        }
    };
    match written {
        // Somebody was faster, its namespace ends, or somebody has made it immutable: then it is theirs until it is deleted.
        Err(status)
            if !matches!(
                status.reason,
                Reason::AlreadyExists | Reason::Forbidden | Reason::NotFound | Reason::Invalid
            ) =>
        {
            Err(status)
        }
        _ => Ok(()),
    }
}

/// The text of a file.
fn text(file: &Path) -> Result<String, Status> {
    std::fs::read_to_string(file)
        .map_err(|error| Status::unavailable(format!("{}: {error}", file.display()), 1))
}

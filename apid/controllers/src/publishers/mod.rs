//! Publishers: ConfigMaps with information about the server for clients and extension servers.
//!
//! # Contract
//!
//! - [`root_ca`]: the CA bundle with which pods verify this server, in every namespace and in token Secrets. It
//!   exists if `--root-ca-file` is set or the CA of the serving certificate is known. `--controllers` enables
//!   both parts separately;
//! - [`authentication`]: the CA bundles that extension API servers trust, in the system namespace;
//! - [`legacy_tokens`]: the day since which the use of token Secrets is tracked; token Secrets without use
//!   for a year are cleaned up.
//!
//! Publishers restore changed or deleted objects, and follow changes of their files.

use std::path::Path;

use apimachinery::object::{Map, Object, Value};
use apimachinery::status::{Reason, Status};

use super::actor::{Actor, Target};
use super::stored;
use verbs::Collection;

pub(super) mod authentication;
pub(super) mod legacy_tokens;
mod published_config;
pub(super) mod root_ca;

pub use published_config::{PublishedConfig, PublishedProxyConfig};

/// Creates a ConfigMap with `data`, or adds `data` to the existing ConfigMap. If `is_exact` is true, the
/// other entries of the existing ConfigMap are removed.
async fn put_config_map(
    actor: &Actor,
    maps: &Collection,
    (namespace, name): (&str, &str),
    data: Map<String, Value>,
    is_exact: bool,
) -> Result<(), Status> {
    let target = |name| Target { collection: maps, namespace, name, subresource: "" };
    let result = match stored::get(maps, namespace, name).await? {
        None => {
            let mut object = Object::default();
            object.set_meta("name", name);
            object.set_meta("namespace", namespace);
            object.set("data", data);
            actor.create(target(""), object).await
        }
        Some(mut object) => {
            let existing = object.get("data").and_then(Value::as_object);
            let is_present = |(key, value): (&String, &Value)| {
                existing.is_some_and(|existing| existing.get(key) == Some(value))
            };
            if data.iter().all(is_present)
                && (!is_exact || existing.is_some_and(|existing| existing.len() == data.len()))
            {
                return Ok(());
            }
            if is_exact {
                object.set("data", data);
            } else {
                object.part_mut("data").extend(data);
            }
            actor.update(target(name), object).await
        }
    };
    match result {
        // The other reasons need no retry: another client created the ConfigMap, the namespace is
        // terminating, or the ConfigMap is immutable.
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

/// Reads a file. An error becomes a 503 with the path, and the caller retries.
fn read_file(file: &Path) -> Result<String, Status> {
    std::fs::read_to_string(file)
        .map_err(|error| Status::unavailable(format!("{}: {error}", file.display()), 1))
}

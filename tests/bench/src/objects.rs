//! Objects of the benchmarks: ConfigMaps of about a kilobyte in their own namespace.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::client::{Error, Target};

/// Namespace of the benchmarks.
const NAMESPACE: &str = "bench-load";

/// Length of the text in each object, in bytes.
const TEXT_BYTES: usize = 1000;

/// Interval between reads of a namespace that is being deleted.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Concurrent writers that fill the namespace.
const CONCURRENT_WRITERS: usize = 32;

/// Returns the path of the collection.
pub fn collection() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/configmaps")
}

/// Builds the request body of an object.
pub fn config_map(name: &str) -> Bytes {
    config_map_with(name, "x")
}

/// Builds the request body of an object whose text begins with `begin`.
pub fn config_map_with(name: &str, begin: &str) -> Bytes {
    let data = json!({"text": format!("{begin:x<TEXT_BYTES$}")});
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
    Bytes::from(object.to_string())
}

/// Creates the namespace, and the objects `item-0` and so on in it.
///
/// # Errors
///
/// The server rejects a request.
pub async fn fill(target: &Target, count: u64) -> Result<(), Error> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    let namespace = Bytes::from(namespace.to_string());
    let (status, body) = target.connect().await?.call(Method::POST, "/api/v1/namespaces", namespace).await?;
    if status != StatusCode::CREATED && status != StatusCode::CONFLICT {
        let message = String::from_utf8_lossy(&body);
        return Err(format!("creating the namespace failed: {status}: {message}").into());
    }
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for _ in 0..CONCURRENT_WRITERS {
        let (target, next) = (target.clone(), next.clone());
        tasks.push(tokio::spawn(async move {
            let mut connection = target.connect().await?;
            let path = collection();
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= count {
                    return Ok::<(), Error>(());
                }
                let object = config_map(&format!("item-{i}"));
                let (status, _) = connection.call(Method::POST, &path, object).await?;
                if status != StatusCode::CREATED && status != StatusCode::CONFLICT {
                    return Err(format!("filling the namespace failed: {status}").into());
                }
            }
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}

/// Deletes the namespace, and waits until the server has deleted its objects.
///
/// # Errors
///
/// The server rejects the deletion.
pub async fn remove(target: &Target) -> Result<(), Error> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}");
    let mut connection = target.connect().await?;
    let (status, _) = connection.call(Method::DELETE, &path, Bytes::new()).await?;
    if !status.is_success() {
        return Err(format!("delete of the namespace: {status}").into());
    }
    while connection.call(Method::GET, &path, Bytes::new()).await?.0 != StatusCode::NOT_FOUND {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Returns the path of a watch that starts after the current revision.
///
/// # Errors
///
/// The list has no resourceVersion.
pub async fn watch_from_now(target: &Target) -> Result<String, Error> {
    let list = collection();
    let path = format!("{list}?limit=1");
    let (_, body) = target.connect().await?.call(Method::GET, &path, Bytes::new()).await?;
    let value: Value = serde_json::from_slice(&body)?;
    let revision = value.pointer("/metadata/resourceVersion").and_then(Value::as_str);
    let revision = revision.ok_or("the list has no resourceVersion")?;
    Ok(format!("{list}?watch=1&resourceVersion={revision}"))
}

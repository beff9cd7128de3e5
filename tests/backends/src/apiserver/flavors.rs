//! The kind Flavor: the verbs of a resource, Table, watch, and an upgrade that returns the bytes it gets.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, UPGRADE};
use http::request::Parts;
use http::{HeaderValue, Method, Response};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use serving::body::Body;

use super::storage::{Event, Storage, WriteError};
use super::{ApiServerOptions, DeleteCollection, accepts, accepts_json, document, failure, parameter};

pub(super) const GROUP: &str = "flavors.example.com";
pub(super) const VERSION: &str = "v1";
const API_VERSION: &str = "flavors.example.com/v1";

/// The annotation that names the user who created a Flavor.
const CREATOR: &str = "flavors.example.com/created-by";

/// Number of events that wait in the channel of a watch.
const WATCH_CAPACITY: usize = 4;

/// Responds to a request; `rest` are the segments after group and version.
pub(super) fn respond(
    options: &ApiServerOptions,
    head: &Parts,
    rest: &[&str],
    body: &Bytes,
    user: &str,
    upgrade: Option<OnUpgrade>,
) -> Response<Body> {
    let storage = &options.storage;
    let (namespace, name, subresource) = match rest {
        ["flavors"] => ("", None, None),
        ["namespaces", namespace, "flavors"] => (*namespace, None, None),
        ["namespaces", namespace, "flavors", name] => (*namespace, Some(*name), None),
        ["namespaces", namespace, "flavors", name, subresource] => {
            (*namespace, Some(*name), Some(*subresource))
        }
        _ => return failure(404, "NotFound", "the server could not find the requested resource"),
    };
    if subresource == Some("taste") {
        return taste(head, upgrade);
    }
    if !accepts_json(head) {
        return failure(
            406,
            "NotAcceptable",
            "only the following media types are accepted: application/json",
        );
    }
    match (head.method.clone(), name) {
        (Method::GET, None) if parameter(head, "watch") == "true" || parameter(head, "watch") == "1" => {
            watch(storage, head, namespace)
        }
        (Method::GET, None) => list(options, head, namespace),
        (Method::GET, Some(name)) => match storage.get(namespace, name) {
            Some(object) if wants_table(head) => document(200, &table(&[object], true, 0)),
            Some(object) => document(200, &object),
            None => not_found(name),
        },
        (Method::POST, None) => create(storage, namespace, body, user),
        (Method::PUT, Some(name)) => {
            with_object(body, |object| written(200, name, storage.update(namespace, name, |_| object)))
        }
        (Method::PATCH, Some(name)) => patch(storage, head, namespace, name, body),
        (Method::DELETE, Some(name)) => match storage.delete(namespace, name) {
            Ok(_) => success(),
            Err(_) => not_found(name),
        },
        (Method::DELETE, None) if options.delete_collection == DeleteCollection::Served => {
            for name in storage.names(namespace) {
                drop(storage.delete(namespace, &name));
            }
            success()
        }
        _ => failure(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        ),
    }
}

fn success() -> Response<Body> {
    document(200, &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}))
}

fn create(storage: &Storage, namespace: &str, body: &Bytes, user: &str) -> Response<Body> {
    with_object(body, |mut object| {
        let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
        if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
            let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
            if let Value::Object(annotations) = annotations {
                annotations.insert(CREATOR.to_owned(), user.into());
            }
        }
        written(201, &name, storage.create(namespace, &name, object))
    })
}

fn patch(storage: &Storage, head: &Parts, namespace: &str, name: &str, body: &Bytes) -> Response<Body> {
    let media_type = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !media_type.starts_with("application/merge-patch+json") {
        let message = "the body of the request was in an unknown format - accepted media types include: \
            application/merge-patch+json";
        return failure(415, "UnsupportedMediaType", message);
    }
    with_object(body, |change| {
        let merged = |current: &Value| {
            let mut next = current.clone();
            merge(&mut next, &change);
            next
        };
        written(200, name, storage.update(namespace, name, merged))
    })
}

/// Applies a merge patch (RFC 7396).
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        patch.clone_into(target);
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let Value::Object(fields) = target else { return };
    for (name, value) in patch {
        match value {
            Value::Null => drop(fields.remove(name)),
            value => merge(fields.entry(name.clone()).or_insert(Value::Null), value),
        }
    }
}

fn with_object(body: &Bytes, run: impl FnOnce(Value) -> Response<Body>) -> Response<Body> {
    match serde_json::from_slice::<Value>(body) {
        Ok(object) if object.is_object() => run(object),
        _ => failure(400, "BadRequest", "the body of the request is no JSON object"),
    }
}

fn written(status: u16, name: &str, result: Result<Value, WriteError>) -> Response<Body> {
    match result {
        Ok(object) => document(status, &object),
        Err(WriteError::Exists) => {
            failure(409, "AlreadyExists", &format!("flavors.{GROUP} {name:?} already exists"))
        }
        Err(WriteError::Conflict) => failure(409, "Conflict", "the object has been modified"),
        Err(WriteError::NotFound) => not_found(name),
    }
}

fn not_found(name: &str) -> Response<Body> {
    failure(404, "NotFound", &format!("flavors.{GROUP} {name:?} not found"))
}

fn wants_table(head: &Parts) -> bool {
    head.headers.contains_key(http::header::ACCEPT) && accepts(head, &["as=Table"])
}

/// Whether an object has the labels of a selector of the form `a=b,c=d`.
pub(super) fn is_selected(object: &Value, selector: &str) -> bool {
    let labels = object.pointer("/metadata/labels");
    selector.split(',').filter(|part| !part.is_empty()).all(|part| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        labels.and_then(|labels| labels.get(name)).and_then(Value::as_str) == Some(value)
    })
}

fn list(options: &ApiServerOptions, head: &Parts, namespace: &str) -> Response<Body> {
    let (mut items, revision) = options.storage.list(namespace);
    if options.max_listed.is_some_and(|max| items.len() > max) {
        return failure(500, "InternalError", "the list is too large");
    }
    let selector = parameter(head, "labelSelector");
    items.retain(|item| is_selected(item, &selector));
    if wants_table(head) {
        return document(200, &table(&items, true, revision));
    }
    let mut metadata = json!({"resourceVersion": revision.to_string()});
    if let Some(page) = options.page {
        // The continue token is the last name of the previous page.
        let name = |item: &Value| {
            item.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let after = parameter(head, "continue");
        items.retain(|item| name(item) > after);
        if items.len() > page {
            items.truncate(page);
            let token = items.last().map(name);
            metadata = json!({"resourceVersion": revision.to_string(), "continue": token});
        }
    }
    let list = json!({"kind": "FlavorList", "apiVersion": API_VERSION, "metadata": metadata, "items": items});
    document(200, &list)
}

/// Returns a Table of objects.
fn table(objects: &[Value], with_columns: bool, revision: u64) -> Value {
    let column =
        |name: &str| json!({"name": name, "type": "string", "format": "", "description": "", "priority": 0});
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let metadata = object.get("metadata").cloned().unwrap_or_default();
            let name = metadata.get("name").cloned().unwrap_or_default();
            let taste = object.pointer("/spec/taste").cloned().unwrap_or_default();
            json!({"cells": [name, taste],
                "object": {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}})
        })
        .collect();
    let columns = if with_columns { json!([column("Name"), column("Taste")]) } else { json!([]) };
    json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": revision.to_string()},
        "columnDefinitions": columns, "rows": rows})
}

/// Returns a watch: without a `resourceVersion` it begins with the existing objects.
fn watch(storage: &Arc<Storage>, head: &Parts, namespace: &str) -> Response<Body> {
    let (sender, body) = serving::body::channel(WATCH_CAPACITY);
    let as_table = wants_table(head);
    let (selector, namespace, storage) =
        (parameter(head, "labelSelector"), namespace.to_owned(), Arc::clone(storage));
    let first = parameter(head, "resourceVersion").parse::<u64>().ok().filter(|revision| *revision > 0);
    let seconds = parameter(head, "timeoutSeconds").parse::<u64>().unwrap_or(3_600);
    let send_events = async move {
        let mut revisions = storage.revisions();
        let (mut pending, mut sent) = match first {
            Some(revision) => (Vec::new(), revision),
            None => {
                let (items, revision) = storage.list(&namespace);
                let added = |object| Event { revision, kind: "ADDED", object };
                (items.into_iter().map(added).collect(), revision)
            }
        };
        loop {
            revisions.mark_unchanged();
            for event in storage.changes(sent) {
                sent = event.revision;
                pending.push(event);
            }
            for Event { kind, object, .. } in pending.drain(..) {
                let is_in_namespace = namespace.is_empty()
                    || object.pointer("/metadata/namespace").and_then(Value::as_str) == Some(&namespace);
                if !is_in_namespace || !is_selected(&object, &selector) {
                    continue;
                }
                let object = if as_table { table(&[object], true, sent) } else { object };
                let line = format!("{}\n", json!({"type": kind, "object": object}));
                if sender.send(line.into()).await.is_err() {
                    return;
                }
            }
            tokio::select! {
                changed = revisions.changed() => if changed.is_err() { return },
                () = sender.closed() => return,
            }
        }
    };
    tokio::spawn(tokio::time::timeout(Duration::from_secs(seconds), send_events));
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Switches protocols: the bytes of the client come back until the client ends its side.
fn taste(head: &Parts, upgrade: Option<OnUpgrade>) -> Response<Body> {
    let Some(upgrade) = upgrade else {
        return failure(400, "BadRequest", "the request needs an upgrade");
    };
    tokio::spawn(async move {
        let Ok(stream) = upgrade.await else { return };
        let (mut reader, mut writer) = tokio::io::split(TokioIo::new(stream));
        drop(tokio::io::copy(&mut reader, &mut writer).await);
        drop(tokio::io::AsyncWriteExt::shutdown(&mut writer).await);
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = http::StatusCode::SWITCHING_PROTOCOLS;
    let protocol = head.headers.get(UPGRADE).cloned().unwrap_or_else(|| HeaderValue::from_static("taste"));
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    response.headers_mut().insert(UPGRADE, protocol);
    response
}

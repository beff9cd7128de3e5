//! Requests of controllers to the servers of APIServices.
//!
//! # Contract
//!
//! A controller reaches the objects of another server as any client does: over the connections to the server, with its
//! own user in `X-Remote-*`. The server decides about the request. A failure is the Status of the server, or the
//! Status that clients of Kubernetes see for a response without one.

use std::time::Duration;

use apimachinery::codec::json;
use apimachinery::status::{Reason, Status};
use apimachinery::user::UserInfo;
use bytes::Bytes;
use forwarding::Target;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method};
use serde_json::Value;
use serving::body::Body;

use crate::backend::MAX_DOCUMENT_BYTES;
use crate::documents::{LIMITS, decode};
use crate::{RemoteApi, RemoteResource};

/// Maximum time of a request of a controller. A server that is slower is asked again.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Number of objects of one page of a list.
const PAGE: usize = 500;
/// Maximum number of pages of a list. A server whose list has more pages, for example empty ones, may never end it.
const MAX_PAGES: usize = 1_000;

/// The metadata of an object, without the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectMetadata {
    /// The name.
    pub name: String,
    /// The UID.
    pub uid: String,
    /// The finalizers.
    pub finalizers: Vec<String>,
    /// Whether the object has a deletion timestamp.
    pub is_terminating: bool,
}

impl ObjectMetadata {
    fn read(object: &Value) -> Self {
        let metadata = object.get("metadata");
        let field = |name: &str| metadata.and_then(|metadata| metadata.get(name));
        let text = |name: &str| field(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let finalizers = field("finalizers").and_then(Value::as_array).into_iter().flatten();
        ObjectMetadata {
            name: text("name"),
            uid: text("uid"),
            finalizers: finalizers.filter_map(Value::as_str).map(str::to_owned).collect(),
            is_terminating: field("deletionTimestamp").is_some_and(Value::is_string),
        }
    }
}

impl RemoteResource {
    /// Returns the metadata of an object; None if the server says that the object does not exist.
    ///
    /// # Errors
    ///
    /// The server cannot be reached, or its answer says neither. A 404 without a Status is an error: a server without
    /// the path gives the same.
    pub async fn get(
        &self,
        user: &UserInfo,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ObjectMetadata>, Status> {
        let path = self.path(namespace, name);
        let accept = self.metadata_form("PartialObjectMetadata");
        let answer = self.exchange(Method::GET, &path, user, &accept, None).await?;
        if answer.code == 404 && answer.has_reason("NotFound").await {
            return Ok(None);
        }
        let text = answer.success(&self.request_text("get", name))?;
        let found = decode(text, read_object).await.map_err(Status::internal)?;
        match found.filter(|found| found.name == name) {
            Some(found) => Ok(Some(found)),
            // Another document, for example of a proxy, does not say that the object is another one.
            None => Err(Status::internal(format!("the response to GET {path} is not the object"))),
        }
    }

    /// Returns the metadata of the objects of a namespace, page by page, and at most `max` of them.
    ///
    /// # Errors
    ///
    /// The server cannot be reached, or rejects the request.
    pub async fn list(
        &self,
        user: &UserInfo,
        namespace: &str,
        max: usize,
    ) -> Result<Vec<ObjectMetadata>, Status> {
        let path = self.path(namespace, "");
        let accept = self.metadata_form("PartialObjectMetadataList");
        let mut objects = Vec::new();
        let mut next = String::new();
        for _ in 0..MAX_PAGES {
            let page = match next.as_str() {
                "" => format!("{path}?limit={PAGE}"),
                token => format!(
                    "{path}?continue={}&limit={PAGE}",
                    forwarding::url_path::encode_query_value(token)
                ),
            };
            let answer = self.exchange(Method::GET, &page, user, &accept, None).await?;
            let text = answer.success(&self.request_text("get", ""))?;
            let read = decode(text, read_page).await.map_err(Status::internal)?;
            let no_list = || Status::internal(format!("the response to GET {path} is no list"));
            let (items, token) = read.ok_or_else(no_list)?;
            objects.extend(items);
            objects.truncate(max);
            if token.is_empty() || objects.len() == max {
                return Ok(objects);
            }
            next = token;
        }
        Err(Status::internal(format!("the list of GET {path} does not end within {MAX_PAGES} pages")))
    }

    /// Deletes an object, or all objects of a namespace if `name` is `""`. `options`: `DeleteOptions` in JSON.
    ///
    /// # Errors
    ///
    /// The server cannot be reached, or rejects the request.
    pub async fn delete(
        &self,
        user: &UserInfo,
        namespace: &str,
        name: &str,
        options: Bytes,
    ) -> Result<(), Status> {
        let path = self.path(namespace, name);
        let answer = self.exchange(Method::DELETE, &path, user, "application/json", Some(options)).await?;
        answer.success(&self.request_text("delete", name)).map(drop)
    }

    /// Returns the header `Accept` for objects or lists without their content.
    fn metadata_form(&self, kind: &str) -> String {
        let group = self.api.backend.names().meta_group();
        format!("application/json;as={kind};g={group};v=v1,application/json")
    }

    /// Names a request as client-go does.
    fn request_text(&self, method: &str, name: &str) -> String {
        let resource = self.group_resource();
        if name.is_empty() { format!("{method} {resource}") } else { format!("{method} {resource} {name}") }
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        user: &UserInfo,
        accept: &str,
        body: Option<Bytes>,
    ) -> Result<Answer, Status> {
        let request_text = self.request_text(&method.as_str().to_lowercase(), "");
        let unavailable = |cause: &dyn std::fmt::Display| {
            let status = Status::of_response(503, &request_text, "");
            Status { message: format!("{}: {cause}", status.message), ..status }
        };
        let api: &RemoteApi = &self.api;
        let transport = api.backend.transport().map_err(|error| unavailable(&error))?;
        let target: Target = api.backend.target().await.map_err(|error| unavailable(&error))?;
        let mut request =
            api.backend.own_request(path, user, Some(accept), None).map_err(Status::internal)?;
        *request.method_mut() = method;
        if let Some(body) = body {
            request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            *request.body_mut() = Body::from(body);
        }
        let exchange = async {
            let response = transport.send(&target, request).await.map_err(|error| error.to_string())?;
            let (head, mut body) = response.into_parts();
            let text = serving::body::collect(&mut body, MAX_DOCUMENT_BYTES).await;
            Ok(Answer { code: head.status.as_u16(), text: text.map_err(|error| error.to_string())? })
        };
        let timeout = |_elapsed| Err("the server did not answer in time".to_owned());
        let answer = tokio::time::timeout(REQUEST_TIMEOUT, exchange).await.unwrap_or_else(timeout);
        answer.map_err(|cause: String| unavailable(&cause))
    }
}

/// Returns the metadata of an object; None if the value is no object.
fn read_object(object: &Value) -> Option<ObjectMetadata> {
    object.get("kind").and_then(Value::as_str)?;
    Some(ObjectMetadata::read(object))
}

/// Returns the objects of a page of a list and the token of the next page, which is empty at the end. None if the value
/// is no list: an unexpected document must not count as an empty list.
fn read_page(list: &Value) -> Option<(Vec<ObjectMetadata>, String)> {
    let items = match list.get("items") {
        Some(Value::Array(items)) => items.iter().map(ObjectMetadata::read).collect(),
        // Some servers send null for no objects.
        None | Some(Value::Null) if list.get("kind")?.as_str()?.ends_with("List") => Vec::new(),
        _ => return None,
    };
    let token = list.pointer("/metadata/continue").and_then(Value::as_str).unwrap_or_default();
    Some((items, token.to_owned()))
}

/// A response of a server.
struct Answer {
    code: u16,
    text: Bytes,
}

impl Answer {
    /// Whether the response is a Status with a reason.
    async fn has_reason(&self, reason: &'static str) -> bool {
        let read = move |status: &Value| {
            status.get("kind").and_then(Value::as_str) == Some("Status")
                && status.get("reason").and_then(Value::as_str) == Some(reason)
        };
        decode(self.text.clone(), read).await.unwrap_or(false)
    }

    /// Returns the body of a successful response.
    ///
    /// # Errors
    ///
    /// The failure of another one. `request` names the request.
    fn success(self, request: &str) -> Result<Bytes, Status> {
        if (200..300).contains(&self.code) {
            return Ok(self.text);
        }
        Err(failure(self.code, &self.text, request))
    }
}

/// Returns the failure of a response: its Status, if its body is one.
fn failure(code: u16, body: &[u8], request: &str) -> Status {
    let text = String::from_utf8_lossy(body);
    let generic = Status::of_response(code, request, &text);
    let Ok(decoded) = json::decode(body, LIMITS) else { return generic };
    let field = |name: &str| decoded.value.get(name).and_then(Value::as_str).unwrap_or_default();
    let message = field("message");
    if field("kind") != "Status" || message.is_empty() {
        return generic;
    }
    let status = Status::failure(generic.reason, message);
    Status { code, remote_reason: field("reason").to_owned(), ..status }
}

/// Whether a failure says that the server does not have the verb for the resource. A 404 without a Status does not: any
/// other server at the address gives the same.
pub fn is_unsupported(status: &Status) -> bool {
    match status.reason {
        Reason::MethodNotAllowed => true,
        Reason::NotFound => !status.remote_reason.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn failure_is_the_status_of_the_server_or_that_of_client_go() {
        let status = json!({"kind": "Status", "reason": "Forbidden", "message": "no entry"}).to_string();
        for (code, body, message) in [
            (403, status.as_str(), "no entry"),
            (403, "go away\n", "go away (delete flavors.e.com)"),
            (503, "x", "the server is currently unable to handle the request (delete flavors.e.com)"),
            (
                500,
                "{\"kind\": \"Status\"}",
                "an error on the server (\"{\\\"kind\\\": \\\"Status\\\"}\") has prevented the request from succeeding \
                 (delete flavors.e.com)",
            ),
            (
                418,
                "",
                "the server responded with the status code 418 but did not return more information (delete \
                 flavors.e.com)",
            ),
        ] {
            let failed = failure(code, body.as_bytes(), "delete flavors.e.com");
            assert_eq!((failed.code, failed.message.as_str()), (code, message));
        }
        let unsupported =
            |code, body: &str| is_unsupported(&failure(code, body.as_bytes(), "delete flavors.e.com"));
        let not_found =
            json!({"kind": "Status", "reason": "NotFound", "message": "no such path"}).to_string();
        assert!(unsupported(404, &not_found) && unsupported(405, ""));
        assert!(!unsupported(404, "404 page not found") && !unsupported(503, "") && !unsupported(403, ""));
    }

    #[test]
    fn only_a_list_without_items_is_empty() {
        let names = |list: Value| {
            let (items, token) = read_page(&list)?;
            Some((items.into_iter().map(|item| item.name).collect::<Vec<_>>(), token))
        };
        let page = json!({"kind": "FlavorList", "metadata": {"continue": "t"}, "items": [{"metadata": {"name": "a"}}]});
        assert_eq!(names(page), Some((vec!["a".to_owned()], "t".to_owned())));
        for empty in [
            json!({"kind": "FlavorList", "items": null}),
            json!({"kind": "FlavorList"}),
            json!({"items": []}),
        ] {
            assert_eq!(names(empty), Some((Vec::new(), String::new())));
        }
        for other in
            [json!({}), json!({"kind": "Status"}), json!([]), json!({"kind": "FlavorList", "items": {}})]
        {
            assert_eq!(names(other.clone()), None, "{other}");
        }
    }

    #[test]
    fn metadata_of_an_object_is_read_and_missing_fields_are_empty() {
        let object = json!({"metadata": {"name": "a", "uid": "u", "finalizers": ["f"],
            "deletionTimestamp": "2026-01-01T00:00:00Z"}});
        let expected = ObjectMetadata {
            name: "a".to_owned(),
            uid: "u".to_owned(),
            finalizers: vec!["f".to_owned()],
            is_terminating: true,
        };
        assert_eq!(ObjectMetadata::read(&object), expected);
        assert_eq!(read_object(&object), None, "a value without kind is no object");
        assert_eq!(
            ObjectMetadata::read(&json!({"metadata": {"deletionTimestamp": null}})),
            ObjectMetadata::default()
        );
    }
}

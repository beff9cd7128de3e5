//! Requests of controllers to the servers of APIServices.
//!
//! # Contract
//!
//! A controller reaches the objects of another server as any client does: over the connections to the server, with its
//! own user in `X-Remote-*`. The server decides about the request. A failure is the Status of the server, or the
//! Status that clients of Kubernetes see for a response without one.

use std::time::Duration;

use apimachinery::status::{Reason, Status};
use apimachinery::user::UserInfo;
use bytes::Bytes;
use forwarding::Target;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method};
use serde_json::Value;
use serving::body::Body;

use crate::backend::MAX_DOCUMENT_BYTES;
use crate::documents::decode;
use crate::{RemoteApi, RemoteResource};

/// Maximum time of a request of a controller.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Number of objects of one page of a list.
const PAGE: usize = 500;
/// Maximum number of pages of a list. A faulty server may return empty pages without end.
const MAX_PAGES: usize = 1_000;
/// Maximum length in bytes of a text of a server in a failure, as in client-go. The text becomes part of conditions.
const MAX_FAILURE_TEXT: usize = 2_048;

/// The metadata of an object that controllers read.
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
    /// The server cannot be reached, or its response proves neither. A 404 without a Status is an error, because a
    /// server without the path responds in the same way.
    pub async fn get(
        &self,
        user: &UserInfo,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ObjectMetadata>, Status> {
        let path = self.path(namespace, name);
        let accept = self.metadata_form("PartialObjectMetadata");
        let answer = self.exchange(Method::GET, &path, user, &accept, None).await?;
        let text = match answer.success(&self.request_text("get", name)).await {
            Err(status) if status.code == 404 && status.remote_reason == "NotFound" => return Ok(None),
            answered => answered?,
        };
        let found = decode(text, read_object).await.map_err(Status::internal)?;
        match found.filter(|found| found.name == name) {
            Some(found) => Ok(Some(found)),
            // The response may come from a proxy, and does not prove that the object is absent.
            None => Err(Status::internal(format!("the response to GET {path} is not the object"))),
        }
    }

    /// Returns the metadata of at most `max` objects of a namespace.
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
            let text = answer.success(&self.request_text("get", "")).await?;
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
        answer.success(&self.request_text("delete", name)).await.map(drop)
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

/// Returns the metadata of an object. Returns None if the value is not an object of a kind.
fn read_object(object: &Value) -> Option<ObjectMetadata> {
    object.get("kind").and_then(Value::as_str)?;
    Some(ObjectMetadata::read(object))
}

/// Returns the objects of a page of a list and the token of the next page, which is empty at the end.
///
/// Returns None if the value is not a list, because an unexpected document must not count as an empty list.
fn read_page(list: &Value) -> Option<(Vec<ObjectMetadata>, String)> {
    let items = match list.get("items") {
        Some(Value::Array(items)) => items.iter().map(ObjectMetadata::read).collect(),
        // Some servers send null instead of an empty list.
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
    /// Returns the body of a successful response.
    ///
    /// # Errors
    ///
    /// The response is not successful. `request` names the request in the Status.
    async fn success(self, request: &str) -> Result<Bytes, Status> {
        if (200..300).contains(&self.code) {
            return Ok(self.text);
        }
        Err(failure(self.code, self.text, request).await)
    }
}

/// Returns the failure of a response: its Status, or the Status of client-go for a body without one.
async fn failure(code: u16, body: Bytes, request: &str) -> Status {
    let text = String::from_utf8_lossy(body.get(..MAX_FAILURE_TEXT).unwrap_or(&body)).into_owned();
    let status = Status::of_response(code, request, &text);
    let Ok(Some((message, remote_reason))) = decode(body, read_status).await else { return status };
    let message = if message.is_empty() { status.message } else { message };
    Status { message, remote_reason, ..status }
}

/// Returns the message and the reason of a Status, each of at most [`MAX_FAILURE_TEXT`] bytes.
fn read_status(value: &Value) -> Option<(String, String)> {
    let field = |name: &str| {
        let text = value.get(name).and_then(Value::as_str).unwrap_or_default();
        text.get(..text.floor_char_boundary(MAX_FAILURE_TEXT)).unwrap_or_default().to_owned()
    };
    (field("kind") == "Status").then(|| (field("message"), field("reason")))
}

/// Whether the server does not serve the verb for the resource. A 404 without a Status does not count, because any other
/// server at the address responds in the same way.
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

    #[tokio::test]
    async fn failure_is_the_status_of_the_server_or_that_of_client_go() {
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
            let failed = failure(code, Bytes::from(body.to_owned()), "delete flavors.e.com").await;
            assert_eq!((failed.code, failed.message.as_str()), (code, message));
        }
        let not_found =
            json!({"kind": "Status", "reason": "NotFound", "message": "no such path"}).to_string();
        for (code, body, expected) in [
            (404, not_found.as_str(), true),
            (404, "{\"kind\": \"Status\", \"reason\": \"NotFound\"}", true),
            (405, "", true),
            (404, "404 page not found", false),
            (503, "", false),
            (403, "", false),
        ] {
            let failed = failure(code, Bytes::from(body.to_owned()), "delete flavors.e.com").await;
            assert_eq!(is_unsupported(&failed), expected, "{code} {body}");
        }
    }

    #[tokio::test]
    async fn failure_has_a_bounded_text() {
        let long = "é".repeat(MAX_FAILURE_TEXT);
        let status = json!({"kind": "Status", "reason": long, "message": long}).to_string();
        for (code, body) in [(403, long), (403, status.clone()), (500, status)] {
            let failed = failure(code, Bytes::from(body), "delete flavors.e.com").await;
            assert!((1..2 * MAX_FAILURE_TEXT).contains(&failed.message.len()), "{}", failed.message.len());
            assert!(failed.message.contains('é') && failed.remote_reason.len() <= MAX_FAILURE_TEXT);
        }
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

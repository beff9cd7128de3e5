//! Options and admission of subresources that connect to nodes, pods and Services: log, exec, attach, portforward, proxy.

use admission::Operation;
use apimachinery::object::{Object, Value};

use apimachinery::status::Status;
use jiff::Timestamp;

use super::Call;
use super::response_object::tree;

/// The names of the streams and the terminal of exec and attach.
pub const STREAMS: [&str; 4] = ["stdin", "stdout", "stderr", "tty"];

/// Query parameters of requests for logs and of requests to containers, and the path of a proxy request.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// The streams and the terminal of exec and attach that the client requests: `stdin`, `stdout`, `stderr`,
    /// `tty`.
    pub streams: Vec<&'static str>,
    /// The command of an exec.
    pub command: Vec<String>,
    /// The ports of a port-forward.
    pub ports: Vec<i32>,
    /// The decoded and cleaned path after `proxy`, with a leading slash; `""` if there is none.
    pub path: String,
    /// Name of the container; `""` for the default or only container of the pod.
    pub container: String,
    /// Number of lines from the end of the log; None means all.
    pub tail_lines: Option<i64>,
    /// Maximum size of the log in bytes.
    pub limit_bytes: Option<i64>,
    /// Maximum age of the returned log lines in seconds.
    pub since_seconds: Option<i64>,
    /// Minimum time of the returned log lines.
    pub since_time: Option<Timestamp>,
    /// Whether the request selects one output stream of the log, which needs a feature that is off by default.
    pub has_stream: bool,
    /// Whether the response goes on with later lines of the log.
    pub follow: bool,
    /// Whether the log is the one of the container before its restart.
    pub previous: bool,
    /// Whether each line of the log begins with its time.
    pub timestamps: bool,
    /// Whether the certificate of the node of a log is not verified.
    pub insecure_skip_tls_verify_backend: bool,
}

/// Runs admission for a connection. Returns the options, which admission may change.
pub(super) async fn admitted_options(
    call: &Call<'_>,
    options: &ConnectOptions,
) -> Result<ConnectOptions, Status> {
    let subresource = call.collection.kind.subresource(call.subresource);
    let Some(subresource) = subresource else { return Ok(options.clone()) };
    let mut object = options.to_object(subresource.kind);
    let build_options = || Value::Null;
    let attributes = call.admission(Operation::Connect, false, &build_options);
    call.api_state.admission.mutate(&attributes, Some(&mut object)).await?;
    call.api_state.admission.validate(&attributes, Some(&object)).await?;
    Ok(options.with_object(subresource.kind, &object))
}

impl ConnectOptions {
    /// The options as an object of a kind such as `PodExecOptions`, for admission.
    fn to_object(&self, kind: &str) -> Object {
        let mut object = Object::default();
        object.set_type("v1", kind);
        let mut add = |field: &str, value: Value| drop(object.0.insert(field.to_owned(), value));
        if matches!(kind, "PodExecOptions" | "PodAttachOptions") {
            self.streams.iter().for_each(|stream| add(stream, true.into()));
            if !self.container.is_empty() {
                add("container", self.container.as_str().into());
            }
        }
        match kind {
            "PodExecOptions" if self.command.is_empty() => add("command", Value::Null),
            "PodExecOptions" => add("command", self.command.clone().into()),
            "PodPortForwardOptions" if !self.ports.is_empty() => add("ports", self.ports.clone().into()),
            "PodProxyOptions" | "ServiceProxyOptions" | "NodeProxyOptions" if !self.path.is_empty() => {
                add("path", self.path.as_str().into());
            }
            _ => {}
        }
        object
    }

    /// Returns the options after admission, which may have changed their object.
    fn with_object(&self, kind: &str, object: &Object) -> Self {
        let mut options = self.clone();
        let texts = |field: &str| {
            let values = object.get(field).and_then(Value::as_array).into_iter().flatten();
            values.filter_map(|value| Some(value.as_str()?.to_owned())).collect()
        };
        match kind {
            "PodExecOptions" | "PodAttachOptions" => {
                let is_on = |stream: &&str| object.get(stream).and_then(Value::as_bool) == Some(true);
                options.streams = STREAMS.into_iter().filter(is_on).collect();
                options.container =
                    object.get("container").and_then(Value::as_str).unwrap_or_default().to_owned();
                options.command = texts("command");
            }
            "PodPortForwardOptions" => {
                let ports = object.get("ports").and_then(Value::as_array).into_iter().flatten();
                let port = |value: &Value| i32::try_from(value.as_i64()?).ok();
                options.ports = ports.filter_map(port).collect();
            }
            "PodProxyOptions" | "ServiceProxyOptions" | "NodeProxyOptions" => {
                options.path = object.get("path").and_then(Value::as_str).unwrap_or_default().to_owned();
            }
            _ => {}
        }
        options
    }
}

/// Returns the object of a call, or 404.
pub(super) async fn find_object(call: &Call<'_>) -> Result<Object, Status> {
    let item = Call { subresource: "", ..*call }.get_or_404().await?;
    tree(&item, item.revision())
}

/// Returns an object of another kind of the core group, or 404.
pub(super) async fn find_core_object(
    call: &Call<'_>,
    kind: &str,
    namespace: &str,
    name: &str,
) -> Result<Object, Status> {
    let collection = call.collection_of("", kind).ok_or_else(Status::unknown_resource)?;
    find_object(&Call { collection, namespace, name, ..*call }).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admission_sees_and_changes_the_path_of_a_proxy() {
        for kind in ["PodProxyOptions", "ServiceProxyOptions", "NodeProxyOptions"] {
            let options = ConnectOptions { path: "/a b".to_owned(), ..ConnectOptions::default() };
            let mut object = options.to_object(kind);
            assert_eq!(object.get("path").and_then(Value::as_str), Some("/a b"), "{kind}");
            assert_eq!(options.with_object(kind, &object).path, "/a b", "{kind}");
            object.0.insert("path".to_owned(), "/c".into());
            assert_eq!(options.with_object(kind, &object).path, "/c", "{kind}");
            object.0.remove("path");
            assert_eq!(options.with_object(kind, &object).path, "", "{kind}");
        }
    }
}

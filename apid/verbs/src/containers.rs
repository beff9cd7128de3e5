//! Requests to containers of pods, which the node of the pod answers: log, exec, attach and portforward.
//!
//! # Contract
//!
//! [`node_request`] checks a request as kube-apiserver does before it connects, in the same order: admission with the
//! operation `CONNECT`, options, pod, container, node. A request for a log is a read without admission. The result says
//! where the kubelet of the node is and what to ask it; the caller connects.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::gvk::GroupKind;
use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use apimachinery::time;
use forwarding::Target;

use super::Call;
use super::connect::{ConnectOptions, admitted_options, find_core_object, find_object};
use crate::VerbFuture;

/// A request to the kubelet of a node.
#[derive(Clone, Debug)]
pub struct NodeRequest {
    /// The kubelet.
    pub target: Target,
    /// The path, such as `/exec/NAMESPACE/POD/CONTAINER`.
    pub path: String,
    /// Names and values of the query, in the order of their names.
    pub query: Vec<(&'static str, String)>,
    /// The streams that the client requests, after admission.
    pub streams: Vec<&'static str>,
}

/// Checks a request for log, exec, attach or portforward. None means the empty log of a pod without a node.
///
/// # Errors
///
/// 403 from admission; 404 for a missing pod or node; 400 for an invalid container, for a forbidden address, and for
/// exec, attach and port-forward to a pod without a node. 422 for invalid log options. 500 for a node without an
/// address.
pub fn node_request<'a>(
    call: &'a Call<'a>,
    options: &'a ConnectOptions,
) -> VerbFuture<'a, Option<NodeRequest>> {
    Box::pin(async move {
        let is_log = call.subresource == "log";
        let options = if is_log { options.clone() } else { admitted_options(call, options).await? };
        if is_log {
            check_log_options(call, &options)?;
        }
        let pod = find_object(call).await?;
        let container = match call.subresource {
            "portforward" => String::new(),
            _ => find_container(call, &pod, &options.container)?,
        };
        let Some(node) = pod.str_at(&["spec", "nodeName"]).filter(|node| !node.is_empty()) else {
            let text = format!("pod {} does not have a host assigned", call.name);
            return if is_log { Ok(None) } else { Err(Status::bad_request(text)) };
        };
        let found = find_core_object(call, "Node", "", node).await;
        // As in kube-apiserver, the error names the resource of the request, not that of the node.
        let resource = &call.collection.kind.internal().group_resource;
        let node = found.map_err(|error| match error.code {
            404 => Status::not_found(resource, node),
            _ => error,
        })?;
        let target = call.api_state.forwarding.nodes.kubelet(&node).await?;
        let of_pod = format!("{}/{}", call.namespace, call.name);
        let (path, query) = match call.subresource {
            "log" => (format!("/containerLogs/{of_pod}/{container}"), options.log_query()),
            "portforward" => (format!("/portForward/{of_pod}"), options.port_query()),
            subresource => (format!("/{subresource}/{of_pod}/{container}"), options.stream_query()),
        };
        Ok(Some(NodeRequest { target, path, query, streams: options.streams }))
    })
}

impl ConnectOptions {
    fn log_query(&self) -> Vec<(&'static str, String)> {
        let switch = |is_on: bool| is_on.then(|| "true".to_owned());
        let number = |number: Option<i64>| number.map(|number| number.to_string());
        let parameters = [
            ("follow", switch(self.follow)),
            ("limitBytes", number(self.limit_bytes)),
            ("previous", switch(self.previous)),
            ("sinceSeconds", number(self.since_seconds)),
            ("sinceTime", self.since_time.map(time::time)),
            ("tailLines", number(self.tail_lines)),
            ("timestamps", switch(self.timestamps)),
        ];
        parameters.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    fn port_query(&self) -> Vec<(&'static str, String)> {
        let ports: Vec<String> = self.ports.iter().map(i32::to_string).collect();
        if ports.is_empty() { Vec::new() } else { vec![("port", ports.join(","))] }
    }

    /// The command and the streams, as the kubelet names them.
    fn stream_query(&self) -> Vec<(&'static str, String)> {
        let names = [("error", "stderr"), ("input", "stdin"), ("output", "stdout"), ("tty", "tty")];
        let streams = names.into_iter().filter(|(_, stream)| self.streams.contains(stream));
        let commands = self.command.iter().map(|command| ("command", command.clone()));
        commands.chain(streams.map(|(name, _)| (name, "1".to_owned()))).collect()
    }
}

/// Checks the options of a request for the log of a container.
fn check_log_options(call: &Call<'_>, options: &ConnectOptions) -> Result<(), Status> {
    let errors = log_option_errors(options);
    if errors.is_empty() {
        return Ok(());
    }
    let kind = GroupKind { group: String::new(), kind: "PodLogOptions".to_owned() };
    Err(Status::invalid(&kind, call.name, &errors))
}

fn log_option_errors(options: &ConnectOptions) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let mut require = |name: &str, value: Option<i64>, min: i64, text: &str| {
        if let Some(value) = value.filter(|value| *value < min) {
            errors.push(FieldError::invalid(&FieldPath::new(name), value, text));
        }
    };
    require("tailLines", options.tail_lines, 0, "must be greater than or equal to 0");
    require("limitBytes", options.limit_bytes, 1, "must be greater than 0");
    if options.since_time.is_some() && options.since_seconds.is_some() {
        let text = "at most one of `sinceTime` or `sinceSeconds` may be specified";
        // As in kube-apiserver, the error names a field without a name.
        errors.push(FieldError::forbidden(&FieldPath::new("[]"), text));
    } else {
        require("sinceSeconds", options.since_seconds, 1, "must be greater than 0");
    }
    if options.has_stream {
        errors.push(FieldError::forbidden(&FieldPath::new("stream"), "may not be specified"));
    }
    errors
}

/// Returns the name of the requested, default or only container of a pod.
fn find_container(call: &Call<'_>, pod: &Object, requested: &str) -> Result<String, Status> {
    let names = |list: &str| {
        let items = pod.at(&["spec", list]).and_then(Value::as_array).into_iter().flatten();
        items.filter_map(|item| item.get("name")?.as_str()).collect::<Vec<_>>()
    };
    let (containers, init_containers) = (names("containers"), names("initContainers"));
    let default_container = call.api_state.names.label_sub_key("kubectl", "default-container");
    let container = match requested {
        "" => pod.annotation(&default_container).unwrap_or_default(),
        name => name,
    };
    let pod_name = pod.name();
    if !container.is_empty() {
        let ephemeral = names("ephemeralContainers");
        let is_known =
            containers.iter().chain(&init_containers).chain(&ephemeral).any(|name| *name == container);
        let invalid =
            || Status::bad_request(format!("container {container} is not valid for pod {pod_name}"));
        return is_known.then(|| container.to_owned()).ok_or_else(invalid);
    }
    if let [only] = containers.as_slice() {
        return Ok((*only).to_owned());
    }
    let mut text = format!("a container name must be specified for pod {pod_name}");
    if !containers.is_empty() {
        text.push_str(&format!(", choose one of: [{}]", containers.join(" ")));
        if !init_containers.is_empty() {
            text.push_str(&format!(" or one of the init containers: [{}]", init_containers.join(" ")));
        }
    }
    Err(Status::bad_request(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_name_options_as_kubelets_do() {
        let options = ConnectOptions {
            streams: vec!["stdin", "stdout", "stderr", "tty"],
            command: vec!["ls".to_owned(), "-l".to_owned()],
            ports: vec![80, 90],
            follow: true,
            previous: true,
            timestamps: true,
            tail_lines: Some(5),
            limit_bytes: Some(100),
            since_seconds: Some(7),
            since_time: time::parse("2020-01-02T04:04:05+01:00"),
            ..ConnectOptions::default()
        };
        let text = |query: Vec<(&str, String)>| {
            query.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
        };
        assert_eq!(text(options.stream_query()), "command=ls&command=-l&error=1&input=1&output=1&tty=1");
        assert_eq!(text(options.port_query()), "port=80,90");
        assert_eq!(
            text(options.log_query()),
            "follow=true&limitBytes=100&previous=true&sinceSeconds=7&sinceTime=2020-01-02T03:04:05Z&tailLines=5&timestamps=true"
        );
        assert_eq!(text(ConnectOptions::default().log_query()), "");
        assert_eq!(text(ConnectOptions::default().port_query()), "");
    }
}

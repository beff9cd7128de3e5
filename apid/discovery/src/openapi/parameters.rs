//! The parameters of operations.

use serde_json::{Map, Value, json};

use super::OpenApiVersion;

/// Location of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParameterLocation {
    Path,
    Query,
}

/// A parameter of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) location: ParameterLocation,
    pub(super) ty: &'static str,
    pub(super) description: String,
}

impl Parameter {
    /// Returns the parameter in the syntax of an OpenAPI version.
    pub(super) fn to_value(&self, openapi_version: OpenApiVersion) -> Value {
        let mut value = Map::new();
        value.insert("name".into(), self.name.into());
        value.insert(
            "in".into(),
            if self.location == ParameterLocation::Path { "path" } else { "query" }.into(),
        );
        value.insert("description".into(), self.description.as_str().into());
        if self.location == ParameterLocation::Path {
            value.insert("required".into(), true.into());
        }
        match openapi_version {
            OpenApiVersion::V2 => {
                value.insert("type".into(), self.ty.into());
                value.insert("uniqueItems".into(), true.into());
            }
            OpenApiVersion::V3 => {
                drop(value.insert("schema".into(), json!({"type": self.ty, "uniqueItems": true})))
            }
        }
        Value::Object(value)
    }
}

/// Returns the path parameter `{name}` of a kind.
pub(super) fn name(kind: &str) -> Parameter {
    path("name", format!("Name of the {kind}."))
}

/// Returns the path parameter `{namespace}`.
pub(super) fn namespace() -> Parameter {
    path("namespace", "Namespace of the object.".to_owned())
}

/// Returns the path parameter `{path}`, the rest of a proxied path.
pub(super) fn proxied_path() -> Parameter {
    let (name, _, description) = PROXIED_PATH;
    path(name, description.to_owned())
}

fn path(name: &'static str, description: String) -> Parameter {
    Parameter { name, location: ParameterLocation::Path, ty: "string", description }
}

/// Name, type and description of a query parameter.
type QueryRow = (&'static str, &'static str, &'static str);

fn query(&(name, ty, description): &QueryRow) -> Parameter {
    Parameter { name, location: ParameterLocation::Query, ty, description: description.to_owned() }
}

/// General query parameters with the same meaning in all operations.
const GENERAL: [QueryRow; 19] = [
    ("allowWatchBookmarks", "boolean", "Whether a watch sends bookmark events."),
    ("continue", "string", "Continue token of the previous chunk of a list."),
    ("dryRun", "string", "`All` runs all stages of the request except storing the result."),
    ("fieldManager", "string", "Name of the manager of the fields that the request sets."),
    ("fieldSelector", "string", "Field selector of the returned objects."),
    (
        "fieldValidation",
        "string",
        "Handling of unknown and duplicate fields: `Ignore` drops them, `Warn` drops them and warns, `Strict` rejects the request.",
    ),
    ("force", "boolean", "Whether an apply takes ownership of conflicting fields."),
    ("gracePeriodSeconds", "integer", "Grace period of the deletion in seconds; 0 deletes at once."),
    (
        "ignoreStoreReadErrorWithClusterBreakingPotential",
        "boolean",
        "Whether an object that cannot be decoded is deleted without its finalizers and preconditions.",
    ),
    ("labelSelector", "string", "Label selector of the returned objects."),
    ("limit", "integer", "Maximum number of objects in a response."),
    (
        "orphanDependents",
        "boolean",
        "Deprecated form of `propagationPolicy`: whether dependents are orphaned.",
    ),
    ("pretty", "string", "`true` indents the response."),
    ("propagationPolicy", "string", "Deletion of dependents: `Orphan`, `Background` or `Foreground`."),
    ("resourceVersion", "string", "The version to read, or from which a watch starts."),
    ("resourceVersionMatch", "string", "Constraint on `resourceVersion`: `Exact` or `NotOlderThan`."),
    ("sendInitialEvents", "boolean", "Whether a watch first sends the existing objects."),
    ("timeoutSeconds", "integer", "Timeout of a list or watch in seconds."),
    ("watch", "boolean", "Watch for changes instead of returning a list."),
];

/// General parameters of a list or watch.
pub(super) const READ_MANY: &[&str] = &[
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "watch",
];
/// General parameters of a create or update.
pub(super) const WRITE: &[&str] = &["dryRun", "fieldManager", "fieldValidation"];
/// General parameters of a patch.
pub(super) const PATCH: &[&str] = &["dryRun", "fieldManager", "fieldValidation", "force"];
/// General parameters of a delete.
pub(super) const DELETE: &[&str] = &[
    "dryRun",
    "gracePeriodSeconds",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "orphanDependents",
    "propagationPolicy",
];
/// General parameters of a deletecollection.
pub(super) const DELETE_MANY: &[&str] = &[
    "continue",
    "dryRun",
    "fieldSelector",
    "gracePeriodSeconds",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "labelSelector",
    "limit",
    "orphanDependents",
    "propagationPolicy",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
];

/// Returns all general parameters.
pub(super) fn all_general() -> impl Iterator<Item = Parameter> {
    GENERAL.iter().map(query)
}

/// Returns a general parameter by name.
pub(super) fn general(name: &str) -> Option<Parameter> {
    all_general().find(|parameter| parameter.name == name)
}

/// The options of connect subresources and of logs, by kind. They are query parameters and have no type in the type
/// table. A client repeats `command` and `ports` for several values.
const OPTIONS: [(&str, &[QueryRow]); 7] = [
    ("NodeProxyOptions", &[PROXIED_PATH]),
    ("PodAttachOptions", &[CONTAINER, STDERR, STDIN, STDOUT, TTY]),
    (
        "PodExecOptions",
        &[
            ("command", "string", "The command to run, then its arguments."),
            CONTAINER,
            STDERR,
            STDIN,
            STDOUT,
            TTY,
        ],
    ),
    (
        "PodLogOptions",
        &[
            CONTAINER,
            ("follow", "boolean", "Whether the response continues with new lines."),
            (
                "insecureSkipTLSVerifyBackend",
                "boolean",
                "Whether the serving certificate of the node is not verified.",
            ),
            ("limitBytes", "integer", "Maximum number of bytes in the response."),
            ("previous", "boolean", "Whether to return the log of the previous, terminated container."),
            ("sinceSeconds", "integer", "Maximum age of the returned lines in seconds."),
            ("stream", "string", "The stream to return: `All`, `Stdout` or `Stderr`."),
            ("tailLines", "integer", "Number of lines from the end of the log."),
            ("timestamps", "boolean", "Whether each line begins with its time."),
        ],
    ),
    ("PodPortForwardOptions", &[("ports", "integer", "The port to forward.")]),
    ("PodProxyOptions", &[PROXIED_PATH]),
    ("ServiceProxyOptions", &[PROXIED_PATH]),
];
const PROXIED_PATH: QueryRow = ("path", "string", "Path of the proxied request.");
const CONTAINER: QueryRow = ("container", "string", "Name of the container; the default is the only one.");
const STDIN: QueryRow = ("stdin", "boolean", "Whether to connect standard input.");
const STDOUT: QueryRow = ("stdout", "boolean", "Whether to connect standard output.");
const STDERR: QueryRow = ("stderr", "boolean", "Whether to connect standard error.");
const TTY: QueryRow = ("tty", "boolean", "Whether to allocate a terminal.");

/// Returns the query parameters of an options kind, such as `PodLogOptions`.
pub(super) fn option_parameters(kind: &str) -> Vec<Parameter> {
    let fields = OPTIONS.iter().find(|(known, _)| *known == kind).map_or(&[][..], |(_, fields)| fields);
    fields.iter().map(query).collect()
}

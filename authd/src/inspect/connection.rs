//! The connection to the API of the server that a kubeconfig names.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::SystemClock;
use apimachinery::names::{Names, Preset};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use serving::client::{Limits, Remote};
use serving::client_config::ClientConfig;

use super::{InspectError, ServerFlags, items, text};

/// The time limit and the response limit in bytes of one call. The largest response is a page of a list.
const LIMITS: Limits = Limits { within: Duration::from_secs(60), bytes: 256 * 1024 * 1024 };
/// The number of objects in a page of a list.
const PAGE_SIZE: usize = 500;

/// A server, and the credentials of the kubeconfig for it.
pub(super) struct Connection {
    remote: Remote,
    /// The namespace of the context; `default` without one.
    pub(super) namespace: String,
}

impl Connection {
    /// Reads the kubeconfig; does not connect yet.
    pub(super) fn open(flags: &ServerFlags) -> Result<Self, InspectError> {
        let path = kubeconfig(flags)?;
        let config = ClientConfig::load(&path).map_err(InspectError::new)?;
        // The preset only determines the environment variables of credential plugins, which are those of
        // Kubernetes.
        let names = Names::new(Preset::Kubernetes, "").map_err(InspectError::new)?;
        let target = config.target(flags.context.as_deref(), &names).map_err(InspectError::new)?;
        let context = flags.context.as_deref().unwrap_or(&config.current_context);
        let namespace = config.contexts.get(context).map(|context| context.namespace.clone());
        let agent = concat!("authd/", env!("CARGO_PKG_VERSION"));
        let remote = Remote::new(target, agent, &names, Arc::new(SystemClock::new()))
            .map_err(|errors| InspectError::new(errors.join("; ")))?;
        let namespace = namespace.filter(|namespace| !namespace.is_empty());
        Ok(Connection { remote, namespace: namespace.unwrap_or_else(|| "default".to_owned()) })
    }

    /// Reads the JSON document at a path.
    pub(super) async fn get(&self, path: &str) -> Result<Value, InspectError> {
        self.send(Method::GET, path, Bytes::new()).await
    }

    /// Creates an explanation of this kind, which the server evaluates and does not store, and returns it.
    pub(super) async fn explain(&self, kind: &str, spec: Value) -> Result<Value, InspectError> {
        let group = self.group_name("explain").await?;
        let object = json!({"apiVersion": format!("{group}/v1alpha1"), "kind": kind, "spec": spec});
        let path = format!("/apis/{group}/v1alpha1/{}s", kind.to_lowercase());
        self.send(Method::POST, &path, object.to_string().into()).await
    }

    /// Reads all items of a collection, page by page.
    pub(super) async fn list(&self, path: &str) -> Result<Vec<Value>, InspectError> {
        let mut all = Vec::new();
        let mut token = String::new();
        loop {
            let page = self.get(&format!("{path}?limit={PAGE_SIZE}{token}")).await?;
            all.extend(items(&page, "items").cloned());
            match page.pointer("/metadata/continue").and_then(Value::as_str) {
                None | Some("") => return Ok(all),
                Some(next) => token = format!("&continue={next}"),
            }
        }
    }

    /// Returns the full name of an API group of the server by its stem, such as `explain`.
    ///
    /// The domain is that of the RBAC group in discovery, because discovery does not list the group of
    /// explanations.
    pub(super) async fn group_name(&self, stem: &str) -> Result<String, InspectError> {
        let groups = self.get("/apis").await?;
        let domain = items(&groups, "groups")
            .find_map(|group| text(group, "name").strip_prefix("rbac.authorization."));
        let no_roles_error = || InspectError::new(format!("{} serves no roles", self.remote.url()));
        domain.map(|domain| format!("{stem}.{domain}")).ok_or_else(no_roles_error)
    }

    async fn send(&self, method: Method, path: &str, body: Bytes) -> Result<Value, InspectError> {
        let url = self.remote.url();
        let request_error = |text: String| InspectError::new(format!("{url}{}: {text}", without_query(path)));
        let response = self.remote.send(method, path, body, LIMITS).await;
        let response = response.map_err(|error| request_error(error.to_string()))?;
        let document = response.json().map_err(|error| request_error(error.to_string()));
        if response.status.is_success() {
            return document;
        }
        let message = document.ok().and_then(|status| status.get("message")?.as_str().map(str::to_owned));
        Err(request_error(message.unwrap_or_else(|| format!("the server responded {}", response.status))))
    }
}

/// Returns the path of `--kubeconfig`, else the first in the variable KUBECONFIG, else `~/.kube/config`.
fn kubeconfig(flags: &ServerFlags) -> Result<PathBuf, InspectError> {
    if let Some(path) = &flags.kubeconfig {
        return Ok(path.clone());
    }
    let variable = std::env::var_os("KUBECONFIG").filter(|value| !value.is_empty());
    if let Some(path) = variable.and_then(|paths| std::env::split_paths(&paths).next()) {
        return Ok(path);
    }
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".kube/config"));
    home.ok_or_else(|| InspectError::new("no kubeconfig: use --kubeconfig or the variable KUBECONFIG"))
}

fn without_query(path: &str) -> &str {
    path.split('?').next().unwrap_or(path)
}

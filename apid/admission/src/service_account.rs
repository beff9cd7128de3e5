//! ServiceAccount: sets the service account of pods, mounts its token and adds its image pull secrets.
//! If the account enforces mountable secrets, a pod may reference only secrets that the account lists.
//!
//! # Reference
//!
//! The plugin does not change mirror pods and rejects their references to accounts, secrets or tokens. A
//! controller creates the account `default` after its namespace; the plugin waits up to a second for it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::field::quote_name;
use apimachinery::names::Names;
use apimachinery::object::Object;
use apimachinery::status::Status;
use kinds::format;
use serde_json::{Value, json};

use crate::pod_containers::{CONTAINERS, EPHEMERAL_CONTAINERS, INIT_CONTAINERS, containers, items_mut, name};
use crate::tree::{items, items_at, list_at, object_at, text};
use crate::{Attributes, Environment, Interest, ObjectKind, Operation, Plugin};

const ACCOUNT: ObjectKind = ObjectKind::new("", "ServiceAccount");
/// Path of the volumes of a pod.
const VOLUMES: &[&str] = &["spec", "volumes"];
/// Path of the image pull secrets of a pod.
const PULL_SECRETS: &[&str] = &["spec", "imagePullSecrets"];
/// Account of pods without an account name.
const DEFAULT: &str = "default";
/// Lifetime of a projected token in seconds: an hour plus 7 s that identify such tokens.
const TOKEN_SECONDS: i64 = 3607;
/// Prefix of token volume names.
const VOLUME_PREFIX: &str = "kube-api-access-";
/// Number of cache lookups of a missing default account, before the plugin reads the store.
const ATTEMPTS: u32 = 10;
/// Interval between the cache lookups of a missing default account.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) struct ServiceAccount;

impl ServiceAccount {
    /// Returns a service account; waits for a missing default account.
    async fn account(&self, attributes: &Attributes<'_>, account: &str) -> Result<Arc<Object>, Status> {
        let (reader, namespace) = (&attributes.environment.reader, attributes.namespace);
        let invalid = format::path_segment(account, false);
        if !invalid.is_empty() {
            return Err(attributes.forbidden(&format!(
                "error looking up service account {namespace}/{account}: invalid resource name {}: [{}]",
                quote_name(account),
                invalid.join(" ")
            )));
        }
        let attempts = if account == DEFAULT { ATTEMPTS } else { 1 };
        for attempt in 1..=attempts {
            if let Some(found) = reader.get(ACCOUNT, namespace, account).await? {
                return Ok(found);
            }
            if attempt < attempts {
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
        if let Some(found) = reader.get_fresh(ACCOUNT, namespace, account).await? {
            return Ok(found);
        }
        Err(attributes.forbidden(&format!(
            "error looking up service account {namespace}/{account}: serviceaccount \"{account}\" not found"
        )))
    }

    /// Sets the account of a new pod, mounts its token and adds its image pull secrets.
    async fn set_account(&self, attributes: &Attributes<'_>, pod: &mut Object) -> Result<(), Status> {
        let environment = attributes.environment;
        if is_mirror(pod, &environment.names) {
            return check_mirror(attributes, pod);
        }
        let account_name = account_name_of(pod).unwrap_or(DEFAULT).to_owned();
        let account = self.account(attributes, &account_name).await?;
        if let Some(spec) = object_at(&mut pod.0, "spec") {
            for field in ["serviceAccountName", "serviceAccount"] {
                spec.insert(field.to_owned(), Value::from(account_name.as_str()));
            }
        }
        if mounts_token(&account, pod) {
            mount_token(pod, environment);
        }
        let secrets = items_at(&account, &["imagePullSecrets"]);
        if items_at(pod, PULL_SECRETS).is_empty()
            && !secrets.is_empty()
            && let Some(spec) = object_at(&mut pod.0, "spec")
        {
            spec.insert("imagePullSecrets".to_owned(), secrets.into());
        }
        Ok(())
    }

    async fn check(&self, attributes: &Attributes<'_>, pod: &Object) -> Result<(), Status> {
        let names = &attributes.environment.names;
        if is_mirror(pod, names) {
            return check_mirror(attributes, pod);
        }
        let Some(account_name) = account_name_of(pod) else {
            let reason =
                format!("no service account specified for pod {}/{}", attributes.namespace, pod.name());
            return Err(attributes.forbidden(&reason));
        };
        let account = self.account(attributes, account_name).await?;
        if account.annotation(&names.label_key("enforce-mountable-secrets")) != Some("true") {
            return Ok(());
        }
        let violation = if attributes.subresource.is_empty() {
            unlisted_secret(&account, pod)
        } else {
            unlisted_in_containers(&account, pod, EPHEMERAL_CONTAINERS)
        };
        violation.map_or(Ok(()), |reason| Err(attributes.forbidden(&reason)))
    }
}

/// Mounts the token in each container, unless the container has another mount at the path.
fn mount_token(pod: &mut Object, environment: &Environment) {
    let mount_path = format!("/var/run/secrets/{}", environment.names.label_key("serviceaccount"));
    let mut volumes = items_at(pod, VOLUMES).iter().map(name);
    let existing_volume = volumes.find(|name| name.starts_with(VOLUME_PREFIX)).map(str::to_owned);
    let volume = existing_volume
        .clone()
        .unwrap_or_else(|| format!("{VOLUME_PREFIX}{}", environment.rng.name_suffix()));
    let mut is_needed = false;
    for list in [INIT_CONTAINERS, CONTAINERS] {
        for container in items_mut(pod, list) {
            let Some(container) = container.as_object_mut() else { continue };
            let Some(mounts) = list_at(container, "volumeMounts") else { continue };
            if !mounts.iter().any(|mount| text(mount, "mountPath") == mount_path) {
                mounts.push(json!({"name": volume, "readOnly": true, "mountPath": mount_path}));
                is_needed = true;
            }
        }
    }
    if existing_volume.is_none()
        && is_needed
        && let Some(spec) = object_at(&mut pod.0, "spec")
        && let Some(volumes) = list_at(spec, "volumes")
    {
        volumes.push(token_volume(&volume));
    }
}

/// Account name of a pod, from the field or its deprecated alias.
fn account_name_of(pod: &Object) -> Option<&str> {
    let field = |field: &str| pod.str_at(&["spec", field]).filter(|name| !name.is_empty());
    field("serviceAccountName").or_else(|| field("serviceAccount"))
}

fn is_mirror(pod: &Object, names: &Names) -> bool {
    pod.annotation(&names.label_key("config.mirror")).is_some()
}

/// Whether the token is mounted: `automountServiceAccountToken` of the pod, else of its account, else true.
fn mounts_token(account: &Object, pod: &Object) -> bool {
    let as_bool = |value: Option<&Value>| value.and_then(Value::as_bool);
    as_bool(pod.at(&["spec", "automountServiceAccountToken"]))
        .or_else(|| as_bool(account.get("automountServiceAccountToken")))
        .unwrap_or(true)
}

/// Projected volume with the token, the CA bundle of the server and the namespace.
fn token_volume(volume: &str) -> Value {
    json!({
        "name": volume,
        "projected": {
            "defaultMode": 420,
            "sources": [
                {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [
                    {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}},
                ]}},
            ],
        },
    })
}

fn check_mirror(attributes: &Attributes<'_>, pod: &Object) -> Result<(), Status> {
    let projections = items_at(pod, VOLUMES).iter().filter_map(|volume| volume.get("projected"));
    let sources = projections.flat_map(|projected| items(projected, "sources"));
    let mut tokens = sources.filter(|source| source.get("serviceAccountToken").is_some_and(|t| !t.is_null()));
    let reason = if account_name_of(pod).is_some() {
        "a mirror pod may not reference service accounts"
    } else if refers_to_secret(pod) {
        "a mirror pod may not reference secrets"
    } else if tokens.next().is_some() {
        "a mirror pod may not use ServiceAccountToken volume projections"
    } else {
        return Ok(());
    };
    Err(attributes.forbidden(reason))
}

/// Whether the pod spec references a secret, in `imagePullSecrets` or in one of these fields at any depth:
/// `secret`, `secretName`, `secretRef`, `secretKeyRef`, or a field whose name ends with `SecretRef`.
fn refers_to_secret(pod: &Object) -> bool {
    fn contains_reference(value: &Value) -> bool {
        match value {
            Value::Object(map) => map.iter().any(|(field, value)| {
                let is_reference =
                    matches!(field.as_str(), "secret" | "secretName" | "secretRef" | "secretKeyRef")
                        || field.ends_with("SecretRef");
                (is_reference && !value.is_null()) || contains_reference(value)
            }),
            Value::Array(items) => items.iter().any(contains_reference),
            _ => false,
        }
    }
    !items_at(pod, PULL_SECRETS).is_empty() || pod.get("spec").is_some_and(contains_reference)
}

/// Names in a reference list of an account.
fn listed_names<'a>(account: &'a Object, field: &str) -> BTreeSet<&'a str> {
    items_at(account, &[field]).iter().map(name).collect()
}

/// Error for the first secret of a pod that its account does not list.
fn unlisted_secret(account: &Object, pod: &Object) -> Option<String> {
    let mountable = listed_names(account, "secrets");
    for volume in items_at(pod, VOLUMES) {
        let secret = volume.get("secret").and_then(|s| s.get("secretName")).and_then(Value::as_str);
        if let Some(secret) = secret.filter(|secret| !mountable.contains(secret)) {
            return Some(format!(
                "volume with secret.secretName=\"{secret}\" is not allowed because service account {} does not reference \
                 that secret",
                account.name()
            ));
        }
    }
    for list in [INIT_CONTAINERS, CONTAINERS] {
        if let Some(reason) = unlisted_in_containers(account, pod, list) {
            return Some(reason);
        }
    }
    let pullable = listed_names(account, "imagePullSecrets");
    let mut pull_secrets = items_at(pod, PULL_SECRETS).iter().enumerate();
    pull_secrets.find(|(_, secret)| !pullable.contains(name(secret))).map(|(i, secret)| {
        format!(
            "imagePullSecrets[{i}].name=\"{}\" is not allowed because service account {} does not reference that \
             imagePullSecret",
            name(secret),
            account.name()
        )
    })
}

fn unlisted_in_containers(account: &Object, pod: &Object, list: &str) -> Option<String> {
    let mountable = listed_names(account, "secrets");
    let word = match list {
        INIT_CONTAINERS => "init container",
        EPHEMERAL_CONTAINERS => "ephemeral container",
        _ => "container",
    };
    for container in containers(pod, list) {
        for variable in items(container, "env") {
            let reference = variable.get("valueFrom").and_then(|from| from.get("secretKeyRef"));
            if let Some(secret) = reference.map(name).filter(|secret| !mountable.contains(secret)) {
                return Some(format!(
                    "{word} {} with envVar {} referencing secret.secretName=\"{secret}\" is not allowed because service \
                     account {} does not reference that secret",
                    name(container),
                    name(variable),
                    account.name()
                ));
            }
        }
        for source in items(container, "envFrom") {
            let reference = source.get("secretRef").filter(|reference| !reference.is_null());
            if let Some(secret) = reference.map(name).filter(|secret| !mountable.contains(secret)) {
                return Some(format!(
                    "{word} {} with envFrom referencing secret.secretName=\"{secret}\" is not allowed because service \
                     account {} does not reference that secret",
                    name(container),
                    account.name()
                ));
            }
        }
    }
    None
}

impl Plugin for ServiceAccount {
    const INTEREST: Interest =
        Interest::only(&[(ObjectKind::POD, ""), (ObjectKind::POD, "ephemeralcontainers")]);

    async fn mutate(&self, attributes: &Attributes<'_>, object: Option<&mut Object>) -> Result<(), Status> {
        match object {
            Some(pod) if attributes.operation == Operation::Create && attributes.subresource.is_empty() => {
                self.set_account(attributes, pod).await
            }
            _ => Ok(()),
        }
    }

    async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Object>) -> Result<(), Status> {
        // The account and the mounts of a pod are immutable; updates can only add ephemeral containers.
        let is_creation = attributes.operation == Operation::Create && attributes.subresource.is_empty();
        let is_ephemeral_update =
            attributes.operation == Operation::Update && !attributes.subresource.is_empty();
        match object {
            Some(pod) if is_creation || is_ephemeral_update => self.check(attributes, pod).await,
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
#[path = "tests/service_account.rs"]
mod tests;

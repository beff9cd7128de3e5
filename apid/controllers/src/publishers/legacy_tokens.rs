//! Clean-up of token Secrets: removes those that were created automatically and have not been used for long.
//!
//! # Contract
//!
//! A ConfigMap of the system namespace holds the day since which token use is tracked. One year after that
//! day, apid starts a daily clean-up. It marks a token Secret as invalid if its service account lists it, no
//! pod mounts it and no client used it for a year. authd then rejects the token. One year later the Secret is
//! deleted. Removing the mark makes the token valid again. A Secret that no service account lists stays, for
//! example a Secret that a user created.
//!
//! # Reference
//!
//! The clean-up follows the `legacy-serviceaccount-token-cleaner` of kube-controller-manager with its default
//! period. The tracking of token use follows kube-apiserver.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::names::Names;
use apimachinery::object::{Map, Object, Value};
use apimachinery::status::Status;
use jiff::Timestamp;
use serde_json::json;

use super::super::actor::{Actor, Target, ignore_race};
use super::super::runner::{Reconcile, Requeue, Runner};
use super::super::stored;
use super::put_config_map;
use verbs::ApiState;
use verbs::deletion::options::DeleteOptions;

use crate::ControllerState;

/// Name of the ConfigMap. It is the same under both names presets.
const NAME: &str = "kube-apiserver-legacy-service-account-token-tracking";
/// Key of the entry of the ConfigMap with the day since which token use is tracked.
const SINCE: &str = "since";
/// Time without use after which a Secret is marked as invalid, and time from the mark to the deletion.
const PERIOD: Duration = Duration::from_secs(365 * 24 * 3600);
/// Interval between two clean-ups.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(24 * 3600);
/// The controller, with one key for all Secrets.
struct LegacyTokens {
    server: Actor,
    cleaner: Actor,
    cleans_up: bool,
}

/// Tracks token use and, if `cleans_up` is true, cleans up until the process ends.
pub(crate) async fn run(state: Arc<ControllerState>, cleans_up: bool) {
    let server = state.apiserver().of_leader();
    let cleaner = state.controller("legacy-service-account-token-cleaner");
    let runner = Runner::new(&state, "legacy_service_account_tokens").start_with(());
    runner.run(Arc::new(LegacyTokens { server, cleaner, cleans_up })).await;
}

impl Reconcile for LegacyTokens {
    type Key = ();

    async fn reconcile(&self, (): &()) -> Result<Requeue, Status> {
        let api_state = self.server.api_state();
        let since = ensure_tracking_day(api_state, &self.server).await?;
        if self.cleans_up {
            clean(api_state, &self.cleaner, &since).await?;
        }
        Ok(Requeue::After(CLEANUP_INTERVAL))
    }
}

/// Returns the day in the ConfigMap since which token use is tracked.
///
/// If the ConfigMap has no valid day or a future day, today is recorded and returned.
async fn ensure_tracking_day(api_state: &ApiState, server: &Actor) -> Result<String, Status> {
    let maps = stored::core(api_state, "configmaps")?;
    let namespace = api_state.names.system_namespace;
    let map = stored::get(&maps, namespace, NAME).await?;
    let today = day(api_state.clock.now());
    let recorded_day =
        map.as_ref().and_then(|map| map.str_at(&["data", SINCE])).filter(|since| is_day(since));
    if let Some(since) = recorded_day.filter(|since| **since <= *today) {
        return Ok(since.to_owned());
    }
    let data = Map::from_iter([(SINCE.to_owned(), Value::from(today.as_str()))]);
    put_config_map(server, &maps, (namespace, NAME), data, false).await?;
    Ok(today)
}

/// Marks or deletes the unused token Secrets. `since`: the day since which token use is tracked.
async fn clean(api_state: &ApiState, cleaner: &Actor, since: &str) -> Result<(), Status> {
    let now = api_state.clock.now();
    let limit = day(now.checked_sub(PERIOD).unwrap_or(Timestamp::MIN));
    if *since > *limit {
        return Ok(());
    }
    stored::catch_up(api_state).await?;
    let (secrets, accounts, pods) = (
        stored::core(api_state, "secrets")?,
        stored::core(api_state, "serviceaccounts")?,
        stored::core(api_state, "pods")?,
    );
    let listed_secrets = names_of(&stored::all(&accounts).await?, |account| {
        let list = account.get("secrets").and_then(Value::as_array).into_iter().flatten();
        list.filter_map(|reference| reference.get("name")?.as_str()).map(str::to_owned).collect()
    });
    let mounted_secrets = names_of(&stored::all(&pods).await?, |pod| {
        let volumes = pod.at(&["spec", "volumes"]).and_then(Value::as_array).into_iter().flatten();
        volumes
            .filter_map(|volume| volume.get("secret")?.get("secretName")?.as_str())
            .map(str::to_owned)
            .collect()
    });
    for secret in stored::all(&secrets).await? {
        let key = (secret.namespace().to_owned(), secret.name().to_owned());
        if !listed_secrets.contains(&key) || mounted_secrets.contains(&key) {
            continue;
        }
        let target = Target { collection: &secrets, namespace: &key.0, name: &key.1, subresource: "" };
        let result = match secret_action(&secret, &api_state.names, &limit) {
            SecretAction::Keep => continue,
            SecretAction::MarkInvalid => {
                let label = api_state.names.label_key("legacy-token-invalid-since");
                let (uid, version) = (secret.uid(), secret.resource_version());
                let labels = json!({label: day(now)});
                let patch = json!({"metadata": {"uid": uid, "resourceVersion": version, "labels": labels}})
                    .to_string();
                cleaner.merge(target, patch.as_bytes()).await.map(drop)
            }
            SecretAction::Delete => {
                let options = DeleteOptions::if_unchanged(secret.resource_version());
                cleaner.delete(target, &options).await.map(drop)
            }
        };
        ignore_race(result)?;
    }
    Ok(())
}

/// Returns namespace and name of every object to which `objects` refer.
///
/// `names_in` returns the names to which an object refers, in its own namespace.
fn names_of(objects: &[Object], names_in: impl Fn(&Object) -> Vec<String>) -> HashSet<(String, String)> {
    let names_in_namespace = |object: &Object| {
        let namespace = object.namespace().to_owned();
        names_in(object).into_iter().map(move |name| (namespace.clone(), name))
    };
    objects.iter().flat_map(names_in_namespace).collect()
}

/// The action for a Secret that a service account lists and no pod mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SecretAction {
    Keep,
    MarkInvalid,
    Delete,
}

/// Decides on a Secret. Creation, last use and invalidation count as old if they were before the day `limit`.
fn secret_action(secret: &Object, names: &Names, limit: &str) -> SecretAction {
    if secret.str_at(&["type"]) != Some(&names.label_key("service-account-token")) || secret.is_terminating()
    {
        return SecretAction::Keep;
    }
    let created = secret.meta_str("creationTimestamp");
    if created.get(..10).is_none_or(|created| created >= limit) {
        return SecretAction::Keep;
    }
    let last_used = secret.label(&names.label_key("legacy-token-last-used"));
    if last_used.is_some_and(|last_used| !is_day(last_used) || last_used >= limit) {
        return SecretAction::Keep;
    }
    match secret.label(&names.label_key("legacy-token-invalid-since")) {
        Some(invalid_since) if is_day(invalid_since) && invalid_since >= limit => SecretAction::Keep,
        Some(invalid_since) if is_day(invalid_since) => SecretAction::Delete,
        _ => SecretAction::MarkInvalid,
    }
}

/// Returns the UTC day as `YYYY-MM-DD`, so that days compare as strings.
fn day(at: Timestamp) -> String {
    at.to_string().get(..10).unwrap_or_default().to_owned()
}

/// Whether a text is a valid day as `YYYY-MM-DD`.
fn is_day(text: &str) -> bool {
    text.len() == 10 && format!("{text}T00:00:00Z").parse::<Timestamp>().is_ok()
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;

    use super::*;

    #[test]
    fn unused_token_secret_is_marked_after_a_year_and_deleted_after_two() {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        for (kind, created, last_used, invalid_since, want) in [
            ("kubernetes.io/service-account-token", "2020-01-01", None, None, SecretAction::MarkInvalid),
            (
                "kubernetes.io/service-account-token",
                "2020-01-01",
                Some("2023-12-31"),
                None,
                SecretAction::MarkInvalid,
            ),
            (
                "kubernetes.io/service-account-token",
                "2020-01-01",
                Some("2024-01-01"),
                None,
                SecretAction::Keep,
            ),
            ("kubernetes.io/service-account-token", "2020-01-01", Some("no day"), None, SecretAction::Keep),
            ("kubernetes.io/service-account-token", "2024-01-01", None, None, SecretAction::Keep),
            (
                "kubernetes.io/service-account-token",
                "2020-01-01",
                None,
                Some("2024-06-01"),
                SecretAction::Keep,
            ),
            (
                "kubernetes.io/service-account-token",
                "2020-01-01",
                None,
                Some("2023-06-01"),
                SecretAction::Delete,
            ),
            (
                "kubernetes.io/service-account-token",
                "2020-01-01",
                None,
                Some("no day"),
                SecretAction::MarkInvalid,
            ),
            ("Opaque", "2020-01-01", None, None, SecretAction::Keep),
        ] {
            let mut labels = Map::new();
            for (label, day) in
                [("legacy-token-last-used", last_used), ("legacy-token-invalid-since", invalid_since)]
            {
                if let Some(day) = day {
                    labels.insert(names.label_key(label), day.into());
                }
            }
            let created = format!("{created}T10:00:00Z");
            let value = json!({"type": kind, "metadata": {"creationTimestamp": created, "labels": labels}});
            let secret = Object::from_value(value).unwrap();
            assert_eq!(secret_action(&secret, &names, "2024-01-01"), want, "{secret:?}");
        }
    }

    #[test]
    fn days_are_formatted_and_parsed_in_utc() {
        assert_eq!(day(Timestamp::UNIX_EPOCH), "1970-01-01");
        for (text, is_valid) in
            [("2024-02-29", true), ("2023-02-29", false), ("2024-2-1", false), ("", false)]
        {
            assert_eq!(is_day(text), is_valid, "{text}");
        }
    }
}

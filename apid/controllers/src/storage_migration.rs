//! Storage migration: rewrites all objects of a resource in its storage version.
//!
//! # Contract
//!
//! The controller runs the StorageVersionMigrations that have not ended, one after another. It applies an
//! empty patch to each object that exists at the start of the migration. The patch writes an object only if
//! its stored form changes. A migration ends with the condition `Succeeded` or `Failed`. After a restart, a
//! migration that has not ended starts again from its beginning.
//!
//! # Errors
//!
//! An object that was deleted, or written by another client, needs no rewrite. While a store or authd does not
//! answer (503), or if the state of a migration cannot be written, the migration is retried. Any other failure of a
//! write ends the migration with `Failed`.

use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::status::{Reason, Status};
use apimachinery::time;
use serde_json::{Map, Value, json};

use super::actor::{Actor, Target, ignore_race};
use super::runner::{Reconcile, Requeue, Runner};
use super::stored;
use verbs::{ApiState, Collection};

use crate::ControllerState;

/// A patch that changes nothing.
const EMPTY_PATCH: &[u8] = b"{}";

/// State of a migration, written as a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MigrationState {
    Running,
    Succeeded,
    Failed,
}

impl MigrationState {
    /// Returns type and reason of the condition.
    fn condition(self) -> (&'static str, &'static str) {
        match self {
            MigrationState::Running => ("Running", "StorageVersionMigrationInProgress"),
            MigrationState::Succeeded => ("Succeeded", "StorageVersionMigrationSucceeded"),
            MigrationState::Failed => ("Failed", "StorageVersionMigrationFailed"),
        }
    }
}

/// The controller; its keys are names of migrations.
struct StorageMigration {
    actor: Actor,
    migrations: Arc<Collection>,
}

/// Runs new and unfinished migrations until the process ends. Returns at once if the kind is not served.
pub(super) async fn run(state: Arc<ControllerState>) {
    let collection = stored::of_kind(&state.api_state, ("storagemigration", "StorageVersionMigration"));
    let Ok(migrations) = collection else { return };
    let runner = Runner::new(&state, "storage_version_migrator")
        .watch(&migrations.items, |event| event.existing_name());
    let actor = state.controller("storage-version-migrator-controller");
    runner.run(Arc::new(StorageMigration { actor, migrations })).await;
}

impl Reconcile for StorageMigration {
    type Key = String;

    async fn reconcile(&self, name: &String) -> Result<Requeue, Status> {
        migrate(&self.actor, &self.migrations, name).await?;
        Ok(Requeue::No)
    }
}

/// Runs one migration, unless it has ended.
async fn migrate(actor: &Actor, migrations: &Collection, name: &str) -> Result<(), Status> {
    let Some(migration) = stored::get(migrations, "", name).await? else { return Ok(()) };
    if is_in_state(&migration, MigrationState::Succeeded) || is_in_state(&migration, MigrationState::Failed) {
        return Ok(());
    }
    let result = match find_collection(actor.api_state(), &migration) {
        Some(collection) => rewrite(actor, migrations, name, &collection).await,
        None => Err(Status::unknown_resource()),
    };
    let (state, message) = match result {
        Ok(()) => (MigrationState::Succeeded, String::new()),
        // The work is done again, after the end of a term by the next leader.
        Err(status)
            if matches!(
                status.reason,
                Reason::Conflict | Reason::ServiceUnavailable | Reason::NotLeading
            ) =>
        {
            return Err(status);
        }
        Err(status) => (MigrationState::Failed, status.message),
    };
    report(actor, migrations, name, state, &message, None).await
}

/// Reports that a migration runs, and rewrites all objects of a collection.
async fn rewrite(
    actor: &Actor,
    migrations: &Collection,
    name: &str,
    collection: &Collection,
) -> Result<(), Status> {
    // INVARIANT (all objects): the changes of a separate store come in no order with the migration.
    stored::catch_up_with_separate(actor.api_state(), collection).await.map_err(stored::unavailable)?;
    let snapshot = collection.items.snapshot().await.map_err(stored::unavailable)?;
    let revision = snapshot.revision().to_string();
    report(actor, migrations, name, MigrationState::Running, "", Some(&revision)).await?;
    let items = snapshot.scope(&collection.kind.key_prefix, "");
    let entries = items.filter_map(|item| stored::entry(item));
    let targets: Vec<(String, String)> =
        entries.map(|entry| (entry.namespace().to_owned(), entry.name().to_owned())).collect();
    drop(snapshot);
    for (namespace, name) in &targets {
        let target = Target { collection, namespace, name, subresource: "" };
        ignore_race(actor.merge(target, EMPTY_PATCH).await)?;
    }
    Ok(())
}

/// Returns the collection of the resource in `spec.resource` of a migration, if it is served.
fn find_collection(api_state: &ApiState, migration: &Object) -> Option<Arc<Collection>> {
    let resource_field = |name: &str| migration.str_at(&["spec", "resource", name]).unwrap_or("");
    let kinds = api_state.kinds.get();
    let resource = kinds.registry.find_stored(
        resource_field("group"),
        resource_field("version"),
        resource_field("resource"),
    )?;
    kinds.collection(resource.stored()).cloned()
}

/// Whether the condition of a state is true.
fn is_in_state(migration: &Object, state: MigrationState) -> bool {
    let (kind, _) = state.condition();
    let conditions = migration.at(&["status", "conditions"]).and_then(Value::as_array);
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition["type"] == kind && condition["status"] == "True")
}

/// Writes the state of a migration to its status.
async fn report(
    actor: &Actor,
    migrations: &Collection,
    name: &str,
    state: MigrationState,
    message: &str,
    revision: Option<&str>,
) -> Result<(), Status> {
    let Some(mut migration) = stored::get(migrations, "", name).await? else { return Ok(()) };
    let now = time::time(actor.api_state().clock.now());
    let status = migration.get("status").and_then(Value::as_object).cloned().unwrap_or_default();
    migration.set("status", Value::Object(with_state(status, state, message, revision, &now)));
    let target = Target { collection: migrations, namespace: "", name, subresource: "status" };
    actor.update(target, migration).await.map(drop)
}

/// Returns a status in which the condition of a state is true; the condition `Running` of an ended migration
/// becomes false.
fn with_state(
    mut status: Map<String, Value>,
    state: MigrationState,
    message: &str,
    revision: Option<&str>,
    now: &str,
) -> Map<String, Value> {
    let (kind, reason) = state.condition();
    let mut conditions: Vec<Value> =
        status.get("conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    conditions.retain(|condition| condition["type"] != kind);
    for condition in &mut conditions {
        if condition["type"] == MigrationState::Running.condition().0
            && let Some(condition) = condition.as_object_mut()
        {
            condition.insert("status".to_owned(), "False".into());
            condition.insert("lastUpdateTime".to_owned(), now.into());
        }
    }
    conditions.push(json!({
        "type": kind, "status": "True", "lastUpdateTime": now, "reason": reason, "message": message,
    }));
    status.insert("conditions".to_owned(), conditions.into());
    if let Some(revision) = revision {
        status.entry("resourceVersion").or_insert_with(|| revision.into());
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_migration_is_not_running() {
        let running = with_state(Map::new(), MigrationState::Running, "", Some("7"), "t1");
        let ended = with_state(running, MigrationState::Succeeded, "", None, "t2");
        let expected = json!({
            "conditions": [
                {"type": "Running", "status": "False", "lastUpdateTime": "t2",
                    "reason": "StorageVersionMigrationInProgress", "message": ""},
                {"type": "Succeeded", "status": "True", "lastUpdateTime": "t2",
                    "reason": "StorageVersionMigrationSucceeded", "message": ""},
            ],
            "resourceVersion": "7",
        });
        assert_eq!(Value::Object(ended), expected);
    }
}

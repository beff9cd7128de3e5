//! Controllers of policy: one restores default policy at start, one writes the rules of aggregated roles.
//!
//! # Contract
//!
//! A [`PolicyControllers`] belongs to one feed and does no I/O. After each event (snapshot, change, result,
//! timer) [`PolicyControllers::next_batch`] returns the next batch, and [`PolicyControllers::wake_at`] the
//! time of the next timer.
//!
//! # Invariants
//!
//! INVARIANT (default policy first): authd becomes ready when the last batch of default policy has succeeded,
//! or when default policy needs no batch. Rules of aggregated roles are written only after that, because
//! default policy changes the aggregated roles.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::names::Names;
use authproto::auth::{self, object_write::Verb, write_outcome::Outcome};
use bootstrap::DefaultPolicy;
use serde_json::{Value, json};

use super::batches::Batches;
use crate::rules::reconcile::{self, Write, WriteOperation};
use crate::rules::{Policy, PolicyRule, RoleKind};

/// The policy controllers of one feed. See the module.
#[derive(Debug)]
pub struct PolicyControllers {
    names: Arc<Names>,
    batches: Batches<OpenBatch>,
    /// Default policy has been written, or was complete.
    bootstrapped: bool,
    /// A ClusterRole changed since aggregated roles were last compared with their effective rules.
    roles_changed: bool,
    /// The failure of the last batch, for readiness; empty after a success.
    problem: String,
}

/// The reason why default policy is incomplete.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyNotReady {
    /// The snapshot of this feed is not complete.
    #[error("the mirror's snapshot is not complete")]
    NoSnapshot,
    /// Writes of default policy have no result yet.
    #[error("default policy is being written")]
    WritesPending,
    /// A write of default policy failed.
    #[error("default policy could not be written: {0}")]
    WritesFailed(String),
}

/// A batch without a result.
#[derive(Debug)]
struct OpenBatch {
    /// Whether the batch writes default policy; otherwise it writes rules of aggregated roles.
    is_bootstrap: bool,
    /// Default policy needs no further batch if this batch of default policy succeeds.
    is_last: bool,
    /// The verb and, for the log, the object of each write.
    writes: Vec<(Verb, String)>,
}

impl PolicyControllers {
    /// Creates the controllers of a new feed, whose snapshot is not complete.
    pub fn new(names: Arc<Names>) -> Self {
        PolicyControllers {
            names,
            batches: Batches::new(0),
            bootstrapped: false,
            roles_changed: true,
            problem: String::new(),
        }
    }

    /// Records that the snapshot is complete.
    pub fn mark_synced(&mut self) {
        self.batches.mark_synced();
    }

    /// Records a change of a ClusterRole.
    pub fn mark_cluster_role_changed(&mut self) {
        self.roles_changed = true;
    }

    /// Returns whether default policy is complete.
    ///
    /// # Errors
    ///
    /// [`PolicyNotReady`]: the reason why default policy is incomplete.
    pub fn ready(&self) -> Result<(), PolicyNotReady> {
        match (self.batches.is_synced(), self.bootstrapped, self.problem.as_str()) {
            (false, ..) => Err(PolicyNotReady::NoSnapshot),
            (true, true, _) => Ok(()),
            (true, false, "") => Err(PolicyNotReady::WritesPending),
            (true, false, problem) => Err(PolicyNotReady::WritesFailed(problem.to_owned())),
        }
    }

    /// The monotonic time at which [`PolicyControllers::next_batch`] may return a batch without a further
    /// event. None if there is no such time.
    pub fn wake_at(&self) -> Option<Duration> {
        self.batches.retry_at().filter(|_| self.can_start_batch())
    }

    /// Whether the snapshot is complete, no batch is open, and default policy or aggregated roles must be
    /// compared with the desired state.
    ///
    /// If false, [`PolicyControllers::next_batch`] returns None, so the caller need not lock the policy for
    /// it.
    pub fn can_start_batch(&self) -> bool {
        self.batches.is_idle() && (!self.bootstrapped || self.roles_changed)
    }

    /// Returns the batch to request now, if any.
    /// `now` is the monotonic time, and `revision` the revision of the mirror.
    pub fn next_batch(&mut self, now: Duration, revision: u64, policy: &Policy) -> Option<auth::WriteBatch> {
        if !self.batches.can_open(now, revision) {
            return None;
        }
        if !self.bootstrapped {
            let defaults: DefaultPolicy = bootstrap::default_policy(&self.names);
            let mut writes = reconcile::required_writes(policy, &defaults, &self.names);
            // apid performs the writes of a batch in any order. An object to recreate is therefore deleted by
            // this batch and created by the next one.
            let deleted: Vec<Write> = writes.iter().filter(|write| is_deletion(write)).cloned().collect();
            writes.retain(|write| {
                is_deletion(write) || !deleted.iter().any(|delete| delete.same_object(write))
            });
            if !writes.is_empty() {
                let writes = writes.into_iter().map(|write| self.object_write(write)).collect();
                return Some(self.open_batch(true, deleted.is_empty(), writes));
            }
            self.bootstrapped = true;
        }
        if !std::mem::take(&mut self.roles_changed) {
            return None;
        }
        let stale = policy.stale_aggregated_roles();
        if stale.is_empty() {
            return None;
        }
        let writes = stale.into_iter().map(|(name, rules)| {
            self.object_write(Write {
                operation: self.aggregation_of(&name, &rules),
                resource: RoleKind::ClusterRole.resource(),
                namespace: String::new(),
                name: String::from(&*name),
            })
        });
        let writes = writes.collect();
        Some(self.open_batch(false, true, writes))
    }

    /// Returns the write of the rules of an aggregated role.
    ///
    /// The rules are applied with force, because the controller owns them (requirement D-SSA-29). A merge patch
    /// removes the rules, because an apply keeps rules that another manager owns too.
    fn aggregation_of(&self, name: &str, rules: &[PolicyRule]) -> WriteOperation {
        if rules.is_empty() {
            return WriteOperation::Patch(json!({"rules": Value::Null}));
        }
        WriteOperation::Apply(json!({
            "apiVersion": format!("{}/v1", self.names.group("rbac.authorization")),
            "kind": "ClusterRole",
            "metadata": {"name": name},
            "rules": rules.iter().map(reconcile::rule_json).collect::<Value>(),
        }))
    }

    /// Handles the result of a batch. A result without an open batch is ignored.
    pub fn handle_result(&mut self, now: Duration, result: &auth::WriteResult) {
        let Some(open) = self.batches.close(result) else { return };
        let outcomes: Vec<&Outcome> = result.outcomes.iter().filter_map(|o| o.outcome.as_ref()).collect();
        let missing = open.writes.len().saturating_sub(outcomes.len());
        let mut problems = std::iter::zip(&open.writes, outcomes).filter_map(|((verb, object), outcome)| {
            let Outcome::Failure(failure) = outcome else { return None };
            let is_tolerated = match (verb, failure.code) {
                // Another writer already created, changed or deleted the object. The batch after a deletion compares again.
                (Verb::Create, 409) | (Verb::Delete, 404 | 409) => true,
                // The role no longer exists. An aggregated role then needs no rules. For a role of default
                // policy the 404 is a failure, and the retry creates the role.
                (Verb::Patch | Verb::Apply, 404) => !open.is_bootstrap,
                (Verb::Create | Verb::Update | Verb::Patch | Verb::Apply | Verb::Delete, _) => false,
            };
            (!is_tolerated).then(|| format!("{object}: {} {}", failure.code, failure.message))
        });
        let problem = match (problems.next(), missing) {
            (Some(problem), _) => Some((problem, problems.count())),
            (None, 0) => None,
            (None, missing) => Some((format!("{missing} writes have no result"), 0)),
        };
        match problem {
            None => {
                self.batches.record_success();
                self.problem.clear();
                self.bootstrapped = self.bootstrapped || open.is_bootstrap && open.is_last;
            }
            Some((problem, more)) => {
                self.problem = if more == 0 { problem } else { format!("{problem}, and {more} more") };
                self.batches.record_failure(now);
                self.roles_changed = true;
                let controller = if open.is_bootstrap { BOOTSTRAP } else { AGGREGATION };
                tracing::warn!(controller, problem = self.problem, "controller writes failed; retrying");
            }
        }
    }

    fn open_batch(
        &mut self,
        is_bootstrap: bool,
        is_last: bool,
        writes: Vec<auth::ObjectWrite>,
    ) -> auth::WriteBatch {
        let verbs = writes.iter().map(|w| (w.verb(), format!("{} {}/{}", w.resource, w.namespace, w.name)));
        let open = OpenBatch { is_bootstrap, is_last, writes: verbs.collect() };
        let controller = if is_bootstrap { BOOTSTRAP } else { AGGREGATION };
        self.batches.open(open, controller, writes)
    }

    fn object_write(&self, write: Write) -> auth::ObjectWrite {
        let (verb, body) = match write.operation {
            WriteOperation::Create(body) => (Verb::Create, body.to_string()),
            WriteOperation::Patch(body) => (Verb::Patch, body.to_string()),
            WriteOperation::Apply(body) => (Verb::Apply, body.to_string()),
            WriteOperation::Delete(preconditions) => (Verb::Delete, preconditions.to_string()),
        };
        auth::ObjectWrite {
            verb: verb.into(),
            group: self.names.group("rbac.authorization"),
            version: "v1".to_owned(),
            resource: write.resource.to_owned(),
            namespace: write.namespace,
            name: write.name,
            body: body.into_bytes(),
        }
    }
}

fn is_deletion(write: &Write) -> bool {
    matches!(write.operation, WriteOperation::Delete(_))
}

const BOOTSTRAP: &str = "bootstrap-policy";
const AGGREGATION: &str = "clusterrole-aggregation-controller";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::reconcile::{binding_spec, role_spec};
    use apimachinery::names::Preset;
    use apimachinery::object::Object;

    fn names() -> Arc<Names> {
        Arc::new(Names::new(Preset::Svc, "svc.internal").unwrap())
    }

    /// Applies the creations of a batch to the policy, as apid and the mirror do.
    fn perform(policy: &mut Policy, names: &Names, batch: &auth::WriteBatch) -> auth::WriteResult {
        for write in &batch.writes {
            let body = || Object::from_value(serde_json::from_slice(&write.body).unwrap()).unwrap();
            let kind =
                if write.resource.starts_with("cluster") { RoleKind::ClusterRole } else { RoleKind::Role };
            match (write.verb(), write.resource.as_str()) {
                (Verb::Create, "roles" | "clusterroles") => {
                    policy.put_role(kind, &write.namespace, &write.name, role_spec(&body(), names));
                }
                (Verb::Create, _) => {
                    policy.put_binding(&write.namespace, &write.name, binding_spec(&body(), names).unwrap());
                }
                (verb, resource) => panic!("{verb:?} {resource} {}", write.name),
            }
        }
        let outcomes = batch.writes.iter().map(|_| Ok(()).into()).collect();
        auth::WriteResult { id: batch.id, outcomes, revision: 100 }
    }

    #[test]
    fn empty_store_gets_default_policy_in_one_batch_then_aggregated_rules() {
        let names = names();
        let (mut policy, mut controllers) = (Policy::new(&names), PolicyControllers::new(Arc::clone(&names)));
        assert!(
            controllers.next_batch(Duration::ZERO, 0, &policy).is_none() && controllers.ready().is_err(),
            "not before the snapshot"
        );
        controllers.mark_synced();
        let batch = controllers.next_batch(Duration::ZERO, 1, &policy).unwrap();
        assert_eq!(batch.controller, BOOTSTRAP);
        assert!(
            batch.writes.len() > 100
                && batch.writes.iter().all(|w| w.group == "rbac.authorization.svc.internal")
        );
        assert!(controllers.next_batch(Duration::ZERO, 1, &policy).is_none(), "one open batch at a time");
        let result = perform(&mut policy, &names, &batch);
        assert!(controllers.ready().is_err());
        controllers.handle_result(Duration::ZERO, &result);
        assert_eq!(controllers.ready(), Ok(()));
        assert!(
            controllers.next_batch(Duration::ZERO, 99, &policy).is_none(),
            "the mirror has not seen the writes"
        );
        let batch = controllers.next_batch(Duration::ZERO, 100, &policy).unwrap();
        let written_names: Vec<&str> = batch.writes.iter().map(|w| w.name.as_str()).collect();
        assert_eq!(batch.controller, AGGREGATION);
        assert_eq!(written_names, ["admin", "edit", "view"]);
        for write in &batch.writes {
            let body: Value = serde_json::from_slice(&write.body).unwrap();
            assert_eq!((write.verb(), &body["kind"]), (Verb::Apply, &json!("ClusterRole")));
            assert_eq!(body["metadata"], json!({"name": write.name}));
            assert!(body["rules"].as_array().is_some_and(|rules| !rules.is_empty()));
        }
        let cleared = controllers.aggregation_of("sum", &[]);
        assert_eq!(cleared, WriteOperation::Patch(json!({"rules": null})));
    }

    #[test]
    fn failed_batch_is_retried_with_increasing_back_off() {
        let names = names();
        let (policy, mut controllers) = (Policy::new(&names), PolicyControllers::new(Arc::clone(&names)));
        controllers.mark_synced();
        let mut now = Duration::ZERO;
        for pause in [250, 500, 1000] {
            let batch = controllers.next_batch(now, 1, &policy).unwrap();
            let failed =
                auth::Failure { code: 404, message: "no namespace".into(), ..auth::Failure::default() };
            let mut outcomes = vec![auth::WriteOutcome::from(Ok(())); batch.writes.len() - 1];
            outcomes.push(Err(failed).into());
            controllers.handle_result(
                now,
                &auth::WriteResult { id: batch.id + 7, outcomes: outcomes.clone(), revision: 1 },
            );
            assert!(controllers.wake_at().is_none(), "a result with an unknown batch id is ignored");
            controllers.handle_result(now, &auth::WriteResult { id: batch.id, outcomes, revision: 1 });
            assert!(
                controllers.ready().unwrap_err().to_string().contains("404 no namespace"),
                "{:?}",
                controllers.ready()
            );
            now += Duration::from_millis(pause);
            assert_eq!(controllers.wake_at(), Some(now));
            assert!(controllers.next_batch(now - Duration::from_millis(1), 1, &policy).is_none());
        }
        let batch = controllers.next_batch(now, 1, &policy).unwrap();
        controllers
            .handle_result(now, &auth::WriteResult { id: batch.id, outcomes: Vec::new(), revision: 1 });
        assert!(controllers.ready().is_err(), "a result without answers is no success");
    }

    #[test]
    fn create_conflict_counts_as_success() {
        let names = names();
        let (policy, mut controllers) = (Policy::new(&names), PolicyControllers::new(Arc::clone(&names)));
        controllers.mark_synced();
        let batch = controllers.next_batch(Duration::ZERO, 1, &policy).unwrap();
        let conflict = auth::Failure { code: 409, ..auth::Failure::default() };
        let outcomes = vec![auth::WriteOutcome::from(Err(conflict)); batch.writes.len()];
        controllers.handle_result(Duration::ZERO, &auth::WriteResult { id: batch.id, outcomes, revision: 1 });
        assert_eq!(controllers.ready(), Ok(()));
    }
}

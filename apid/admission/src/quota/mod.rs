//! ResourceQuota: enforces limits on the total usage of a namespace.
//!
//! # Contract
//!
//! Before an object is stored, the plugin adds its usage increase to the status of every matching quota. It
//! rejects a write that exceeds a quota. A controller recounts the actual usage, which takes back the charges
//! of deleted objects and failed writes. Plugin and controller share [`Reservations`]; with several servers, in the
//! store.
//!
//! The usage in the status may be too high for a short time: after a failed attempt of a write until the next count, and
//! with several servers when a count has seen the reservation of a write before its charge. So a repeated write, and with
//! several servers a write after a change of the usage, is rejected only if there is no room after [`RECOUNT_WAIT`].
//!
//! # Reference
//!
//! The plugin compares with the limits and the usage in the status of a quota. Until the first count of a new
//! limit, the plugin rejects matching writes. Of the updates, the plugin charges only those of services and
//! claims, pod resizes, and updates that move a pod between the scopes of quotas.

mod check;
mod limited;
mod measure;
mod reservations;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::object::Object;
use apimachinery::status::{Reason, Status};
use serde_json::Value;
use tokio::time::Instant;

pub use measure::{MeasuredObject, Scopes, counts_resource, is_plain};
pub use reservations::{NamespaceLock, Reservation, ReservationGuard, Reservations};

use crate::quantity::{Amounts, to_list};
use crate::{
    Attributes, Environment, ObjectKind, Operation, Plugin, PluginConfiguration, PluginConfigurationError,
    Reader,
};
use check::{Charge, QuotaError, QuotaRequest, compute_charges};
use limited::LimitedResource;
use measure::{MeasurementRule, has_other_scopes, is_counted, rule};

/// ResourceQuota kind.
pub const QUOTA: ObjectKind = ObjectKind::new("", "ResourceQuota");
/// Maximum number of attempts to charge the quotas of a namespace. A conflicting write causes a new attempt;
/// after the last attempt the write fails with 503.
///
/// Each server charges one write of a namespace at a time, so conflicts between servers stay far below this number.
const ATTEMPTS: usize = 64;
/// Longest time that a write waits for counts that may leave room for the write: several times the usual time from the
/// end of a reservation to the count.
const RECOUNT_WAIT: Duration = Duration::from_millis(500);
/// Interval between two checks whether there is room.
const ROOM_INTERVAL: Duration = Duration::from_millis(20);

pub(crate) struct ResourceQuota {
    limited: Vec<LimitedResource>,
}

impl ResourceQuota {
    /// Builds the plugin with the limited resources of its configuration.
    ///
    /// # Errors
    ///
    /// The configuration is invalid.
    pub(crate) fn new(
        environment: &Environment,
        configuration: Option<&PluginConfiguration>,
    ) -> Result<Self, PluginConfigurationError> {
        Ok(ResourceQuota { limited: limited::read(&environment.names, configuration)? })
    }

    async fn charge(
        &self,
        attributes: &Attributes<'_>,
        object: &Object,
        mut quotas: Vec<Arc<Object>>,
    ) -> Result<(), Status> {
        let request = QuotaRequest::new(attributes, object);
        let reservations = &attributes.environment.reservations;
        let has_earlier_attempt = attributes.recorder.has_dropped_guards();
        let begin = Instant::now();
        loop {
            let error = match self.charge_once(attributes, &request, &quotas).await {
                Ok(()) => return Ok(()),
                Err(Rejection::Quota(error)) => error,
                Err(Rejection::Status(status)) => return Err(*status),
            };
            let is_exceeded = matches!(error, QuotaError::Exceeded { .. });
            let is_recent = || {
                reservations.shared().is_some()
                    && reservations.rejecting_since(attributes.namespace, &quotas).elapsed() < RECOUNT_WAIT
            };
            if !is_exceeded || begin.elapsed() >= RECOUNT_WAIT || !(has_earlier_attempt || is_recent()) {
                return Err(attributes.forbidden(&error.to_string()));
            }
            quotas = self.wait_for_room(attributes, &request, begin).await?;
        }
    }

    /// Waits until there is room for the write, at most until [`RECOUNT_WAIT`] after `begin`. Returns the quotas.
    async fn wait_for_room(
        &self,
        attributes: &Attributes<'_>,
        request: &QuotaRequest<'_>,
        begin: Instant,
    ) -> Result<Vec<Arc<Object>>, Status> {
        loop {
            tokio::time::sleep(ROOM_INTERVAL).await;
            let quotas = attributes.environment.reader.list(QUOTA, attributes.namespace).await?;
            let has_room = compute_charges(&quotas, request, &self.limited).is_ok();
            if has_room || begin.elapsed() >= RECOUNT_WAIT {
                return Ok(quotas);
            }
        }
    }

    /// Reserves and charges the write, if the quotas have room for it.
    async fn charge_once(
        &self,
        attributes: &Attributes<'_>,
        request: &QuotaRequest<'_>,
        quotas: &[Arc<Object>],
    ) -> Result<(), Rejection> {
        let reservations = &attributes.environment.reservations;
        let charges = compute_charges(quotas, request, &self.limited).map_err(Rejection::Quota)?;
        if charges.is_empty() || attributes.dry_run {
            return Ok(());
        }
        let _lock = reservations.lock_namespace(attributes.namespace).await;
        let reservation = Reservation {
            namespace: attributes.namespace.to_owned(),
            key: attributes.resource.key(attributes.namespace, attributes.name),
            replaces: attributes.old.map(|old| old.resource_version().to_owned()).unwrap_or_default(),
            measured: request.measured.clone(),
        };
        // Before the first charge, so that a count that sees the charge sees the reservation.
        let guard = reservations.reserve(reservation, &*attributes.environment.rng).await?;
        let mut charged = BTreeSet::new();
        let result = self.write_charges(attributes, request, &mut charged).await;
        match &result {
            Err(_) if charged.is_empty() => guard.withdraw(),
            Err(_) => drop(guard),
            Ok(()) => {
                guard.held().into_iter().for_each(|held| attributes.recorder.hold(held));
                attributes.recorder.keep(guard);
            }
        }
        result
    }

    /// Adds the usage increase to the status of all matching quotas. `charged` collects the uids of charged
    /// quotas, so that a new attempt does not charge them again.
    async fn write_charges(
        &self,
        attributes: &Attributes<'_>,
        request: &QuotaRequest<'_>,
        charged: &mut BTreeSet<String>,
    ) -> Result<(), Rejection> {
        let (reader, writer) = (&*attributes.environment.reader, &attributes.environment.writer);
        let mut quotas = reader.list(QUOTA, attributes.namespace).await?;
        for _ in 0..ATTEMPTS {
            quotas.retain(|quota| !charged.contains(quota.uid()));
            // Only an attempt with all quotas can check that a quota limits the limited resources.
            let limited = if charged.is_empty() { self.limited.as_slice() } else { &[] };
            let charges = compute_charges(&quotas, request, limited).map_err(Rejection::Quota)?;
            let mut has_conflict = false;
            for Charge { quota, used } in charges {
                let uid = quota.uid().to_owned();
                match writer.update_status(QUOTA, with_used(&quota, &used)).await {
                    Ok(_) => {
                        charged.insert(uid);
                    }
                    Err(status) if matches!(status.reason, Reason::Conflict | Reason::NotFound) => {
                        has_conflict = true
                    }
                    Err(status) => return Err(status.into()),
                }
            }
            if !has_conflict {
                return Ok(());
            }
            quotas = fresh_quotas(reader, attributes.namespace).await?;
        }
        let message = "unable to charge the quota: repeated conflicts with other writers, try again";
        Err(Status::unavailable(message, 1).into())
    }
}

/// The reason why a write is not charged.
enum Rejection {
    /// The quotas reject the write.
    Quota(QuotaError),
    /// Any other failure.
    Status(Box<Status>),
}

impl From<Status> for Rejection {
    fn from(status: Status) -> Self {
        Rejection::Status(Box::new(status))
    }
}

/// Reads the quotas of a namespace from the store.
async fn fresh_quotas(reader: &dyn Reader, namespace: &str) -> Result<Vec<Arc<Object>>, Status> {
    let cached = reader.list(QUOTA, namespace).await?;
    let mut quotas = Vec::with_capacity(cached.len());
    for quota in cached {
        quotas.extend(reader.get_fresh(QUOTA, namespace, quota.name()).await?);
    }
    Ok(quotas)
}

/// Copy of a quota with a new `status.used`.
pub fn with_used(quota: &Object, used: &Amounts) -> Object {
    let mut new = quota.clone();
    if let Some(status) = crate::tree::object_at(&mut new.0, "status") {
        status.insert("used".to_owned(), to_list(used));
    }
    new
}

/// Whether a write may increase the usage of a quota.
fn can_increase_usage(attributes: &Attributes<'_>, object: &Object) -> bool {
    let rule = rule(attributes.resource);
    match (attributes.operation, attributes.subresource) {
        (Operation::Create, "") => true,
        (Operation::Update, "") if rule == MeasurementRule::Pods => {
            attributes.old.is_some_and(|old| has_other_scopes(old, object))
        }
        (Operation::Update, "") => matches!(rule, MeasurementRule::Services | MeasurementRule::Claims),
        (Operation::Update, "resize") => rule == MeasurementRule::Pods,
        _ => false,
    }
}

impl Plugin for ResourceQuota {
    async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Object>) -> Result<(), Status> {
        let Some(object) = object.filter(|object| {
            is_counted(attributes.resource)
                && !attributes.namespace.is_empty()
                && can_increase_usage(attributes, object)
        }) else {
            return Ok(());
        };
        let quotas = attributes.environment.reader.list(QUOTA, attributes.namespace).await?;
        if quotas.is_empty() && self.limited.is_empty() {
            return Ok(());
        }
        self.charge(attributes, object, quotas).await
    }
}

/// Sums measured usage for each resource name of `spec.hard` for which `counted` returns true.
pub fn sum<'a>(
    quota: &Object,
    measured: impl Iterator<Item = &'a Amounts>,
    counted: impl Fn(&str) -> bool,
) -> Amounts {
    let hard = quota.at(&["spec", "hard"]).and_then(Value::as_object);
    let names = hard.into_iter().flatten().map(|(name, _)| name).filter(|name| counted(name));
    let mut used: Amounts = names.map(|name| (name.clone(), Default::default())).collect();
    for amounts in measured {
        for (name, sum) in &mut used {
            if let Some(amount) = amounts.get(name) {
                *sum = sum.plus(*amount);
            }
        }
    }
    used
}

#[cfg(test)]
#[path = "../tests/quota.rs"]
mod tests;

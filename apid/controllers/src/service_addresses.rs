//! Repair of IPAddress objects, and the controller of ServiceCIDR objects.
//!
//! # Contract
//!
//! Each address of a Service has an IPAddress object, and each IPAddress object that apid manages belongs to
//! a Service. The task restores both relations after a crash and after changes by clients. Each ServiceCIDR
//! object has a finalizer and a condition `Ready`. The finalizer stays while an allocated address of the
//! range is in no other range.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::object::Object;
use apimachinery::status::{Reason, Status};

use super::actor::{Actor, Target, is_race};
use super::condition::{Condition, with_conditions};
use super::stored;
use verbs::Collection;
use verbs::addresses::Owner;
use verbs::deletion::options::DeleteOptions;

use crate::ControllerState;

/// Maximum wait for a change before the next repair.
const INTERVAL: Duration = Duration::from_secs(10);
/// Pause before a repair, in which changes accumulate and the watch cache catches up with the allocator.
const PAUSE: Duration = Duration::from_millis(50);
/// Message of the condition `Ready` of a ServiceCIDR object whose deletion waits.
const TERMINATING: &str =
    "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";

/// Repairs after each change of a Service, IPAddress or ServiceCIDR until the process ends.
///
/// If `reconciles_ranges` is false, ServiceCIDR objects stay as they are.
pub(super) async fn run(state: Arc<ControllerState>, reconciles_ranges: bool) {
    let api_state = &state.api_state;
    let (Ok(records), Ok(ranges)) = (
        stored::of_kind(api_state, ("networking", "IPAddress")),
        stored::of_kind(api_state, ("networking", "ServiceCIDR")),
    ) else {
        return;
    };
    let repair_actor = state.apiserver();
    let controller = state.controller("service-cidrs-controller");
    let mut reported = Vec::new();
    loop {
        let differences = api_state.addresses.differences();
        if differences.shared != reported {
            for (address, owners) in &differences.shared {
                tracing::warn!(%address, ?owners, "several Services use one cluster IP; delete all but one of them");
            }
            reported = differences.shared;
        }
        let mut results = Vec::new();
        for address in differences.stale {
            results.push(remove_record(&repair_actor, &records, address).await);
        }
        for (address, owner) in differences.unrecorded {
            results.push(add_record(&repair_actor, &records, address, &owner).await);
        }
        if reconciles_ranges {
            results.extend(reconcile_ranges(&controller, &ranges).await);
        }
        for status in results.into_iter().filter_map(Result::err) {
            tracing::warn!(reason = %status, "repairing service addresses failed; retrying");
        }
        let _ = tokio::time::timeout(INTERVAL, api_state.addresses.wait_for_change()).await;
        tokio::time::sleep(PAUSE).await;
    }
}

/// Deletes the IPAddress object of an address that no Service uses.
///
/// If the object changes after it is read here, the object stays.
async fn remove_record(actor: &Actor, records: &Collection, address: IpAddr) -> Result<(), Status> {
    let name = address.to_string();
    let Some(item) = stored::item(records, "", &name).await? else { return Ok(()) };
    if !actor.api_state().addresses.is_stale(address) {
        return Ok(());
    }
    let mut options = DeleteOptions::default();
    options.preconditions.resource_version = Some(item.revision().to_string());
    let target = Target { collection: records, namespace: "", name: &name, subresource: "" };
    ignore_races(actor.delete(target, &options).await.map(drop))
}

async fn add_record(
    actor: &Actor,
    records: &Collection,
    address: IpAddr,
    owner: &Owner,
) -> Result<(), Status> {
    let record = actor.api_state().addresses.record(address, owner);
    let target = Target { collection: records, namespace: "", name: "", subresource: "" };
    ignore_races(actor.create(target, record).await.map(drop))
}

/// Reconciles all ServiceCIDR objects. Returns one result for each, or the failure to read them.
async fn reconcile_ranges(actor: &Actor, ranges: &Collection) -> Vec<Result<(), Status>> {
    let objects = match stored::all(ranges).await {
        Ok(objects) => objects,
        Err(status) => return vec![Err(status)],
    };
    let mut results = Vec::with_capacity(objects.len());
    for range in &objects {
        results.push(reconcile_range(actor, ranges, range, &objects).await);
    }
    results
}

/// Adds the finalizer and the condition `Ready` to a ServiceCIDR object. Removes the finalizer of a
/// terminating object when all allocated addresses of its range are in other ranges.
async fn reconcile_range(
    actor: &Actor,
    ranges: &Collection,
    range: &Object,
    all_ranges: &[Object],
) -> Result<(), Status> {
    let api_state = actor.api_state();
    let names = &api_state.names;
    let finalizer = format!("{}/service-cidr-finalizer", names.group("networking"));
    let target = Target { collection: ranges, namespace: "", name: range.name(), subresource: "" };
    let has_finalizer = range.finalizers().any(|other| other == finalizer);
    let mut condition = Condition { kind: "Ready", status_is_true: true, reason: "", message: String::new() };
    if range.is_terminating() {
        let other_ranges: Vec<Object> = all_ranges
            .iter()
            .filter(|other| other.name() != range.name() && !other.is_terminating())
            .cloned()
            .collect();
        if !api_state.addresses.is_range_used(range, &other_ranges) {
            if !has_finalizer {
                return Ok(());
            }
            let mut updated = range.clone();
            updated.remove_finalizer(&finalizer);
            return ignore_races(actor.update(target, updated).await.map(drop));
        }
        condition.status_is_true = false;
        condition.reason = "Terminating";
        TERMINATING.clone_into(&mut condition.message);
    } else {
        if !has_finalizer {
            let mut updated = range.clone();
            let finalizers: Vec<String> = range.finalizers().map(str::to_owned).chain([finalizer]).collect();
            updated.set_meta("finalizers", finalizers);
            return ignore_races(actor.update(target, updated).await.map(drop));
        }
        // The start objects task writes the condition of the default ServiceCIDR object.
        if range.name() == names.api_service {
            return Ok(());
        }
        condition.message = format!("{} Service CIDR is ready", names.api_title());
    }
    let now = apimachinery::time::time(api_state.clock.now());
    let Some(updated) = with_conditions(range, &[condition], &now) else { return Ok(()) };
    ignore_races(actor.update(Target { subresource: "status", ..target }, updated).await.map(drop))
}

/// Ignores failures caused by concurrent changes: the next repair reads the new state.
fn ignore_races(result: Result<(), Status>) -> Result<(), Status> {
    match result {
        Err(status) if is_race(&status) || status.reason == Reason::AlreadyExists => Ok(()),
        result => result,
    }
}

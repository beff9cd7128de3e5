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
use parking_lot::Mutex;

use super::actor::{Actor, Target, is_race};
use super::condition::{Condition, with_conditions};
use super::runner::{Reconcile, Requeue, Runner};
use super::stored;
use verbs::Collection;
use verbs::addresses::Owner;
use verbs::deletion::options::DeleteOptions;

use crate::ControllerState;

/// Maximum wait for a change before the next repair.
const INTERVAL: Duration = Duration::from_secs(10);
/// Debounce interval, in which the watch cache catches up with the allocator.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// Message of the condition `Ready` of a ServiceCIDR object whose deletion waits.
const TERMINATING: &str =
    "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";

/// The controller, with one key for all addresses and ranges.
struct AddressRepair {
    apiserver: Actor,
    records: Arc<Collection>,
    ranges: Arc<Collection>,
    /// The actor that writes ServiceCIDR objects; None if they stay as they are.
    range_actor: Option<Actor>,
    /// The reported addresses that several Services use, with these Services.
    reported: Mutex<Vec<(IpAddr, Vec<Owner>)>>,
}

/// Repairs after each change of a Service, IPAddress or ServiceCIDR until the process ends.
///
/// If `reconciles_ranges` is false, ServiceCIDR objects stay as they are.
pub(super) async fn run(state: Arc<ControllerState>, reconciles_ranges: bool) {
    let kind = |kind| stored::of_kind(&state.api_state, ("networking", kind));
    let (Ok(records), Ok(ranges)) = (kind("IPAddress"), kind("ServiceCIDR")) else { return };
    let runner = Runner::new(&state, "ipaddresses").start_with(());
    let (api_state, queue) = (Arc::clone(&state.api_state), runner.queue());
    let runner = runner.source(async move {
        loop {
            api_state.addresses.wait_for_change().await;
            queue.add_after((), DEBOUNCE);
        }
    });
    let controller = AddressRepair {
        apiserver: state.apiserver().of_leader(),
        records,
        ranges,
        range_actor: reconciles_ranges.then(|| state.controller("service-cidrs-controller")),
        reported: Mutex::default(),
    };
    runner.run(Arc::new(controller)).await;
}

impl Reconcile for AddressRepair {
    type Key = ();

    async fn reconcile(&self, (): &()) -> Result<Requeue, Status> {
        let differences = self.apiserver.api_state().addresses.differences();
        self.report_shared(differences.shared);
        let mut result = Ok(());
        for address in differences.stale {
            result = result.and(remove_record(&self.apiserver, &self.records, address).await);
        }
        for (address, owner) in differences.unrecorded {
            result = result.and(add_record(&self.apiserver, &self.records, address, &owner).await);
        }
        if let Some(actor) = &self.range_actor {
            result = result.and(reconcile_ranges(actor, &self.ranges).await);
        }
        result?;
        Ok(Requeue::After(INTERVAL))
    }
}

impl AddressRepair {
    /// Logs the addresses that several Services use, if they have changed.
    fn report_shared(&self, shared: Vec<(IpAddr, Vec<Owner>)>) {
        let mut reported = self.reported.lock();
        if shared != *reported {
            for (address, owners) in &shared {
                tracing::warn!(%address, ?owners, "several Services use one cluster IP; delete all but one of them");
            }
            *reported = shared;
        }
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
    let options = DeleteOptions::if_unchanged(item.revision().to_string());
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

/// Reconciles all ServiceCIDR objects. A failure for one of them does not prevent the others.
async fn reconcile_ranges(actor: &Actor, ranges: &Collection) -> Result<(), Status> {
    let objects = stored::all(ranges).await?;
    let mut result = Ok(());
    for range in &objects {
        result = result.and(reconcile_range(actor, ranges, range, &objects).await);
    }
    result
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

//! Eviction of a pod: a delete that its PodDisruptionBudget allows.
//!
//! As in kube-apiserver, admission is asked about the creation of `pods/eviction` only, not about the deletion of
//! the pod. A webhook or policy that protects pods needs a rule for both.

use std::sync::Arc;

use admission::Operation;
use apimachinery::field::{FieldError, FieldErrors, FieldPath, shorten};
use apimachinery::gvk::GroupKind;
use apimachinery::object::{Object, Value};
use apimachinery::status::{Reason, Status};
use apimachinery::time;
use kinds::Kind;
use kinds::eviction::{self, DISRUPTION_BUDGET, EvictionDecision};
use storage::{Error, Op, Revision};

use super::audited_object;
use super::create::resolve_namespace;
use super::decode::decode;
use super::delete::delete_evicted;
use super::deletion::options::{DeleteOptions, IGNORE_STORE_READ_ERROR, Preconditions, RawDeleteOptions};
use super::options::WriteOptions;
use super::response_object::tree;
use super::{Call, Payload};
use crate::ApiState;
use crate::VerbFuture;

/// Evicts the pod of a call. Returns warnings with the result.
///
/// # Errors
///
/// 400 for a malformed body, 403 from admission, 404, 409 when a precondition fails. 429 while the
/// PodDisruptionBudget forbids the eviction, 500 when more than one PodDisruptionBudget selects the pod.
pub fn evict<'a>(
    call: &'a Call<'a>,
    kind: &'a Kind,
    payload: Payload<'a>,
    options: &'a WriteOptions,
) -> VerbFuture<'a, (Status, Vec<String>)> {
    Box::pin(async move {
        let (mut body, warnings) = read(kind, payload, options, call.api_state)?;
        audited_object::record(call.recorder, kind, kind, &body, &call.context());
        if body.name() != call.name {
            return Err(Status::bad_request("name in URL does not match name in Eviction object"));
        }
        resolve_namespace(call, &mut body)?;
        let build_options = || options.to_value("CreateOptions", &call.api_state.names);
        let attributes = call.admission(Operation::Create, options.dry_run, &build_options);
        call.api_state.admission.mutate(&attributes, Some(&mut body)).await?;
        call.api_state.admission.validate(&attributes, Some(&body)).await?;
        let raw_options = delete_options(&body);
        check_options(&body, &raw_options, options)?;
        let mut requested_options = raw_options.validate(&call.api_state.names)?;
        requested_options.dry_run |= options.dry_run;

        let pod_call = Call { subresource: "", ..*call };
        loop {
            let item = pod_call.get_or_404().await?;
            let pod = tree(&item, item.revision())?;
            let found = Preconditions {
                uid: Some(pod.uid().to_owned()),
                resource_version: Some(pod.resource_version().to_owned()),
            };
            let misses_preconditions = fails_precondition(&requested_options.preconditions, &found);
            // A pending pod that meets the preconditions is deleted below, at the evaluated resourceVersion.
            // The pod may start at any time, and its budget must then allow the eviction.
            if eviction::is_finished(&pod) || (eviction::needs_no_budget(&pod) && misses_preconditions) {
                delete_evicted(&pod_call, &requested_options).await?;
                break;
            }
            if misses_preconditions {
                let reason = "Precondition failed: UID or resourceVersion does not match";
                return Err(Status::conflict(
                    &call.collection.kind.internal().group_resource,
                    call.name,
                    reason,
                ));
            }
            let decision = match eviction::needs_no_budget(&pod) {
                true => Some(EvictionDecision::Uncharged),
                false => charge_budget(&pod_call, &pod, requested_options.dry_run).await?,
            };
            let Some(decision) = decision else { continue };
            // An eviction that is not charged to a budget requires the evaluated resourceVersion.
            let resource_version = found.resource_version.filter(|_| decision == EvictionDecision::Uncharged);
            let preconditions = Preconditions { resource_version, ..found };
            let options = DeleteOptions { preconditions, ..requested_options.clone() };
            match delete_evicted(&pod_call, &options).await {
                Err(status)
                    if status.reason == Reason::Conflict && decision == EvictionDecision::Uncharged => {}
                Err(status) => return Err(status),
                Ok(()) => break,
            }
        }
        Ok((Status::action_success(), warnings))
    })
}

/// Decodes the Eviction in any of its versions. A decoding error refers to the newest version.
fn read(
    kind: &Kind,
    payload: Payload<'_>,
    options: &WriteOptions,
    api_state: &ApiState,
) -> Result<(Object, Vec<String>), Status> {
    let versions = kind.versions();
    let mut decoded =
        versions.map(|version| decode(kind, version, payload.clone(), options.field_validation, api_state));
    let newest = decoded.next().ok_or_else(Status::unknown_resource)?;
    newest.or_else(|status| decoded.find_map(Result::ok).ok_or(status))
}

/// Rejects options that an eviction cannot have, and options that contradict those of the request.
fn check_options(body: &Object, options: &RawDeleteOptions, request: &WriteOptions) -> Result<(), Status> {
    if body.at(&["deleteOptions", IGNORE_STORE_READ_ERROR]).and_then(Value::as_bool) == Some(true) {
        let path = FieldPath::new("deleteOptions").child(IGNORE_STORE_READ_ERROR);
        let detail = "can not be set for pod eviction, try after removing the option";
        let errors: FieldErrors = FieldError::invalid(&path, true, detail).into();
        let kind = GroupKind { group: String::new(), kind: "DeleteOptions".to_owned() };
        return Err(Status::invalid(&kind, "", &errors));
    }
    if request.dry_run && !options.dry_run.is_empty() && options.dry_run != ["All"] {
        let values = options.dry_run.join(" ");
        let reason =
            format!("Non-matching dry-run options in request and content: [All] and [{}]", shorten(&values));
        return Err(Status::failure(Reason::Unknown, reason));
    }
    Ok(())
}

/// Returns the delete options of an eviction.
fn delete_options(body: &Object) -> RawDeleteOptions {
    let option = |field: &str| body.at(&["deleteOptions", field]);
    let text = |path: &[&str]| body.str_at(path).map(str::to_owned);
    RawDeleteOptions {
        dry_run: option("dryRun")
            .and_then(Value::as_array)
            .map(|values| values.iter().filter_map(Value::as_str).map(str::to_owned).collect())
            .unwrap_or_default(),
        grace_period_seconds: option("gracePeriodSeconds").and_then(Value::as_i64),
        propagation_policy: text(&["deleteOptions", "propagationPolicy"]),
        orphan_dependents: option("orphanDependents").and_then(Value::as_bool),
        preconditions: option("preconditions").map(|_| Preconditions {
            uid: text(&["deleteOptions", "preconditions", "uid"]),
            resource_version: text(&["deleteOptions", "preconditions", "resourceVersion"]),
        }),
        ignore_store_read_error: None,
    }
}

/// Whether the current pod `found` does not meet the preconditions `expected`.
fn fails_precondition(expected: &Preconditions, found: &Preconditions) -> bool {
    let differs = |expected: &Option<String>, found: &Option<String>| expected.is_some() && expected != found;
    differs(&expected.uid, &found.uid) || differs(&expected.resource_version, &found.resource_version)
}

/// Evaluates the PodDisruptionBudget of a pod, and charges the eviction to this budget if necessary.
///
/// A pod without a budget counts as charged. None when another write changed the budget meanwhile.
async fn charge_budget(
    call: &Call<'_>,
    pod: &Object,
    dry_run: bool,
) -> Result<Option<EvictionDecision>, Status> {
    let api_state = call.api_state;
    let (stem, kind) = DISRUPTION_BUDGET;
    let Some(budgets) = call.collection_of(&api_state.names.group(stem), kind) else {
        return Ok(Some(EvictionDecision::Charged));
    };
    let snapshot = budgets.items.snapshot().await.map_err(|error| call.failure(error))?;
    let mut matching_budget: Option<(Arc<str>, Revision, Object)> = None;
    for item in snapshot.scope(&budgets.kind.key(call.namespace, ""), "") {
        let budget = tree(item, item.revision())?;
        if !eviction::selects_pod(&budget, pod) {
            continue;
        }
        if matching_budget.is_some() {
            let text = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
            return Err(Status::failure(Reason::Unknown, text));
        }
        matching_budget = Some((Arc::clone(item.key()), item.revision(), budget));
    }
    let Some((key, revision, mut budget)) = matching_budget else {
        return Ok(Some(EvictionDecision::Charged));
    };
    let decision = eviction::decide(&budget, pod)?;
    if decision == EvictionDecision::Uncharged || dry_run {
        return Ok(Some(decision));
    }
    eviction::record_eviction(&mut budget, call.name, &time::time(api_state.clock.now()));
    match api_state.store.commit(&key, Op::Update(kinds::entry::encode(&budget), revision)).await {
        Ok(_) => Ok(Some(decision)),
        Err(Error::Conflict(_) | Error::NotFound(_)) => Ok(None),
        Err(error) => Err(call.failure(error)),
    }
}

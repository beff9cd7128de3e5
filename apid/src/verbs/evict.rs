//! Eviction of a pod: a delete that its PodDisruptionBudget allows.

use std::sync::Arc;

use admission::Operation;
use apimachinery::codec::Limits;
use apimachinery::object::{Object, Value};
use apimachinery::status::{Reason, Status};
use apimachinery::time;
use kinds::Resource;
use kinds::eviction::{self, BUDGET, Verdict};
use storage::{Error, Op, Revision};

use super::create::fit_namespace;
use super::decode::decode;
use super::deletion::options::{DeleteOptions, Preconditions, RawDeleteOptions};
use super::options::WriteOptions;
use super::shown::tree;
use super::{Call, Payload, delete};

/// Evicts the pod of a call. Returns warnings with the result.
///
/// # Errors
///
/// 400 for the body, 403 from admission, 404, 409 when a precondition fails. 429 while the
/// PodDisruptionBudget forbids the eviction, 500 when the pod matches more than one.
pub async fn evict(
    call: &Call<'_>,
    kind: &Resource,
    payload: Payload<'_>,
    options: &WriteOptions,
) -> Result<(Status, Vec<String>), Status> {
    let (mut order, warnings) = read(kind, payload, options, call.plane.body_limits)?;
    if order.name() != call.name {
        return Err(Status::bad_request("name in URL does not match name in Eviction object"));
    }
    fit_namespace(call, &mut order)?;
    let as_value = options.to_value("CreateOptions", &call.plane.names);
    let admission = call.admission(Operation::Create, options.dry_run, as_value);
    admission.mutate(Some(&mut order), None).await?;
    admission.validate(Some(&order), None).await?;
    let mut asked = deletion(&order).validate(&call.plane.names)?;
    asked.dry_run |= options.dry_run;

    let of_pod = Call { subresource: "", ..*call };
    loop {
        let item = of_pod.found().await?;
        let pod = tree(&item, item.revision())?;
        let found = Preconditions {
            uid: Some(pod.uid().to_owned()),
            resource_version: Some(pod.resource_version().to_owned()),
        };
        let is_other = differs(&asked.preconditions, &found);
        // A pending pod may start at any time; then its budget must allow the eviction.
        if eviction::is_over(&pod) || (eviction::is_free(&pod) && is_other) {
            delete(&of_pod, &asked).await?;
            break;
        }
        if is_other {
            let why = "Precondition failed: UID or resourceVersion does not match";
            return Err(Status::conflict(&call.collection.resource.group_resource, call.name, why));
        }
        let verdict = match eviction::is_free(&pod) {
            true => Some(Verdict::Free),
            false => spend(&of_pod, &pod, asked.dry_run).await?,
        };
        let Some(verdict) = verdict else { continue };
        // An eviction without charge requires the evaluated resourceVersion; a charged eviction does not.
        let resource_version = found.resource_version.filter(|_| verdict == Verdict::Free);
        let preconditions = Preconditions { resource_version, ..found };
        match delete(&of_pod, &DeleteOptions { preconditions, ..asked.clone() }).await {
            Err(status) if status.reason == Reason::Conflict && verdict == Verdict::Free => {}
            Err(status) => return Err(status),
            Ok(_) => break,
        }
    }
    Ok((Status::carried_out(), warnings))
}

/// Decodes the Eviction in any of its versions. A decoding error refers to the newest version.
fn read(
    kind: &Resource,
    payload: Payload<'_>,
    options: &WriteOptions,
    limits: Limits,
) -> Result<(Object, Vec<String>), Status> {
    let versions = kind.kind.versions.iter();
    let mut decoded =
        versions.map(|version| decode(kind, version, payload.clone(), options.field_validation, limits));
    let newest = decoded.next().ok_or_else(Status::unknown_resource)?;
    newest.or_else(|status| decoded.find_map(Result::ok).ok_or(status))
}

/// Returns the delete options of an eviction.
fn deletion(order: &Object) -> RawDeleteOptions {
    let at = |field: &str| order.at(&["deleteOptions", field]);
    let text = |path: &[&str]| order.str_at(path).map(str::to_owned);
    RawDeleteOptions {
        dry_run: at("dryRun")
            .and_then(Value::as_array)
            .map(|values| values.iter().filter_map(Value::as_str).map(str::to_owned).collect())
            .unwrap_or_default(),
        grace_period_seconds: at("gracePeriodSeconds").and_then(Value::as_i64),
        propagation_policy: text(&["deleteOptions", "propagationPolicy"]),
        orphan_dependents: at("orphanDependents").and_then(Value::as_bool),
        preconditions: at("preconditions").map(|_| Preconditions {
            uid: text(&["deleteOptions", "preconditions", "uid"]),
            resource_version: text(&["deleteOptions", "preconditions", "resourceVersion"]),
        }),
        ignore_store_read_error: None,
    }
}

/// Whether the preconditions exclude the current pod.
fn differs(wanted: &Preconditions, found: &Preconditions) -> bool {
    let differs = |wanted: &Option<String>, found: &Option<String>| wanted.is_some() && wanted != found;
    differs(&wanted.uid, &found.uid) || differs(&wanted.resource_version, &found.resource_version)
}

/// Evaluates and charges the budget of a pod; a pod without a budget counts as charged. None when the budget
/// changed meanwhile.
async fn spend(call: &Call<'_>, pod: &Object, dry_run: bool) -> Result<Option<Verdict>, Status> {
    let plane = call.plane;
    let (stem, kind) = BUDGET;
    let resource = plane.registry.find_kind(&plane.names.group(stem), kind);
    let Some(budgets) = resource.and_then(|resource| plane.collection(resource)) else {
        return Ok(Some(Verdict::Charged));
    };
    let snapshot = budgets.items.snapshot().await.map_err(|error| call.failure(error))?;
    let mut guarding: Option<(Arc<str>, Revision, Object)> = None;
    for item in snapshot.scope(&budgets.resource.key(call.namespace, ""), "") {
        let budget = tree(item, item.revision())?;
        if !eviction::guards(&budget, pod) {
            continue;
        }
        if guarding.is_some() {
            let text = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
            return Err(Status::failure(Reason::Unknown, text));
        }
        guarding = Some((Arc::clone(item.key()), item.revision(), budget));
    }
    let Some((key, revision, mut budget)) = guarding else { return Ok(Some(Verdict::Charged)) };
    let verdict = eviction::judge(&budget, pod)?;
    if verdict == Verdict::Free || dry_run {
        return Ok(Some(verdict));
    }
    eviction::charge(&mut budget, call.name, &time::time(plane.clock.now()));
    match plane.store.commit(&key, Op::Update(kinds::entry::encode(&budget), revision)).await {
        Ok(_) => Ok(Some(verdict)),
        Err(Error::Conflict(_) | Error::NotFound(_)) => Ok(None),
        Err(error) => Err(call.failure(error)),
    }
}

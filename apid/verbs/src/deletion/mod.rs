//! The effect of a delete on an object: none, mark as terminating, or remove. The functions are pure; the
//! verb stores the result.
//!
//! # Contract
//!
//! [`step`] returns the next step for the current state of an object. An object of a kind with graceful
//! deletion ([`kinds::Strategy::grace_period_seconds`]) gets a grace period, which a later delete can only
//! shorten.
//! Finalizers, including those that the options request, keep an object terminating until they are removed.
//! [`is_deletion_complete`] says when an update completes a deletion.
//!
//! # Reference
//!
//! The rules are those of the requirements D-DELOPT and D-DEL; where these say nothing, those of
//! kube-apiserver. A shortened grace period counts from the first delete and never ends in the past. A
//! negative grace period is one second. A second delete may still change the propagation policy unless a
//! grace period runs.

pub mod options;
pub(super) mod unreadable;

#[cfg(test)]
mod tests;

use apimachinery::object::Object;
use apimachinery::time;
use jiff::{SignedDuration, Timestamp};
use kinds::{DefaultPropagation, Kind, metadata};
use serde_json::Value;

use options::{DeleteOptions, Propagation};

/// The next step of a deletion.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DeletionStep {
    /// Nothing: the deletion is under way, and this request does not change it.
    Wait,
    /// Store the object; finalizers or the grace period keep it.
    Mark(Object),
    /// Store the object first, so watches see its last state, then remove it.
    MarkAndRemove(Object),
    /// Remove the object.
    Remove,
}

/// Whether a deletion is under way that the request does not change. In this case, admission does not run.
pub(super) fn is_waiting(old: &Object, options: &DeleteOptions, kind: &Kind) -> bool {
    if !old.is_terminating() {
        return false;
    }
    let current_seconds = stored_grace_seconds(old);
    kind.strategy().has_pending_finalizers(old)
        || (current_seconds > 0
            && requested_seconds(options).is_none_or(|seconds| seconds >= current_seconds))
}

/// Returns the grace period of the request in seconds: 1 if the requested period is negative.
fn requested_seconds(options: &DeleteOptions) -> Option<i64> {
    options.grace_period_seconds.map(|seconds| if seconds < 0 { 1 } else { seconds })
}

/// Returns the effect of a delete on the object `old`.
pub(super) fn step(old: &Object, options: &DeleteOptions, kind: &Kind, now: Timestamp) -> DeletionStep {
    let strategy = kind.strategy();
    if old.is_terminating() && strategy.has_pending_finalizers(old) {
        return DeletionStep::Wait;
    }
    let mut new = old.clone();
    let grace_seconds = match update_grace_period(&mut new, old, options, kind, now) {
        Ok(seconds) => seconds,
        Err(GracePeriodRunning) => return DeletionStep::Wait,
    };
    let finalizers = finalizers(old, options, kind.rules.default_propagation);
    let has_finalizers = !finalizers.is_empty() || strategy.has_pending_finalizers(old);
    if !old.finalizers().eq(finalizers.iter().map(String::as_str)) {
        match finalizers.is_empty() {
            true => drop(new.remove_meta("finalizers")),
            false => new.set_meta("finalizers", finalizers),
        }
    }
    match grace_seconds {
        Some(1..) => DeletionStep::Mark(new),
        Some(_) if !has_finalizers => DeletionStep::MarkAndRemove(new),
        None if !has_finalizers => DeletionStep::Remove,
        _ => {
            if grace_seconds.is_none() {
                mark_terminating(&mut new, old, now);
            }
            strategy.begin_deletion(&mut new);
            if new == *old { DeletionStep::Wait } else { DeletionStep::Mark(new) }
        }
    }
}

/// Whether a terminating object can be removed: no finalizers and no grace period.
pub(super) fn is_deletion_complete(object: &Object, kind: &Kind) -> bool {
    object.is_terminating()
        && object.finalizers().next().is_none()
        && !kind.strategy().has_pending_finalizers(object)
        && stored_grace_seconds(object) == 0
}

/// Returns the stored grace period of a terminating object in seconds: 0 if absent, 1 if negative.
fn stored_grace_seconds(object: &Object) -> i64 {
    let seconds =
        object.meta().and_then(|meta| meta.get("deletionGracePeriodSeconds")).and_then(Value::as_i64);
    seconds.map_or(0, |seconds| if seconds < 0 { 1 } else { seconds })
}

/// The failure of [`update_grace_period`] when the grace period runs and the request does not shorten it.
struct GracePeriodRunning;

/// Sets or shortens the grace period. Returns None if the kind has no graceful deletion or the grace period
/// is over.
fn update_grace_period(
    new: &mut Object,
    old: &Object,
    options: &DeleteOptions,
    kind: &Kind,
    now: Timestamp,
) -> Result<Option<i64>, GracePeriodRunning> {
    let requested = requested_seconds(options);
    if !old.is_terminating() {
        let Some(seconds) = kind.strategy().grace_period_seconds(old, requested) else { return Ok(None) };
        set_deletion_fields(new, old, add_seconds(now, seconds), seconds);
        return Ok(Some(seconds));
    }
    let current_seconds = stored_grace_seconds(old);
    if current_seconds == 0 {
        return Ok(None);
    }
    let seconds = requested.filter(|seconds| *seconds < current_seconds).ok_or(GracePeriodRunning)?;
    let deletion_time = time::parse(old.meta_str("deletionTimestamp")).unwrap_or(now);
    set_deletion_fields(new, old, add_seconds(deletion_time, seconds - current_seconds).max(now), seconds);
    Ok(Some(seconds))
}

/// Marks an object as terminating that waits only for finalizers.
fn mark_terminating(new: &mut Object, old: &Object, now: Timestamp) {
    let deletion_time = time::parse(old.meta_str("deletionTimestamp")).unwrap_or(now);
    set_deletion_fields(new, old, deletion_time.min(now), 0);
}

fn set_deletion_fields(new: &mut Object, old: &Object, deletion_time: Timestamp, seconds: i64) {
    if !old.is_terminating() && old.generation() > 0 {
        new.set_meta("generation", old.generation() + 1);
    }
    new.set_meta("deletionTimestamp", time::time(deletion_time));
    new.set_meta("deletionGracePeriodSeconds", seconds);
}

fn add_seconds(time: Timestamp, seconds: i64) -> Timestamp {
    time.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX)
}

/// Returns the finalizers of the terminating object.
///
/// The finalizer of the propagation policy replaces the propagation finalizers of `old`; the others stay.
fn finalizers(old: &Object, options: &DeleteOptions, default: DefaultPropagation) -> Vec<String> {
    let (orphan, foreground) = (metadata::ORPHAN, metadata::FOREGROUND);
    let has_finalizer = |finalizer: &str| old.finalizers().any(|f| f == finalizer);
    let propagation_finalizer = match (default, options.orphan_dependents, options.propagation) {
        (DefaultPropagation::Never, ..) => None,
        (_, Some(true), _) | (_, None, Some(Propagation::Orphan)) => Some(orphan),
        (_, None, Some(Propagation::Foreground)) => Some(foreground),
        (_, Some(false), _) | (_, None, Some(Propagation::Background)) => None,
        (_, None, None) if has_finalizer(orphan) => Some(orphan),
        (_, None, None) if has_finalizer(foreground) => Some(foreground),
        (DefaultPropagation::Orphan, None, None) => Some(orphan),
        (DefaultPropagation::Background, None, None) => None,
    };
    let mut finalizers: Vec<String> =
        old.finalizers().filter(|f| ![orphan, foreground].contains(f)).map(str::to_owned).collect();
    finalizers.extend(propagation_finalizer.map(str::to_owned));
    let is_unchanged =
        finalizers.len() == old.finalizers().count() && finalizers.iter().all(|f| has_finalizer(f));
    if is_unchanged { old.finalizers().map(str::to_owned).collect() } else { finalizers }
}

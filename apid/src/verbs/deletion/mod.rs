//! What a delete does to an object: nothing yet, a mark, or its end. Pure; the verb stores it.
//!
//! # Contract
//!
//! [`step`] decides for one state of the object. Kinds that end gracefully ([`Strategy::grace`]) are marked with the time
//! that they have, and that only ever shrinks; finalizers, also those that the options ask for, keep an object marked
//! until they are gone. [`is_over`] says when an update ends what a delete began.
//!
//! # Reference
//!
//! Requirements D-DELOPT and D-DEL; where those are silent the reference: a shortened time is counted from the first
//! request and never ends in the past, a negative one is a second, a second delete may still change what becomes of
//! dependents as long as no time runs.

pub mod options;
pub(super) mod unreadable;

#[cfg(test)]
mod tests;

use apimachinery::object::Object;
use apimachinery::time;
use jiff::{SignedDuration, Timestamp};
use kinds::{DefaultPropagation, Strategy, metadata};
use serde_json::Value;

use options::{DeleteOptions, Propagation};

/// The next thing to do.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Nothing: its end is under way already, and this does not hasten it.
    Wait,
    /// It is changed so, and stays.
    Mark(Object),
    /// It is changed so, which watchers see, and then removed.
    MarkAndRemove(Object),
    /// It is removed.
    Remove,
}

/// What a delete does to an object that is as `old`.
pub(super) fn step(old: &Object, options: &DeleteOptions, strategy: &dyn Strategy, now: Timestamp) -> Step {
    if old.is_terminating() && strategy.is_held(old) {
        return Step::Wait;
    }
    let mut new = old.clone();
    let time_left = match graceful(&mut new, old, options, strategy, now) {
        Ok(time_left) => time_left,
        Err(Running) => return Step::Wait,
    };
    let finalizers = finalizers(old, options, strategy);
    let held = !finalizers.is_empty() || strategy.is_held(old);
    if !old.finalizers().eq(finalizers.iter().map(String::as_str)) {
        match finalizers.is_empty() {
            true => drop(new.remove_meta("finalizers")),
            false => new.set_meta("finalizers", finalizers),
        }
    }
    match time_left {
        Some(1..) => Step::Mark(new),
        Some(_) if !held => Step::MarkAndRemove(new),
        None if !held => Step::Remove,
        _ => {
            if time_left.is_none() {
                mark(&mut new, old, now);
            }
            strategy.begin_deletion(&mut new);
            if new == *old { Step::Wait } else { Step::Mark(new) }
        }
    }
}

/// Whether nothing keeps an object any more whose deletion began: no finalizer, and no time that runs.
pub(super) fn is_over(object: &Object, strategy: &dyn Strategy) -> bool {
    object.is_terminating()
        && object.finalizers().next().is_none()
        && !strategy.is_held(object)
        && time_left(object) == 0
}

/// Seconds that an object had to end when they were last set.
fn time_left(object: &Object) -> i64 {
    let left = object.meta().and_then(|meta| meta.get("deletionGracePeriodSeconds")).and_then(Value::as_i64);
    left.map_or(0, |seconds| if seconds < 0 { 1 } else { seconds })
}

/// Its time runs, and nobody shortened it.
struct Running;

/// Gives the object time to end, or less of it. None: there is nothing to wait for, or its kind does not.
fn graceful(
    new: &mut Object,
    old: &Object,
    options: &DeleteOptions,
    strategy: &dyn Strategy,
    now: Timestamp,
) -> Result<Option<i64>, Running> {
    let asked = options.grace_period_seconds.map(|seconds| if seconds < 0 { 1 } else { seconds });
    if !old.is_terminating() {
        let Some(seconds) = strategy.grace(old, asked) else { return Ok(None) };
        set(new, old, after(now, seconds), seconds);
        return Ok(Some(seconds));
    }
    let left = time_left(old);
    if left == 0 {
        return Ok(None);
    }
    let seconds = asked.filter(|seconds| *seconds < left).ok_or(Running)?;
    let ends = time::parse(old.meta_str("deletionTimestamp")).unwrap_or(now);
    set(new, old, after(ends, seconds - left).max(now), seconds);
    Ok(Some(seconds))
}

/// Marks an object that waits for nothing but finalizers.
fn mark(new: &mut Object, old: &Object, now: Timestamp) {
    let ends = time::parse(old.meta_str("deletionTimestamp")).unwrap_or(now);
    set(new, old, ends.min(now), 0);
}

fn set(new: &mut Object, old: &Object, ends: Timestamp, seconds: i64) {
    if !old.is_terminating() && old.generation() > 0 {
        new.set_meta("generation", old.generation() + 1);
    }
    new.set_meta("deletionTimestamp", time::time(ends));
    new.set_meta("deletionGracePeriodSeconds", seconds);
}

fn after(time: Timestamp, seconds: i64) -> Timestamp {
    time.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX)
}

/// The finalizers that the object has from now on: its own, and the one that says what becomes of dependents.
fn finalizers(old: &Object, options: &DeleteOptions, strategy: &dyn Strategy) -> Vec<String> {
    let (orphan, foreground) = (metadata::ORPHAN, metadata::FOREGROUND);
    let has = |finalizer: &str| old.finalizers().any(|f| f == finalizer);
    let of_dependents = match (strategy.default_propagation(), options.orphan_dependents, options.propagation)
    {
        (DefaultPropagation::Never, ..) => None,
        (_, Some(true), _) | (_, None, Some(Propagation::Orphan)) => Some(orphan),
        (_, None, Some(Propagation::Foreground)) => Some(foreground),
        (_, Some(false), _) | (_, None, Some(Propagation::Background)) => None,
        (_, None, None) if has(orphan) => Some(orphan),
        (_, None, None) if has(foreground) => Some(foreground),
        (DefaultPropagation::Orphan, None, None) => Some(orphan),
        (DefaultPropagation::Background, None, None) => None,
    };
    let mut wanted: Vec<String> =
        old.finalizers().filter(|f| ![orphan, foreground].contains(f)).map(str::to_owned).collect();
    wanted.extend(of_dependents.map(str::to_owned));
    let same = wanted.len() == old.finalizers().count() && wanted.iter().all(|f| has(f));
    if same { old.finalizers().map(str::to_owned).collect() } else { wanted }
}

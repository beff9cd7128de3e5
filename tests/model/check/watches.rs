//! Checks of watches: etcd's six guarantees, and the additions of Kubernetes: selectors and initial events. A
//! notice is one event of a watch.

use std::cell::Cell;
use std::time::Duration;

use super::lists::premature_expiry;
use super::{Check, Violation, story};
use crate::model::collections::{Key, ObservedObject, Scope};
use crate::model::history::{At, Notice, Start, Stream, StreamEnding, Time};
use crate::model::reconstructed_history::{Content, ReconstructedHistory};

/// Maximum number of candidate start revisions of a watch without a resourceVersion.
const MAX_START_CANDIDATES: usize = 4000;

/// Checks all watches of the history.
pub fn check(reconstructed: &ReconstructedHistory, retention: Duration, violations: &mut Vec<Violation>) {
    for stream in &reconstructed.history.streams {
        let found = match stream.start {
            Start::After(revision) => check_changes_after(reconstructed, stream, revision, 0),
            Start::State(at) => check_state_and_changes(reconstructed, stream, at),
            Start::Streamed => check_initial_events(reconstructed, stream),
        };
        let found = found
            .err()
            .or_else(|| check_bookmarks(stream))
            .or_else(|| check_expiry(reconstructed, stream, retention));
        if let Some(StreamViolation { check, description, at, first, last }) = found {
            let story = story::format_stream(reconstructed, stream, at, first, last);
            violations.push(Violation { check, description, story });
        }
    }
}

/// Violation in a stream: `at` is the index of the wrong notice, `first` and `last` bound the report.
struct StreamViolation {
    check: Check,
    description: String,
    at: usize,
    first: u64,
    last: u64,
}

type StreamResult = Result<(), StreamViolation>;

/// Expected event of a change.
#[derive(Debug, PartialEq, Eq)]
enum ExpectedEvent<'a> {
    Added(&'a Content),
    Modified(&'a Content),
    Deleted(&'a Content),
}

/// Returns the events that a watch of a scope must deliver for the changes after `after` up to `upto`.
fn expected_events<'a>(
    reconstructed: &'a ReconstructedHistory,
    scope: &'a Scope,
    after: u64,
    upto: u64,
) -> impl Iterator<Item = (u64, &'a Key, ExpectedEvent<'a>)> {
    reconstructed.between(after, upto).filter(|(_, change)| scope.contains(&change.key)).filter_map(
        |(revision, change)| {
            let selected = |content: &&Content| scope.selects(content.group);
            let before = reconstructed.state(&change.key, revision - 1).map(|(_, content)| content);
            let (old, new) = (before.filter(selected), change.after.as_ref().filter(selected));
            let observed = match (old, new) {
                (None, None) => return None,
                (None, Some(new)) => ExpectedEvent::Added(new),
                (Some(_), Some(new)) => ExpectedEvent::Modified(new),
                (Some(old), None) => ExpectedEvent::Deleted(old),
            };
            Some((revision, &change.key, observed))
        },
    )
}

/// Checks that the notices of a stream from index `from` on are the changes after revision `begin`.
fn check_changes_after(
    reconstructed: &ReconstructedHistory,
    stream: &Stream,
    begin: u64,
    from: usize,
) -> StreamResult {
    let scope = &stream.scope;
    let covered = reconstructed.covered(scope);
    let last = stream.notices.iter().map(|(_, notice)| notice.revision()).max().unwrap_or(begin);
    let mut awaited = expected_events(reconstructed, scope, begin, last).peekable();
    let (mut observed, mut marked) = (begin, begin);
    for (at, (_, notice)) in stream.notices.iter().enumerate().skip(from) {
        let revision = notice.revision();
        let violation = |check, description, first: u64| {
            Err(StreamViolation { check, description, at, first, last: revision.max(first) })
        };
        let (Notice::Added(seen) | Notice::Modified(seen) | Notice::Deleted(seen)) = notice else {
            // All events up to the revision of a bookmark must come before the bookmark.
            if let Some((missed, key, _)) = awaited.next_if(|(missed, ..)| *missed <= revision) {
                let description =
                    format!("a bookmark of revision {revision} comes before the event {missed} of {key}");
                return violation(Check::Bookmarkable, description, observed.min(missed));
            }
            marked = marked.max(revision);
            continue;
        };
        if revision <= observed {
            let again = stream.notices[from..at].iter().any(|(_, before)| {
                !matches!(before, Notice::Bookmark { .. }) && before.revision() == revision
            });
            let (check, description) = if again || revision == begin {
                (Check::Unique, format!("event {revision} is delivered again"))
            } else if observed == begin {
                (Check::Ordered, format!("event {revision} is delivered by a watch from {begin}"))
            } else {
                (Check::Ordered, format!("event {revision} is delivered after {observed}"))
            };
            return violation(check, description, revision);
        }
        if revision <= marked {
            let description = format!("event {revision} is delivered after a bookmark of {marked}");
            return violation(Check::Bookmarkable, description, revision);
        }
        if let Some((missed, key, description)) = awaited.next_if(|(missed, ..)| *missed < revision) {
            let transition =
                stream.scope.groups.is_some() && is_transition(reconstructed, missed, key, &description);
            let late = stream.notices[at..]
                .iter()
                .any(|(_, later)| !matches!(later, Notice::Bookmark { .. }) && later.revision() == missed);
            let check = match () {
                () if late => Check::Ordered,
                () if transition => Check::Selected,
                () if observed == begin => Check::Resumable,
                () => Check::Reliable,
            };
            let description = format!("event {missed} of {key} is missing between {observed} and {revision}");
            return violation(check, description, observed.min(missed));
        }
        match awaited.next_if(|(due, ..)| *due == revision) {
            Some((_, key, due)) if !matches_event(notice, key, &due) => {
                let description = format!("event {revision} is not the change: {due:?} of {key} is due");
                return violation(Check::Atomic, description, revision.saturating_sub(1));
            }
            Some(_) => {}
            None if revision <= covered => {
                let description = format!("event {revision} of {} is not a change of the scope", seen.key);
                return violation(Check::Atomic, description, revision.saturating_sub(1));
            }
            None => {}
        }
        observed = revision;
    }
    Ok(())
}

/// Whether an event is ADDED or DELETED because the selector begins or ceases to match an existing object.
fn is_transition(
    reconstructed: &ReconstructedHistory,
    revision: u64,
    key: &Key,
    observed: &ExpectedEvent,
) -> bool {
    match observed {
        ExpectedEvent::Added(_) => reconstructed.state(key, revision - 1).is_some(),
        ExpectedEvent::Deleted(_) => reconstructed.state(key, revision).is_some(),
        ExpectedEvent::Modified(_) => false,
    }
}

/// Whether a notice reports the expected event with the right content.
fn matches_event(notice: &Notice, key: &Key, due: &ExpectedEvent) -> bool {
    let (seen, content) = match (notice, due) {
        (Notice::Added(seen), ExpectedEvent::Added(content))
        | (Notice::Modified(seen), ExpectedEvent::Modified(content))
        | (Notice::Deleted(seen), ExpectedEvent::Deleted(content)) => (seen, content),
        _ => return false,
    };
    seen.key == *key && seen.write == content.write && seen.group == content.group && seen.uid == content.uid
}

/// Checks a stream with `sendInitialEvents`: first the state at the revision of the bookmark that ends the
/// initial events, then the changes after this revision.
fn check_initial_events(reconstructed: &ReconstructedHistory, stream: &Stream) -> StreamResult {
    let is_end_of_initial_events =
        |(_, notice): &(Time, Notice)| matches!(notice, Notice::Bookmark { initial: true, .. });
    let Some(mark) = stream.notices.iter().position(is_end_of_initial_events) else {
        // The stream ended before the bookmark, so it contains a part of the state at an unknown revision.
        return check_state_and_changes(reconstructed, stream, At::MostRecent);
    };
    let revision = stream.notices[mark].1.revision();
    let observed = reconstructed.observed_before(stream.begin);
    if revision < observed {
        let description =
            format!("it begins with the state of {revision}, and {observed} had been observed before");
        return Err(StreamViolation {
            check: Check::Initial,
            description,
            at: mark,
            first: revision,
            last: observed,
        });
    }
    if revision <= reconstructed.covered(&stream.scope) {
        let state = reconstructed.snapshot(&stream.scope, revision);
        if state.len() != mark || !is_beginning(stream, mark, &state) {
            // Either an object changed between the initial events and the bookmark, or an event is wrong.
            let description = format!(
                "the bookmark after the initial events says {revision}, and the {mark} objects before it are not the {} of that \
                 revision",
                state.len()
            );
            return Err(StreamViolation {
                check: Check::Bookmarkable,
                description,
                at: mark,
                first: revision.saturating_sub(20),
                last: revision,
            });
        }
    }
    check_changes_after(reconstructed, stream, revision, mark + 1)
}

/// Whether the first `count` notices are the first objects of a state.
fn is_beginning(stream: &Stream, count: usize, state: &[(&Key, u64, &Content)]) -> bool {
    let pairs = stream.notices.iter().take(count).zip(state);
    pairs.into_iter().all(|((_, notice), (key, at, content))| {
        matches!(notice, Notice::Added(seen) if is_same_object(seen, key, *at, content))
    })
}

fn is_same_object(seen: &ObservedObject, key: &Key, at: u64, content: &Content) -> bool {
    seen.key == *key && seen.revision == at && seen.write == content.write && seen.uid == content.uid
}

/// Checks that the stream is the state at some revision, and then the changes after this revision.
fn check_state_and_changes(reconstructed: &ReconstructedHistory, stream: &Stream, at: At) -> StreamResult {
    let scope = &stream.scope;
    let (Some((_, oldest)), Some((_, newest))) = (stream.notices.first(), stream.notices.last()) else {
        return Ok(());
    };
    let least = if at == At::Any { 0 } else { reconstructed.observed_before(stream.begin) };
    // The first notice is part of the initial state, or the first change after an empty initial state.
    let least = least.max(oldest.revision().saturating_sub(1));
    let upto = reconstructed.covered(scope);
    if newest.revision() > upto {
        return Ok(());
    }
    let leading = stream.notices.iter().take_while(|(_, notice)| matches!(notice, Notice::Added(_))).count();
    let later = reconstructed
        .between(least, upto)
        .filter(|(_, change)| scope.contains(&change.key))
        .map(|(at, _)| at);
    let longest_match: Cell<Option<StreamViolation>> = Cell::new(None);
    for revision in std::iter::once(least).chain(later).take(MAX_START_CANDIDATES) {
        let state = reconstructed.snapshot(scope, revision);
        let count = state.len().min(leading);
        if !is_beginning(stream, count, &state) {
            continue;
        }
        if count < state.len() {
            if leading == stream.notices.len() && stream.ending == StreamEnding::Closed {
                return Ok(());
            }
            continue;
        }
        match check_changes_after(reconstructed, stream, revision, count) {
            Ok(()) => return Ok(()),
            Err(found) => {
                let known = longest_match.take();
                longest_match.set(Some(known.filter(|known| known.at >= found.at).unwrap_or(found)));
            }
        }
    }
    Err(longest_match.take().unwrap_or_else(|| StreamViolation {
        check: Check::Initial,
        description: format!("the initial events are not the state of any revision since {least}"),
        at: 0,
        first: least,
        last: newest.revision(),
    }))
}

/// Checks that bookmarks come only if requested, and that their revisions do not decrease.
fn check_bookmarks(stream: &Stream) -> Option<StreamViolation> {
    let mut last = 0;
    for (at, (_, notice)) in stream.notices.iter().enumerate() {
        let Notice::Bookmark { revision, .. } = notice else { continue };
        let description = match () {
            () if !stream.bookmarks => {
                format!("a bookmark of {revision} comes to a watch without bookmarks")
            }
            () if *revision < last => format!("a bookmark of {revision} comes after one of {last}"),
            () => {
                last = *revision;
                continue;
            }
        };
        return Some(StreamViolation {
            check: Check::Bookmarkable,
            description,
            at,
            first: *revision,
            last: *revision,
        });
    }
    None
}

/// Checks that a watch gets 410 only after expiry of its revision or an overflow of the event buffer.
fn check_expiry(
    reconstructed: &ReconstructedHistory,
    stream: &Stream,
    retention: Duration,
) -> Option<StreamViolation> {
    let violation = |check, description| StreamViolation {
        check,
        description,
        at: stream.notices.len(),
        first: 1,
        last: 0,
    };
    match (&stream.ending, stream.start) {
        (StreamEnding::Expired(at), Start::After(revision)) => {
            let description = premature_expiry(reconstructed, revision, *at, retention)?;
            Some(violation(Check::Expiry, format!("a watch from {revision} returns 410, and {description}")))
        }
        (StreamEnding::Expired(_), _) => {
            Some(violation(Check::Expiry, "a watch without a version returns 410".to_owned()))
        }
        (StreamEnding::Lagged(at), _) => {
            let mut floods = reconstructed.history.floods.iter();
            let flooded = floods.any(|(begin, end)| begin < at && *end > stream.begin);
            (!flooded).then(|| {
                violation(
                    Check::Expiry,
                    "a watch returns 410 without enough events to overflow the event buffer".to_owned(),
                )
            })
        }
        (StreamEnding::Closed, _) => None,
    }
}

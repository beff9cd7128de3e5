//! Reference model of the store after a crash, from the attempts and acknowledgements of its writers.
//!
//! Each key has one writer with one attempt at a time. The state of a key after a crash is the result of one
//! of its attempts, at or after the last acknowledged one. The history contains the attempts of each key up
//! to this one, in their order.

use std::collections::{BTreeMap, BTreeSet};

use super::record::{Record, Value};

/// Content of the store as its process reported it; complete once [`Model::is_open`] is true.
#[derive(Clone, Debug, Default)]
struct StoreContent {
    /// Keys, values and revisions.
    rows: Vec<(String, Value, u64)>,
    /// Revision of the store.
    revision: u64,
    /// All changes after [`Model::revision`]; None if the store has compacted some of them.
    history: Option<Vec<Change>>,
}

/// Change in the history of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    revision: u64,
    key: String,
    old: State,
    new: Option<Value>,
}

/// Value and revision of a key; None if the key does not exist.
type State = Option<(Value, u64)>;

/// Last verified state of a key, and the attempts to change it since then.
#[derive(Debug, Default)]
struct KeyAttempts {
    /// State at the last check: value and revision.
    state: State,
    /// Later attempts: the value (None deletes the key) and, if acknowledged, the revision.
    attempts: Vec<(Option<Value>, Option<u64>)>,
    /// Number of attempts up to the last acknowledged one.
    acknowledged: usize,
    /// Number of attempts that the crash must not lose.
    required: usize,
}

/// Reference model of all keys.
#[derive(Debug, Default)]
pub struct Model {
    keys: BTreeMap<String, KeyAttempts>,
    /// Revision of the store at the last check.
    revision: u64,
    /// Values of commits that must be rejected.
    forbidden: BTreeSet<Value>,
    /// Content that the current process has reported so far.
    reported: StoreContent,
    is_open: bool,
    verified_writes: usize,
    verified_histories: usize,
}

impl Model {
    /// Prepares the model for the records of a new process.
    pub fn begin_process(&mut self) {
        self.reported = StoreContent { history: Some(Vec::new()), ..StoreContent::default() };
        self.is_open = false;
    }

    /// Whether the process has opened the store and reported its whole content.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Processes a record; [`Record::ContentEnd`] compares the reported content with the model.
    pub fn process_record(&mut self, record: Record) -> Result<(), String> {
        match record {
            Record::Row { key, value, revision } => self.reported.rows.push((key, value, revision)),
            Record::Change { revision, key, old, new } => {
                if let Some(history) = &mut self.reported.history {
                    history.push(Change { revision, key, old, new });
                }
            }
            Record::ContentEnd { revision, whole } => {
                let mut content = std::mem::take(&mut self.reported);
                content.revision = revision;
                content.history.take_if(|_| !whole);
                self.check(&content)?;
                self.is_open = true;
            }
            Record::Attempted { key, value } => {
                self.keys.entry(key).or_default().attempts.push((value, None))
            }
            Record::Acknowledged { key, revision } => {
                let key = self.keys.entry(key).or_default();
                key.acknowledged = key.attempts.len();
                if let Some(last) = key.attempts.last_mut() {
                    last.1 = Some(revision);
                }
            }
            Record::Forbidden { value } => {
                self.forbidden.insert(value);
            }
            Record::Broken(what) => return Err(what),
        }
        Ok(())
    }

    /// Requires that the next crash keeps all writes acknowledged so far.
    ///
    /// Before the process has reported its content, the requirement of the previous crash stays.
    pub fn require_survival(&mut self) {
        if self.is_open {
            self.keys.values_mut().for_each(|key| key.required = key.acknowledged);
        }
    }

    /// Returns the number of verified acknowledged writes, and of verified histories.
    pub fn verified_counts(&self) -> (usize, usize) {
        (self.verified_writes, self.verified_histories)
    }

    /// Returns the revision of the store at the last check, after which the history is still to be checked.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Compares the model with the content of a store after a crash, and adopts the content.
    fn check(&mut self, content: &StoreContent) -> Result<(), String> {
        let mut found = BTreeMap::new();
        for (key, value, revision) in &content.rows {
            self.check_not_forbidden(key, value)?;
            if *revision > content.revision {
                return Err(format!("`{key}` is at {revision}, the store at {}", content.revision));
            }
            if found.insert(key.as_str(), (*value, *revision)).is_some() {
                return Err(format!("`{key}` is listed twice"));
            }
        }
        if let Some(unknown) = found.keys().find(|key| !self.keys.contains_key(**key)) {
            return Err(format!("`{unknown}` was never written"));
        }
        let events =
            content.history.as_ref().map(|history| self.events(history, content.revision)).transpose()?;
        for (name, key) in &self.keys {
            let history = match &events {
                Some(events) => key.check_history(events.get(name.as_str()).map_or(&[], Vec::as_slice)),
                None => Ok(()),
            };
            let row = found.get(name.as_str()).copied();
            history.and_then(|()| key.check_row(row)).map_err(|what| format!("`{name}`: {what}"))?;
        }
        self.verified_histories += usize::from(content.history.is_some());
        for (name, key) in &mut self.keys {
            self.verified_writes += key.required;
            *key = KeyAttempts { state: found.get(name.as_str()).copied(), ..KeyAttempts::default() };
        }
        self.revision = content.revision;
        Ok(())
    }

    /// Checks that the history lacks no change, and groups its changes by key.
    fn events<'a>(
        &self,
        history: &'a [Change],
        revision: u64,
    ) -> Result<BTreeMap<&'a str, Vec<&'a Change>>, String> {
        let mut events: BTreeMap<&str, Vec<&Change>> = BTreeMap::new();
        let mut newest = self.revision;
        for change in history {
            if change.revision != newest + 1 {
                return Err(format!("revision {} is missing: {} follows", newest + 1, change.revision));
            }
            newest = change.revision;
            if let Some(value) = &change.new {
                self.check_not_forbidden(&change.key, value)?;
            }
            events.entry(&change.key).or_default().push(change);
        }
        if newest != revision {
            return Err(format!("the history ends at {newest}, the store is at {revision}"));
        }
        Ok(events)
    }

    fn check_not_forbidden(&self, key: &str, value: &Value) -> Result<(), String> {
        if self.forbidden.contains(value) {
            return Err(format!("`{key}` has the value {value}, which was rejected"));
        }
        Ok(())
    }
}

impl KeyAttempts {
    /// Checks that the row is the state after one of the attempts: the last required one or a later one.
    fn check_row(&self, row: State) -> Result<(), String> {
        let is_after = |done: usize| match done.checked_sub(1).and_then(|last| self.attempts.get(last)) {
            None => row == self.state,
            Some((None, _)) => row.is_none(),
            Some((Some(value), revision)) => row
                .is_some_and(|(found, at)| found == *value && revision.is_none_or(|revision| at == revision)),
        };
        if (self.required..=self.attempts.len()).any(is_after) {
            return Ok(());
        }
        let text =
            |state: State| state.map_or("nothing".to_owned(), |(value, at)| format!("{value} at {at}"));
        Err(format!(
            "found {}; previous state {}, attempts {}, of which {} were acknowledged",
            text(row),
            text(self.state),
            self.attempts_text(),
            self.required
        ))
    }

    /// Checks that the events are the first attempts in their order, and include all required attempts.
    fn check_history(&self, events: &[&Change]) -> Result<(), String> {
        if events.len() < self.required || events.len() > self.attempts.len() {
            return Err(format!(
                "the history has {} changes; attempts {}, of which {} were acknowledged",
                events.len(),
                self.attempts_text(),
                self.required
            ));
        }
        let mut before = self.state;
        for (event, (value, revision)) in events.iter().zip(&self.attempts) {
            if event.old != before {
                return Err(format!(
                    "the change at {} says it follows {:?}, not {before:?}",
                    event.revision, event.old
                ));
            }
            if event.new != *value {
                return Err(format!(
                    "the change at {} is {:?}, the attempt was {value:?}",
                    event.revision, event.new
                ));
            }
            if revision.is_some_and(|revision| revision != event.revision) {
                return Err(format!("the change acknowledged at {revision:?} is at {}", event.revision));
            }
            before = value.map(|value| (value, event.revision));
        }
        Ok(())
    }

    fn attempts_text(&self) -> String {
        let text = |(value, revision): &(Option<Value>, Option<u64>)| {
            let value = value.map_or("delete".to_owned(), |value| value.to_string());
            revision.map_or(format!("{value} (open)"), |revision| format!("{value} at {revision}"))
        };
        self.attempts.iter().map(text).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(number: u64) -> Value {
        Value { writer: 1, number, size: 60 }
    }

    fn model() -> Model {
        let mut model = Model::default();
        for (number, revision) in [(1, Some(1)), (2, Some(2)), (3, None)] {
            model
                .process_record(Record::Attempted { key: "k".to_owned(), value: Some(value(number)) })
                .unwrap();
            if let Some(revision) = revision {
                model.process_record(Record::Acknowledged { key: "k".to_owned(), revision }).unwrap();
            }
        }
        model.process_record(Record::Forbidden { value: value(9) }).unwrap();
        model.is_open = true;
        model.require_survival();
        model
    }

    fn row(key: &str, number: u64, revision: u64) -> (String, Value, u64) {
        (key.to_owned(), value(number), revision)
    }

    fn changes(numbers: &[(u64, u64)]) -> Option<Vec<Change>> {
        let mut before = None;
        let change = |(number, revision): &(u64, u64)| {
            let old = before.replace((value(*number), *revision));
            Change { revision: *revision, key: "k".to_owned(), old, new: Some(value(*number)) }
        };
        Some(numbers.iter().map(change).collect())
    }

    #[test]
    fn crash_check_detects_each_violation() {
        for (what, rows, revision, history, sound) in [
            ("all", vec![row("k", 3, 3)], 3, changes(&[(1, 1), (2, 2), (3, 3)]), true),
            ("the unacknowledged attempt is lost", vec![row("k", 2, 2)], 2, changes(&[(1, 1), (2, 2)]), true),
            ("no history to check", vec![row("k", 2, 2)], 2, None, true),
            ("the acknowledged value is lost", vec![row("k", 1, 1)], 2, None, false),
            ("the key is lost", vec![], 2, None, false),
            ("another revision", vec![row("k", 2, 1)], 2, None, false),
            ("a rejected value", vec![row("k", 9, 3)], 3, None, false),
            ("a gap", vec![row("k", 3, 3)], 3, changes(&[(1, 1), (3, 3)]), false),
            ("a history that ends early", vec![row("k", 2, 2)], 2, changes(&[(1, 1)]), false),
            ("a change that was not attempted", vec![row("k", 2, 2)], 2, changes(&[(1, 1), (3, 2)]), false),
            ("a row of the future", vec![row("k", 3, 3)], 2, changes(&[(1, 1), (2, 2)]), false),
            ("an unknown key", vec![row("k", 2, 2), row("other", 3, 3)], 3, None, false),
            ("a key twice", vec![row("k", 2, 2), row("k", 2, 2)], 2, None, false),
        ] {
            let result = model().check(&StoreContent { rows, revision, history });
            assert_eq!(result.is_ok(), sound, "{what}: {result:?}");
        }
    }
}

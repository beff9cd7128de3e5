//! Reference model of the store after a crash, from the attempts and acknowledgements of its writers.
//!
//! Each key has one writer with one attempt at a time. The state of a key after a crash is the result of one
//! of its attempts, at or after the last acknowledged one. The history contains these attempts in this order.

use std::collections::{BTreeMap, BTreeSet};

use super::record::{Record, Value};

/// Content that a store reported: complete once the model is [`Model::opened`].
#[derive(Clone, Debug, Default)]
struct StoreContent {
    /// Keys, values and revisions.
    rows: Vec<(String, Value, u64)>,
    /// Revision of the store.
    revision: u64,
    /// All changes since the last check; None: some are compacted.
    history: Option<Vec<Change>>,
}

/// Change in the history.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    revision: u64,
    key: String,
    old: State,
    new: Option<Value>,
}

/// Value and revision of a key; None: the key does not exist.
type State = Option<(Value, u64)>;

#[derive(Debug, Default)]
struct Key {
    /// State that is known to be durable.
    state: State,
    /// Later attempts: the value and, if acknowledged, the revision.
    attempts: Vec<(Option<Value>, Option<u64>)>,
    /// Number of attempts up to the last acknowledged one.
    acknowledged: usize,
    /// Number of attempts that must have survived.
    least: usize,
}

/// Reference model of all keys.
#[derive(Debug, Default)]
pub struct Model {
    keys: BTreeMap<String, Key>,
    /// Revision of the last check.
    revision: u64,
    forbidden: BTreeSet<Value>,
    /// Content that the current process has reported so far.
    held: StoreContent,
    opened: bool,
    found: usize,
    histories: usize,
}

impl Model {
    /// Starts a process.
    pub fn begin(&mut self) {
        self.held = StoreContent { history: Some(Vec::new()), ..StoreContent::default() };
        self.opened = false;
    }

    /// Whether the process has reported its whole content.
    pub fn opened(&self) -> bool {
        self.opened
    }

    /// Processes a record of the process; compares the content with the model once it is complete.
    pub fn take(&mut self, record: Record) -> Result<(), String> {
        match record {
            Record::Row { key, value, revision } => self.held.rows.push((key, value, revision)),
            Record::Change { revision, key, old, new } => {
                if let Some(history) = &mut self.held.history {
                    history.push(Change { revision, key, old, new });
                }
            }
            Record::ContentEnd { revision, whole } => {
                let mut held = std::mem::take(&mut self.held);
                held.revision = revision;
                held.history.take_if(|_| !whole);
                self.check(&held)?;
                self.opened = true;
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
    pub fn must_survive(&mut self) {
        if self.opened {
            self.keys.values_mut().for_each(|key| key.least = key.acknowledged);
        }
    }

    /// Returns the number of verified acknowledged writes and of compared histories.
    pub fn found(&self) -> (usize, usize) {
        (self.found, self.histories)
    }

    /// Returns the revision of the last check: the start of the history to check.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Compares the model with the content of a store after a crash, and adopts the content.
    fn check(&mut self, held: &StoreContent) -> Result<(), String> {
        let mut found = BTreeMap::new();
        for (key, value, revision) in &held.rows {
            self.not_forbidden(key, value)?;
            if *revision > held.revision {
                return Err(format!("`{key}` is at {revision}, the store at {}", held.revision));
            }
            if found.insert(key.as_str(), (*value, *revision)).is_some() {
                return Err(format!("`{key}` is listed twice"));
            }
        }
        if let Some(unknown) = found.keys().find(|key| !self.keys.contains_key(**key)) {
            return Err(format!("`{unknown}` was never written"));
        }
        let events = held.history.as_ref().map(|history| self.events(history, held.revision)).transpose()?;
        for (name, key) in &self.keys {
            let history = match &events {
                Some(events) => key.check_history(events.get(name.as_str()).map_or(&[], Vec::as_slice)),
                None => Ok(()),
            };
            let row = found.get(name.as_str()).copied();
            history.and_then(|()| key.check_row(row)).map_err(|what| format!("`{name}`: {what}"))?;
        }
        self.histories += usize::from(held.history.is_some());
        for (name, key) in &mut self.keys {
            self.found += key.least;
            *key = Key { state: found.get(name.as_str()).copied(), ..Key::default() };
        }
        self.revision = held.revision;
        Ok(())
    }

    /// Groups the changes by key after checking that none is missing.
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
                self.not_forbidden(&change.key, value)?;
            }
            events.entry(&change.key).or_default().push(change);
        }
        if newest != revision {
            return Err(format!("the history ends at {newest}, the store is at {revision}"));
        }
        Ok(events)
    }

    fn not_forbidden(&self, key: &str, value: &Value) -> Result<(), String> {
        if self.forbidden.contains(value) {
            return Err(format!("`{key}` has the value {value}, which was rejected"));
        }
        Ok(())
    }
}

impl Key {
    /// Checks that the row is the state after one of the attempts, not before the last acknowledged one.
    fn check_row(&self, row: State) -> Result<(), String> {
        let is_after = |done: usize| match done.checked_sub(1).and_then(|last| self.attempts.get(last)) {
            None => row == self.state,
            Some((None, _)) => row.is_none(),
            Some((Some(value), revision)) => row
                .is_some_and(|(found, at)| found == *value && revision.is_none_or(|revision| at == revision)),
        };
        if (self.least..=self.attempts.len()).any(is_after) {
            return Ok(());
        }
        let text =
            |state: State| state.map_or("nothing".to_owned(), |(value, at)| format!("{value} at {at}"));
        Err(format!(
            "found {}; previous state {}, attempts {}, of which {} were acknowledged",
            text(row),
            text(self.state),
            self.attempts_text(),
            self.least
        ))
    }

    /// Checks that the events are the attempts, up to one that is not before the last acknowledged one.
    fn check_history(&self, events: &[&Change]) -> Result<(), String> {
        if events.len() < self.least || events.len() > self.attempts.len() {
            return Err(format!(
                "the history has {} changes; attempts {}, of which {} were acknowledged",
                events.len(),
                self.attempts_text(),
                self.least
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
            model.take(Record::Attempted { key: "k".to_owned(), value: Some(value(number)) }).unwrap();
            if let Some(revision) = revision {
                model.take(Record::Acknowledged { key: "k".to_owned(), revision }).unwrap();
            }
        }
        model.take(Record::Forbidden { value: value(9) }).unwrap();
        model.opened = true;
        model.must_survive();
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

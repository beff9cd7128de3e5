//! What the store must hold after a crash, from what its writers tried and were told.
//!
//! Each key has one writer, which tries one thing at a time. So what is left of a key is the state after one of the
//! tries, at or after the last one that was acknowledged; and the history holds these tries, in this order.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;
use storage::{Change, Revision, Row};

/// One thing that a writer did or was told, in the order it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A commit was called that the key's state allows; `None` deletes.
    Tried {
        /// The key.
        key: String,
        /// What it writes.
        value: Option<Value>,
    },
    /// The last try of the key was acknowledged.
    Acknowledged {
        /// The key.
        key: String,
        /// The revision it got.
        revision: u64,
    },
    /// A commit was called that must be refused: its value must never be seen.
    Forbidden {
        /// What it would write.
        value: Value,
    },
    /// The store answered what it must not.
    Broken(String),
}

/// A value, by what it is made of: no two are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Value {
    /// Who wrote it.
    pub writer: u64,
    /// Which of its values it is.
    pub number: u64,
    /// Its bytes.
    pub size: usize,
}

impl Value {
    /// The bytes: its name, then a filling that is its own.
    pub fn bytes(self) -> Bytes {
        let mut bytes = self.to_string().into_bytes();
        let mut state = self.writer << 32 ^ self.number;
        while bytes.len() < self.size {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            bytes.push((state >> 56) as u8);
        }
        bytes.into()
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}.", self.writer, self.number, self.size)
    }
}

impl Record {
    /// One line, without its end.
    pub fn line(&self) -> String {
        match self {
            Record::Tried { key, value: None } => format!("tried {key}"),
            Record::Tried { key, value: Some(value) } => format!("tried {key} {value}"),
            Record::Acknowledged { key, revision } => format!("acknowledged {key} {revision}"),
            Record::Forbidden { value } => format!("forbidden {value}"),
            Record::Broken(what) => format!("broken {what}"),
        }
    }

    /// From a line; None for one that is no record, or not whole.
    pub fn parse(line: &str) -> Option<Record> {
        let value = |text: &str| {
            let mut numbers = text.strip_suffix('.')?.split('-').map(str::parse);
            let mut number = || numbers.next()?.ok();
            Some(Value { writer: number()?, number: number()?, size: number()? as usize })
        };
        if let Some(what) = line.strip_prefix("broken ") {
            return Some(Record::Broken(what.to_owned()));
        }
        match *line.split(' ').collect::<Vec<_>>() {
            ["tried", key] => Some(Record::Tried { key: key.to_owned(), value: None }),
            ["tried", key, text] => Some(Record::Tried { key: key.to_owned(), value: Some(value(text)?) }),
            ["acknowledged", key, revision] => {
                Some(Record::Acknowledged { key: key.to_owned(), revision: revision.parse().ok()? })
            }
            ["forbidden", text] => Some(Record::Forbidden { value: value(text)? }),
            _ => None,
        }
    }
}

/// A key's value and revision; None when it does not exist.
type State = Option<(Bytes, u64)>;

#[derive(Debug, Default)]
struct Key {
    /// Known to be durable.
    state: State,
    /// Since then: the value and, if acknowledged, the revision.
    tries: Vec<(Option<Value>, Option<u64>)>,
    acknowledged: usize,
}

/// What is known of all keys.
#[derive(Debug, Default)]
pub struct Model {
    keys: BTreeMap<String, Key>,
    /// The revision of the last check.
    revision: u64,
    forbidden: BTreeSet<String>,
    broken: Vec<String>,
}

/// How many tries of each key had been acknowledged at a moment.
#[derive(Clone, Debug)]
pub struct Acknowledged(BTreeMap<String, usize>);

impl Model {
    /// Takes a record.
    pub fn record(&mut self, record: Record) {
        match record {
            Record::Tried { key, value } => self.keys.entry(key).or_default().tries.push((value, None)),
            Record::Acknowledged { key, revision } => {
                let key = self.keys.entry(key).or_default();
                key.acknowledged = key.tries.len();
                if let Some(last) = key.tries.last_mut() {
                    last.1 = Some(revision);
                }
            }
            Record::Forbidden { value } => {
                self.forbidden.insert(value.to_string());
            }
            Record::Broken(what) => self.broken.push(what),
        }
    }

    /// What has been acknowledged so far.
    pub fn acknowledged(&self) -> Acknowledged {
        Acknowledged(self.keys.iter().map(|(key, known)| (key.clone(), known.acknowledged)).collect())
    }

    /// How many acknowledged writes the next check looks for.
    pub fn count(&self) -> usize {
        self.keys.values().map(|key| key.acknowledged).sum()
    }

    /// The revision of the last check: where the history to check begins.
    pub fn revision(&self) -> Revision {
        Revision(self.revision)
    }

    /// Compares with what a store holds after a crash, and takes over what it finds. `history` is all of it since
    /// [`Model::revision`], or None where that was compacted.
    pub fn check(
        &mut self,
        least: &Acknowledged,
        rows: &[Row],
        revision: Revision,
        history: Option<&[Change]>,
    ) -> Result<(), String> {
        if !self.broken.is_empty() {
            return Err(self.broken.join("; "));
        }
        let mut found: BTreeMap<&str, &Row> = BTreeMap::new();
        for row in rows {
            self.not_forbidden(&row.key, &row.value)?;
            if row.revision > revision {
                return Err(format!("`{}` is at {}, the store at {revision}", row.key, row.revision));
            }
            if found.insert(&row.key, row).is_some() {
                return Err(format!("`{}` is listed twice", row.key));
            }
        }
        if let Some(unknown) = found.keys().find(|key| !self.keys.contains_key(**key)) {
            return Err(format!("`{unknown}` was never written"));
        }
        let mut events: BTreeMap<&str, Vec<&Change>> = BTreeMap::new();
        for (change, expected) in history.unwrap_or_default().iter().zip(self.revision + 1..) {
            if change.revision.0 != expected {
                return Err(format!("revision {expected} is missing: {} follows", change.revision));
            }
            if let Some(value) = &change.new {
                self.not_forbidden(&change.key, value)?;
            }
            events.entry(&change.key).or_default().push(change);
        }
        if let Some(history) = history {
            let newest = history.last().map_or(self.revision, |change| change.revision.0);
            if newest != revision.0 {
                return Err(format!("the history ends at {newest}, the store is at {revision}"));
            }
        }
        for (name, key) in &self.keys {
            let row = found.get(name.as_str()).copied();
            let least = least.0.get(name).copied().unwrap_or(0);
            match history {
                Some(_) => key.check_history(events.get(name.as_str()).map_or(&[], Vec::as_slice), least),
                None => Ok(()),
            }
            .and_then(|()| key.check_row(row, least))
            .map_err(|what| format!("`{name}`: {what}"))?;
        }
        for (name, key) in &mut self.keys {
            key.state = found.get(name.as_str()).map(|row| (row.value.clone(), row.revision.0));
            key.tries.clear();
            key.acknowledged = 0;
        }
        self.revision = revision.0;
        Ok(())
    }

    fn not_forbidden(&self, key: &str, value: &[u8]) -> Result<(), String> {
        let name = name_of(value);
        if self.forbidden.contains(&name) {
            return Err(format!("`{key}` has the value {name}, which was refused"));
        }
        Ok(())
    }
}

impl Key {
    /// The row is the state after one of the tries, not before the last acknowledged one.
    fn check_row(&self, row: Option<&Row>, least: usize) -> Result<(), String> {
        for done in least..=self.tries.len() {
            let matches = match done.checked_sub(1).and_then(|last| self.tries.get(last)) {
                None => row.map(|row| (row.value.clone(), row.revision.0)) == self.state,
                Some((None, _)) => row.is_none(),
                Some((Some(value), revision)) => row.is_some_and(|row| {
                    row.value == value.bytes() && revision.is_none_or(|revision| row.revision.0 == revision)
                }),
            };
            if matches {
                return Ok(());
            }
        }
        let found =
            row.map_or("nothing".to_owned(), |row| format!("{} at {}", name_of(&row.value), row.revision));
        Err(format!(
            "found {found}; before were {:?} and the tries {}, of which {least} were acknowledged",
            self.state.as_ref().map(|(value, revision)| (name_of(value), revision)),
            self.tries_text()
        ))
    }

    /// The events are the tries, up to one that is not before the last acknowledged one.
    fn check_history(&self, events: &[&Change], least: usize) -> Result<(), String> {
        let (mut before, mut at) = match &self.state {
            Some((value, revision)) => (Some(value.clone()), *revision),
            None => (None, 0),
        };
        if events.len() < least || events.len() > self.tries.len() {
            return Err(format!(
                "the history has {} changes; the tries were {}, of which {least} were acknowledged",
                events.len(),
                self.tries_text()
            ));
        }
        for (event, (value, revision)) in events.iter().zip(&self.tries) {
            let told = event.old.as_ref().map(|row| (row.value.clone(), row.revision.0));
            if told != before.map(|value| (value, at)) {
                return Err(format!("the change at {} does not follow the one at {at}", event.revision));
            }
            if event.new != value.map(Value::bytes) {
                return Err(format!("the change at {} is not what was tried: {value:?}", event.revision));
            }
            if revision.is_some_and(|revision| revision != event.revision.0) {
                return Err(format!("the change acknowledged at {revision:?} is at {}", event.revision));
            }
            (before, at) = (event.new.clone(), event.revision.0);
        }
        Ok(())
    }

    fn tries_text(&self) -> String {
        let text = |(value, revision): &(Option<Value>, Option<u64>)| {
            let value = value.map_or("delete".to_owned(), |value| value.to_string());
            revision.map_or(format!("{value} (open)"), |revision| format!("{value} at {revision}"))
        };
        self.tries.iter().map(text).collect::<Vec<_>>().join(", ")
    }
}

/// The part of a value that names it.
fn name_of(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == b'.').map_or(value.len().min(40), |dot| dot + 1);
    String::from_utf8_lossy(&value[..end]).into_owned()
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
            model.record(Record::Tried { key: "k".to_owned(), value: Some(value(number)) });
            if let Some(revision) = revision {
                model.record(Record::Acknowledged { key: "k".to_owned(), revision });
            }
        }
        model.record(Record::Forbidden { value: value(9) });
        model
    }

    fn row(number: u64, revision: u64) -> Row {
        Row { key: "k".into(), value: value(number).bytes(), revision: Revision(revision) }
    }

    fn changes(numbers: &[(u64, u64)]) -> Vec<Change> {
        let mut old = None;
        let change = |(number, revision): &(u64, u64)| {
            let new = row(*number, *revision);
            let old = old.replace(new.clone());
            Change { key: "k".into(), old, new: Some(new.value), revision: new.revision }
        };
        numbers.iter().map(change).collect()
    }

    #[test]
    fn the_check_finds_what_is_wrong() {
        let whole = changes(&[(1, 1), (2, 2), (3, 3)]);
        let gap = changes(&[(1, 1), (3, 3)]);
        let short = changes(&[(1, 1)]);
        let other = changes(&[(1, 1), (3, 2)]);
        for (what, rows, revision, history, sound) in [
            ("all", vec![row(3, 3)], 3, Some(&whole[..]), true),
            ("the open try is lost", vec![row(2, 2)], 2, Some(&whole[..2]), true),
            ("no history to look at", vec![row(2, 2)], 2, None, true),
            ("the acknowledged value is lost", vec![row(1, 1)], 2, None, false),
            ("the key is lost", vec![], 2, None, false),
            ("another revision", vec![row(2, 1)], 2, None, false),
            ("a refused value", vec![row(9, 3)], 3, None, false),
            ("a gap", vec![row(3, 3)], 3, Some(&gap[..]), false),
            ("a history that ends early", vec![row(2, 2)], 2, Some(&short[..]), false),
            ("a change that is not the one tried", vec![row(2, 2)], 2, Some(&other[..]), false),
            ("a row of the future", vec![row(3, 3)], 2, Some(&whole[..2]), false),
            ("a key from nowhere", vec![row(2, 2), Row { key: "other".into(), ..row(3, 3) }], 3, None, false),
        ] {
            let mut model = model();
            let least = model.acknowledged();
            let result = model.check(&least, &rows, Revision(revision), history);
            assert_eq!(result.is_ok(), sound, "{what}: {result:?}");
        }
    }

    #[test]
    fn records_are_lines() {
        for record in [
            Record::Tried { key: "/a/b".to_owned(), value: Some(value(7)) },
            Record::Tried { key: "/a/b".to_owned(), value: None },
            Record::Acknowledged { key: "/a/b".to_owned(), revision: 12 },
            Record::Forbidden { value: value(7) },
            Record::Broken("it is not so".to_owned()),
        ] {
            assert_eq!(Record::parse(&record.line()), Some(record));
        }
        for torn in ["tried /a/b 1-7-", "tried /a/b 1-7-60", "acknowledged /a/b ", "running 1 test", ""] {
            assert_eq!(Record::parse(torn), None, "{torn}");
        }
    }
}

//! Records of the child process, one line each: the content of the store, then attempts and results.

use std::fmt;

use bytes::Bytes;

/// Value, identified by its writer and number. No two values have the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Value {
    /// Number of the writer.
    pub writer: u64,
    /// Number of the value among those of its writer.
    pub number: u64,
    /// Size in bytes.
    pub size: u64,
}

impl Value {
    /// Returns the bytes: the text of the value, then padding that follows from writer and number.
    pub fn bytes(self) -> Bytes {
        let mut bytes = self.to_string().into_bytes();
        let mut state = self.writer << 32 ^ self.number;
        while (bytes.len() as u64) < self.size {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            bytes.push((state >> 56) as u8);
        }
        bytes.into()
    }

    /// Parses stored bytes; None if they are not a value.
    pub fn from_bytes(bytes: &[u8]) -> Option<Value> {
        let end = bytes.iter().position(|byte| *byte == b'.')?;
        let value = Value::parse(std::str::from_utf8(&bytes[..=end]).ok()?)?;
        (value.bytes() == bytes).then_some(value)
    }

    fn parse(text: &str) -> Option<Value> {
        let mut numbers = text.strip_suffix('.')?.split('-').map(|number| number.parse().ok());
        let value = Value { writer: numbers.next()??, number: numbers.next()??, size: numbers.next()?? };
        numbers.next().is_none().then_some(value)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}.", self.writer, self.number, self.size)
    }
}

/// One line of a child process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Row of the store when it was opened.
    Row { key: String, value: Value, revision: u64 },
    /// Change in the history of the store. `old` or `new` is None where the key did not exist.
    Change { revision: u64, key: String, old: Option<(Value, u64)>, new: Option<Value> },
    /// End of the content, at this revision of the store; then the writers start.
    ///
    /// `whole` is false if the store has compacted some changes, so that the reported history is incomplete.
    ContentEnd { revision: u64, whole: bool },
    /// Start of a commit that the state of the key allows. None as the value means a delete.
    Attempted { key: String, value: Option<Value> },
    /// The last attempt of the key was acknowledged.
    Acknowledged { key: String, revision: u64 },
    /// Start of a commit that must be rejected: its value must never be visible.
    Forbidden { value: Value },
    /// The store violated its contract.
    Broken(String),
}

impl Record {
    /// Parses a line; None if it is incomplete or not a record.
    pub fn parse(line: &str) -> Option<Record> {
        if let Some(what) = line.strip_prefix("broken ") {
            return Some(Record::Broken(what.to_owned()));
        }
        let optional = |text: &str| match text {
            "-" => Some(None),
            text => Value::parse(text).map(Some),
        };
        Some(match *line.split(' ').collect::<Vec<_>>() {
            ["row", key, value, revision] => Record::Row {
                key: key.to_owned(),
                value: Value::parse(value)?,
                revision: revision.parse().ok()?,
            },
            ["change", revision, key, old, at, new] => Record::Change {
                revision: revision.parse().ok()?,
                key: key.to_owned(),
                old: optional(old)?.zip(at.parse().ok()),
                new: optional(new)?,
            },
            ["held", revision, whole] => {
                Record::ContentEnd { revision: revision.parse().ok()?, whole: whole.parse().ok()? }
            }
            ["tried", key, value] => Record::Attempted { key: key.to_owned(), value: optional(value)? },
            ["acknowledged", key, revision] => {
                Record::Acknowledged { key: key.to_owned(), revision: revision.parse().ok()? }
            }
            ["forbidden", value] => Record::Forbidden { value: Value::parse(value)? },
            _ => return None,
        })
    }
}

/// Formats the line, without its end.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let optional = |value: &Option<Value>| value.map_or("-".to_owned(), |value| value.to_string());
        match self {
            Record::Row { key, value, revision } => write!(f, "row {key} {value} {revision}"),
            Record::Change { revision, key, old, new } => {
                let (old, at) = (optional(&old.map(|old| old.0)), old.map_or(0, |old| old.1));
                write!(f, "change {revision} {key} {old} {at} {}", optional(new))
            }
            Record::ContentEnd { revision, whole } => write!(f, "held {revision} {whole}"),
            Record::Attempted { key, value } => write!(f, "tried {key} {}", optional(value)),
            Record::Acknowledged { key, revision } => write!(f, "acknowledged {key} {revision}"),
            Record::Forbidden { value } => write!(f, "forbidden {value}"),
            Record::Broken(what) => write!(f, "broken {what}"),
        }
    }
}

#[test]
fn records_round_trip_as_lines() {
    let value = Value { writer: 1, number: 7, size: 60 };
    let key = || "/a/b".to_owned();
    for record in [
        Record::Row { key: key(), value, revision: 12 },
        Record::Change { revision: 12, key: key(), old: None, new: Some(value) },
        Record::Change { revision: 12, key: key(), old: Some((value, 11)), new: None },
        Record::ContentEnd { revision: 12, whole: false },
        Record::Attempted { key: key(), value: Some(value) },
        Record::Attempted { key: key(), value: None },
        Record::Acknowledged { key: key(), revision: 12 },
        Record::Forbidden { value },
        Record::Broken("some problem".to_owned()),
    ] {
        assert_eq!(Record::parse(&record.to_string()), Some(record));
    }
    for other in
        ["tried /a/b 1-7", "tried /a/b 1-7-60", "tried /a/b", "acknowledged /a/b ", "running 1 test", ""]
    {
        assert_eq!(Record::parse(other), None, "{other}");
    }
    let mut bytes = value.bytes().to_vec();
    assert_eq!(Value::from_bytes(&bytes), Some(value));
    bytes[40] ^= 1;
    assert_eq!(Value::from_bytes(&bytes), None, "a flipped bit");
}

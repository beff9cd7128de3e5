//! Field ownership: `metadata.managedFields`.
//!
//! # Contract
//!
//! [`ManagedFields`] is the decoded list. An entry belongs to a manager, an operation, an API version and a
//! subresource. An applier has one entry, independent of the version. Entries are written in this order:
//! operation, time in whole seconds (entries without time first), manager, version, subresource.
//!
//! # Invariants
//!
//! INVARIANT (one entry each): no two entries have the same owner.
//! INVARIANT (no empty entries): an owner without fields has no entry.
//! INVARIANT (bookkeeping has no owner): an entry that a write creates contains neither the fields that
//! identify an object nor the metadata that the server sets.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::LazyLock;

use apimachinery::field::quote;
use apimachinery::object::{Map, Object, Value};
use apimachinery::time;
use jiff::Timestamp;

use crate::path::Element;
use crate::set::Set;

/// Maximum number of update entries; above it, the oldest entries of each API version are merged.
pub const UPDATES_MAX: usize = 10;

/// The manager of merged update entries.
const MERGED_UPDATES_MANAGER: &str = "ancient-changes";

/// The operation of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryOperation {
    /// Server-side apply.
    Apply,
    /// Every other write.
    Update,
}

impl EntryOperation {
    /// The text form in an entry.
    pub fn as_str(self) -> &'static str {
        match self {
            EntryOperation::Apply => "Apply",
            EntryOperation::Update => "Update",
        }
    }
}

/// The fields of one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The manager.
    pub manager: String,
    /// The operation.
    pub operation: EntryOperation,
    /// The API version of the write.
    pub api_version: String,
    /// The subresource of the write; `""` is the object itself.
    pub subresource: String,
    /// The time of the last write that changed the owned fields or their values.
    pub time: Option<Timestamp>,
    /// The owned fields.
    pub fields: Set,
}

impl Entry {
    /// Whether both entries have the same owner.
    pub fn has_same_owner(&self, other: &Entry) -> bool {
        self.owner() == other.owner()
    }

    /// The identity of the owner, equal for entries of one owner.
    fn owner(&self) -> (EntryOperation, &str, &str, &str) {
        let version = if self.operation == EntryOperation::Apply { "" } else { self.api_version.as_str() };
        (self.operation, &self.manager, &self.subresource, version)
    }

    /// The owner as messages show it: `"one"`, `"tool" with subresource "status" using v1`.
    pub fn owner_text(&self) -> String {
        let mut text = Value::from(self.manager.as_str()).to_string();
        if !self.subresource.is_empty() {
            text.push_str(&format!(" with subresource {}", Value::from(self.subresource.as_str())));
        }
        if self.operation == EntryOperation::Update {
            text.push_str(&format!(" using {}", self.api_version));
        }
        text
    }

    fn to_value(&self) -> Value {
        let mut map = Map::new();
        let mut put = |name: &str, value: Value| drop(map.insert(name.to_owned(), value));
        put("manager", Value::from(self.manager.as_str()));
        put("operation", Value::from(self.operation.as_str()));
        put("apiVersion", Value::from(self.api_version.as_str()));
        if let Some(at) = self.time {
            put("time", Value::from(time::time(at)));
        }
        put("fieldsType", Value::from("FieldsV1"));
        put("fieldsV1", self.fields.to_value());
        if !self.subresource.is_empty() {
            put("subresource", Value::from(self.subresource.as_str()));
        }
        Value::Object(map)
    }

    /// Decodes the entry at an index of the list.
    fn from_value(index: usize, value: &Value) -> Result<Self, ManagedFieldsError> {
        let text = |name: &str| match value.get(name) {
            None | Some(Value::Null) => Some(""),
            Some(other) => other.as_str(),
        };
        let malformed = || ManagedFieldsError::Fields { entry: index };
        let operation = match text("operation") {
            Some("Apply") => EntryOperation::Apply,
            Some("Update") => EntryOperation::Update,
            _ => return Err(ManagedFieldsError::Operation),
        };
        let api_version = text("apiVersion").filter(|version| !version.is_empty());
        let api_version = api_version.ok_or(ManagedFieldsError::NoApiVersion)?.to_owned();
        match text("fieldsType").unwrap_or_default() {
            "FieldsV1" => {}
            "" => return Err(ManagedFieldsError::NoFieldsType { entry: index }),
            found => return Err(ManagedFieldsError::FieldsType { entry: index, found: found.to_owned() }),
        }
        let time = match text("time").ok_or_else(malformed)? {
            "" => None,
            text => Some(time::parse(text).ok_or_else(malformed)?),
        };
        let fields = value.get("fieldsV1").map_or(Ok(Set::default()), Set::from_value);
        Ok(Entry {
            manager: text("manager").ok_or_else(malformed)?.to_owned(),
            operation,
            api_version,
            subresource: text("subresource").ok_or_else(malformed)?.to_owned(),
            time,
            fields: fields.map_err(|_| malformed())?,
        })
    }
}

/// The decoded `managedFields` list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManagedFields {
    /// The entries, unordered.
    pub entries: Vec<Entry>,
}

/// The defect of a malformed list, with the text of kube-apiserver. Entries are counted from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManagedFieldsError {
    /// The value is not a list.
    #[error("managedFields must be a list")]
    NotAList,
    /// An entry has no operation, or an unknown one.
    #[error("operation must be `Apply` or `Update`")]
    Operation,
    /// An entry has no API version.
    #[error("apiVersion must not be empty")]
    NoApiVersion,
    /// An entry has no `fieldsType`.
    #[error("missing fieldsType in managed fields entry {entry}")]
    NoFieldsType {
        /// The index of the entry.
        entry: usize,
    },
    /// An entry has an unknown `fieldsType`.
    #[error("invalid fieldsType {} in managed fields entry {entry}", quote(found))]
    FieldsType {
        /// The index of the entry.
        entry: usize,
        /// The `fieldsType` of the entry.
        found: String,
    },
    /// The `fieldsV1`, the time or a string field of an entry is malformed.
    #[error("error decoding versioned set of managed fields entry {entry}")]
    Fields {
        /// The index of the entry.
        entry: usize,
    },
}

impl ManagedFields {
    /// Decodes `metadata.managedFields`; None when the value is not a list or an entry is malformed. Of
    /// several entries of one owner, the last entry is used.
    pub fn decode(list: Option<&Value>) -> Option<Self> {
        let list = list_items(list).ok()?;
        if list.is_empty() {
            return Some(ManagedFields::default());
        }
        let mut entries = Vec::with_capacity(list.len() + 1);
        for (index, value) in list.iter().enumerate() {
            entries.push(Entry::from_value(index, value).ok()?);
        }
        Some(ManagedFields { entries: join_owners(entries, |mut same| same.pop()) })
    }

    /// Checks that each entry of `metadata.managedFields` can be decoded, with the messages of kube-apiserver.
    ///
    /// # Errors
    ///
    /// The defect of the first malformed entry.
    pub fn check(list: Option<&Value>) -> Result<(), ManagedFieldsError> {
        let mut indexed = list_items(list)?.iter().enumerate();
        indexed.try_for_each(|(index, value)| Entry::from_value(index, value).map(drop))
    }

    /// The managed fields of an object; empty when they are malformed.
    pub fn of(object: &Object) -> Self {
        Self::decode(object.at(&["metadata", "managedFields"])).unwrap_or_default()
    }

    /// Writes the list into an object, sorted and without empty entries.
    pub fn write(mut self, object: &mut Object) {
        self.entries.retain(|entry| !entry.fields.is_empty());
        if self.entries.is_empty() {
            object.remove_meta("managedFields");
            return;
        }
        self.entries.sort_by(compare_entries);
        let list: Vec<Value> = self.entries.iter().map(Entry::to_value).collect();
        object.set_meta("managedFields", list);
    }

    /// The entry with the same owner as another entry.
    pub fn find(&self, owner: &Entry) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.has_same_owner(owner))
    }

    /// Removes and returns the entry with the same owner as another entry.
    pub fn take(&mut self, owner: &Entry) -> Option<Entry> {
        let at = self.entries.iter().position(|entry| entry.has_same_owner(owner))?;
        Some(self.entries.swap_remove(at))
    }

    /// Merges the oldest update entries of each version, until at most `max` update entries or one for each
    /// version are left.
    pub fn cap_updates(&mut self, max: usize) {
        let mut updates: Vec<Entry> = Vec::new();
        let (all_updates, applies): (Vec<Entry>, Vec<Entry>) = std::mem::take(&mut self.entries)
            .into_iter()
            .partition(|e| e.operation == EntryOperation::Update);
        self.entries = applies;
        let mut oldest_first = all_updates;
        oldest_first
            .sort_by(|a, b| time_in_seconds(a).cmp(&time_in_seconds(b)).then_with(|| compare_entries(a, b)));
        let mut count = oldest_first.len();
        // The merge target of each version; the target keeps its manager until a second entry joins it.
        let mut merge_targets: Vec<(Entry, Vec<Set>)> = Vec::new();
        let mut by_version: HashMap<String, usize> = HashMap::new();
        for entry in oldest_first {
            if count <= max {
                updates.push(entry);
                continue;
            }
            match by_version.get(&entry.api_version).and_then(|at| merge_targets.get_mut(*at)) {
                Some((target, fields)) => {
                    MERGED_UPDATES_MANAGER.clone_into(&mut target.manager);
                    target.subresource.clear();
                    target.time = entry.time;
                    fields.push(entry.fields);
                    count -= 1;
                }
                None => {
                    by_version.insert(entry.api_version.clone(), merge_targets.len());
                    merge_targets.push((entry, Vec::new()));
                }
            }
        }
        let merge_targets = merge_targets.into_iter().map(|(mut target, mut fields)| {
            if !fields.is_empty() {
                fields.push(std::mem::take(&mut target.fields));
                target.fields = Set::union_all(fields);
            }
            target
        });
        self.entries.extend(merge_targets.chain(updates));
        self.entries = join_owners(std::mem::take(&mut self.entries), |same| {
            let time = same.iter().map(|entry| entry.time).max().flatten();
            let mut same = same.into_iter();
            let mut joined = same.next()?;
            let others: Vec<Set> = same.map(|entry| entry.fields).collect();
            if !others.is_empty() {
                joined.fields = joined.fields.into_union(Set::union_all(others));
            }
            joined.time = time;
            Some(joined)
        });
    }
}

/// The items of `metadata.managedFields`; none if the list is absent or null.
fn list_items(list: Option<&Value>) -> Result<&[Value], ManagedFieldsError> {
    match list {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(items)) => Ok(items),
        Some(_) => Err(ManagedFieldsError::NotAList),
    }
}

/// Replaces the entries of each owner by the result of `join`, at the position of the first entry of that
/// owner.
fn join_owners(entries: Vec<Entry>, join: impl Fn(Vec<Entry>) -> Option<Entry>) -> Vec<Entry> {
    if entries.len() < 2 {
        return entries;
    }
    let mut numbered: Vec<(usize, Entry)> = entries.into_iter().enumerate().collect();
    numbered.sort_by(|(_, a), (_, b)| a.owner().cmp(&b.owner()));
    let mut joined: Vec<(usize, Vec<Entry>)> = Vec::with_capacity(numbered.len());
    for (at, entry) in numbered {
        match joined.last_mut() {
            Some((_, same)) if same.last().is_some_and(|other| other.has_same_owner(&entry)) => {
                same.push(entry)
            }
            _ => joined.push((at, vec![entry])),
        }
    }
    joined.sort_by_key(|(at, _)| *at);
    joined.into_iter().filter_map(|(_, same)| join(same)).collect()
}

fn time_in_seconds(entry: &Entry) -> Option<i64> {
    entry.time.map(Timestamp::as_second)
}

fn compare_entries(a: &Entry, b: &Entry) -> Ordering {
    let key = |e: &Entry| (e.operation, time_in_seconds(e));
    key(a)
        .cmp(&key(b))
        .then_with(|| a.manager.cmp(&b.manager))
        .then_with(|| a.api_version.cmp(&b.api_version))
        .then_with(|| a.subresource.cmp(&b.subresource))
}

/// Whether a `managedFields` list requests a reset of all owners: such a list consists of one empty entry.
pub fn is_reset(list: Option<&Value>) -> bool {
    let is_empty_entry = |entry: &Value| {
        entry.as_object().is_some_and(|map| map.values().all(|v| v.is_null() || v.as_str() == Some("")))
    };
    matches!(list, Some(Value::Array(list)) if list.len() == 1 && list.iter().all(is_empty_entry))
}

/// Fields that cannot have an owner: the identity of the object, and metadata that the server sets.
static BOOKKEEPING: LazyLock<Set> = LazyLock::new(|| {
    let mut set = Set::default();
    for name in ["apiVersion", "kind", "metadata"] {
        set.insert(&[Element::field(name)]);
    }
    for name in [
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    ] {
        set.insert(&[Element::field("metadata"), Element::field(name)]);
    }
    set
});

/// The fields of a set that can have an owner.
pub fn without_bookkeeping(mut fields: Set) -> Set {
    fields.subtract(&BOOKKEEPING);
    fields
}

/// The fields of a set that cannot have an owner.
pub fn bookkeeping_of(fields: &Set) -> Set {
    fields.intersection(&BOOKKEEPING)
}

/// Whether no field of the set can have an owner.
pub fn is_bookkeeping(fields: &Set) -> bool {
    fields.is_subset(&BOOKKEEPING)
}

/// Restores the old managed fields when the objects differ only in the times of managed fields, so that a
/// no-op write changes nothing.
///
/// Returns whether the old list was restored.
pub fn keep_times(old: &Object, new: &mut Object) -> bool {
    fn same_but_time(a: &Value, b: &Value) -> bool {
        let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else { return a == b };
        let time_fields = |map: &Map<String, Value>| usize::from(map.contains_key("time"));
        a.len() - time_fields(a) == b.len() - time_fields(b)
            && a.iter().all(|(name, value)| name == "time" || b.get(name) == Some(value))
    }
    fn same_but_times(a: Option<&Value>, b: Option<&Value>) -> bool {
        let (Some(Value::Array(a)), Some(Value::Array(b))) = (a, b) else { return false };
        if a.len() != b.len() {
            return false;
        }
        let owner = |entry: &Value| {
            ["manager", "operation", "apiVersion", "subresource"]
                .map(|field| entry.get(field).and_then(Value::as_str).unwrap_or_default().to_owned())
        };
        let mut by_owner: HashMap<[String; 4], Vec<&Value>> = HashMap::with_capacity(b.len());
        for entry in b {
            by_owner.entry(owner(entry)).or_default().push(entry);
        }
        a.iter().all(|entry| {
            let same_owner = by_owner.get(&owner(entry)).map_or(&[][..], Vec::as_slice);
            same_owner.iter().any(|other| same_but_time(entry, other))
        })
    }
    let (old_list, new_list) =
        (old.at(&["metadata", "managedFields"]), new.at(&["metadata", "managedFields"]));
    if old_list == new_list || !same_but_times(old_list, new_list) {
        return false;
    }
    let Some(old_list) = old_list.cloned() else { return false };
    let Some(new_list) = new.meta_mut().insert("managedFields".to_owned(), old_list) else { return false };
    if new == old {
        return true;
    }
    new.meta_mut().insert("managedFields".to_owned(), new_list);
    false
}

#[cfg(test)]
mod tests;

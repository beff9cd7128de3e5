//! A hash index that stores 64-bit hashes in place of keys.
//! A look-up returns candidates, and the caller compares the fields of each candidate. An entry takes 25
//! bytes (hash, value and control byte) plus the free space of the table, for keys of any length.
//!
//! # Contract
//!
//! [`HashedIndex::candidates`] returns all values that were added under an equal key, and possibly others:
//! the caller checks them. Each index has a random hash key, so that clients cannot choose colliding names.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};

/// A map from the hashes of keys to values.
#[derive(Debug)]
pub(super) struct HashedIndex<T> {
    hash_keys: RandomState,
    map: HashMap<u64, IndexSlot<T>, BuildHasherDefault<IdentityHasher>>,
}

/// The values under one hash, mostly one. A list is boxed, so that a slot with two `u32` numbers takes 16
/// bytes.
#[derive(Debug)]
enum IndexSlot<T> {
    One(T),
    Many(Box<ValueList<T>>),
}

#[derive(Debug)]
struct ValueList<T>(Vec<T>);

impl<T> Default for HashedIndex<T> {
    fn default() -> Self {
        HashedIndex { hash_keys: RandomState::new(), map: HashMap::default() }
    }
}

impl<T: Copy + PartialEq> HashedIndex<T> {
    /// Adds a value under a key.
    pub(super) fn add<K: Hash>(&mut self, key: &K, value: T) {
        match self.map.entry(self.hash_keys.hash_one(key)) {
            Entry::Vacant(slot) => {
                slot.insert(IndexSlot::One(value));
            }
            Entry::Occupied(mut slot) => match slot.get_mut() {
                IndexSlot::Many(list) => list.0.push(value),
                IndexSlot::One(first) => {
                    let list = ValueList(vec![*first, value]);
                    slot.insert(IndexSlot::Many(Box::new(list)));
                }
            },
        }
    }

    /// Removes one occurrence of a value.
    pub(super) fn remove<K: Hash>(&mut self, key: &K, value: T) {
        let Entry::Occupied(mut slot) = self.map.entry(self.hash_keys.hash_one(key)) else { return };
        let empty = match slot.get_mut() {
            IndexSlot::One(stored) => *stored == value,
            IndexSlot::Many(list) => {
                let list = &mut list.0;
                if let Some(index) = list.iter().position(|stored| *stored == value) {
                    list.remove(index);
                }
                list.is_empty()
            }
        };
        if empty {
            slot.remove();
        }
    }

    /// Returns the values of a key in insertion order, and values of other keys with an equal hash.
    pub(super) fn candidates<K: Hash>(&self, key: &K) -> &[T] {
        match self.map.get(&self.hash_keys.hash_one(key)) {
            None => &[],
            Some(IndexSlot::One(value)) => std::slice::from_ref(value),
            Some(IndexSlot::Many(list)) => &list.0,
        }
    }
}

/// A hasher for keys that are hashes already.
#[derive(Debug, Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashed_index_entry_takes_24_bytes() {
        assert_eq!(size_of::<(u64, IndexSlot<u32>)>(), 24);
        assert_eq!(size_of::<(u64, IndexSlot<super::super::policy::Grant>)>(), 24);
    }

    #[test]
    fn hashed_index_returns_values_in_insertion_order() {
        let mut index = HashedIndex::default();
        for value in [1, 2, 3, 2] {
            index.add(&("ns", "name"), value);
        }
        assert_eq!(index.candidates(&("ns", "name")), [1, 2, 3, 2]);
        assert_eq!(index.candidates(&("ns", "other")), [] as [i32; 0]);
        index.remove(&("ns", "name"), 2);
        assert_eq!(index.candidates(&("ns", "name")), [1, 3, 2]);
        for value in [3, 1, 2, 9] {
            index.remove(&("ns", "name"), value);
        }
        assert!(index.map.is_empty(), "an empty list is removed");
    }
}

//! Interned names of objects, namespaces and nodes, with reference counts.

use std::collections::HashMap;
use std::sync::Arc;

/// The number that stands for an interned text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Name(u32);

/// The names in use with their reference counts.
///
/// # Invariants
///
/// INVARIANT (counted): a [`Name`] stands for its text until all its references are released. Then the number
/// may stand for a different text.
#[derive(Debug, Default)]
pub(super) struct StringPool {
    names: HashMap<Arc<str>, Name>,
    texts: Vec<InternedText>,
    free: Vec<Name>,
}

#[derive(Debug)]
struct InternedText {
    text: Arc<str>,
    uses: u32,
}

impl StringPool {
    /// Returns the name of a text; None if the text is not in use.
    pub(super) fn find(&self, text: &str) -> Option<Name> {
        self.names.get(text).copied()
    }

    /// Interns a text, or adds a reference to its name.
    pub(super) fn intern(&mut self, text: &str) -> Name {
        if let Some(name) = self.find(text) {
            self.add_reference(name);
            return name;
        }
        let text: Arc<str> = text.into();
        let entry = InternedText { text: Arc::clone(&text), uses: 1 };
        let name = match self.free.pop() {
            Some(name) => {
                if let Some(slot) = self.slot(name) {
                    *slot = entry;
                }
                name
            }
            None => {
                // The conversion does not fail: 2^32 different names do not fit into memory.
                let name = Name(u32::try_from(self.texts.len()).unwrap_or(u32::MAX));
                self.texts.push(entry);
                name
            }
        };
        self.names.insert(text, name);
        name
    }

    /// Adds a reference to a name in use.
    pub(super) fn add_reference(&mut self, name: Name) {
        if let Some(entry) = self.slot(name) {
            entry.uses += 1;
        }
    }

    /// Releases a reference; the last one frees the name.
    pub(super) fn release_reference(&mut self, name: Name) {
        let Some(entry) = self.slot(name) else { return };
        entry.uses = entry.uses.saturating_sub(1);
        if entry.uses == 0 {
            let text = std::mem::replace(&mut entry.text, Arc::from(""));
            self.names.remove(&text);
            self.free.push(name);
        }
    }

    fn slot(&mut self, name: Name) -> Option<&mut InternedText> {
        self.texts.get_mut(usize::try_from(name.0).ok()?)
    }

    /// The number of names in use.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }
}

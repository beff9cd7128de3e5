//! The account of the bytes of all retained events. It selects the event that leaves its ring first.

use std::collections::VecDeque;
use std::sync::Weak;

use super::{Decode, Resource};
use crate::Revision;

/// The retained events of all resources, oldest event first.
pub(super) struct Account<D: Decode> {
    bytes: usize,
    events: VecDeque<(Weak<Resource<D>>, Revision, usize)>,
}

impl<D: Decode> Default for Account<D> {
    fn default() -> Self {
        Account { bytes: 0, events: VecDeque::new() }
    }
}

impl<D: Decode> Account<D> {
    /// Accounts events that are older than all accounted events; `events` is sorted newest first.
    pub(super) fn account_past(
        &mut self,
        events: impl Iterator<Item = (Weak<Resource<D>>, Revision, usize)>,
    ) {
        for event in events {
            self.bytes += event.2;
            self.events.push_front(event);
        }
    }

    /// Accounts new events.
    pub(super) fn account_new(&mut self, events: Vec<(Weak<Resource<D>>, Revision, usize)>) {
        for event in events {
            self.bytes += event.2;
            self.events.push_back(event);
        }
    }

    /// Removes and returns the oldest event if the bytes exceed `limit`.
    pub(super) fn evict_oldest(&mut self, limit: usize) -> Option<(Weak<Resource<D>>, Revision)> {
        if self.bytes <= limit {
            return None;
        }
        let (resource, revision, weight) = self.events.pop_front()?;
        self.bytes -= weight;
        Some((resource, revision))
    }

    /// The number of accounted events.
    #[cfg(test)]
    pub(super) fn events(&self) -> usize {
        self.events.len()
    }

    /// Removes and returns the oldest event if it is at or before a revision.
    pub(super) fn evict_through(&mut self, through: Revision) -> Option<(Weak<Resource<D>>, Revision)> {
        let (resource, revision, weight) = self.events.pop_front_if(|event| event.1 <= through)?;
        self.bytes -= weight;
        if self.events.is_empty() {
            self.events.shrink_to_fit();
        }
        Some((resource, revision))
    }
}

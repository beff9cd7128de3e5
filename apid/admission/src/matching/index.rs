//! Index of many constraints by the resources in their rules, and items with such an index.

use std::collections::HashMap;
use std::sync::Arc;

use super::Constraints;

/// Positions of constraints by resource.
///
/// All versions of a kind have the same plural, so the plural alone is the key.
#[derive(Debug, Default)]
pub(crate) struct ResourceIndex {
    /// Positions by plural, ascending.
    named: HashMap<String, Vec<usize>>,
    /// Positions of constraints that may match every resource, ascending. No named constraint is among them.
    all: Vec<usize>,
}

impl ResourceIndex {
    /// Builds the index. A position counts the items of the iterator from 0.
    pub(crate) fn new<'a>(constraints: impl Iterator<Item = &'a Constraints>) -> Self {
        let mut index = ResourceIndex::default();
        for (position, constraints) in constraints.enumerate() {
            let Some(resources) = constraints.named_resources() else {
                index.all.push(position);
                continue;
            };
            for resource in resources {
                let positions = match index.named.get_mut(resource) {
                    Some(positions) => positions,
                    None => index.named.entry(resource.to_owned()).or_default(),
                };
                if positions.last() != Some(&position) {
                    positions.push(position);
                }
            }
        }
        index
    }

    /// Number of stored positions.
    #[cfg(test)]
    pub(super) fn positions(&self) -> usize {
        self.all.len() + self.named.values().map(Vec::len).sum::<usize>()
    }

    /// Positions of the constraints that may match a resource, ascending.
    pub(crate) fn candidates(&self, resource: &str) -> impl Iterator<Item = usize> {
        let named = self.named.get(resource).map_or(&[][..], Vec::as_slice);
        let (mut named, mut all) = (named.iter().copied().peekable(), self.all.iter().copied().peekable());
        std::iter::from_fn(move || match (named.peek(), all.peek()) {
            (Some(first), Some(second)) if first > second => all.next(),
            (Some(_), _) => named.next(),
            (None, _) => all.next(),
        })
    }
}

/// The items with constraints in all objects of a kind, for example the webhooks of all configurations.
pub(crate) struct IndexedItems<T> {
    /// The items in the order of the objects.
    all: Vec<Arc<T>>,
    index: ResourceIndex,
}

impl<T> IndexedItems<T> {
    /// Builds the index of items with these constraints.
    pub(crate) fn new(all: Vec<Arc<T>>, constraints: impl Fn(&T) -> &Constraints) -> Self {
        let index = ResourceIndex::new(all.iter().map(|item| constraints(item)));
        IndexedItems { all, index }
    }

    /// The items that may match a resource, with their positions among all items.
    pub(crate) fn candidates(&self, resource: &str) -> impl Iterator<Item = (usize, &Arc<T>)> {
        self.index.candidates(resource).filter_map(|index| Some((index, self.all.get(index)?)))
    }
}

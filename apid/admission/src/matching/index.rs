//! Index of many constraints by the resources in their rules, and items with such an index.

use std::collections::HashMap;
use std::sync::Arc;

use apimachinery::object::Object;

use super::Constraints;

/// Positions of constraints by resource.
///
/// All versions of a kind have the same plural, so the plural alone is the key.
#[derive(Debug, Default)]
pub struct ResourceIndex {
    /// Positions by plural, including the positions of [`ResourceIndex::all`].
    named: HashMap<String, Vec<usize>>,
    /// Positions of constraints that may match every resource.
    all: Vec<usize>,
}

impl ResourceIndex {
    /// Builds the index. A position counts the items of the iterator from 0.
    pub fn new<'a>(constraints: impl Iterator<Item = &'a Constraints> + Clone) -> Self {
        let all: Vec<usize> = constraints
            .clone()
            .enumerate()
            .filter(|(_, constraints)| constraints.named_resources().is_none())
            .map(|(position, _)| position)
            .collect();
        let mut named = HashMap::<String, Vec<usize>>::new();
        for (position, constraints) in constraints.enumerate() {
            for resource in constraints.named_resources().into_iter().flatten() {
                let positions = match named.get_mut(resource) {
                    Some(positions) => positions,
                    None => named.entry(resource.to_owned()).or_insert_with(|| all.clone()),
                };
                positions.push(position);
            }
        }
        for positions in named.values_mut() {
            positions.sort_unstable();
            positions.dedup();
        }
        ResourceIndex { named, all }
    }

    /// Positions of the constraints that may match a resource, ascending.
    pub fn candidates(&self, resource: &str) -> &[usize] {
        self.named.get(resource).unwrap_or(&self.all)
    }
}

/// The items with constraints in all objects of a kind, for example the webhooks of all configurations.
pub(crate) struct IndexedItems<T> {
    /// The items in the order of the objects.
    all: Vec<Arc<T>>,
    index: ResourceIndex,
    /// Items by uid and resourceVersion of their object.
    by_object: HashMap<(String, String), Vec<Arc<T>>>,
}

impl<T> IndexedItems<T> {
    /// Reads the items of each object with `read`; those of unchanged objects are taken from `previous`.
    pub(crate) fn new(
        objects: &[Arc<Object>],
        previous: Option<&Self>,
        read: impl Fn(&Arc<Object>) -> Vec<Arc<T>>,
        constraints: impl Fn(&T) -> &Constraints,
    ) -> Self {
        let mut all = Vec::new();
        let mut by_object = HashMap::new();
        for object in objects {
            let key = (object.uid().to_owned(), object.resource_version().to_owned());
            let unchanged = previous.and_then(|previous| previous.by_object.get(&key).cloned());
            let items = unchanged.unwrap_or_else(|| read(object));
            all.extend(items.iter().cloned());
            by_object.insert(key, items);
        }
        let index = ResourceIndex::new(all.iter().map(|item| constraints(item)));
        IndexedItems { all, index, by_object }
    }

    /// The items that may match a resource, with their positions among all items.
    pub(crate) fn candidates(&self, resource: &str) -> impl Iterator<Item = (usize, &Arc<T>)> {
        self.index.candidates(resource).iter().filter_map(|index| Some((*index, self.all.get(*index)?)))
    }
}

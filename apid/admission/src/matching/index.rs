//! Index of many constraints by the resources in their rules.

use std::collections::HashMap;

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

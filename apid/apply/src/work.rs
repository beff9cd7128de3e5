//! Limit of the work of a patch whose cost grows faster than its size.

use apimachinery::object::Value;

/// The remaining units of work. The unit depends on the type of the patch.
pub(crate) struct Work(pub(crate) usize);

/// The work of a patch exceeds its limit.
pub(crate) struct WorkExceeded;

impl Work {
    /// Subtracts units of work.
    ///
    /// # Errors
    ///
    /// [`WorkExceeded`] if fewer than `units` units remain.
    pub(crate) fn spend(&mut self, units: usize) -> Result<(), WorkExceeded> {
        self.0 = self.0.checked_sub(units).ok_or(WorkExceeded)?;
        Ok(())
    }
}

/// The number of values in a tree.
pub(crate) fn value_count(value: &Value) -> usize {
    match value {
        Value::Object(map) => 1 + map.values().map(value_count).sum::<usize>(),
        Value::Array(items) => 1 + items.iter().map(value_count).sum::<usize>(),
        _ => 1,
    }
}

//! The group `batch`: work that ends.

use crate::Kind;

mod cron_job;
mod job;

/// Its kinds, in discovery's order.
pub(crate) const KINDS: &[Kind] = &[cron_job::KIND, job::KIND];

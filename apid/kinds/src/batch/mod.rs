//! API group `batch`: workloads that run to completion.

use crate::BuiltInKind;

mod cron_job;
mod indexes;
mod job;
mod job_rules;
mod job_spec;
mod job_status;
mod schedule;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[BuiltInKind] = &[cron_job::KIND, job::KIND];

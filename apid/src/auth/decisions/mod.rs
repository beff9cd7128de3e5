//! Authorization: the decision cache, its validity, the escalation check and rejections.

pub(super) mod cache;
pub(super) mod epoch;
pub(super) mod escalation;
pub(super) mod rejection;
pub(super) mod revisions;

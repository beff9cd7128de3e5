//! Authorization: the decision cache, its validity, the escalation check, rejections and
//! explanations.

pub(super) mod cache;
pub(super) mod epoch;
pub(super) mod escalation;
mod explanation;
pub(super) mod rejection;
pub(super) mod revisions;

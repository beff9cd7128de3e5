//! Denials of a write by policies.

use apimachinery::status::{Cause, Reason, Status};

use crate::Attributes;

/// A denial of a write by a policy.
pub(crate) struct Denial {
    /// Message for the client.
    pub(crate) message: String,
    /// Reason of the Status.
    pub(crate) reason: Reason,
}

impl Denial {
    /// 403 with the message and the reason of the first denial, and a cause for each denial; None without a
    /// denial.
    pub(crate) fn status(denials: &[Denial], attributes: &Attributes<'_>) -> Option<Status> {
        let first = denials.first()?;
        let mut status =
            Status::forbidden(&attributes.served.group_resource, attributes.name, &first.message);
        status.reason = first.reason;
        if let Some(details) = &mut status.details {
            let cause = |denial: &Denial| Cause { message: denial.message.clone(), ..Cause::default() };
            details.causes.extend(denials.iter().map(cause));
        }
        Some(status)
    }
}

//! AlwaysAdmit: nothing is refused. What every chain does without it; kept because deployments name it.

use crate::{Interest, Operation, Plugin};

/// The plugin.
pub(crate) struct AlwaysAdmit;

impl Plugin for AlwaysAdmit {
    fn handles(&self, _operation: Operation) -> bool {
        true
    }

    fn interest(&self) -> Interest {
        Interest::Only(&[])
    }
}

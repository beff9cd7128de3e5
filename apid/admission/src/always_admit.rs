//! AlwaysAdmit: allows every write.
//! An empty chain does the same; the plugin exists because deployments name it.

use crate::{Interest, Operation, Plugin};

pub(crate) struct AlwaysAdmit;

impl Plugin for AlwaysAdmit {
    fn handles(&self, _operation: Operation) -> bool {
        true
    }

    fn interest(&self) -> Interest {
        Interest::Only(&[])
    }
}

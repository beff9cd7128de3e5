//! Rules of pod specs, shared by pods and by all kinds with a pod template.

pub(crate) mod defaults;
pub(crate) mod validation;
pub(crate) mod warnings;

//! Rules of pod specs, shared by pods and by all kinds with a pod template.

pub(crate) mod app_armor;
pub(crate) mod defaults;
mod disabled;
pub(crate) mod validation;
pub(crate) mod warnings;

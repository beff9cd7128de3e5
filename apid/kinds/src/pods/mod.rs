//! What kinds with pods in them share: the rules of a pod's spec, alone or in a template.

pub(crate) mod defaults;
pub(crate) mod validation;
pub(crate) mod warnings;

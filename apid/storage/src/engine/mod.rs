//! The engines: one file (or folder) each, the same contract, shown by the same suite ([`crate::conformance`]).

pub mod fjall;
pub mod memory;

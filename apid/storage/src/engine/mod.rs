//! The engines: one file or folder each, one contract, checked by one suite ([`crate::conformance`]).

pub mod fjall;
pub mod memory;

//! The storage engines, one module each. The test suite [`crate::conformance`] checks that all fulfil one contract.

pub mod fjall;
pub mod memory;

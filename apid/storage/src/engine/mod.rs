//! The storage engines, one module each. The test suite [`crate::conformance`] checks that every engine
//! fulfils the contract of [`crate::Store`].

pub mod etcd;
pub mod fjall;
pub mod memory;

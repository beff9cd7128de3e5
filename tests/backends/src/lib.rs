//! Servers behind apid, for tests: an extension API server, and a kubelet.
//!
//! # Contract
//!
//! Each server runs in the process of the test, or in the program `backends`. A server ends with all of its connections
//! when its [`server::Server`] is dropped, as a killed process does; a second server may take the same address.
//!
//! The servers share no code with apid except the certificates of `serving`, so that a mistake of apid shows. The kubelet
//! also shares the frames of `forwarding`; kubectl checks these from the other side.

pub mod apiserver;
pub mod kubelet;
pub mod server;

//! The real program, spoken to as apid speaks to it.

mod decisions;
mod harness;
mod identities;
mod mirror;
mod reviews;
mod start;

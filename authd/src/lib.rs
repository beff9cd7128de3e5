//! authd.
pub mod rules;

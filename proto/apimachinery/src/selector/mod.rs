//! Label and field selectors (requirements D-QP-45, D-QP-46).

pub mod field;
pub mod label;
pub mod syntax;

//! apid.
fn main() {}

//! authd.
fn main() {}

//! Records the facts of `build_info`.

#[path = "../proto/build_facts.rs"]
mod build_facts;

fn main() {
    println!("cargo::rerun-if-changed=../proto/build_facts.rs");
    build_facts::record("..");
}

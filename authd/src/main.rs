//! authd: identifies and authorizes every request of apid. See the library.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    authd::run(std::env::args_os())
}

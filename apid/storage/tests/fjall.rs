//! The conformance suite on the fjall engine, with the default options and with minimal memory.
//!
//! With minimal memory nearly all reads go to tables and to the log.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use apimachinery::clock::SystemClock;
use storage::engine::fjall::{FjallStore, Identity, Options};
use storage::{Observer, Store};

fn open(
    observer: Arc<dyn Observer>,
    configure: impl FnOnce(Options) -> Options,
) -> (Arc<dyn Store>, Box<dyn Any + Send>) {
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let identity = Identity { preset: "svc".to_owned(), api_domain: "svc.internal".to_owned() };
    let options = Options::new(dir.path().join("store"), identity, Arc::new(SystemClock::new()));
    let options = configure(Options { reserve_bytes: 0, ..options });
    (Arc::new(FjallStore::open(options, observer).unwrap()), Box::new(dir))
}

mod defaults {
    use super::open;

    storage::conformance!(|observer| open(observer, |options| options));
}

mod small {
    use std::sync::Arc;

    use super::{Options, open};

    storage::conformance!(|observer| open(observer, |options| Options {
        memtable_bytes: 64 << 10,
        cache_bytes: 64 << 10,
        row_cache_bytes: 0,
        recent_bytes: 0,
        // One large value exceeds the watchdog's limit for a memtable of this size.
        on_stall: Arc::new(|_| ()),
        ..options
    }));
}

//! The conformance suite on the etcd engine with real servers, and what only this engine does.
//!
//! A new etcd is at revision 1, and the engine writes keys of its own. [`rebased::Rebased`] subtracts the revision at the
//! opening, so that the suite sees the numbers of an empty store.

mod behaviour;
mod failures;
mod proxy;
mod rebased;

use std::any::Any;
use std::sync::Arc;

use prerequisites::etcd::{EtcdServer, Release};
use storage::engine::etcd::{EtcdStore, Options, PlainKeys};
use storage::engine::fjall::Identity;
use storage::engine::memory::MemoryStore;
use storage::{Observer, Store};

use rebased::{Rebased, RebasedObserver};

fn options(url: &str) -> Options {
    let identity = Identity { preset: "svc".to_owned(), api_domain: "svc.internal".to_owned() };
    Options { compaction_interval: None, ..Options::new(vec![url.to_owned()], identity, Arc::new(PlainKeys)) }
}

/// Opens a store on a new server. Without etcd, the suite runs on the model, and the skip is recorded.
fn open(
    release: Release,
    observer: Arc<dyn Observer>,
    configure: impl FnOnce(Options) -> Options,
) -> (Arc<dyn Store>, Box<dyn Any + Send>) {
    let Some(server) = EtcdServer::start(release, &[]) else {
        return (Arc::new(MemoryStore::new(observer)), Box::new(()));
    };
    let observer = Arc::new(RebasedObserver::new(observer));
    let options = configure(options(server.url()));
    let open = EtcdStore::open(options, Arc::clone(&observer) as Arc<dyn Observer>);
    let engine = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(open)).unwrap();
    let base = engine.revision().0;
    observer.set_base(base);
    (Arc::new(Rebased::new(engine, base)), Box::new(server))
}

mod current {
    use super::{Release, open};

    storage::conformance!(|observer| open(Release::Current, observer, |options| options));
}

mod old {
    use super::{Release, open};

    storage::conformance!(|observer| open(Release::Old, observer, |options| options));
}

/// No change stays in memory: watches and histories are read from etcd.
mod without_recent_changes {
    use super::{Options, Release, open};

    storage::conformance!(|observer| open(Release::Current, observer, |options| Options {
        recent_bytes: 0,
        ..options
    }));
}

//! Tests of several authds: apid goes on to the next one, stays there while it can decide, and fails closed without any.

use std::path::{Path, PathBuf};

use authproto::peer::Peer;
use storage::engine::memory::MemoryStore;
use storage::{Observers, Store};
use tokio::sync::mpsc;

use super::wire::{Server, Writer, is_allowed, peer, query, serve_as};
use super::*;
use crate::transport::stream::PROVEN;

fn start(socket: &Path, instance: &str) -> Server {
    let process = || Some(peer(instance));
    serve_as(socket, mpsc::unbounded_channel().0, [process(), process(), process()])
}

/// Connects to the authds at these sockets, and feeds the mirror of the one in use.
fn connect(sockets: &[PathBuf]) -> Arc<Auth> {
    let options = AuthOptions {
        servers: sockets.iter().cloned().map(AuthdServer::Socket).collect(),
        instance: "apid".to_owned(),
        timeout: Duration::from_secs(5),
        names: Arc::new(Names::new(apimachinery::names::Preset::Svc, "svc.internal").unwrap()),
        proxy_headers: ProxyHeaders::default(),
    };
    let auth = Auth::connect(options, vector(), clock()).unwrap();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(Arc::new(Observers(Vec::new()))));
    tokio::spawn(auth.clone().run_mirror(store, Arc::new(Writer)));
    auth
}

/// Waits until the process with this instance serves both streams.
async fn wait_for(auth: &Auth, instance: &str) {
    let connected = async {
        while auth.connection().health().is_err()
            || auth.keys("").await.ok().map(|keys| keys.jwks) != Some(instance.into())
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), connected).await.unwrap();
}

#[tokio::test]
async fn apid_goes_on_with_the_next_authd_and_stays_there_until_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let sockets = ["first", "second"].map(|name| dir.path().join(name));
    let [first, second] = [start(&sockets[0], "one"), start(&sockets[1], "two")];
    let auth = connect(&sockets);
    wait_for(&auth, "one").await;
    let epoch = auth.epochs.number();
    // The server decides pairs of requests: a single request waits. The second authd gets the request when the first one
    // ends.
    let waiting = {
        let auth = Arc::clone(&auth);
        tokio::spawn(async move { auth.authd_api.decide("", query("good")).await })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(first);
    wait_for(&auth, "two").await;
    let pair = auth.authd_api.decide("", query("evil")).await;
    assert_eq!((is_allowed(waiting.await.unwrap()), is_allowed(pair)), (Some(true), Some(false)));
    let changed = auth.epochs.number();
    assert!(changed.generation > epoch.generation && changed.identities > epoch.identities, "caches end");

    let first = start(&sockets[0], "three");
    tokio::time::sleep(Duration::from_secs(1)).await;
    wait_for(&auth, "two").await;
    assert_eq!(auth.epochs.number(), changed, "caches and watches go on");
    drop(second);
    wait_for(&auth, "three").await;
    drop(first);
    let refused = auth.authd_api.decide("", query("good")).await;
    assert!(matches!(refused, Err(AuthdError::Unreachable(_))), "{refused:?}");
    let _second = start(&sockets[1], "four");
    wait_for(&auth, "four").await;
}

#[tokio::test]
async fn authd_that_ends_only_a_connection_is_not_left() {
    let dir = tempfile::tempdir().unwrap();
    let sockets = ["first", "second"].map(|name| dir.path().join(name));
    let [first, _second] = [start(&sockets[0], "one"), start(&sockets[1], "two")];
    let auth = connect(&sockets);
    wait_for(&auth, "one").await;
    let epoch = auth.epochs.number();
    tokio::time::sleep(PROVEN).await;
    // The same process accepts the next connection.
    let next = start(&sockets[0], "one");
    drop(first);
    wait_for(&auth, "one").await;
    assert_eq!(auth.epochs.number(), epoch, "caches and watches go on");
    // A stream that has just begun does not show that authd works.
    let _last = start(&sockets[0], "one");
    drop(next);
    wait_for(&auth, "two").await;
}

#[tokio::test]
async fn authd_with_other_names_is_left_for_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let sockets = ["first", "second"].map(|name| dir.path().join(name));
    let other = || Some(Peer { protocol: 7, ..peer("other") });
    let _first = serve_as(&sockets[0], mpsc::unbounded_channel().0, [other(), other(), other()]);
    let _second = start(&sockets[1], "two");
    let auth = connect(&sockets);
    wait_for(&auth, "two").await;
}

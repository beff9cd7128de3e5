//! A TCP balancer on the loopback address, in front of the servers of the cluster.
//!
//! # Contract
//!
//! The balancer does not look into TLS: clients see the certificate of a server, and servers see the certificates of
//! clients. Each new connection goes to the next server that is ready, else to one that answers, else to any. The
//! connections of a server that no longer answers end, so that clients connect again.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serving::listener::ACCEPT_PAUSE;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::super::api::{Api, Health};

/// Interval of the health checks of a server.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Number of consecutive checks without an answer after which a server is gone.
const GONE_AFTER: u32 = 3;
/// Time limit of a connection to a server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A server behind the balancer.
#[derive(Clone)]
pub(super) struct Backend {
    port: u16,
    health: watch::Sender<Health>,
}

impl Backend {
    /// A server on a port of the loopback address, which does not answer yet.
    pub(super) fn new(port: u16) -> Self {
        Backend { port, health: watch::Sender::new(Health::Gone) }
    }

    /// Subscribes to the health of the server.
    pub(super) fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Checks the server at intervals; never returns.
    pub(super) async fn check(&self, api: &Api) {
        let mut failures = 0_u32;
        loop {
            let mut health = api.health().await;
            failures = if health == Health::Gone { failures.saturating_add(1) } else { 0 };
            // On a busy machine, one late response does not end the connections of a server.
            if (1..GONE_AFTER).contains(&failures) {
                health = (*self.health.borrow()).min(Health::NotReady);
            }
            self.health.send_if_modified(|last| std::mem::replace(last, health) != health);
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }
}

/// Accepts connections and forwards them; never returns.
pub(super) async fn run(listener: TcpListener, backends: Vec<Backend>) {
    let (backends, turn) = (Arc::<[Backend]>::from(backends), Arc::new(AtomicUsize::new(0)));
    loop {
        match listener.accept().await {
            Ok((client, _)) => {
                let first = turn.fetch_add(1, Ordering::Relaxed);
                let backends = Arc::clone(&backends);
                tokio::spawn(async move { forward(client, &backends, first).await });
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// The servers in the order in which a connection tries them: the healthiest ones first, and among equal ones the turn.
fn in_order(backends: &[Backend], first: usize) -> Vec<&Backend> {
    let start = first.checked_rem(backends.len()).unwrap_or_default();
    let mut ordered: Vec<&Backend> = backends.iter().cycle().skip(start).take(backends.len()).collect();
    ordered.sort_by_key(|backend| std::cmp::Reverse(*backend.health.borrow()));
    ordered
}

/// Forwards a connection until one end closes it, or until the server no longer answers.
async fn forward(mut client: TcpStream, backends: &[Backend], first: usize) {
    for backend in in_order(backends, first) {
        let mut health = backend.health();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, backend.port));
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address));
        let Ok(Ok(mut server)) = connecting.await else { continue };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        health.mark_unchanged();
        let gone = async {
            while health.changed().await.is_ok() {
                if *health.borrow() == Health::Gone {
                    return;
                }
            }
        };
        tokio::select! {
            _ = copy_bidirectional(&mut client, &mut server) => {}
            () = gone => {}
        }
        return;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// A server that greets each connection with its name and then waits.
    async fn greeter(name: &'static str) -> Backend {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    stream.write_all(name.as_bytes()).await.unwrap();
                    let _ = stream.read(&mut [0; 8]).await;
                });
            }
        });
        Backend::new(port)
    }

    async fn connect(port: u16) -> (TcpStream, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let mut name = [0; 1];
        stream.read_exact(&mut name).await.unwrap();
        (stream, char::from(name[0]).to_string())
    }

    #[tokio::test]
    async fn connections_go_to_ready_servers_in_turn_and_end_with_a_lost_server() {
        let backends = vec![greeter("a").await, greeter("b").await, greeter("c").await];
        for backend in &backends[..2] {
            backend.health.send_replace(Health::Ready);
        }
        backends[2].health.send_replace(Health::NotReady);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(run(listener, backends.clone()));
        let mut open = Vec::new();
        // The third turn is that of the server that is not ready.
        for expected in ["a", "b", "a", "a", "b"] {
            let (stream, name) = connect(port).await;
            assert_eq!(name, expected);
            open.push((stream, name));
        }
        backends[0].health.send_replace(Health::NotReady);
        backends[0].health.send_replace(Health::Gone);
        let (mut stream, _) = open.swap_remove(open.iter().position(|(_, name)| name == "a").unwrap());
        let ended = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut [0; 1])).await;
        assert!(matches!(ended, Ok(Ok(0) | Err(_))), "{ended:?}");
        backends[1].health.send_replace(Health::Gone);
        assert_eq!(connect(port).await.1, "c", "a server that answers serves while none is ready");
    }

    #[tokio::test]
    async fn connection_goes_on_to_a_server_that_accepts() {
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let backends = vec![Backend::new(closed), greeter("b").await];
        backends[0].health.send_replace(Health::Ready);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(run(listener, backends));
        assert_eq!(connect(port).await.1, "b");
    }
}

//! A member of etcd behind a proxy, which a test can pause or lead to another server.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The proxy. Its task ends with the runtime.
pub(super) struct Proxy {
    url: String,
    is_paused: watch::Sender<bool>,
    /// Address of the server, and the number of changes of this address.
    target: Arc<Mutex<String>>,
    generation: watch::Sender<u64>,
}

fn address(url: &str) -> String {
    url.split("//").nth(1).unwrap_or_default().to_owned()
}

impl Proxy {
    /// Starts a proxy of the server with a URL.
    pub(super) async fn start(server: &str) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let target = Arc::new(Mutex::new(address(server)));
        let (is_paused, generation) = (watch::Sender::new(false), watch::Sender::new(0));
        let proxy = Proxy { url, is_paused, target, generation };
        let (paused, generation) = (proxy.is_paused.clone(), proxy.generation.clone());
        let target = Arc::clone(&proxy.target);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (paused, target) = (paused.clone(), target.lock().clone());
                let mut changed = generation.subscribe();
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(target).await else { return };
                    let (from_client, to_client) = client.into_split();
                    let (from_server, to_server) = server.into_split();
                    tokio::select! {
                        () = forward(from_client, to_server, paused.subscribe()) => {}
                        () = forward(from_server, to_client, paused.subscribe()) => {}
                        _ = changed.changed() => {}
                    }
                });
            }
        });
        proxy
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Stops or continues all bytes; connections stay open.
    pub(super) fn pause(&self, is_paused: bool) {
        self.is_paused.send_replace(is_paused);
    }

    /// Closes all connections, and forwards new ones to another server.
    pub(super) fn redirect_to(&self, server: &str) {
        *self.target.lock() = address(server);
        self.generation.send_modify(|generation| *generation += 1);
    }
}

async fn forward(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut paused: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let Ok(count @ 1..) = from.read(&mut buffer).await else { return };
        if paused.wait_for(|is_paused| !is_paused).await.is_err() {
            return;
        }
        let Some(part) = buffer.get(..count) else { return };
        if to.write_all(part).await.is_err() {
            return;
        }
    }
}

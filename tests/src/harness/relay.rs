//! TCP relays between the parties of a test, which spread connections over servers or stop the traffic of parties.
//!
//! A stopped party keeps its connections: bytes wait in the relay, and pass after the end of the partition, as with a network
//! that loses packets. New connections are accepted and carry nothing.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A relay on a port of its own. Dropping the relay ends its connections.
pub struct Relay {
    port: u16,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    /// Ports of the servers, in turns.
    targets: Mutex<Vec<u16>>,
    next: AtomicUsize,
    /// Texts in the command line of the parties that connect; a relay without texts has one party, number 0.
    parties: Vec<String>,
    stopped: watch::Sender<BTreeSet<usize>>,
    is_open: watch::Sender<bool>,
}

impl Relay {
    /// Opens a relay to servers on this machine. Each connection goes to the next server that accepts it.
    pub fn open(targets: Vec<u16>) -> Relay {
        Relay::open_for(targets, Vec::new())
    }

    /// Opens a relay that knows the processes that connect: those whose command line contains a text. The index of the text is
    /// the number of the party.
    pub fn open_for(targets: Vec<u16>, parties: Vec<String>) -> Relay {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        listener.set_nonblocking(true).expect("a socket without blocking");
        let listener = TcpListener::from_std(listener).expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared {
            targets: Mutex::new(targets),
            next: AtomicUsize::new(0),
            parties,
            stopped: watch::Sender::default(),
            is_open: watch::Sender::new(true),
        });
        let accepted = Arc::clone(&shared);
        let accepting = tokio::spawn(async move {
            while let Ok((outer, _)) = listener.accept().await {
                let shared = Arc::clone(&accepted);
                tokio::spawn(async move {
                    let mut is_open = shared.is_open.subscribe();
                    tokio::select! {
                        _ = shared.forward(outer) => {}
                        _ = is_open.wait_for(|is_open| !is_open) => {}
                    }
                });
            }
        });
        Relay { port, shared, accepting }
    }

    /// Returns the port of the relay.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sets the servers of new connections.
    pub fn set_targets(&self, targets: Vec<u16>) {
        *self.shared.targets.lock() = targets;
    }

    /// Stops the traffic of a party.
    pub fn stop(&self, party: usize) {
        self.shared.stopped.send_modify(|stopped| stopped.extend([party]));
    }

    /// Lets the traffic of all parties pass again.
    pub fn resume(&self) {
        self.shared.stopped.send_modify(BTreeSet::clear);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
        self.shared.is_open.send_replace(false);
    }
}

impl Shared {
    async fn forward(&self, outer: TcpStream) -> io::Result<()> {
        let party = self.party(outer.peer_addr()?.port());
        let inner = self.connect().await?;
        outer.set_nodelay(true)?;
        inner.set_nodelay(true)?;
        let (outer_read, outer_write) = outer.into_split();
        let (inner_read, inner_write) = inner.into_split();
        tokio::try_join!(
            self.copy(outer_read, inner_write, party),
            self.copy(inner_read, outer_write, party)
        )?;
        Ok(())
    }

    /// Connects to the next server that accepts.
    async fn connect(&self) -> io::Result<TcpStream> {
        let targets = self.targets.lock().clone();
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let mut refusal = io::Error::from(io::ErrorKind::ConnectionRefused);
        for turn in 0..targets.len() {
            match TcpStream::connect(("127.0.0.1", targets[(first + turn) % targets.len()])).await {
                Ok(stream) => return Ok(stream),
                Err(error) => refusal = error,
            }
        }
        Err(refusal)
    }

    /// Copies bytes in one direction, and waits while the party is stopped.
    async fn copy(
        &self,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
        party: Option<usize>,
    ) -> io::Result<()> {
        let mut buffer = vec![0; 16 * 1024];
        let mut stopped = self.stopped.subscribe();
        loop {
            let count = from.read(&mut buffer).await?;
            let is_passing = |stopped: &BTreeSet<usize>| party.is_none_or(|party| !stopped.contains(&party));
            stopped.wait_for(is_passing).await.map_err(io::Error::other)?;
            if count == 0 {
                return to.shutdown().await;
            }
            to.write_all(&buffer[..count]).await?;
        }
    }

    /// Returns the party whose process has a connection from a port; None if no party has it.
    fn party(&self, port: u16) -> Option<usize> {
        if self.parties.is_empty() {
            return Some(0);
        }
        let socket = format!("socket:[{}]", inode(port)?);
        let processes = fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.path());
        let owner = |process: &std::path::PathBuf| {
            let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
            files.filter_map(|file| fs::read_link(file.path()).ok()).any(|link| link.as_os_str() == &*socket)
        };
        processes
            .filter_map(|process| self.party_of(&process).map(|party| (party, process)))
            .find_map(|(party, process)| owner(&process).then_some(party))
    }

    /// Returns the party of a process, by its command line.
    fn party_of(&self, process: &std::path::Path) -> Option<usize> {
        let line = fs::read(process.join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line);
        self.parties.iter().position(|text| line.contains(text.as_str()))
    }
}

/// Returns the inode of the socket that has a port of the loopback address as its own.
fn inode(port: u16) -> Option<String> {
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    let local = format!("0100007F:{port:04X}");
    let row = table.lines().map(|line| line.split_whitespace().collect::<Vec<&str>>());
    row.into_iter()
        .find(|row| row.get(1) == Some(&&*local))
        .and_then(|row| row.get(9).map(ToString::to_string))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    async fn echo() -> u16 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    tokio::io::copy(&mut read, &mut write).await
                });
            }
        });
        port
    }

    async fn answer(stream: &mut TcpStream, within: Duration) -> bool {
        stream.write_all(b"x").await.expect("a connection");
        let mut byte = [0];
        tokio::time::timeout(within, stream.read_exact(&mut byte)).await.is_ok_and(|read| read.is_ok())
    }

    #[tokio::test]
    async fn stopped_party_gets_its_bytes_after_the_partition() {
        let me = std::env::current_exe().expect("a path").display().to_string();
        let relay = Relay::open_for(vec![echo().await], vec!["no such program".to_owned(), me]);
        let mut stream = TcpStream::connect(("127.0.0.1", relay.port())).await.expect("a connection");
        assert!(answer(&mut stream, Duration::from_secs(5)).await);
        relay.stop(0);
        assert!(answer(&mut stream, Duration::from_secs(5)).await, "another party is stopped");
        relay.stop(1);
        assert!(!answer(&mut stream, Duration::from_millis(100)).await, "this party is stopped");
        relay.resume();
        let mut byte = [0];
        stream.read_exact(&mut byte).await.expect("the byte of the partition");
    }

    #[tokio::test]
    async fn connections_go_to_servers_that_accept() {
        let unused =
            TcpListener::bind(("127.0.0.1", 0)).await.expect("a port").local_addr().expect("an address");
        let relay = Relay::open(vec![unused.port(), echo().await]);
        for _ in 0..4 {
            let mut stream = TcpStream::connect(("127.0.0.1", relay.port())).await.expect("a connection");
            assert!(answer(&mut stream, Duration::from_secs(5)).await);
        }
    }
}

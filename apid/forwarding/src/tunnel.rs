//! A byte stream between a client and a backend that have both left HTTP.

use std::time::Duration;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::UpgradedStream;

/// Maximum time for the upgrade of the connection of the client.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time that the backend has after the end of the client.
const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that a side has after the end of the other side to take the rest.
const FINISH_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Time that the client has to close its connection when no output is left to send.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Size of the buffer of each direction in bytes.
const BUFFER_BYTES: usize = 16 * 1024;

/// A byte stream to be piped; ends when it is dropped.
pub struct Tunnel {
    client: OnUpgrade,
    backend: UpgradedStream,
}

/// The bytes that passed through a tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelBytes {
    /// Bytes from the client to the backend.
    pub to_backend: u64,
    /// Bytes from the backend to the client.
    pub to_client: u64,
}

impl std::fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tunnel").finish_non_exhaustive()
    }
}

impl Tunnel {
    /// Creates a tunnel. `client` is ready when the 101 has been sent.
    pub fn new(client: OnUpgrade, backend: UpgradedStream) -> Self {
        Tunnel { client, backend }
    }

    /// Copies bytes in both directions until one side ends. After the end of the client, the backend has a few seconds to
    /// end. After the end of the backend, the client has 15 minutes to take all bytes, and then a few seconds to close its
    /// connection.
    ///
    /// A slow reader stops the reads from the other side: [`BUFFER_BYTES`] wait in each direction.
    pub async fn run(self) -> TunnelBytes {
        let client = match tokio::time::timeout(UPGRADE_TIMEOUT, self.client).await {
            Ok(Ok(client)) => TokioIo::new(client),
            Ok(Err(error)) => {
                tracing::debug!(%error, "upgrade of the client connection failed; tunnel ended");
                return TunnelBytes::default();
            }
            Err(_) => {
                tracing::debug!("upgrade of the client connection timed out; tunnel ended");
                return TunnelBytes::default();
            }
        };
        pipe(client, self.backend).await
    }
}

/// Copies bytes between two streams in both directions until one side ends.
pub async fn pipe<C, B>(client: C, backend: B) -> TunnelBytes
where
    C: AsyncRead + AsyncWrite,
    B: AsyncRead + AsyncWrite,
{
    let (from_client, to_client) = tokio::io::split(client);
    let (from_backend, to_backend) = tokio::io::split(backend);
    let mut bytes = TunnelBytes::default();
    {
        let mut upward = std::pin::pin!(copy(from_client, to_backend, &mut bytes.to_backend, true));
        let mut downward = std::pin::pin!(copy(from_backend, to_client, &mut bytes.to_client, false));
        // A direction that does not end in time is cut.
        tokio::select! {
            () = &mut upward => drop(tokio::time::timeout(HALF_CLOSED_TIMEOUT, downward).await),
            () = &mut downward => drop(tokio::time::timeout(CLOSE_TIMEOUT, upward).await),
        }
    }
    bytes
}

/// Copies all bytes of a reader, then ends the writer. Errors end the copy.
///
/// With `discards`, bytes that the writer does not take are discarded: a connection that is closed before its bytes are
/// read could lose the last bytes that were written to it.
async fn copy(
    mut reader: impl AsyncRead + Unpin,
    mut writer: impl AsyncWrite + Unpin,
    copied: &mut u64,
    discards: bool,
) {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut is_open = true;
    while let Ok(read @ 1..) = reader.read(&mut buffer).await {
        let Some(bytes) = buffer.get(..read) else { break };
        is_open = is_open && writer.write_all(bytes).await.is_ok() && writer.flush().await.is_ok();
        match (is_open, discards) {
            (true, _) => *copied += u64::try_from(read).unwrap_or(0),
            (false, true) => {}
            (false, false) => break,
        }
    }
    // The shutdown waits for bytes that the writer has not sent. A failure means that the other side has ended already.
    drop(tokio::time::timeout(FINISH_TIMEOUT, writer.shutdown()).await);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that closes a connection with unread input may lose its last output to a client that reads slowly.
    #[tokio::test]
    async fn client_reads_all_bytes_after_end_of_backend() {
        let (mut client, server) = tokio::io::duplex(4);
        let (mut backend, stream) = tokio::io::duplex(64);
        let running = tokio::spawn(pipe(server, stream));
        backend.write_all(b"the last bytes").await.unwrap();
        drop(backend);
        client.write_all(b"more input").await.unwrap();
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, b"the last bytes");
        client.write_all(b"still open").await.unwrap();
        assert!(!running.is_finished(), "the client has not closed");
        drop(client);
        let bytes = tokio::time::timeout(Duration::from_secs(10), running).await.unwrap().unwrap();
        assert_eq!(bytes.to_client, 14);
    }

    #[tokio::test]
    async fn client_that_has_taken_all_bytes_has_seconds_to_close() {
        let (client, server) = tokio::io::duplex(64);
        let (mut backend, stream) = tokio::io::duplex(64);
        let running = tokio::spawn(pipe(server, stream));
        backend.write_all(b"the last bytes").await.unwrap();
        drop(backend);
        let bytes = tokio::time::timeout(2 * CLOSE_TIMEOUT, running).await.unwrap().unwrap();
        assert_eq!(bytes.to_client, 14);
        drop(client);
    }

    #[tokio::test]
    async fn client_that_is_gone_ends_tunnel_of_endless_backend() {
        let (client, server) = tokio::io::duplex(64);
        let (mut backend, stream) = tokio::io::duplex(64);
        let running = tokio::spawn(pipe(server, stream));
        drop(client);
        while backend.write_all(b"endless").await.is_ok() {}
        tokio::time::timeout(Duration::from_secs(10), running).await.unwrap().unwrap();
    }
}

//! Parts of a session between a client on WebSocket and a node.
//!
//! Each direction is a loop that reads from one peer and writes to the other. A reply to a ping goes through
//! [`Replies`] to the loop that writes to the pinging peer, so that no loop waits for the other.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::Notify;

use super::websocket::{self, ClientFrame, ClientReader};

/// Maximum number of replies that wait to be sent. Later replies displace earlier ones.
const MAX_PENDING_REPLIES: usize = 16;

/// Maximum time that a client may take to read the rest of a session.
const FINISH_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Maximum time for a close frame of a session that fails, and for the end of a connection whose output is sent.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// A session without any bytes ends after this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4 * 3600);

/// Control frames for one peer, from the direction that reads from the peer to the one that writes to it.
#[derive(Debug, Default)]
pub(super) struct Replies {
    pending: Mutex<VecDeque<Bytes>>,
    added: Notify,
}

impl Replies {
    /// Adds a frame. Never waits.
    pub(super) fn put(&self, frame: Bytes) {
        let mut pending = self.pending.lock();
        if pending.len() >= MAX_PENDING_REPLIES {
            pending.pop_front();
        }
        pending.push_back(frame);
        self.added.notify_one();
    }

    /// Waits for the next frame. Dropping the future loses no frame.
    pub(super) async fn next(&self) -> Bytes {
        loop {
            if let Some(frame) = self.pending.lock().pop_front() {
                return frame;
            }
            self.added.notified().await;
        }
    }
}

/// Counts the bytes of a session, so that an idle one ends.
#[derive(Debug, Default)]
pub(super) struct Activity(AtomicU64);

impl Activity {
    /// Records that a peer has sent or taken bytes.
    pub(super) fn record(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until the session has been idle for [`IDLE_TIMEOUT`] to twice that time.
    pub(super) async fn idle(&self) -> io::Error {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            tokio::time::sleep(IDLE_TIMEOUT).await;
            let now = self.0.load(Ordering::Relaxed);
            if now == seen {
                return io::ErrorKind::TimedOut.into();
            }
            seen = now;
        }
    }
}

/// Writes a head and its payload, and waits until the peer has taken them or buffers of fixed size hold them.
pub(super) async fn write<W: AsyncWrite + Unpin>(
    connection: &mut W,
    head: &[u8],
    payload: &[u8],
) -> io::Result<()> {
    connection.write_all_buf(&mut head.chain(payload)).await?;
    connection.flush().await
}

/// Sends the last frames of a session, then waits a few seconds until the client closes its connection. Discards what the
/// client still sends.
pub(super) async fn finish<R, W>(client: &mut ClientReader<R>, connection: &mut W, last: &[u8])
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let close = websocket::close(websocket::CLOSE_NORMAL);
    let mut receive = std::pin::pin!(async {
        while let Ok(Some(frame)) = client.next().await {
            if frame == ClientFrame::Close {
                break;
            }
        }
    });
    let mut is_closed = false;
    let send = async {
        let mut send = std::pin::pin!(write(connection, last, &close));
        // The client may send while it reads: both must go on.
        tokio::select! {
            sent = &mut send => return sent,
            () = &mut receive => is_closed = true,
        }
        send.await
    };
    let sent = tokio::time::timeout(FINISH_TIMEOUT, send).await;
    if let Err(error) = sent.map_err(io::Error::from).flatten() {
        return tracing::debug!(%error, "client closed the connection before the end of its streams");
    }
    if !is_closed {
        drop(tokio::time::timeout(CLOSE_TIMEOUT, receive).await);
    }
    drop(tokio::time::timeout(CLOSE_TIMEOUT, connection.shutdown()).await);
}

/// Sends a close frame for an error of the session.
pub(super) async fn fail<W: AsyncWrite + Unpin>(connection: &mut W, error: &io::Error) {
    if error.kind() == io::ErrorKind::InvalidData {
        let frame = websocket::close(websocket::CLOSE_PROTOCOL_ERROR);
        drop(tokio::time::timeout(CLOSE_TIMEOUT, write(connection, &frame, b"")).await);
    }
    drop(tokio::time::timeout(CLOSE_TIMEOUT, connection.shutdown()).await);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn client_that_has_taken_all_output_has_seconds_to_close() {
        let (client, server) = tokio::io::duplex(1024);
        let (read, mut write) = tokio::io::split(server);
        let mut reader = ClientReader::new(read);
        let finished = finish(&mut reader, &mut write, b"last");
        tokio::time::timeout(3 * CLOSE_TIMEOUT, finished).await.unwrap();
        drop(client);
    }
}

//! A decrypted stream that lets other tasks run between reads.
//!
//! # Contract
//!
//! After [`BYTES_BETWEEN_PAUSES`] without a wait for the peer, a read wakes its task and returns pending once. An HTTP/2
//! connection decodes frames for as long as reads return bytes. Without pauses, one connection with long heads or
//! many short frames would delay all other connections of its thread until its receive buffer is empty. With a pause,
//! its turn can end ([`crate::single_task`]). Bytes are neither lost nor reordered, and writes pass through unchanged.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that a stream reads before a pause.
const BYTES_BETWEEN_PAUSES: usize = 4 * 1024;

/// A stream whose reads pause after each [`BYTES_BETWEEN_PAUSES`].
pub(crate) struct FairStream<S> {
    stream: S,
    /// Bytes read since the last pause, or since the last wait for the peer.
    bytes_since_pause: usize,
}

impl<S> FairStream<S> {
    /// Wraps a stream.
    pub(crate) fn new(stream: S) -> Self {
        FairStream { stream, bytes_since_pause: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FairStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.bytes_since_pause >= BYTES_BETWEEN_PAUSES {
            self.bytes_since_pause = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = into.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, into);
        self.bytes_since_pause =
            if result.is_ready() { self.bytes_since_pause + into.filled().len() - before } else { 0 };
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FairStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn reads_pause_after_a_limit_and_lose_no_byte() {
        let sent: Vec<u8> = (0..3 * BYTES_BETWEEN_PAUSES).map(|i| (i % 251) as u8).collect();
        let mut stream = FairStream::new(sent.as_slice());
        let mut received = Vec::new();
        let mut pauses = 0;
        while received.len() < sent.len() {
            let mut part = [0; 1024];
            match stream.read(&mut part).now_or_never() {
                Some(count) => received.extend_from_slice(&part[..count.unwrap()]),
                None => pauses += 1,
            }
        }
        assert_eq!(pauses, 2);
        assert!(received == sent);
    }

    #[tokio::test]
    async fn paused_task_is_woken_again() {
        let (client, server) = tokio::io::duplex(8 * BYTES_BETWEEN_PAUSES);
        let mut client = FairStream::new(client);
        client.write_all(&vec![7; 4 * BYTES_BETWEEN_PAUSES]).await.unwrap();
        drop(client);
        let mut received = Vec::new();
        FairStream::new(server).read_to_end(&mut received).await.unwrap();
        assert_eq!(received.len(), 4 * BYTES_BETWEEN_PAUSES);
    }

    #[tokio::test]
    async fn wait_for_peer_resets_byte_count() {
        let (mut client, server) = tokio::io::duplex(2 * BYTES_BETWEEN_PAUSES);
        let mut server = FairStream::new(server);
        let mut part = vec![0; BYTES_BETWEEN_PAUSES - 1];
        for _ in 0..3 {
            assert!(server.read(&mut part).now_or_never().is_none());
            client.write_all(&part.clone()).await.unwrap();
            assert_eq!(server.read(&mut part).now_or_never().unwrap().unwrap(), part.len());
        }
    }
}

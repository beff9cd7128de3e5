//! A stream whose reads end with the turn of its task, and whose writes wait for a client that does not read.
//!
//! # Contract
//!
//! When a turn of [`crate::single_task`] is over and the stream has read [`MIN_BYTES_IN_TURN`] in it, further reads
//! return pending until the next turn. An HTTP/2 connection decodes frames for as long as reads return bytes, and hyper
//! reads again after each request that it accepts. Without this limit, one connection with long heads or many short
//! frames would delay all other connections of its thread. The stream is below hyper and above TLS, so the limit also
//! covers the bytes of a decrypted record.
//!
//! A write waits until the earlier ones have left the stream below. Without this rule, TLS buffers 64 KiB for each
//! client that does not read. For a client that reads, the rule costs one check per write.
//!
//! Bytes are neither lost nor reordered. A stream that outlives its task, as that of
//! an upgraded connection does, reads without a limit.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::single_task::Turn;

/// Bytes that a stream can read in each turn, even if the turn is over.
const MIN_BYTES_IN_TURN: usize = 4 * 1024;

/// A stream whose reads end with the turn of its task.
pub(crate) struct FairStream<S> {
    stream: S,
    turn: Arc<Turn>,
    /// Start of the turn of the last read.
    turn_start: Instant,
    /// Bytes read in this turn.
    bytes_in_turn: usize,
    /// Bytes read and written so far.
    transferred: Arc<AtomicU64>,
    /// Whether the stream below may hold bytes of an earlier write.
    holds_bytes: bool,
}

impl<S> FairStream<S> {
    /// Wraps a stream that the task of the turns reads.
    pub(crate) fn new(stream: S, turn: Arc<Turn>) -> Self {
        let turn_start = turn.start();
        let transferred = Arc::default();
        FairStream { stream, turn, turn_start, bytes_in_turn: 0, transferred, holds_bytes: false }
    }

    /// Returns the number of bytes read and written so far, which the stream updates.
    pub(crate) fn transferred(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.transferred)
    }

    /// Adds the bytes of a successful read or write.
    fn count(&self, bytes: usize) {
        self.transferred.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Whether reads wait for the next turn.
    fn is_paused(&mut self) -> bool {
        let turn_start = self.turn.start();
        if self.turn_start != turn_start {
            (self.turn_start, self.bytes_in_turn) = (turn_start, 0);
        }
        self.bytes_in_turn >= MIN_BYTES_IN_TURN && self.turn.is_over() && !self.turn.is_last()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FairStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_paused() {
            self.turn.postpone(context);
            return Poll::Pending;
        }
        let before = into.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, into);
        let bytes = into.filled().len() - before;
        self.bytes_in_turn += bytes;
        self.count(bytes);
        result
    }
}

impl<S: AsyncWrite + Unpin> FairStream<S> {
    /// Waits until the earlier writes have left the stream below.
    fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.holds_bytes {
            ready!(Pin::new(&mut self.stream).poll_flush(context))?;
            self.holds_bytes = false;
        }
        Poll::Ready(Ok(()))
    }

    fn finish_write(&mut self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(written)) = &result {
            self.count(*written);
            self.holds_bytes = true;
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FairStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_written(context))?;
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.finish_write(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_written(context))?;
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.finish_write(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(context);
        self.holds_bytes &= !matches!(result, Poll::Ready(Ok(())));
        result
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::single_task::{MAX_TURN, run_as_single_task};

    #[tokio::test]
    async fn write_waits_until_earlier_bytes_have_left_the_stream_below() {
        let (client, mut server) = tokio::io::duplex(16);
        let below = tokio::io::BufWriter::with_capacity(1024, client);
        let mut stream = FairStream::new(below, Arc::new(Turn::begin()));
        assert_eq!(stream.write(&[1; 100]).now_or_never().unwrap().unwrap(), 100);
        assert!(stream.write(&[2; 100]).now_or_never().is_none(), "the stream below still holds bytes");
        let mut received = [0; 100];
        let (read, written) = tokio::join!(server.read_exact(&mut received), stream.write(&[2; 100]));
        assert_eq!((read.unwrap(), written.unwrap(), received), (100, 100, [1; 100]));
    }

    #[tokio::test]
    async fn reads_pause_until_next_turn_and_lose_no_byte() {
        let sent: Vec<u8> = (0..3 * MIN_BYTES_IN_TURN).map(|i| (i % 251) as u8).collect();
        let turn = Arc::new(Turn::begin());
        let mut stream = FairStream::new(sent.as_slice(), Arc::clone(&turn));
        let mut received = Vec::new();
        let mut part = [0; 1024];
        for turn_number in 1..=3 {
            turn.begin_next();
            std::thread::sleep(MAX_TURN);
            while received.len() < turn_number * MIN_BYTES_IN_TURN {
                let read = stream.read(&mut part).now_or_never().expect("a turn reads its bytes").unwrap();
                received.extend_from_slice(&part[..read]);
            }
            for _ in 0..2 {
                assert!(
                    stream.read(&mut part).now_or_never().is_none(),
                    "the pause lasts until the next turn"
                );
            }
        }
        assert!(received == sent);
    }

    #[tokio::test]
    async fn paused_stream_continues_in_next_turn() {
        let (mut client, server) = tokio::io::duplex(8 * MIN_BYTES_IN_TURN);
        client.write_all(&vec![7; 4 * MIN_BYTES_IN_TURN]).await.unwrap();
        drop(client);
        let received = run_as_single_task(|spawner| async move {
            let mut stream = FairStream::new(server, spawner.turn());
            let mut received = vec![0; MIN_BYTES_IN_TURN];
            stream.read_exact(&mut received).await.unwrap();
            std::thread::sleep(MAX_TURN);
            stream.read_to_end(&mut received).await.unwrap();
            received
        });
        let received = tokio::time::timeout(Duration::from_secs(30), received).await;
        assert_eq!(received.expect("no wake is lost").len(), 4 * MIN_BYTES_IN_TURN);
    }

    #[tokio::test]
    async fn stream_that_outlives_its_task_reads_without_limit() {
        let (mut client, server) = tokio::io::duplex(8 * MIN_BYTES_IN_TURN);
        client.write_all(&vec![7; 4 * MIN_BYTES_IN_TURN]).await.unwrap();
        drop(client);
        let (sender, receiver) = tokio::sync::oneshot::channel();
        run_as_single_task(|spawner| async move {
            let mut stream = FairStream::new(server, spawner.turn());
            stream.read_exact(&mut vec![0; MIN_BYTES_IN_TURN]).await.unwrap();
            std::thread::sleep(MAX_TURN);
            tokio::spawn(async move {
                let mut rest = Vec::new();
                stream.read_to_end(&mut rest).await.unwrap();
                sender.send(rest.len()).unwrap();
            });
            // The new task begins its read in this turn, which is over.
            tokio::task::yield_now().await;
        })
        .await;
        // The end of the task starts a turn, which is over when the new task continues.
        std::thread::sleep(MAX_TURN);
        let rest = tokio::time::timeout(Duration::from_secs(30), receiver).await;
        assert_eq!(rest.expect("no wake is lost"), Ok(3 * MIN_BYTES_IN_TURN));
    }
}

//! The end of a TLS connection without `close_notify`.
//!
//! # Contract
//!
//! Some servers close the TCP connection without the TLS alert `close_notify`. As in Go, such an end between two
//! TLS records is a normal end of the stream; an end within a record is an error. HTTP itself detects a truncated
//! body when the response has a length or chunks. An attacker can cut any other body at a record, so a client
//! accepts such an end only by [`Settings::accepts_missing_close`](super::Settings::accepts_missing_close).
//!
//! [`RecordTracker`] reads below TLS and follows the record headers. [`TolerantStream`] reads above TLS.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Length of the header of a TLS record: type, version and length.
const HEADER: usize = 5;

/// Position in the sequence of TLS records.
#[derive(Default)]
struct RecordPosition {
    /// The received bytes of an incomplete record header.
    header: Vec<u8>,
    /// Number of bytes of the current record that have not arrived.
    remaining: usize,
}

impl RecordPosition {
    fn advance(&mut self, mut bytes: &[u8]) {
        while let Some((first, rest)) = bytes.split_first() {
            if self.remaining > 0 {
                let skipped = self.remaining.min(bytes.len());
                self.remaining -= skipped;
                bytes = bytes.get(skipped..).unwrap_or_default();
                continue;
            }
            self.header.push(*first);
            bytes = rest;
            if self.header.len() == HEADER {
                if let [.., high, low] = self.header.as_slice() {
                    self.remaining = usize::from(u16::from_be_bytes([*high, *low]));
                }
                self.header.clear();
            }
        }
    }

    fn is_between_records(&self) -> bool {
        self.remaining == 0 && self.header.is_empty()
    }
}

/// A connection below TLS that tracks whether the received bytes end between two records.
pub(super) struct RecordTracker<S> {
    stream: S,
    position: RecordPosition,
    is_between_records: Arc<AtomicBool>,
}

impl<S> RecordTracker<S> {
    /// Wraps a connection. The returned flag is true while the received bytes end between two records.
    pub(super) fn new(stream: S) -> (Self, Arc<AtomicBool>) {
        let is_between_records = Arc::new(AtomicBool::new(true));
        let flag = Arc::clone(&is_between_records);
        (RecordTracker { stream, position: RecordPosition::default(), is_between_records }, flag)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for RecordTracker<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, into))?;
        self.position.advance(into.filled().get(before..).unwrap_or_default());
        self.is_between_records.store(self.position.is_between_records(), Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

/// A connection above TLS that ends normally without `close_notify` between two records.
pub(super) struct TolerantStream<S> {
    pub(super) stream: S,
    is_between_records: Arc<AtomicBool>,
}

impl<S> TolerantStream<S> {
    /// Wraps a TLS connection over the [`RecordTracker`] that returned this flag.
    pub(super) fn new(stream: S, is_between_records: Arc<AtomicBool>) -> Self {
        TolerantStream { stream, is_between_records }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TolerantStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match ready!(Pin::new(&mut self.stream).poll_read(context, into)) {
            Err(error)
                if error.kind() == io::ErrorKind::UnexpectedEof
                    && self.is_between_records.load(Ordering::Relaxed) =>
            {
                Poll::Ready(Ok(()))
            }
            result => Poll::Ready(result),
        }
    }
}

/// Writes pass through unchanged.
macro_rules! delegate_writes {
    ($stream:ident) => {
        impl<S: AsyncWrite + Unpin> AsyncWrite for $stream<S> {
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
                buffers: &[io::IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
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
    };
}

delegate_writes!(RecordTracker);
delegate_writes!(TolerantStream);

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    /// A record with a body of this length.
    fn record(length: u16) -> Vec<u8> {
        let mut bytes = vec![23, 3, 3];
        bytes.extend(length.to_be_bytes());
        bytes.resize(bytes.len() + usize::from(length), 7);
        bytes
    }

    #[tokio::test]
    async fn record_tracker_finds_record_boundaries_in_any_chunks() {
        let whole = [record(3), record(0), record(300)].concat();
        for chunk in [1, 2, 7, 1000] {
            let mut position = RecordPosition::default();
            let mut boundaries = Vec::new();
            for (index, part) in whole.chunks(chunk).enumerate() {
                position.advance(part);
                if position.is_between_records() {
                    boundaries.push((index * chunk + part.len()).min(whole.len()));
                }
            }
            let expected: Vec<usize> =
                [8, 13, whole.len()].into_iter().filter(|at| at % chunk == 0 || *at == whole.len()).collect();
            assert_eq!(boundaries, expected, "chunks of {chunk}");
        }
        let (mut tracker, flag) = RecordTracker::new(&whole[..whole.len() - 1]);
        tracker.read_to_end(&mut Vec::new()).await.unwrap();
        assert!(!flag.load(Ordering::Relaxed), "the last record is incomplete");
    }

    /// A stream that ends as rustls ends without `close_notify`.
    struct Truncated;

    impl AsyncRead for Truncated {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()))
        }
    }

    #[tokio::test]
    async fn end_without_close_notify_is_accepted_between_records_only() {
        for (is_between, accepted) in [(true, true), (false, false)] {
            let mut stream = TolerantStream::new(Truncated, Arc::new(AtomicBool::new(is_between)));
            let result = stream.read_to_end(&mut Vec::new()).await;
            assert_eq!(result.is_ok(), accepted, "{result:?}");
        }
    }
}

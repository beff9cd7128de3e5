//! A connection that ends when the certificate of its other end is not accepted any more.
//!
//! # Contract
//!
//! A handshake verifies the certificate once, but a connection between processes of an installation lasts for months. The
//! stream therefore verifies the certificate again at an interval, while a reader or a writer waits. After a failed
//! verification all reads and writes fail.
//!
//! One task reads and writes a stream: the end of an interval wakes the task that has polled the stream last.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Interval, MissedTickBehavior};

/// Verifies the certificate of the other end against the newest files.
type Verify = Box<dyn Fn() -> Result<(), rustls::Error> + Send>;

/// A stream with the verification of its other end.
pub struct VerifiedStream<S> {
    stream: S,
    /// The name of the other end in the log.
    peer: String,
    interval: Interval,
    verify: Verify,
    is_refused: bool,
}

impl<S> std::fmt::Debug for VerifiedStream<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VerifiedStream").field("is_refused", &self.is_refused).finish_non_exhaustive()
    }
}

impl<S> VerifiedStream<S> {
    /// Verifies the other end of `stream` with `verify` at its first use, because the files may have changed during the
    /// handshake, and then at each interval.
    pub(crate) fn new(stream: S, peer: String, interval: Duration, verify: Verify) -> Self {
        let mut interval = tokio::time::interval(interval);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        VerifiedStream { stream, peer, interval, verify, is_refused: false }
    }

    /// Verifies the other end if it is time for this.
    fn poll_verification(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        while !self.is_refused && self.interval.poll_tick(context).is_ready() {
            if let Err(error) = (self.verify)() {
                self.is_refused = true;
                let peer = &self.peer;
                tracing::warn!(peer, %error, "connection ended: the certificate of its other end is not accepted any more");
            }
        }
        if self.is_refused {
            let text = "the certificate of the other end is not accepted any more";
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, text));
        }
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for VerifiedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_verification(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for VerifiedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_verification(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_verification(context)?;
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_verification(context)?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

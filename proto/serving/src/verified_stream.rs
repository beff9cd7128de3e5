//! A connection that ends when the certificate of its other end is not accepted any more.
//!
//! # Contract
//!
//! A handshake verifies the certificate once, but a connection between processes of an installation lasts for months. The
//! stream therefore verifies the certificate again at an interval, while a reader waits. After a failed verification all
//! reads and writes fail.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Interval, MissedTickBehavior};

/// Verifies the certificate of the other end against the newest files.
type Verify = Box<dyn Fn() -> Result<(), rustls::Error> + Send>;

/// A stream with the verification of its other end.
pub struct VerifiedStream<S> {
    stream: S,
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
    /// Verifies the other end of `stream` with `verify` at each interval from now on; the handshake has just verified it.
    pub(crate) fn new(stream: S, interval: Duration, verify: Verify) -> Self {
        let mut interval = tokio::time::interval_at(Instant::now() + interval, interval);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        VerifiedStream { stream, interval, verify, is_refused: false }
    }

    /// Verifies the other end if it is time for this.
    fn poll_verification(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        while !self.is_refused && self.interval.poll_tick(context).is_ready() {
            if let Err(error) = (self.verify)() {
                self.is_refused = true;
                tracing::warn!(%error, "connection ended: the certificate of its other end is not accepted any more");
            }
        }
        self.check_accepted()
    }

    fn check_accepted(&self) -> io::Result<()> {
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
        self.check_accepted()?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_accepted()?;
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check_accepted()?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

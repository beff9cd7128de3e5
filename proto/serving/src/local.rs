//! Unix stream that wakes its task only for incoming data.
//!
//! # Contract
//!
//! Reads and writes like [`tokio::net::UnixStream`], but with fewer wake-ups. The system reports a unix
//! stream as writable each time the peer has read from it, and a `UnixStream` registers for all such events.
//! Between two processes that exchange requests and responses, each message then wakes a thread of the sender
//! without need. A [`LocalStream`] registers for writability only while a write waits.
//!
//! # Errors
//!
//! The system error, unchanged.

use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

/// Connected unix stream.
#[derive(Debug)]
pub struct LocalStream {
    /// The stream, registered with the runtime for readability only.
    stream: AsyncFd<UnixStream>,
    /// A duplicate of the stream, registered for writability. Present only while a write waits.
    write_readiness: Option<AsyncFd<UnixStream>>,
}

impl LocalStream {
    /// Connects to a socket.
    ///
    /// # Errors
    ///
    /// The system error, for example when no process listens.
    pub async fn connect(path: &Path) -> io::Result<Self> {
        Self::of(tokio::net::UnixStream::connect(path).await?)
    }

    /// Converts a connected stream.
    ///
    /// # Errors
    ///
    /// The runtime cannot register the stream.
    pub fn of(stream: tokio::net::UnixStream) -> io::Result<Self> {
        Ok(LocalStream { stream: register(stream.into_std()?, Interest::READABLE)?, write_readiness: None })
    }

    /// Calls `write` until the socket accepts data.
    fn poll_write_with(
        &mut self,
        context: &mut Context<'_>,
        mut write: impl FnMut(&UnixStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            match write(self.stream.get_ref()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let write_readiness = match &mut self.write_readiness {
                        Some(write_readiness) => write_readiness,
                        slot => {
                            let duplicate = self.stream.get_ref().try_clone()?;
                            slot.insert(register(duplicate, Interest::WRITABLE)?)
                        }
                    };
                    ready!(write_readiness.poll_write_ready(context))?.clear_ready();
                }
                written => {
                    self.write_readiness = None;
                    return Poll::Ready(written);
                }
            }
        }
    }
}

/// Registers a stream with the runtime.
#[expect(
    deprecated,
    reason = "its successor is unsafe for what might close or change its descriptor: a UnixStream does neither"
)]
fn register(stream: UnixStream, interest: Interest) -> io::Result<AsyncFd<UnixStream>> {
    AsyncFd::with_interest(stream, interest)
}

impl AsyncRead for LocalStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut readiness = ready!(self.stream.poll_read_ready(context))?;
            let free = buffer.initialize_unfilled();
            match self.stream.get_ref().read(free) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => readiness.clear_ready(),
                Err(error) => return Poll::Ready(Err(error)),
                Ok(count) => {
                    // A read that does not fill the buffer has emptied the socket; later data wakes the task
                    // again. A read of 0 bytes is the end of the stream, where the socket stays readable.
                    if 0 < count && count < free.len() {
                        readiness.clear_ready();
                    }
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl AsyncWrite for LocalStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_with(context, |mut stream| stream.write(bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_with(context, |mut stream| stream.write_vectored(bytes))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.stream.get_ref().shutdown(Shutdown::Write))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn pair() -> (LocalStream, LocalStream) {
        let (a, b) = tokio::net::UnixStream::pair().unwrap();
        (LocalStream::of(a).unwrap(), LocalStream::of(b).unwrap())
    }

    fn pattern(seed: usize, length: usize) -> Vec<u8> {
        (0..length).map(|i| u8::try_from((i * 31 + seed + i / 251) % 256).unwrap()).collect()
    }

    /// Transfers far more than the socket buffer in both directions at once, in reads of all sizes.
    #[tokio::test]
    async fn large_concurrent_writes_arrive_in_order() {
        const LENGTH: usize = 4 << 20;
        let (a, b) = pair();
        let ends = [(a, 1), (b, 2)].map(|(end, seed)| {
            tokio::spawn(async move {
                let (mut read, mut write) = tokio::io::split(end);
                let writing = tokio::spawn(async move {
                    write.write_all(&pattern(seed, LENGTH)).await.unwrap();
                    write.shutdown().await.unwrap();
                });
                let (mut actual, mut piece) = (Vec::new(), vec![0; 70_000]);
                for size in (1..).map(|i| 1 + i * 7919 % 70_000) {
                    match read.read(&mut piece[..size]).await.unwrap() {
                        0 => break,
                        count => actual.extend_from_slice(&piece[..count]),
                    }
                }
                writing.await.unwrap();
                assert!(actual == pattern(3 - seed, LENGTH), "{} bytes", actual.len());
            })
        });
        for end in ends {
            end.await.unwrap();
        }
    }

    #[tokio::test]
    async fn writability_is_registered_only_while_write_waits() {
        let (mut a, mut b) = pair();
        a.write_all(b"question").await.unwrap();
        assert!(a.write_readiness.is_none(), "the socket was writable");
        let much = pattern(0, 4 << 20);
        let filled = tokio::time::timeout(std::time::Duration::from_millis(50), a.write_all(&much)).await;
        assert!(filled.is_err() && a.write_readiness.is_some(), "the peer does not read");
        // The system reports writability once much of the buffer is free.
        let mut actual = vec![0; 4096];
        while tokio::time::timeout(std::time::Duration::from_millis(50), b.read(&mut actual)).await.is_ok() {}
        assert!(a.write(b"more").await.unwrap() > 0);
        assert!(a.write_readiness.is_none());
    }

    #[tokio::test]
    async fn end_of_stream_is_read_after_last_bytes() {
        let (mut a, b) = pair();
        let mut b = b;
        b.write_all(b"last").await.unwrap();
        drop(b);
        let mut actual = Vec::new();
        a.read_to_end(&mut actual).await.unwrap();
        assert_eq!(actual, b"last");
        assert_eq!(a.read(&mut [0; 8]).await.unwrap(), 0);
        assert!(a.write_all(b"nobody").await.is_err());
    }
}

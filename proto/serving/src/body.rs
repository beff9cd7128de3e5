//! HTTP request and response bodies.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;

/// Error that ends a streamed body early.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// Response body: complete bytes, or a stream. A complete body costs no allocation.
pub struct Body(BodyKind);

enum BodyKind {
    Whole(Bytes),
    Stream(Pin<Box<dyn http_body::Body<Data = Bytes, Error = BodyError> + Send>>),
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            BodyKind::Whole(bytes) => write!(f, "Body({} bytes)", bytes.len()),
            BodyKind::Stream(_) => f.write_str("Body(stream)"),
        }
    }
}

impl Body {
    /// Creates a body without content.
    pub fn empty() -> Self {
        Body(BodyKind::Whole(Bytes::new()))
    }

    /// Creates a streamed body.
    pub fn stream<B>(body: B) -> Self
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BodyError>,
    {
        Body(BodyKind::Stream(Box::pin(body.map_err(Into::into))))
    }

    /// Returns the bytes of a body that is not a stream, for tests and for compression.
    pub fn as_whole(&self) -> Option<&Bytes> {
        match &self.0 {
            BodyKind::Whole(bytes) => Some(bytes),
            BodyKind::Stream(_) => None,
        }
    }
}

impl Default for Body {
    fn default() -> Self {
        Body::empty()
    }
}

impl<T: Into<Bytes>> From<T> for Body {
    fn from(bytes: T) -> Self {
        Body(BodyKind::Whole(bytes.into()))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.0 {
            BodyKind::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            BodyKind::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            BodyKind::Stream(stream) => stream.as_mut().poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            BodyKind::Whole(bytes) => bytes.is_empty(),
            BodyKind::Stream(stream) => stream.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            BodyKind::Whole(bytes) => SizeHint::with_exact(u64::try_from(bytes.len()).unwrap_or(u64::MAX)),
            BodyKind::Stream(stream) => stream.size_hint(),
        }
    }
}

/// Creates a streamed body fed by a channel, for example by a watch.
///
/// `capacity` is the number of chunks that wait in the channel. Dropping the sender ends the body. After the
/// body is dropped, sends fail.
pub fn channel(capacity: usize) -> (tokio::sync::mpsc::Sender<Bytes>, Body) {
    let (sender, mut receiver) = tokio::sync::mpsc::channel(capacity);
    let frames = futures_util::stream::poll_fn(move |context| {
        receiver.poll_recv(context).map(|next| next.map(|bytes| Ok::<_, BodyError>(Frame::data(bytes))))
    });
    (sender, Body::stream(StreamBody::new(frames)))
}

/// Error from reading a request body.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The body has more bytes than the limit.
    #[error("the body is larger than {0} bytes")]
    TooLarge(usize),
    /// The body did not arrive within the time limit.
    #[error("the body did not arrive in time")]
    Timeout,
    /// The connection broke, or the framing is invalid.
    #[error("the body could not be read: {0}")]
    Broken(String),
}

/// Number of bytes that are read and discarded of a body that is too large, as a multiple of its limit.
///
/// A client that sends its whole body before it reads then gets the response instead of a broken connection.
const DISCARD_FACTOR: usize = 4;

/// Reads a whole body of at most `limit` bytes within the time `within`.
///
/// # Errors
///
/// See [`ReadError`]. A body that announces more than four times the limit is rejected before a byte is read.
pub async fn read(mut body: Incoming, limit: usize, within: Duration) -> Result<Bytes, ReadError> {
    if http_body::Body::is_end_stream(&body) {
        return Ok(Bytes::new());
    }
    let read_future = async {
        let read = collect(&mut body, limit).await;
        if matches!(read, Err(ReadError::TooLarge(_))) {
            discard(&mut body, limit.saturating_mul(DISCARD_FACTOR)).await;
        }
        read
    };
    tokio::time::timeout(within, read_future).await.map_err(|_| ReadError::Timeout)?
}

/// Reads and discards a body that the handler does not need: at most `limit` bytes, within the time `within`.
pub async fn drain(mut body: Incoming, limit: usize, within: Duration) {
    // A body that is too slow or too large is abandoned.
    drop(tokio::time::timeout(within, discard(&mut body, limit)).await);
}

/// Reads and discards up to `limit` bytes; reads nothing when the body announces more.
async fn discard<B>(body: &mut B, limit: usize)
where
    B: http_body::Body<Data = Bytes> + Unpin,
{
    let mut left = limit;
    if usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX) > left {
        return;
    }
    while let Some(Ok(frame)) = body.frame().await {
        let read = frame.data_ref().map_or(0, Bytes::len);
        if read > left {
            return;
        }
        left -= read;
    }
}

/// Reads a whole body of at most `limit` bytes.
pub async fn collect<B>(body: &mut B, limit: usize) -> Result<Bytes, ReadError>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > limit {
        return Err(ReadError::TooLarge(limit));
    }
    // A single frame is returned without a copy; several frames are joined.
    let mut first = Bytes::new();
    let mut joined = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| ReadError::Broken(e.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        if first.len() + joined.len() + data.len() > limit {
            return Err(ReadError::TooLarge(limit));
        }
        if first.is_empty() && joined.is_empty() {
            first = data;
            continue;
        }
        if joined.is_empty() {
            joined.reserve(announced.max(first.len() + data.len()));
            joined.extend_from_slice(&std::mem::take(&mut first));
        }
        joined.extend_from_slice(&data);
    }
    Ok(if joined.is_empty() { first } else { joined.freeze() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::convert::Infallible;

    /// Body of a list of frames, with the lower bound of its size hint.
    struct Frames(VecDeque<Bytes>, u64);

    impl http_body::Body for Frames {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.0.pop_front().map(|bytes| Ok(Frame::data(bytes))))
        }

        fn size_hint(&self) -> SizeHint {
            let mut hint = SizeHint::new();
            hint.set_lower(self.1);
            hint
        }
    }

    async fn collected(frames: &[&'static str], announced: u64, limit: usize) -> Result<Bytes, ReadError> {
        let frames = frames.iter().map(|text| Bytes::from_static(text.as_bytes())).collect();
        collect(&mut Frames(frames, announced), limit).await
    }

    #[tokio::test]
    async fn body_frames_are_joined_up_to_limit() {
        assert_eq!(collected(&[], 0, 5).await, Ok(Bytes::new()));
        assert_eq!(collected(&["abc"], 0, 3).await, Ok(Bytes::from("abc")));
        assert_eq!(collected(&["ab", "", "c", "de"], 0, 5).await, Ok(Bytes::from("abcde")));
        assert_eq!(collected(&["ab", "c", "de"], 0, 4).await, Err(ReadError::TooLarge(4)));
        assert_eq!(collected(&[], 6, 5).await, Err(ReadError::TooLarge(5)), "announced");
    }

    #[tokio::test]
    async fn whole_and_streamed_bodies_report_size_and_end() {
        use http_body::Body as _;
        let whole = Body::from("text");
        assert_eq!((whole.is_end_stream(), whole.size_hint().exact()), (false, Some(4)));
        assert!(Body::empty().is_end_stream());
        let (sender, body) = channel(1);
        assert_eq!(body.size_hint().exact(), None);
        sender.send(Bytes::from("event")).await.unwrap();
        drop(sender);
        assert_eq!(body.collect().await.unwrap().to_bytes(), "event");
    }
}

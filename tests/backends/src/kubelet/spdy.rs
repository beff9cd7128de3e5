//! The server side of a SPDY connection: streams that the client opens.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use forwarding::spdy::frame::{self, Frame};
use forwarding::spdy::headers::{HeaderDecoder, HeaderEncoder};
use forwarding::spdy::reader::FrameReader;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use serving::body::Body;
use tokio::io::{AsyncWriteExt as _, WriteHalf};
use tokio::sync::{Mutex, mpsc};

use super::{elements, header, switching, text};

/// Pieces of a stream that wait for its reader.
const STREAM_QUEUE: usize = 2;
/// The header with versions of a protocol on the streams.
const PROTOCOL_VERSION: &str = "x-stream-protocol-version";

/// Accepts an upgrade to SPDY. Returns the response and the connection to wait for.
///
/// # Errors
///
/// The response to a request without an upgrade, or without a supported protocol.
pub(super) fn accept(
    mut request: Request<Incoming>,
    supported: &[&'static str],
) -> Result<(Response<Body>, OnUpgrade), Box<Response<Body>>> {
    let headers = request.headers();
    if header(headers, "upgrade") != Some("SPDY/3.1") {
        return Err(Box::new(text(
            StatusCode::BAD_REQUEST,
            "you must specify at least 1 \"Upgrade\" header",
        )));
    }
    let offered = elements(headers, PROTOCOL_VERSION);
    let Some(protocol) =
        offered.iter().find_map(|offered| supported.iter().find(|protocol| *protocol == offered))
    else {
        let message = format!("unable to upgrade: unable to negotiate protocol: client supports {offered:?}");
        return Err(Box::new(text(StatusCode::FORBIDDEN, &message)));
    };
    let response = switching(&HashMap::from([
        ("upgrade", "SPDY/3.1".to_owned()),
        ("connection", "Upgrade".to_owned()),
        (PROTOCOL_VERSION, (*protocol).to_owned()),
    ]));
    Ok((response, hyper::upgrade::on(&mut request)))
}

/// The write half of a connection, which all of its streams share.
#[derive(Clone)]
pub(super) struct Writer(Arc<Mutex<(WriteHalf<TokioIo<Upgraded>>, HeaderEncoder)>>);

impl Writer {
    /// Writes a frame.
    pub(super) async fn write(&self, head: &[u8], payload: &[u8]) -> io::Result<()> {
        let connection = &mut self.0.lock().await.0;
        connection.write_all_buf(&mut head.chain(payload)).await?;
        connection.flush().await
    }

    async fn reply(&self, stream: u32) -> io::Result<()> {
        let (connection, headers) = &mut *self.0.lock().await;
        let frame = frame::syn_reply(stream, &headers.encode(&[]));
        connection.write_all(&frame).await?;
        connection.flush().await
    }

    /// Ends the connection after all frames.
    pub(super) async fn shutdown(&self) {
        drop(self.0.lock().await.0.shutdown().await);
    }
}

/// A stream that the client has opened.
pub(super) struct Stream {
    headers: Vec<(String, String)>,
    received: mpsc::Receiver<Bytes>,
    /// The direction to the client.
    pub(super) sender: StreamSender,
}

impl Stream {
    /// Returns a header of the stream, by its name in lower case.
    pub(super) fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(key, _)| key == name);
        found.map_or("", |(_, value)| value)
    }

    /// Returns the next piece of data; None at the end of the stream.
    pub(super) async fn receive(&mut self) -> Option<Bytes> {
        self.received.recv().await
    }
}

/// The direction of a stream to the client.
#[derive(Clone)]
pub(super) struct StreamSender {
    stream: u32,
    writer: Writer,
}

impl StreamSender {
    /// Sends data.
    pub(super) async fn send(&self, data: &[u8]) -> io::Result<()> {
        self.writer.write(&frame::data_head(self.stream, false, data.len()), data).await
    }

    /// Ends the direction to the client.
    pub(super) async fn finish(&self) -> io::Result<()> {
        self.writer.write(&frame::data_head(self.stream, true, 0), b"").await
    }
}

/// Reads a connection in a task. Each opened stream goes to `streams`; the task ends with the connection.
pub(super) fn serve(connection: Upgraded) -> (Writer, mpsc::Receiver<Stream>) {
    let (read, write) = tokio::io::split(TokioIo::new(connection));
    let writer = Writer(Arc::new(Mutex::new((write, HeaderEncoder::default()))));
    let (sender, receiver) = mpsc::channel(1);
    let mut reader = FrameReader::new(read);
    let shared = writer.clone();
    tokio::spawn(async move {
        let mut headers = HeaderDecoder::default();
        let mut streams: HashMap<u32, mpsc::Sender<Bytes>> = HashMap::new();
        while let Ok(Some(frame)) = reader.next().await {
            match frame {
                Frame::SynStream { stream: id, is_last, headers: block } => {
                    let Ok(block) = headers.decode(&block) else { return };
                    let (data, received) = mpsc::channel(STREAM_QUEUE);
                    if !is_last {
                        streams.insert(id, data);
                    }
                    if shared.reply(id).await.is_err() {
                        return;
                    }
                    let stream = Stream {
                        headers: block,
                        received,
                        sender: StreamSender { stream: id, writer: shared.clone() },
                    };
                    drop(sender.send(stream).await);
                }
                Frame::Data { stream, is_last, data } => {
                    if let Some(stream) = streams.get(&stream).filter(|_| !data.is_empty()) {
                        drop(stream.send(data).await);
                    }
                    if is_last {
                        streams.remove(&stream);
                    }
                }
                Frame::Reset { stream, .. } => drop(streams.remove(&stream)),
                Frame::Ping(id) if id % 2 == 1 => {
                    let writer = shared.clone();
                    tokio::spawn(async move { writer.write(&frame::ping(id), b"").await });
                }
                _ => {}
            }
        }
    });
    (writer, receiver)
}

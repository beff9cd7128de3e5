//! Translates exec and attach of a client on WebSocket to SPDY streams of a node.
//!
//! Reference: `StreamTranslatorHandler` of kube-apiserver. Unlike it, a node that goes away before the command ends is
//! an error for the client, not a success.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior};

use super::channel::{self, ChannelEvent, ChannelReader};
use super::outcome::{ErrorEncoding, Outcome};
use super::session::{self, Activity, Replies};
use super::websocket::{self, ClientFrame, ClientReader};
use crate::spdy::frame::{self, Frame};
use crate::spdy::headers::HeaderEncoder;
use crate::spdy::reader::FrameReader;

/// Maximum time that a node may take to accept the streams.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two pings to the node, which keep the connection open.
const PING_PERIOD: Duration = Duration::from_secs(5);
/// Maximum size of the error stream of a node in bytes.
const MAX_ERROR_BYTES: usize = 64 * 1024;
/// The header of a new stream that says its purpose.
const STREAM_TYPE: &str = "streamtype";

/// The streams that the client requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandStreams {
    /// Standard input.
    pub stdin: bool,
    /// Standard output.
    pub stdout: bool,
    /// Standard error; with a terminal, part of standard output.
    pub stderr: bool,
    /// A terminal, whose size the client sends.
    pub tty: bool,
}

/// A connection to a node after its upgrade to SPDY.
#[derive(Debug)]
pub struct NodeConnection<S> {
    /// The connection.
    pub stream: S,
    /// The version of the channel protocol that the node selected, such as `v4.channel.k8s.io`.
    pub protocol: String,
}

/// Runs a command between a client after its upgrade to WebSocket and a node. `node` connects to the node.
///
/// Returns what the client got as the outcome.
///
/// # Errors
///
/// The client is gone, has violated a protocol, or was idle too long.
pub async fn translate<C, S>(
    client: C,
    node: impl Future<Output = Result<NodeConnection<S>, Outcome>>,
    streams: CommandStreams,
) -> io::Result<Outcome>
where
    C: AsyncRead + AsyncWrite,
    S: AsyncRead + AsyncWrite,
{
    let (read, mut write) = tokio::io::split(client);
    let mut client = ClientReader::new(read);
    // As in kube-apiserver, an empty message tells the client that the connection is open.
    let first_channel = match streams {
        CommandStreams { stdout: true, .. } => channel::STDOUT,
        CommandStreams { stderr: true, .. } => channel::STDERR,
        _ => channel::ERROR,
    };
    session::write(&mut write, &channel::message_head(first_channel, 0), b"").await?;
    let result = match node.await {
        Ok(node) => run(&mut client, &mut write, node, streams).await,
        Err(outcome) => Ok(outcome),
    };
    match &result {
        Ok(outcome) => {
            let status = outcome.to_json();
            let message = [&channel::message_head(channel::ERROR, status.len())[..], &status].concat();
            session::finish(&mut client, &mut write, &message).await;
        }
        Err(error) => session::fail(&mut write, error).await,
    }
    result
}

/// The SPDY streams of a command.
#[derive(Clone, Copy, Debug)]
struct NodeStreams {
    error: u32,
    stdin: Option<u32>,
    stdout: Option<u32>,
    stderr: Option<u32>,
    resize: Option<u32>,
}

impl NodeStreams {
    /// Assigns numbers to the streams. Returns them with the frames that open them.
    fn open(streams: CommandStreams, has_resize: bool) -> (Self, Vec<u8>) {
        let (mut headers, mut frames, mut next) = (HeaderEncoder::default(), Vec::new(), 1);
        let mut open = |purpose: &str| {
            let stream = next;
            next += 2;
            frames.extend_from_slice(&frame::syn_stream(stream, &headers.encode(&[(STREAM_TYPE, purpose)])));
            stream
        };
        let error = open("error");
        let stdin = streams.stdin.then(|| open("stdin"));
        let stdout = streams.stdout.then(|| open("stdout"));
        let stderr = (streams.stderr && !streams.tty).then(|| open("stderr"));
        let resize = (streams.tty && has_resize).then(|| open("resize"));
        (NodeStreams { error, stdin, stdout, stderr, resize }, frames)
    }

    /// Returns all streams.
    fn all(self) -> impl Iterator<Item = u32> {
        [Some(self.error), self.stdin, self.stdout, self.stderr, self.resize].into_iter().flatten()
    }
}

/// The state that both directions of a session share.
#[derive(Debug, Default)]
struct Shared {
    for_client: Replies,
    for_node: Replies,
    /// The node has accepted all streams: it would drop earlier input.
    accepted: Notify,
    activity: Activity,
}

async fn run<C, S>(
    client: &mut ClientReader<ReadHalf<C>>,
    client_connection: &mut WriteHalf<C>,
    node: NodeConnection<S>,
    streams: CommandStreams,
) -> io::Result<Outcome>
where
    C: AsyncRead + AsyncWrite,
    S: AsyncRead + AsyncWrite,
{
    let (encoding, has_resize) = match node.protocol.split('.').next() {
        Some("v5" | "v4") => (ErrorEncoding::Status, true),
        Some("v3") => (ErrorEncoding::Text, true),
        Some("v2") => (ErrorEncoding::Text, false),
        _ => {
            let text = format!("the node selected no supported channel protocol, but {:?}", node.protocol);
            return Ok(Outcome::internal(text));
        }
    };
    let (read, mut node_connection) = tokio::io::split(node.stream);
    let (node_streams, frames) = NodeStreams::open(streams, has_resize);
    if let Err(error) = session::write(&mut node_connection, &frames, b"").await {
        return Ok(Outcome::internal(format!("error creating streams: {error}")));
    }
    let shared = Shared::default();
    let mut reader = FrameReader::new(read);
    let from_node =
        forward_output(&mut reader, client_connection, (node_streams, ACCEPT_TIMEOUT), encoding, &shared);
    let to_node = forward_input(client, &mut node_connection, node_streams, &shared);
    let result = tokio::select! {
        biased;
        outcome = from_node => outcome,
        error = to_node => Err(error),
        error = shared.activity.idle() => Err(error),
    };
    // The node ends the command, if it still runs, when its connection ends.
    drop(tokio::time::timeout(PING_PERIOD, tokio::io::AsyncWriteExt::shutdown(&mut node_connection)).await);
    result
}

/// Forwards output of the node to the client. Returns the outcome when all streams have ended.
///
/// The node must accept the streams within a time.
async fn forward_output<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    node: &mut FrameReader<R>,
    client: &mut W,
    (streams, accept_timeout): (NodeStreams, Duration),
    encoding: ErrorEncoding,
    shared: &Shared,
) -> io::Result<Outcome> {
    let mut unanswered: Vec<u32> = streams.all().collect();
    // The streams whose end the outcome waits for.
    let mut open: Vec<u32> =
        [Some(streams.error), streams.stdout, streams.stderr].into_iter().flatten().collect();
    let mut message = Vec::new();
    let deadline = Instant::now() + accept_timeout;
    while !open.is_empty() {
        let received = tokio::select! {
            biased;
            reply = shared.for_client.next() => {
                session::write(client, &reply, b"").await?;
                continue;
            }
            received = node.next() => received,
            () = tokio::time::sleep_until(deadline), if !unanswered.is_empty() => {
                return Ok(Outcome::internal("timeout waiting for the node to accept the streams"));
            }
        };
        shared.activity.record();
        let (stream, is_end) = match received {
            Ok(Some(Frame::Data { stream, is_last, data })) => {
                let channel = match Some(stream) {
                    stdout if stdout == streams.stdout => Some(channel::STDOUT),
                    stderr if stderr == streams.stderr => Some(channel::STDERR),
                    _ => None,
                };
                if stream == streams.error {
                    message.extend_from_slice(&data);
                }
                if message.len() > MAX_ERROR_BYTES {
                    return Ok(Outcome::internal("error stream of the node is too long"));
                }
                if let Some(channel) = channel.filter(|_| !data.is_empty()) {
                    session::write(client, &channel::message_head(channel, data.len()), &data).await?;
                }
                (stream, is_last)
            }
            Ok(Some(Frame::SynReply { stream, is_last, .. } | Frame::Headers { stream, is_last, .. })) => {
                answer(stream, &mut unanswered, &shared.accepted);
                (stream, is_last)
            }
            Ok(Some(Frame::Reset { stream, .. })) => {
                answer(stream, &mut unanswered, &shared.accepted);
                (stream, true)
            }
            Ok(Some(Frame::Ping(id))) => {
                // An even number is a ping of the node, an odd one is its reply.
                if id % 2 == 0 {
                    shared.for_node.put(frame::ping(id));
                }
                continue;
            }
            Ok(Some(Frame::SynStream { stream, .. })) => {
                shared.for_node.put(frame::reset(stream, frame::REFUSED_STREAM));
                continue;
            }
            Ok(Some(Frame::GoAway)) => continue,
            Ok(None) | Err(_) if !message.is_empty() => break,
            Ok(None) => {
                return Ok(Outcome::internal(
                    "error reading from error stream: the node closed the connection",
                ));
            }
            Err(error) => {
                return Ok(Outcome::internal(format!("error reading from error stream: {error}")));
            }
        };
        if is_end {
            open.retain(|other| *other != stream);
        }
    }
    Ok(Outcome::from_error_stream(encoding, &message))
}

/// Records that the node has answered to a stream.
fn answer(stream: u32, unanswered: &mut Vec<u32>, accepted: &Notify) {
    unanswered.retain(|other| *other != stream);
    if unanswered.is_empty() {
        accepted.notify_one();
    }
}

/// Forwards input of the client to the node until the client is gone. Discards input when the node is gone.
async fn forward_input<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    client: &mut ClientReader<R>,
    node: &mut W,
    streams: NodeStreams,
    shared: &Shared,
) -> io::Error {
    let mut node = NodeWriter { connection: node, is_gone: false };
    let mut channels = ChannelReader::default();
    let (mut stdin, mut resize) = (streams.stdin, streams.resize);
    let mut pings = tokio::time::interval(PING_PERIOD);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut is_accepted, mut ping) = (false, 1_u32);
    loop {
        let frame = tokio::select! {
            biased;
            reply = shared.for_node.next() => {
                node.write(&reply, b"").await;
                continue;
            }
            () = shared.accepted.notified(), if !is_accepted => {
                is_accepted = true;
                continue;
            }
            _ = pings.tick() => {
                node.write(&frame::ping(ping), b"").await;
                ping = ping.wrapping_add(2) & 0x7fff_ffff;
                continue;
            }
            frame = client.next(), if is_accepted => frame,
        };
        shared.activity.record();
        let frame = match frame {
            Ok(Some(ClientFrame::Close) | None) => return io::ErrorKind::ConnectionAborted.into(),
            Ok(Some(ClientFrame::Ping(payload))) => {
                shared.for_client.put(websocket::pong(&payload));
                continue;
            }
            Ok(Some(frame)) => frame,
            Err(error) => return error,
        };
        let (stream, is_last, data) = match channels.read_frame(frame) {
            Ok(ChannelEvent::Data(channel::STDIN, data)) => (stdin, false, data),
            Ok(ChannelEvent::Data(channel::RESIZE, data)) => (resize, false, data),
            Ok(ChannelEvent::End(channel::STDIN)) => (stdin.take(), true, Bytes::new()),
            Ok(ChannelEvent::End(channel::RESIZE)) => (resize.take(), true, Bytes::new()),
            Ok(_) => continue,
            Err(error) => return io::Error::new(io::ErrorKind::InvalidData, error),
        };
        if let Some(stream) = stream {
            node.write(&frame::data_head(stream, is_last, data.len()), &data).await;
        }
    }
}

/// Writes to a node until the node is gone.
struct NodeWriter<'a, W> {
    connection: &'a mut W,
    is_gone: bool,
}

impl<W: AsyncWrite + Unpin> NodeWriter<'_, W> {
    /// Writes a frame. Output of the node may still arrive after an error.
    async fn write(&mut self, head: &[u8], payload: &[u8]) {
        if !self.is_gone {
            self.is_gone = session::write(self.connection, head, payload).await.is_err();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn node_that_accepts_no_streams_is_an_error() {
        let (node_streams, _) = NodeStreams::open(CommandStreams::default(), true);
        let (_node, connection) = tokio::io::duplex(64);
        let (mut node, mut client) = (FrameReader::new(connection), Vec::new());
        let streams = (node_streams, Duration::from_millis(1));
        let shared = Shared::default();
        let ended = forward_output(&mut node, &mut client, streams, ErrorEncoding::Status, &shared).await;
        let expected = Outcome::internal("timeout waiting for the node to accept the streams");
        assert_eq!((ended.unwrap(), client), (expected, Vec::new()));
    }
}

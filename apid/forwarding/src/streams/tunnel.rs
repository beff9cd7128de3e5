//! Forwards the SPDY bytes in the WebSocket messages of a client to a node, and the bytes of the node in messages.
//!
//! Reference: `TunnelingHandler` of kube-apiserver.

use std::io;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::session::{self, Activity, Replies};
use super::websocket::{self, ClientFrame, ClientReader};

/// Size of the buffer for bytes of the node, and the largest message to the client.
const READ_BUFFER_BYTES: usize = 16 * 1024;

/// Runs a tunnel between a client after its upgrade to WebSocket and a node after its upgrade to SPDY, until one of them
/// ends.
///
/// # Errors
///
/// The client has violated the WebSocket protocol, a connection failed, or the tunnel was idle too long.
pub async fn tunnel<C, S>(client: C, node: S) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite,
    S: AsyncRead + AsyncWrite,
{
    let (read, mut client_connection) = tokio::io::split(client);
    let mut client = ClientReader::new(read);
    let (mut node_reader, mut node_connection) = tokio::io::split(node);
    let (replies, activity) = (Replies::default(), Activity::default());
    let result = tokio::select! {
        biased;
        ended = from_node(&mut node_reader, &mut client_connection, &replies, &activity) => ended,
        ended = to_node(&mut client, &mut node_connection, &replies, &activity) => ended,
        error = activity.idle() => Err(error),
    };
    match &result {
        Ok(()) => session::finish(&mut client, &mut client_connection, b"").await,
        Err(error) => session::fail(&mut client_connection, error).await,
    }
    result
}

/// Forwards bytes of the node until the node ends.
async fn from_node<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    node: &mut R,
    client: &mut W,
    replies: &Replies,
    activity: &Activity,
) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(READ_BUFFER_BYTES);
        let received = tokio::select! {
            biased;
            reply = replies.next() => {
                session::write(client, &reply, b"").await?;
                continue;
            }
            received = node.read_buf(&mut buffer) => received?,
        };
        if received == 0 {
            return Ok(());
        }
        activity.record();
        session::write(client, &websocket::binary_head(buffer.len()), &buffer).await?;
        buffer.clear();
    }
}

/// Forwards messages of the client until the client closes.
async fn to_node<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    client: &mut ClientReader<R>,
    node: &mut W,
    replies: &Replies,
    activity: &Activity,
) -> io::Result<()> {
    loop {
        let frame = client.next().await?;
        activity.record();
        match frame {
            Some(ClientFrame::Message { data, .. }) => session::write(node, b"", &data).await?,
            Some(ClientFrame::Ping(payload)) => replies.put(websocket::pong(&payload)),
            Some(ClientFrame::Close) | None => {
                drop(node.shutdown().await);
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        }
    }
}

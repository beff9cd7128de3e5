//! Sessions between a client and a node, both hand-made, over connections in memory.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::channel::{self, ChannelEvent, ChannelReader};
use super::outcome::Outcome;
use super::translator::{CommandStreams, NodeConnection, translate};
use super::tunnel::tunnel;
use super::websocket::tests::masked;
use crate::spdy::frame::{self, Frame};
use crate::spdy::headers::{HeaderDecoder, HeaderEncoder};
use crate::spdy::reader::FrameReader;

/// Size of the buffer of a connection in memory.
const PIPE_BYTES: usize = 4 * 1024;
const WAIT: Duration = Duration::from_secs(10);

/// A node that reads and writes frames.
struct Node {
    reader: FrameReader<ReadHalf<DuplexStream>>,
    connection: WriteHalf<DuplexStream>,
}

impl Node {
    fn new(stream: DuplexStream) -> Self {
        let (read, connection) = tokio::io::split(stream);
        Node { reader: FrameReader::new(read), connection }
    }

    /// Reads the frames that open streams, and accepts the streams. Returns their purposes with their numbers.
    async fn accept(&mut self, count: usize) -> Vec<(String, u32)> {
        let streams = self.opened(count).await;
        let mut headers = HeaderEncoder::default();
        for (_, stream) in &streams {
            self.send(&frame::syn_reply(*stream, &headers.encode(&[]))).await;
        }
        streams
    }

    async fn opened(&mut self, count: usize) -> Vec<(String, u32)> {
        let (mut headers, mut streams) = (HeaderDecoder::default(), Vec::new());
        while streams.len() < count {
            if let Frame::SynStream { stream, headers: block, .. } = self.next().await {
                let block = headers.decode(&block).unwrap();
                let [(name, purpose)] = &block[..] else { panic!("{block:?}") };
                assert_eq!(name, "streamtype");
                streams.push((purpose.clone(), stream));
            }
        }
        streams
    }

    /// Returns the next frame that is no ping.
    async fn next(&mut self) -> Frame {
        loop {
            match timeout(WAIT, self.reader.next()).await.unwrap().unwrap().unwrap() {
                Frame::Ping(_) => {}
                frame => return frame,
            }
        }
    }

    async fn send(&mut self, bytes: &[u8]) {
        timeout(WAIT, self.connection.write_all(bytes)).await.unwrap().unwrap();
    }

    async fn send_data(&mut self, stream: u32, is_last: bool, data: &[u8]) {
        self.send(&[&frame::data_head(stream, is_last, data.len())[..], data].concat()).await;
    }
}

/// Reads the messages of a server up to its close frame. Joins the data of each channel.
async fn read_channels(client: &mut (impl tokio::io::AsyncRead + Unpin)) -> [Vec<u8>; 4] {
    let mut channels = [const { Vec::new() }; 4];
    loop {
        let (first, payload) = read_frame(client).await;
        match first {
            0x82 => channels[usize::from(payload[0])].extend_from_slice(&payload[1..]),
            0x88 => return channels,
            _ => {}
        }
    }
}

/// Reads an unmasked frame. Returns its first byte and payload.
async fn read_frame(client: &mut (impl tokio::io::AsyncRead + Unpin)) -> (u8, Vec<u8>) {
    let first = timeout(WAIT, client.read_u8()).await.unwrap().unwrap();
    let length = match client.read_u8().await.unwrap() {
        126 => u64::from(client.read_u16().await.unwrap()),
        127 => client.read_u64().await.unwrap(),
        short => u64::from(short),
    };
    let mut payload = vec![0; usize::try_from(length).unwrap()];
    client.read_exact(&mut payload).await.unwrap();
    (first, payload)
}

/// Starts a session. Returns the client, the node and the task of the session.
fn start(streams: CommandStreams) -> (DuplexStream, Node, JoinHandle<io::Result<Outcome>>) {
    let (client, server) = tokio::io::duplex(PIPE_BYTES);
    let (node, stream) = tokio::io::duplex(PIPE_BYTES);
    let connection = NodeConnection { stream, protocol: "v4.channel.svc.io".to_owned() };
    let session = tokio::spawn(translate(server, async { Ok(connection) }, streams));
    (client, Node::new(node), session)
}

const ALL: CommandStreams = CommandStreams { stdin: true, stdout: true, stderr: true, tty: false };

#[tokio::test]
async fn command_gets_input_and_client_gets_output_and_exit_code() {
    let (mut client, mut node, session) = start(ALL);
    let sent = [
        masked(0x82, b"\x00hello "),
        masked(0x82, b"\x04{\"Width\":1}"),
        masked(0x82, b"\x00world"),
        masked(0x82, b"\xff\x00"),
        masked(0x82, b"\x00after the end"),
    ];
    client.write_all(&sent.concat()).await.unwrap();
    assert_eq!(read_frame(&mut client).await, (0x82, vec![channel::STDOUT]), "the connection is open");
    let streams = node.accept(4).await;
    let names: Vec<_> = streams.iter().map(|(name, stream)| (name.as_str(), *stream)).collect();
    assert_eq!(names, [("error", 1), ("stdin", 3), ("stdout", 5), ("stderr", 7)]);
    let mut input = Vec::new();
    loop {
        match node.next().await {
            Frame::Data { stream: 3, is_last, data } => {
                input.extend_from_slice(&data);
                if is_last {
                    break;
                }
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(input, b"hello world");
    node.send_data(5, false, b"out").await;
    node.send_data(7, true, b"err").await;
    node.send_data(5, true, b"put").await;
    let status = br#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#;
    node.send_data(1, true, status).await;
    let [_, stdout, stderr, error] = read_channels(&mut client).await;
    assert_eq!((&stdout[..], &stderr[..]), (&b"output"[..], &b"err"[..]));
    let error: serde_json::Value = serde_json::from_slice(&error).unwrap();
    assert_eq!(error["details"]["causes"][0]["message"], "7");
    client.write_all(&masked(0x88, b"\x03\xe8")).await.unwrap();
    assert_eq!(session.await.unwrap().unwrap().code(), 200);
}

#[tokio::test]
async fn terminal_has_size_stream_and_no_error_output() {
    let (mut client, mut node, _session) = start(CommandStreams { tty: true, ..ALL });
    let streams = node.accept(4).await;
    let names: Vec<_> = streams.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["error", "stdin", "stdout", "resize"]);
    client.write_all(&masked(0x82, b"\x04{\"Width\":80,\"Height\":24}")).await.unwrap();
    let expected = Bytes::from_static(b"{\"Width\":80,\"Height\":24}");
    assert_eq!(node.next().await, Frame::Data { stream: streams[3].1, is_last: false, data: expected });
}

#[tokio::test]
async fn input_waits_until_node_accepts_streams() {
    let (mut client, mut node, _session) = start(ALL);
    client.write_all(&masked(0x82, b"\x00early")).await.unwrap();
    let streams = node.opened(4).await;
    let early = timeout(Duration::from_millis(50), node.next()).await;
    assert!(early.is_err(), "{early:?}");
    for (_, stream) in &streams {
        node.send(&frame::syn_reply(*stream, b"")).await;
    }
    let expected = Bytes::from_static(b"early");
    assert_eq!(node.next().await, Frame::Data { stream: 3, is_last: false, data: expected });
}

#[tokio::test]
async fn slow_client_holds_back_node() {
    let (mut client, node, _session) = start(ALL);
    let mut node = node;
    node.accept(4).await;
    let mut connection = node.connection;
    let total = 1_000_000;
    let sending = tokio::spawn(async move {
        let (mut sent, piece) = (0, vec![b'o'; 1000]);
        while sent < total {
            let frame = [&frame::data_head(5, false, piece.len())[..], &piece].concat();
            if timeout(Duration::from_millis(200), connection.write_all(&frame)).await.is_err() {
                return sent;
            }
            sent += piece.len();
        }
        sent
    });
    let sent = sending.await.unwrap();
    assert!(sent < 64 * 1024, "the session took {sent} bytes without a reader");
    assert_eq!(read_frame(&mut client).await.0, 0x82);
}

/// A client that sends and reads much at the same time, through connections with small buffers.
#[tokio::test]
async fn both_directions_at_once_deliver_each_byte() {
    let (client, mut node, session) = start(ALL);
    node.accept(4).await;
    let data: Vec<u8> = (0..1_000_000_u32).map(|number| (number % 251) as u8).collect();
    let Node { mut reader, mut connection } = node;
    // A command that echoes its input.
    tokio::spawn(async move {
        while let Ok(Some(frame)) = reader.next().await {
            match frame {
                Frame::Data { stream: 3, is_last, data } => {
                    let echo = [&frame::data_head(5, is_last, data.len())[..], &data].concat();
                    connection.write_all(&echo).await.unwrap();
                    if is_last {
                        break;
                    }
                }
                // A ping of the node among its output.
                Frame::Ping(id) => connection.write_all(&frame::ping(id + 1)).await.unwrap(),
                _ => {}
            }
        }
        for stream in [7, 1] {
            connection.write_all(&frame::reset(stream, frame::CANCEL)).await.unwrap();
        }
        while let Ok(Some(_)) = reader.next().await {}
    });
    let (mut read, mut write) = tokio::io::split(client);
    let input = data.clone();
    tokio::spawn(async move {
        for (number, piece) in input.chunks(10_007).enumerate() {
            write.write_all(&masked(0x82, &[&[channel::STDIN], piece].concat())).await.unwrap();
            if number % 7 == 0 {
                write.write_all(&masked(0x89, b"ping")).await.unwrap();
            }
        }
        write.write_all(&masked(0x82, &[channel::CLOSE, channel::STDIN])).await.unwrap();
    });
    let [_, stdout, _, error] = read_channels(&mut read).await;
    assert!(stdout == data, "{} of {} bytes", stdout.len(), data.len());
    assert_eq!(error, Outcome::success().to_json());
    drop(read);
    session.abort();
}

#[tokio::test]
async fn node_disconnect_is_an_error_and_client_disconnect_ends_command() {
    let (mut client, mut node, session) = start(ALL);
    node.accept(4).await;
    node.send_data(5, false, b"part").await;
    drop(node);
    let [_, stdout, _, error] = read_channels(&mut client).await;
    assert_eq!(stdout, b"part");
    assert!(String::from_utf8_lossy(&error).contains("the node closed the connection"));
    drop(client);
    assert_eq!(session.await.unwrap().unwrap().code(), 500);

    let (client, mut node, session) = start(ALL);
    node.accept(4).await;
    drop(client);
    while let Some(frame) = timeout(WAIT, node.reader.next()).await.unwrap().unwrap() {
        assert!(matches!(frame, Frame::Ping(_)), "{frame:?}");
    }
    assert!(session.await.unwrap().is_err());
}

#[tokio::test]
async fn rejected_command_and_invalid_client_get_reasons() {
    let (mut client, server) = tokio::io::duplex(PIPE_BYTES);
    let refused = async { Err::<NodeConnection<DuplexStream>, _>(Outcome::internal("container not found")) };
    tokio::spawn(translate(server, refused, CommandStreams::default()));
    let [.., error] = read_channels(&mut client).await;
    assert!(String::from_utf8_lossy(&error).contains("container not found"));

    let (mut client, mut node, session) = start(ALL);
    node.accept(4).await;
    client.write_all(b"\x82\x01unmasked").await.unwrap();
    let mut received = Vec::new();
    timeout(WAIT, client.read_to_end(&mut received)).await.unwrap().unwrap();
    assert!(received.ends_with(b"\x88\x02\x03\xea"), "{received:?}");
    assert_eq!(session.await.unwrap().unwrap_err().kind(), io::ErrorKind::InvalidData);
}

#[tokio::test]
async fn node_pings_and_new_streams_get_replies() {
    let (_client, mut node, _session) = start(ALL);
    node.accept(4).await;
    node.send(&[&frame::ping(2)[..], &frame::syn_stream(2, b"")].concat()).await;
    let mut replies = Vec::new();
    while replies.len() < 2 {
        match timeout(WAIT, node.reader.next()).await.unwrap().unwrap().unwrap() {
            // A ping of the server.
            Frame::Ping(id) if id % 2 == 1 => {}
            frame => replies.push(frame),
        }
    }
    let expected = [Frame::Ping(2), Frame::Reset { stream: 2, status: frame::REFUSED_STREAM }];
    assert_eq!(replies, expected);
}

#[tokio::test]
async fn tunnel_carries_bytes_of_messages_in_both_directions() {
    let (client, server) = tokio::io::duplex(PIPE_BYTES);
    let (mut node, stream) = tokio::io::duplex(PIPE_BYTES);
    let running = tokio::spawn(tunnel(server, stream));
    let (mut read, mut write) = tokio::io::split(client);
    let data: Vec<u8> = (0..500_000_u32).map(|number| (number % 253) as u8).collect();
    let sent = data.clone();
    tokio::spawn(async move {
        for piece in sent.chunks(9_001) {
            write.write_all(&masked(0x82, piece)).await.unwrap();
        }
        write.write_all(&masked(0x89, b"ping")).await.unwrap();
        write
    });
    let echoed = data.len();
    tokio::spawn(async move {
        let mut buffer = vec![0; 3000];
        let mut count = 0;
        while count < echoed {
            let read = node.read(&mut buffer).await.unwrap();
            node.write_all(&buffer[..read]).await.unwrap();
            count += read;
        }
    });
    let mut received = Vec::new();
    loop {
        match read_frame(&mut read).await {
            (0x82, payload) => received.extend_from_slice(&payload),
            // The ping may arrive after the node has ended.
            (0x8a, payload) => assert_eq!(payload, b"ping"),
            (0x88, payload) => break assert_eq!(payload, b"\x03\xe8"),
            other => panic!("{other:?}"),
        }
    }
    assert!(received == data, "{} of {} bytes", received.len(), data.len());
    drop(read);
    running.abort();
}

#[tokio::test]
async fn client_that_closes_tunnel_ends_connection_to_node() {
    let (mut client, server) = tokio::io::duplex(PIPE_BYTES);
    let (mut node, stream) = tokio::io::duplex(PIPE_BYTES);
    let running = tokio::spawn(tunnel(server, stream));
    client.write_all(&[masked(0x82, b"last"), masked(0x88, b"")].concat()).await.unwrap();
    let mut received = Vec::new();
    timeout(WAIT, node.read_to_end(&mut received)).await.unwrap().unwrap();
    assert_eq!(received, b"last");
    assert!(running.await.unwrap().is_err());
}

/// Random bytes in place of a client and of a node end a session and never panic.
#[test]
fn random_peers_never_panic() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let examples = [
        masked(0x82, b"\x00input"),
        [masked(0x82, b"\xff\x00"), masked(0x88, b"")].concat(),
        [&frame::syn_reply(1, b"")[..], &frame::data_head(1, true, 2), b"{}"].concat(),
    ];
    fuzzing::run("sessions", &examples, |input| {
        runtime.block_on(async {
            let (mut client, server) = tokio::io::duplex(1 << 20);
            let (mut node, stream) = tokio::io::duplex(1 << 20);
            let connection = NodeConnection { stream, protocol: "v5.channel.svc.io".to_owned() };
            client.write_all(input).await.unwrap();
            node.write_all(input).await.unwrap();
            client.shutdown().await.unwrap();
            node.shutdown().await.unwrap();
            drop(timeout(WAIT, translate(server, async { Ok(connection) }, ALL)).await.unwrap());
        });
        let (mut channels, mut bytes) = (ChannelReader::default(), BytesMut::from(input));
        let mut decoder = super::websocket::ClientDecoder::default();
        while let Ok(Some(frame)) = decoder.decode(&mut bytes) {
            assert!(!matches!(channels.read_frame(frame), Ok(ChannelEvent::End(channel::CLOSE))));
        }
    });
}

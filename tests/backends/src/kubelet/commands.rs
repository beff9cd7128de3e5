//! exec and attach over SPDY and WebSocket.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use forwarding::streams::channel::{self, ChannelEvent, ChannelReader};
use forwarding::streams::websocket::{self, ClientFrame, ClientReader};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serving::body::Body;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc;

use super::process::{CommandRequest, ERROR, Input, STDERR, STDOUT};
use super::{Query, State, elements, header, spdy, switching, text};

/// Versions of the channel protocol over SPDY, which have a Status at the end.
const SPDY_PROTOCOLS: [&str; 1] = ["v4.channel.k8s.io"];
/// Versions of the channel protocol over WebSocket.
const WEBSOCKET_PROTOCOLS: [&str; 2] = ["v4.channel.k8s.io", "v5.channel.k8s.io"];
/// The GUID that RFC 6455 appends to the key of a client.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Events and pieces of output that wait.
const QUEUE: usize = 2;
/// Time for a client to close its connection after the end of a command.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) fn respond(
    state: Arc<State>,
    request: Request<Incoming>,
    query: &Query,
    is_attach: bool,
) -> Response<Body> {
    let command = CommandRequest::new(query, is_attach);
    if header(request.headers(), "upgrade").is_some_and(|value| value.eq_ignore_ascii_case("websocket")) {
        return respond_websocket(state, request, command);
    }
    match spdy::accept(request, &SPDY_PROTOCOLS) {
        Err(response) => *response,
        Ok((response, upgrade)) => {
            tokio::spawn(async move {
                if let Ok(connection) = upgrade.await {
                    run_spdy(&state, connection, command).await;
                }
            });
            response
        }
    }
}

async fn run_spdy(state: &Arc<State>, connection: Upgraded, command: CommandRequest) {
    let (writer, mut opened) = spdy::serve(connection);
    let expected = 1 + [command.stdin, command.stdout, command.stderr, command.tty]
        .iter()
        .filter(|is_on| **is_on)
        .count();
    let mut streams = HashMap::new();
    while streams.len() < expected {
        let Some(stream) = opened.recv().await else { return };
        streams.insert(stream.header("streamtype").to_owned(), stream);
    }
    let (input, receive_input) = mpsc::channel(QUEUE);
    let (output, mut receive_output) = mpsc::channel::<(u8, Bytes)>(QUEUE);
    if let Some(mut stdin) = streams.remove("stdin") {
        let input = input.clone();
        tokio::spawn(async move {
            while let Some(data) = stdin.receive().await {
                if input.send(Input::Data(data)).await.is_err() {
                    return;
                }
            }
            drop(input.send(Input::End).await);
        });
    }
    if let Some(mut resize) = streams.remove("resize") {
        tokio::spawn(async move {
            while let Some(size) = resize.receive().await {
                if input.send(Input::Size(size)).await.is_err() {
                    return;
                }
            }
        });
    }
    let forward = async {
        while let Some((channel, data)) = receive_output.recv().await {
            let name = match channel {
                STDOUT => "stdout",
                STDERR => "stderr",
                _ => "error",
            };
            if let Some(stream) = streams.get(name)
                && stream.sender.send(&data).await.is_err()
            {
                return false;
            }
        }
        true
    };
    // The connection ends when its client is gone, and with it the command.
    let run = command.run(state, receive_input, output);
    let is_complete = tokio::select! {
        ((), is_complete) = async { tokio::join!(run, forward) } => is_complete,
        None = opened.recv() => false,
    };
    if is_complete {
        for name in ["stdout", "stderr", "error"] {
            if let Some(stream) = streams.get(name) {
                drop(stream.sender.finish().await);
            }
        }
        drop(tokio::time::timeout(CLOSE_TIMEOUT, async { while opened.recv().await.is_some() {} }).await);
    }
    writer.shutdown().await;
}

fn respond_websocket(
    state: Arc<State>,
    mut request: Request<Incoming>,
    command: CommandRequest,
) -> Response<Body> {
    let offered = elements(request.headers(), "sec-websocket-protocol");
    let protocol = offered.iter().find(|offered| WEBSOCKET_PROTOCOLS.contains(&offered.as_str())).cloned();
    let key = header(request.headers(), "sec-websocket-key").unwrap_or_default();
    let Some(protocol) = protocol.filter(|_| !key.is_empty()) else {
        return text(StatusCode::BAD_REQUEST, "no supported WebSocket sub-protocol");
    };
    let digest = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{GUID}").as_bytes());
    let response = switching(&HashMap::from([
        ("upgrade", "websocket".to_owned()),
        ("connection", "Upgrade".to_owned()),
        ("sec-websocket-accept", STANDARD.encode(digest)),
        ("sec-websocket-protocol", protocol),
    ]));
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        if let Ok(connection) = upgrade.await {
            run_websocket(&state, connection, command).await;
        }
    });
    response
}

async fn run_websocket(state: &Arc<State>, connection: Upgraded, command: CommandRequest) {
    let (read, mut write) = tokio::io::split(TokioIo::new(connection));
    let (input, receive_input) = mpsc::channel(QUEUE);
    let (output, mut receive_output) = mpsc::channel::<(u8, Bytes)>(QUEUE);
    let mut client = ClientReader::new(read);
    let receive = async {
        let mut channels = ChannelReader::default();
        while let Ok(Some(frame)) = client.next().await {
            if frame == ClientFrame::Close {
                return;
            }
            let event = match channels.read_frame(frame) {
                Ok(ChannelEvent::Data(channel::STDIN, data)) => Input::Data(data),
                Ok(ChannelEvent::Data(channel::RESIZE, data)) => Input::Size(data),
                Ok(ChannelEvent::End(channel::STDIN)) => Input::End,
                Ok(_) => continue,
                Err(_) => return,
            };
            if input.send(event).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    let forward = async {
        while let Some((channel, data)) = receive_output.recv().await {
            let message = [&channel::message_head(channel, data.len())[..], &data].concat();
            if write.write_all(&message).await.is_err() || write.flush().await.is_err() {
                return;
            }
            if channel == ERROR {
                break;
            }
        }
        drop(write.write_all(&websocket::close(websocket::CLOSE_NORMAL)).await);
        drop(write.flush().await);
    };
    let run = command.run(state, receive_input, output);
    tokio::select! {
        _ = async { tokio::join!(run, forward) } => {}
        () = receive => {}
    }
    drop(write.shutdown().await);
}

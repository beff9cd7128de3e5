//! Port-forward over SPDY: a pair of streams, for errors and for data, is a connection to a port.

use std::collections::HashMap;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use serving::body::Body;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::spdy::{self, Stream};

/// Versions of the protocol.
const PROTOCOLS: [&str; 1] = ["portforward.k8s.io"];

pub(super) fn respond(request: Request<Incoming>) -> Response<Body> {
    match spdy::accept(request, &PROTOCOLS) {
        Err(response) => *response,
        Ok((response, upgrade)) => {
            tokio::spawn(async move {
                if let Ok(connection) = upgrade.await {
                    serve(connection).await;
                }
            });
            response
        }
    }
}

async fn serve(connection: Upgraded) {
    let (writer, mut opened) = spdy::serve(connection);
    let mut waiting: HashMap<String, Stream> = HashMap::new();
    while let Some(stream) = opened.recv().await {
        let request = stream.header("requestid").to_owned();
        match waiting.remove(&request) {
            None => drop(waiting.insert(request, stream)),
            Some(first) => {
                let is_error = first.header("streamtype") == "error";
                let (error, data) = if is_error { (first, stream) } else { (stream, first) };
                tokio::spawn(forward(error, data));
            }
        }
    }
    writer.shutdown().await;
}

/// Connects the stream of data to its port, and reports a failure on the stream of errors.
async fn forward(error: Stream, mut data: Stream) {
    let port = data.header("port").to_owned();
    let target = match port.parse::<u16>() {
        Ok(number) => TcpStream::connect(("127.0.0.1", number)).await,
        Err(_) => Err(std::io::ErrorKind::InvalidInput.into()),
    };
    let sender = data.sender.clone();
    match target {
        Ok(target) => {
            let (mut read, mut write) = target.into_split();
            let to_port = async {
                while let Some(received) = data.receive().await {
                    if write.write_all(&received).await.is_err() {
                        return;
                    }
                }
                drop(write.shutdown().await);
            };
            let from_port = async {
                let mut buffer = vec![0; 16 * 1024];
                while let Ok(count @ 1..) = read.read(&mut buffer).await {
                    if sender.send(buffer.get(..count).unwrap_or_default()).await.is_err() {
                        break;
                    }
                }
                drop(sender.finish().await);
            };
            tokio::join!(to_port, from_port);
        }
        Err(failure) => {
            let text = format!("error forwarding port {port} to pod: {failure}");
            drop(error.sender.send(text.as_bytes()).await);
            drop(sender.finish().await);
        }
    }
    drop(error.sender.finish().await);
}

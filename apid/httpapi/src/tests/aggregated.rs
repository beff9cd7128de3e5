//! Requests for versions of other servers, up to a backend on loopback.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};

use aggregation::{ApiService, BackendReference};
use forwarding::ServiceMap;
use http::Response;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kinds::ApiPriority;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::connections::serve;
use super::*;

const THINGS: &str = "/apis/e.com/v1/things";
/// A time that a correct exchange does not need.
const LONG: Duration = Duration::from_secs(30);

/// Starts a backend that answers with the number of bytes of each body. The receiver gets the number of bytes whenever
/// more have arrived.
async fn start_backend() -> (u16, mpsc::UnboundedReceiver<usize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (progress, received) = mpsc::unbounded_channel();
    let service = service_fn(move |request: Request<Incoming>| {
        let progress = progress.clone();
        async move {
            let mut body = request.into_body();
            let mut bytes = 0;
            while let Some(Ok(frame)) = body.frame().await {
                bytes += frame.data_ref().map_or(0, Bytes::len);
                let _ = progress.send(bytes);
            }
            Ok::<_, Infallible>(Response::new(Body::from(bytes.to_string())))
        }
    });
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let connection = hyper::server::conn::http1::Builder::new();
            tokio::spawn(connection.serve_connection(TokioIo::new(stream), service.clone()));
        }
    });
    (port, received)
}

/// A server with one seat for writes, and an available APIService of `e.com/v1` that leads to the port.
async fn start(port: u16) -> Server {
    let map = format!("a/s:443: http://127.0.0.1:{port}");
    let forwarding = ForwardingOptions {
        service_map: ServiceMap::parse("map", map.as_bytes()).unwrap(),
        ..ForwardingOptions::default()
    };
    let request_limits = RequestLimits { server: ServerLimits { reads: 0, writes: 1 }, is_fair: false };
    let settings = Settings { forwarding, request_limits, ..Settings::default() };
    let server = Server::start_with_settings(settings).await;
    server.http_state.aggregation.set_services(vec![ApiService {
        name: "v1.e.com".to_owned(),
        group: "e.com".to_owned(),
        version: "v1".to_owned(),
        priority: ApiPriority { group: 1, version: 1 },
        backend: Some(BackendReference {
            namespace: "a".to_owned(),
            name: "s".to_owned(),
            port: 443,
            ca_bundle: Bytes::new(),
            is_insecure: true,
        }),
        is_available: true,
        is_automatic: false,
    }]);
    server
}

/// Begins a request with a body of unknown size.
async fn begin(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST {THINGS} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Transfer-Encoding: chunked\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

async fn send_chunk(stream: &mut TcpStream, bytes: usize) {
    stream.write_all(format!("{bytes:x}\r\n").as_bytes()).await.unwrap();
    stream.write_all(&vec![b'x'; bytes]).await.unwrap();
    stream.write_all(b"\r\n").await.unwrap();
}

async fn finish(mut stream: TcpStream) -> String {
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    tokio::time::timeout(LONG, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    answer
}

#[tokio::test]
async fn arriving_body_of_aggregated_request_holds_no_seat() {
    let (port, mut received) = start_backend().await;
    let server = start(port).await;
    let address = serve(&server).await;
    let other = async |name: &str| server.post(MAPS, map(name, "1")).await.code;

    let mut short = begin(address).await;
    send_chunk(&mut short, 10).await;
    assert_eq!(other("beside-short").await, 201, "a body that arrives holds no seat");
    assert!(received.try_recv().is_err(), "the body has not arrived, so that nothing is forwarded");
    send_chunk(&mut short, 20).await;
    let answer = finish(short).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\n30"), "{answer}");

    let mut long = begin(address).await;
    let size = apimachinery::codec::Limits::BODY.bytes + 1;
    send_chunk(&mut long, size).await;
    let forwarded = async { while received.recv().await != Some(size) {} };
    tokio::time::timeout(LONG, forwarded).await.expect("a body above the limit is forwarded before its end");
    assert_eq!(other("beside-long").await, 201, "a forwarded body holds no seat");
    send_chunk(&mut long, 5).await;
    let answer = finish(long).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(&(size + 5).to_string()), "{answer}");
}

#[tokio::test]
async fn request_that_has_passed_through_the_server_is_not_forwarded() {
    let (port, mut received) = start_backend().await;
    let server = start(port).await;
    let mark = server.api_state.forwarding.hops.first().unwrap();
    let headers = [("apid-forwarded-by", mark.to_str().unwrap())];
    let reply = server.send("POST", THINGS, &headers, "{}").await;
    assert_eq!(reply.code, 508);
    assert!(String::from_utf8_lossy(&reply.body).contains("leads back to this server"), "{:?}", reply.body);
    assert!(received.try_recv().is_err());
    // A request that this server answers itself is no loop.
    assert_eq!(server.send("GET", MAPS, &headers, "").await.code, 200);
    assert_eq!(server.send("POST", THINGS, &[("apid-forwarded-by", "other")], "{}").await.code, 200);
}

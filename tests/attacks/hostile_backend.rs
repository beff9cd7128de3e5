//! The backend of the attacked pod, for attacks through its proxy.
//!
//! The first segment of the path selects the answer: `hang` none, `late` after a second, `head` a head without an end,
//! `body` a body without an end, `drain` after the body of the request; any other path refuses upgrades with 403.

use std::net::Ipv4Addr;
use std::sync::OnceLock;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Time before a late answer.
const DELAY: Duration = Duration::from_secs(1);
/// Size of the blocks of endless answers in bytes.
const BLOCK_BYTES: usize = 64 * 1024;

/// Returns the port of the backend on 127.0.0.1. The first call starts the backend, which runs until the process ends.
pub fn port() -> u16 {
    static PORT: OnceLock<u16> = OnceLock::new();
    *PORT.get_or_init(|| {
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async move {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
                sender.send(listener.local_addr().expect("an address").port()).expect("the caller waits");
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(serve(stream));
                }
            });
        });
        receiver.recv().expect("the backend starts")
    })
}

/// Answers the requests of a connection until it breaks.
async fn serve(mut stream: TcpStream) -> Option<()> {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.ok()?);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let answer = match head.split(['/', ' ', '?']).filter(|part| !part.is_empty()).nth(1) {
            Some("hang") => std::future::pending().await,
            Some("late") => {
                tokio::time::sleep(DELAY).await;
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
            }
            Some("head") => return repeat(&mut stream, "HTTP/1.1 200 OK\r\n", "x-endless: yes\r\n").await,
            Some("body") => return repeat(&mut stream, "HTTP/1.1 200 OK\r\n\r\n", "endless").await,
            Some("drain") => {
                let mut block = vec![0; BLOCK_BYTES];
                while stream.read(&mut block).await.ok()? > 0 {}
                return None;
            }
            _ => "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno",
        };
        stream.write_all(answer.as_bytes()).await.ok()?;
    }
}

/// Writes a text, and then another one without end.
async fn repeat(stream: &mut TcpStream, begin: &str, text: &str) -> Option<()> {
    stream.write_all(begin.as_bytes()).await.ok()?;
    let block = text.repeat(BLOCK_BYTES / text.len());
    loop {
        stream.write_all(block.as_bytes()).await.ok()?;
    }
}

//! Plain HTTP on a port with TLS: detection by the first byte, and a response that names the error.
//!
//! # Reference
//!
//! The sentence is that of the HTTP server of Go.

use std::future::Future;
use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

/// First byte of a TLS connection: the type of a handshake record.
const TLS_HANDSHAKE: u8 = 0x16;
/// Maximum number of request bytes that are read before the response. Unread bytes would reset the connection, and
/// the client would lose the response.
const MAX_READ_BYTES: usize = 8 * 1024;

const RESPONSE: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
    Content-Type: text/plain; charset=utf-8\r\n\
    Content-Length: 48\r\n\
    Connection: close\r\n\
    \r\n\
    Client sent an HTTP request to an HTTPS server.\n";

/// A stream whose first byte can be read without consuming the byte.
pub(crate) trait FirstByte {
    /// Waits for the first byte. Returns None if the client has closed the connection.
    fn first_byte(&self) -> impl Future<Output = io::Result<Option<u8>>> + Send;
}

impl FirstByte for TcpStream {
    async fn first_byte(&self) -> io::Result<Option<u8>> {
        let mut byte = [0];
        Ok((self.peek(&mut byte).await? > 0).then_some(byte[0]))
    }
}

impl FirstByte for UnixStream {
    /// Connections of a unix socket are not checked.
    async fn first_byte(&self) -> io::Result<Option<u8>> {
        Ok(Some(TLS_HANDSHAKE))
    }
}

/// Whether a connection begins with the method of an HTTP request, or with the preface of HTTP/2.
pub(crate) fn is_plain_http(first_byte: u8) -> bool {
    first_byte.is_ascii_uppercase()
}

/// Sends the response, and ends the connection.
pub(crate) async fn respond<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) -> io::Result<()> {
    // On the heap, so that the futures of all connections do not contain the buffer.
    let mut request = vec![0; MAX_READ_BYTES];
    let _ = stream.read(&mut request).await?;
    stream.write_all(RESPONSE).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_length_is_that_of_the_sentence() {
        let response = String::from_utf8(RESPONSE.to_vec()).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{response}");
    }
}

//! Failures of an exchange with a backend, in the words of Go, which clients of Kubernetes know.

use std::error::Error;
use std::io;

use crate::Target;

/// An exchange without a response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// The host has no address.
    #[error("dial tcp: lookup {0}: no such host")]
    Lookup(String),
    /// No TCP connection.
    #[error("dial tcp {authority}: {problem}")]
    Dial {
        /// `HOST:PORT` of the backend.
        authority: String,
        /// The reason.
        problem: String,
    },
    /// The limit of connections is reached.
    #[error("dial tcp {0}: too many open connections")]
    Busy(String),
    /// No TLS session.
    #[error("{0}")]
    Tls(String),
    /// The connection ended before the head of the response.
    #[error("EOF")]
    Closed,
    /// The backend reset the connection.
    #[error("read tcp {0}: read: connection reset by peer")]
    Reset(String),
    /// The head of the response is longer than the limit or has too many fields.
    #[error("net/http: server response headers exceeded {0} bytes; aborted")]
    HeadTooLarge(usize),
    /// The backend does not speak HTTP, or broke its rules.
    #[error("net/http: HTTP transport connection broken: {0}")]
    Malformed(String),
    /// The backend switched protocols without a request for an upgrade.
    #[error("net/http: the backend switched protocols without being asked")]
    UnexpectedUpgrade,
    /// The request cannot be sent.
    #[error("the request cannot be sent: {0}")]
    Request(String),
}

impl TransportError {
    /// Whether there was no connection, so that the backend has seen nothing of the request.
    pub fn is_connect(&self) -> bool {
        matches!(self, TransportError::Lookup(_) | TransportError::Dial { .. } | TransportError::Tls(_))
    }

    pub(super) fn of_dial(target: &Target, error: &io::Error) -> Self {
        let problem = match error.kind() {
            io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
            io::ErrorKind::TimedOut => "i/o timeout".to_owned(),
            io::ErrorKind::HostUnreachable => "connect: no route to host".to_owned(),
            io::ErrorKind::NetworkUnreachable => "connect: network is unreachable".to_owned(),
            io::ErrorKind::InvalidInput => "no address".to_owned(),
            _ => format!("connect: {error}"),
        };
        TransportError::Dial { authority: target.authority(), problem }
    }

    pub(super) fn of_handshake(target: &Target, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => TransportError::Closed,
            io::ErrorKind::ConnectionReset => TransportError::Reset(target.authority()),
            _ => TransportError::Tls(format!("tls: {error}")),
        }
    }

    /// Describes the failure of an exchange on an established connection.
    pub(super) fn of_exchange(target: &Target, error: &hyper::Error) -> Self {
        if error.is_parse_too_large() {
            return TransportError::HeadTooLarge(super::MAX_HEAD_BYTES);
        }
        let mut source = error.source();
        while let Some(cause) = source {
            if let Some(io) = cause.downcast_ref::<io::Error>() {
                return match io.kind() {
                    io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                        TransportError::Reset(target.authority())
                    }
                    io::ErrorKind::UnexpectedEof => TransportError::Closed,
                    _ => TransportError::Malformed(io.to_string()),
                };
            }
            source = cause.source();
        }
        if error.is_incomplete_message() || error.is_closed() || error.is_canceled() {
            return TransportError::Closed;
        }
        let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
        TransportError::Malformed(format!("{error}{cause}"))
    }
}

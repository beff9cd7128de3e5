//! Notifications to the service manager: the protocol of `sd_notify`.
//!
//! # Contract
//!
//! A notification is one datagram to the socket of `NOTIFY_SOCKET`; a name that begins with `@` is abstract.
//! Without that variable nothing is sent. A failed notification is logged and changes nothing else.
//!
//! # Reference
//!
//! `sd_notify(3)`: READY=1, RELOADING=1 with the monotonic time, STOPPING=1, STATUS.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixDatagram;

use rustix::time::{ClockId, clock_gettime};

/// The variable that names the socket.
const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";

/// The state of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceState {
    /// The start or a reload is complete.
    Ready,
    /// A reload begins.
    Reloading,
    /// The shutdown begins.
    Stopping,
}

/// Sends states to the service manager.
#[derive(Clone, Debug, Default)]
pub struct ServiceManager {
    socket: Option<OsString>,
}

impl ServiceManager {
    /// The service manager that `NOTIFY_SOCKET` names; without the variable, notifications have no effect.
    pub fn from_environment() -> Self {
        ServiceManager { socket: std::env::var_os(SOCKET_VARIABLE).filter(|socket| !socket.is_empty()) }
    }

    /// The service manager that listens at a socket.
    pub fn at(socket: impl Into<OsString>) -> Self {
        ServiceManager { socket: Some(socket.into()) }
    }

    /// Notifies the service manager of a state. A failure is logged.
    pub fn notify(&self, state: ServiceState) {
        let Some(socket) = &self.socket else { return };
        if let Err(error) = send(socket, &message(state)) {
            tracing::warn!(socket = %socket.display(), %error, "cannot notify the service manager");
        }
    }
}

fn message(state: ServiceState) -> String {
    match state {
        ServiceState::Ready => "READY=1\nSTATUS=serving requests".to_owned(),
        ServiceState::Reloading => {
            let now = clock_gettime(ClockId::Monotonic);
            let microseconds = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
            format!("RELOADING=1\nMONOTONIC_USEC={microseconds}\nSTATUS=reloading")
        }
        ServiceState::Stopping => "STOPPING=1\nSTATUS=shutting down".to_owned(),
    }
}

fn send(socket: &OsString, message: &str) -> io::Result<()> {
    let datagrams = UnixDatagram::unbound()?;
    #[cfg(target_os = "linux")]
    if let Some(name) = socket.as_bytes().strip_prefix(b"@") {
        use std::os::linux::net::SocketAddrExt as _;
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
        return datagrams.send_to_addr(message.as_bytes(), &address).map(drop);
    }
    datagrams.send_to(message.as_bytes(), socket).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_states_are_sent_as_datagrams() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let received = UnixDatagram::bind(&path).unwrap();
        let manager = ServiceManager::at(path);
        for (state, begin) in [
            (ServiceState::Ready, "READY=1\n"),
            (ServiceState::Reloading, "RELOADING=1\nMONOTONIC_USEC="),
            (ServiceState::Stopping, "STOPPING=1\n"),
        ] {
            manager.notify(state);
            let mut bytes = [0; 256];
            let length = received.recv(&mut bytes).unwrap();
            assert!(std::str::from_utf8(&bytes[..length]).unwrap().starts_with(begin), "{state:?}");
        }
        ServiceManager::default().notify(ServiceState::Ready);
    }
}

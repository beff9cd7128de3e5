//! Notifications to the service manager: the protocol of `sd_notify`.
//!
//! # Contract
//!
//! A notification is one datagram to the socket of `NOTIFY_SOCKET`; a name that begins with `@` is abstract.
//! Without that variable nothing is sent. A failed notification is logged and changes nothing else.
//!
//! With `WATCHDOG_USEC`, [`ServiceManager::feed_watchdog`] notifies the watchdog twice in each interval, as long as the
//! caller is alive. The service manager restarts a process that does not notify it.
//!
//! # Reference
//!
//! `sd_notify(3)`: READY=1, RELOADING=1 with the monotonic time, STOPPING=1, STATUS.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixDatagram;

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// The variable that names the socket.
const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";
/// The variable with the interval of the watchdog in microseconds, and that with the process id that has a watchdog.
const WATCHDOG_VARIABLES: (&str, &str) = ("WATCHDOG_USEC", "WATCHDOG_PID");
/// Time by which a notification during the start extends the timeout of the start.
const START_EXTENSION: Duration = Duration::from_secs(30);

/// The state of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceState {
    /// The start or a reload is complete.
    Ready,
    /// A reload begins.
    Reloading,
    /// The shutdown begins.
    Stopping,
    /// The start takes long: the service manager waits for another 30 s.
    Starting,
    /// The process is alive.
    Alive,
}

/// Sends states to the service manager.
#[derive(Clone, Debug, Default)]
pub struct ServiceManager {
    socket: Option<OsString>,
    /// The interval in which the service manager expects a watchdog notification.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// The service manager that `NOTIFY_SOCKET` names; without the variable, notifications have no effect.
    pub fn from_environment() -> Self {
        let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
        let is_own = number(WATCHDOG_VARIABLES.1).is_none_or(|id| id == u64::from(std::process::id()));
        ServiceManager {
            socket: std::env::var_os(SOCKET_VARIABLE).filter(|socket| !socket.is_empty()),
            watchdog: number(WATCHDOG_VARIABLES.0)
                .filter(|interval| is_own && *interval > 0)
                .map(Duration::from_micros),
        }
    }

    /// The service manager that listens at a socket.
    pub fn at(socket: impl Into<OsString>) -> Self {
        ServiceManager { socket: Some(socket.into()), watchdog: None }
    }

    /// Expects a watchdog notification in each interval.
    #[must_use]
    pub fn with_watchdog(self, interval: Duration) -> Self {
        ServiceManager { watchdog: Some(interval), ..self }
    }

    /// Notifies the watchdog twice in each interval, if `is_alive` returns true. Never returns.
    pub async fn feed_watchdog(&self, is_alive: impl Fn() -> bool) -> Infallible {
        let Some(interval) = self.watchdog else { return std::future::pending().await };
        loop {
            if is_alive() {
                self.notify(ServiceState::Alive);
            } else {
                tracing::error!("liveness check failed; the watchdog is not notified");
            }
            tokio::time::sleep(interval / 2).await;
        }
    }

    /// Extends the timeout of the start until the future is ready.
    pub async fn extend_start<T>(&self, start: impl Future<Output = T>) -> T {
        self.extend_start_each(START_EXTENSION / 3, start).await
    }

    async fn extend_start_each<T>(&self, interval: Duration, start: impl Future<Output = T>) -> T {
        let mut start = std::pin::pin!(start);
        loop {
            tokio::select! {
                result = &mut start => return result,
                () = tokio::time::sleep(interval) => self.notify(ServiceState::Starting),
            }
        }
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
        ServiceState::Starting => {
            format!("EXTEND_TIMEOUT_USEC={}\nSTATUS=starting", START_EXTENSION.as_micros())
        }
        ServiceState::Alive => "WATCHDOG=1".to_owned(),
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
            (ServiceState::Starting, "EXTEND_TIMEOUT_USEC=30000000\n"),
            (ServiceState::Alive, "WATCHDOG=1"),
        ] {
            manager.notify(state);
            let mut bytes = [0; 256];
            let length = received.recv(&mut bytes).unwrap();
            assert!(std::str::from_utf8(&bytes[..length]).unwrap().starts_with(begin), "{state:?}");
        }
        ServiceManager::default().notify(ServiceState::Ready);
    }

    #[tokio::test]
    async fn watchdog_is_notified_only_while_process_is_live() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let received = UnixDatagram::bind(&path).unwrap();
        received.set_nonblocking(true).unwrap();
        let count = || {
            let mut bytes = [0; 64];
            std::iter::from_fn(|| received.recv(&mut bytes).ok()).count()
        };
        let manager = ServiceManager::at(path).with_watchdog(Duration::from_millis(40));
        for (is_alive, least) in [(true, 2), (false, 0)] {
            let feed = manager.feed_watchdog(|| is_alive);
            assert!(tokio::time::timeout(Duration::from_millis(200), feed).await.is_err());
            let sent = count();
            assert!(sent >= least && (is_alive || sent == 0), "{sent}");
        }
    }

    #[tokio::test]
    async fn slow_start_extends_its_timeout() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let received = UnixDatagram::bind(&path).unwrap();
        let manager = ServiceManager::at(path);
        let start = tokio::time::sleep(Duration::from_millis(200));
        manager.extend_start_each(Duration::from_millis(20), start).await;
        let mut bytes = [0; 64];
        let length = received.recv(&mut bytes).unwrap();
        assert!(bytes[..length].starts_with(b"EXTEND_TIMEOUT_USEC="));
    }
}

//! The log of outages of authd: times in which authd cannot decide requests.
//!
//! # Contract
//!
//! A start of both processes within a few seconds logs nothing. A problem that lasts [`FIRST_LOG_DELAY`] is
//! logged at the default level, with the reason from `/readyz?verbose` and the paths or URLs of the authds. The log
//! line repeats every minute, and one more line reports the end of the problem.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::transport::connection::{AuthdConnection, AuthdProblem};
use crate::transport::servers::AuthdServer;

/// The delay of the first log line. apid and authd connect within this time if they start together.
const FIRST_LOG_DELAY: Duration = Duration::from_secs(3);
/// The interval between two log lines.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);
/// The interval between two checks of the connection to authd.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

impl AuthdConnection {
    /// Logs each outage of authd and its end; never returns.
    pub(crate) async fn log_outages(&self, servers: &[AuthdServer]) {
        let authd = servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let mut schedule = OutageSchedule::default();
        loop {
            match schedule.next_event(self.now(), self.health()) {
                Some(OutageEvent::Ongoing(reason)) if !self.is_shutting_down() => {
                    match servers.iter().find_map(permission_advice) {
                        Some(advice) => tracing::warn!(
                            %reason,
                            authd,
                            advice,
                            "authd is unavailable; requests wait or get 503"
                        ),
                        None => tracing::warn!(
                            %reason,
                            authd,
                            "authd is unavailable; requests wait or get 503"
                        ),
                    }
                }
                Some(OutageEvent::Ended) => tracing::info!("authd is available again"),
                Some(OutageEvent::Ongoing(_)) | None => {}
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }
}

/// Returns what to do if the user of this process may not use the socket; None if it may.
fn permission_advice(server: &AuthdServer) -> Option<String> {
    let AuthdServer::Socket(socket) = server else { return None };
    let error =
        UnixStream::connect(socket).err().filter(|error| error.kind() == ErrorKind::PermissionDenied)?;
    let user = rustix::process::geteuid();
    let owner = std::fs::metadata(socket).map(|file| file.uid());
    Some(match owner {
        Ok(owner) => format!(
            "authd runs as the user {owner}, apid runs as the user {user}: run both as one user, or start authd with \
             --socket-mode=0660 and as a member of a group of apid"
        ),
        Err(_) => format!("the user {user} of apid may not enter the folder of the socket ({error})"),
    })
}

/// An event to log.
#[derive(Debug, PartialEq, Eq)]
enum OutageEvent {
    /// authd cannot decide, for this reason.
    Ongoing(AuthdProblem),
    /// authd is available again, after a logged problem.
    Ended,
}

/// Determines when the next log line about an outage is due.
#[derive(Default)]
struct OutageSchedule {
    /// The monotonic time at which the next line is due; None while authd can decide requests.
    due: Option<Duration>,
    /// Whether a line about the outage was logged.
    is_logged: bool,
}

impl OutageSchedule {
    /// The event to log at this moment, if any.
    fn next_event(&mut self, now: Duration, health: Result<(), AuthdProblem>) -> Option<OutageEvent> {
        let Err(reason) = health else {
            self.due = None;
            return std::mem::take(&mut self.is_logged).then_some(OutageEvent::Ended);
        };
        if now < *self.due.get_or_insert(now + FIRST_LOG_DELAY) {
            return None;
        }
        self.due = Some(now + REPEAT_INTERVAL);
        self.is_logged = true;
        Some(OutageEvent::Ongoing(reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event_at(
        schedule: &mut OutageSchedule,
        seconds: u64,
        health: Result<(), &str>,
    ) -> Option<OutageEvent> {
        let health = health.map_err(|reason| AuthdProblem::Unreachable(reason.to_owned()));
        schedule.next_event(Duration::from_secs(seconds), health)
    }

    #[test]
    fn lasting_outage_is_logged_every_minute_and_its_end_once() {
        let mut schedule = OutageSchedule::default();
        let ongoing = |reason: &str| Some(OutageEvent::Ongoing(AuthdProblem::Unreachable(reason.to_owned())));
        assert_eq!(
            event_at(&mut schedule, 0, Err("no such file")),
            None,
            "a short delay of authd must not be logged"
        );
        assert_eq!(event_at(&mut schedule, 3, Err("no such file")), ongoing("no such file"));
        let logged_at: Vec<u64> =
            (4..300).filter(|&now| event_at(&mut schedule, now, Err("other names")).is_some()).collect();
        assert_eq!(logged_at, [63, 123, 183, 243]);
        assert_eq!(event_at(&mut schedule, 300, Ok(())), Some(OutageEvent::Ended));
        assert_eq!(event_at(&mut schedule, 301, Ok(())), None);
    }

    #[test]
    fn socket_of_another_user_is_explained() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(permission_advice(&AuthdServer::Socket(socket.clone())), None);
        assert_eq!(permission_advice(&AuthdServer::Socket(dir.path().join("absent"))), None);
        std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o000)).unwrap();
        let advice = permission_advice(&AuthdServer::Socket(socket.clone()));
        // The superuser may use each socket.
        if !rustix::process::geteuid().is_root() {
            let advice = advice.unwrap();
            assert!(
                advice.contains("run both as one user") && advice.contains("--socket-mode=0660"),
                "{advice}"
            );
        }
    }

    #[test]
    fn short_outage_is_not_logged() {
        let mut schedule = OutageSchedule::default();
        for second in (0..100).step_by(4) {
            assert_eq!(event_at(&mut schedule, second, Err("not connected yet")), None);
            assert_eq!(event_at(&mut schedule, second + 2, Err("not connected yet")), None);
            assert_eq!(event_at(&mut schedule, second + 3, Ok(())), None);
        }
    }
}

//! The state of the cluster: health, database size, alarms, and what the engine reports of its calls.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::client::{Client, FREE_SPACE, Method};
use super::protocol as pb;
use super::{Shared, from_etcd};
use crate::{Error, Result, Revision};

/// Pause between two health checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Interval of the query of alarms while no write has failed for lack of space.
const ALARM_INTERVAL: Duration = Duration::from_secs(30);
/// Time after which an interrupted watch makes the store unready.
const WATCH_GRACE: Duration = Duration::from_secs(5);

/// The result of the last health check.
#[derive(Debug, Default)]
pub(super) struct Health(Mutex<Check>);

#[derive(Debug, Default)]
struct Check {
    /// The start of a running check.
    running_since: Option<Instant>,
    /// The duration of the last check, or the reason of its failure; None before the first one.
    last: Option<Result<Duration, String>>,
}

impl Health {
    /// Returns an error if the last check failed or took longer than the limit.
    pub(super) fn within(&self, limit: Duration) -> Result<()> {
        let check = self.0.lock();
        let late = |took: Duration| {
            Err(Error::Unavailable(format!(
                "etcd did not answer within {} s: {} s",
                limit.as_secs_f32(),
                took.as_secs_f32()
            )))
        };
        match (check.running_since.map(|since| since.elapsed()), &check.last) {
            (Some(running), _) if running > limit => late(running),
            (_, Some(Ok(took))) if *took > limit => late(*took),
            (_, Some(Err(reason))) => Err(Error::Unavailable(reason.clone())),
            _ => Ok(()),
        }
    }

    fn begin(&self) -> Instant {
        let now = Instant::now();
        self.0.lock().running_since = Some(now);
        now
    }

    fn end(&self, result: Result<Duration, String>) {
        *self.0.lock() = Check { running_since: None, last: Some(result) };
    }
}

impl Shared {
    /// Checks that an answer comes from the history of this process: that of the same cluster, with all changes that were
    /// received before the question.
    ///
    /// # Errors
    ///
    /// The history is another one: the store is lost.
    pub(super) fn check_history(&self, header: Option<&pb::Header>, received: Revision) -> Result<()> {
        let Some(reason) = self.different_history(header, received) else { return Ok(()) };
        self.report_gap(reason.clone());
        Err(Error::Unavailable(reason))
    }

    /// The reason why the history of the cluster that answered is not the history of this process.
    fn different_history(&self, header: Option<&pb::Header>, received: Revision) -> Option<String> {
        let (cluster, found) =
            header.map_or((0, Revision(0)), |header| (header.cluster, from_etcd(header.revision)));
        if cluster != self.cluster {
            return Some(format!(
                "etcd is the cluster {cluster:x}, and this server started with the cluster {:x}: etcd was restored from a \
                 backup, or its URLs are those of two clusters, and this server must start again",
                self.cluster
            ));
        }
        (found < received).then(|| {
            format!(
                "etcd is at revision {found}, and this server has changes up to {received}: etcd was restored from a \
                 backup, and this server must start again"
            )
        })
    }

    /// Returns an error while writes and linearizable reads fail: etcd does not answer, or the watch is interrupted.
    pub(super) fn readiness(&self, limit: Duration) -> Result<()> {
        self.health.within(limit)?;
        match &*self.interruption.lock() {
            Some((since, reason)) if since.elapsed() > WATCH_GRACE => {
                Err(Error::Unavailable(format!("the watch of etcd is interrupted: {reason}")))
            }
            _ => Ok(()),
        }
    }
}

/// Checks the health of the cluster until the store closes, or until the cluster is another one or has lost revisions.
pub(super) async fn check_health(shared: Arc<Shared>, client: Arc<Client>) {
    let read = pb::RangeRequest::one(shared.keys.health());
    let mut asked_at: Option<Instant> = None;
    loop {
        let begin = shared.health.begin();
        // The answer of a healthy cluster is never older than a revision that was received before the question.
        let received = Revision(shared.received.load(Ordering::Acquire));
        let answer: Result<pb::RangeResponse, _> = client.call(Method::Range, read.clone()).await;
        if let Ok(answer) = &answer
            && shared.check_history(answer.header.as_ref(), received).is_err()
        {
            return;
        }
        shared.health.end(answer.map(|_| begin.elapsed()).map_err(|failure| failure.to_string()));
        let is_full = shared.full.lock().is_some();
        if is_full || asked_at.is_none_or(|at| at.elapsed() >= ALARM_INTERVAL) {
            asked_at = Some(Instant::now());
            check_alarms(&shared, &client).await;
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

async fn check_alarms(shared: &Shared, client: &Client) {
    let answer: Result<pb::AlarmResponse, _> = client.call(Method::Alarm, pb::AlarmRequest {}).await;
    // Without an answer, or without permission for the query, the last known state stays.
    let Ok(pb::AlarmResponse { alarms }) = answer else { return };
    let members = |kind| alarms.iter().filter(|alarm| alarm.kind == kind).count();
    let (full, damaged) = (members(pb::NO_SPACE), members(pb::DAMAGED));
    *shared.full.lock() = (full > 0).then(|| format!("{full} members of etcd have no space: {FREE_SPACE}"));
    let damage = (damaged > 0).then(|| {
        format!("{damaged} members of etcd report damaged data: replace them, and see `etcdctl alarm list`")
    });
    *shared.damage.lock() = damage;
}

/// Reports the size of the database of each member until the store closes.
pub(super) async fn measure(shared: Arc<Shared>, client: Arc<Client>, interval: Duration) {
    loop {
        for (member, status) in client.statuses().await {
            if let Ok(status) = status {
                client.telemetry.database_size(member, status.db_size);
                shared.set_database_size(status.db_size);
            }
        }
        tokio::time::sleep(interval).await;
    }
}

/// Whether members of a release send requested progress notices in order with events.
///
/// Earlier releases may send the notice first, or lose it.
pub(super) fn has_ordered_progress(version: &str) -> bool {
    let mut numbers = version.split(['.', '-', '+']).map(|number| number.parse::<u32>().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    match (next(), next(), next()) {
        (3, 4, patch) => patch >= 31,
        (3, 5, patch) => patch >= 13,
        (major, minor, _) => (major, minor) > (3, 5),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_with_ordered_progress_are_known() {
        for (version, expected) in [
            ("3.3.27", false),
            ("3.4.30", false),
            ("3.4.31", true),
            ("3.5.0", false),
            ("3.5.1", false),
            ("3.5.12", false),
            ("3.5.13", true),
            ("3.5.30", true),
            ("3.6.0-rc.1", true),
            ("4.0.0", true),
            ("", false),
        ] {
            assert_eq!(has_ordered_progress(version), expected, "{version}");
        }
    }

    #[test]
    fn health_depends_on_the_last_and_on_the_running_check() {
        let health = Health::default();
        let within = |seconds| health.within(Duration::from_secs(seconds)).map_err(|error| error.to_string());
        assert_eq!(within(2), Ok(()), "no check has ended yet");
        health.0.lock().running_since = Instant::now().checked_sub(Duration::from_secs(3));
        assert!(within(2).is_err_and(|error| error.contains("within 2 s")));
        assert_eq!(within(60), Ok(()));
        health.end(Ok(Duration::from_secs(3)));
        assert!(within(2).is_err() && within(4).is_ok());
        health.begin();
        health.end(Ok(Duration::from_millis(1)));
        assert_eq!(within(2), Ok(()));
        health.end(Err("no leader".to_owned()));
        assert!(within(2).is_err_and(|error| error.contains("no leader")));
    }
}

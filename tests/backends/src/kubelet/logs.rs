//! Logs of containers.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serving::body::Body;
use tokio::sync::Notify;

use super::{Query, text};

/// The log of a container.
#[derive(Default)]
pub struct Log {
    lines: Mutex<Lines>,
    changed: Notify,
}

#[derive(Default)]
struct Lines {
    /// Lines with the time of their output, and whether the container ran before its restart.
    entries: Vec<(Timestamp, bool, String)>,
    has_ended: bool,
}

impl Log {
    /// Adds a line of the running container.
    pub fn push(&self, time: Timestamp, line: &str) {
        self.add(time, false, line);
    }

    /// Adds a line of the container before its restart.
    pub fn push_previous(&self, time: Timestamp, line: &str) {
        self.add(time, true, line);
    }

    fn add(&self, time: Timestamp, is_previous: bool, line: &str) {
        self.lines.lock().entries.push((time, is_previous, line.to_owned()));
        self.changed.notify_waiters();
    }

    /// Ends the container, and with it the responses that follow the log.
    pub fn end(&self) {
        self.lines.lock().has_ended = true;
        self.changed.notify_waiters();
    }

    /// Responds to a request for the log.
    pub(super) fn respond(self: Arc<Self>, query: &Query) -> Response<Body> {
        let number = |name| query.text(name).map(str::parse::<u64>).transpose();
        let (Ok(tail), Ok(limit), Ok(since_seconds)) =
            (number("tailLines"), number("limitBytes"), number("sinceSeconds"))
        else {
            return text(StatusCode::BAD_REQUEST, "invalid number");
        };
        let since = match query.text("sinceTime").map(str::parse::<Timestamp>).transpose() {
            Ok(time) => time.or_else(|| seconds_ago(since_seconds?)),
            Err(error) => return text(StatusCode::BAD_REQUEST, &error.to_string()),
        };
        let (follow, previous) = (query.switch("follow"), query.switch("previous"));
        let with_time = query.switch("timestamps");
        let (sender, body) = serving::body::channel(1);
        tokio::spawn(async move {
            let (mut position, mut remaining) = (0, limit.unwrap_or(u64::MAX));
            let mut tail = tail;
            loop {
                let changed = self.changed.notified();
                let (lines, length, has_ended) = {
                    let lines = self.lines.lock();
                    let is_selected = |(time, of_previous, _): &&(Timestamp, bool, String)| {
                        *of_previous == previous && since.is_none_or(|since| *time >= since)
                    };
                    let selected = lines.entries.iter().skip(position).filter(is_selected);
                    let selected: Vec<String> = selected
                        .map(
                            |(time, _, line)| {
                                if with_time { format!("{time} {line}\n") } else { format!("{line}\n") }
                            },
                        )
                        .collect();
                    (selected, lines.entries.len(), lines.has_ended)
                };
                position = length;
                let skipped = tail.take().map_or(0, |tail| {
                    lines.len().saturating_sub(usize::try_from(tail).unwrap_or(usize::MAX))
                });
                for line in lines.into_iter().skip(skipped) {
                    let mut line = Bytes::from(line);
                    line.truncate(usize::try_from(remaining).unwrap_or(usize::MAX));
                    remaining -= line.len() as u64;
                    if sender.send(line).await.is_err() || remaining == 0 {
                        return;
                    }
                }
                if !follow || has_ended {
                    return;
                }
                tokio::select! {
                    () = changed => {}
                    () = sender.closed() => return,
                }
            }
        });
        Response::new(body)
    }
}

#[expect(clippy::disallowed_methods, reason = "a server of tests runs on the machine's time")]
fn seconds_ago(seconds: u64) -> Option<Timestamp> {
    let seconds = SignedDuration::from_secs(i64::try_from(seconds).ok()?);
    Timestamp::now().checked_sub(seconds).ok()
}

//! Rate limit of log lines, so that remote clients cannot fill the disk with log lines.
//!
//! # Contract
//!
//! Each call site at INFO, WARN or ERROR has a token bucket: [`BURST`] lines pass at once, then one line per
//! [`SECONDS_PER_LINE`]. The cause of a line is the text of its [`CAUSE_FIELDS`] without digits and quoted
//! parts. The first [`LINES_PER_CAUSE`] lines of each cause in each [`PERIOD`] pass even when the bucket is
//! empty, so that no cause hides a different cause. At the end of a period one line per cause reports the
//! number of suppressed lines. DEBUG and TRACE are not limited.
//!
//! # Invariants
//!
//! INVARIANT (bounded): the limiter keeps at most [`MAX_CAUSES`] causes of a call site; all further causes of
//! a period count as one cause. In each period a call site writes at most the lines of its tokens ([`BURST`],
//! and one for each [`SECONDS_PER_LINE`]) and [`LINES_PER_CAUSE`] lines of each cause.

use std::collections::HashMap;
use std::fmt::{Debug, Write as _};
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::Clock;
use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, callsite};
use tracing_subscriber::layer::{Context, Filter};

/// Maximum number of tokens of a call site: lines that pass at once.
const BURST: u32 = 100;
/// Seconds until a call site gets a further token.
const SECONDS_PER_LINE: u64 = 1;
/// Period after which suppressed lines are reported by cause.
const PERIOD: Duration = Duration::from_secs(10);
/// Lines of each cause that pass in each period without a token.
const LINES_PER_CAUSE: u32 = 3;
/// Maximum number of distinct causes of a call site in a period.
const MAX_CAUSES: usize = 32;
/// Maximum size of a cause in bytes.
const MAX_CAUSE_BYTES: usize = 200;
/// Fields whose values form the cause of a line.
const CAUSE_FIELDS: [&str; 7] = ["cause", "check", "detail", "error", "method", "reason", "subject"];
/// Interval at which the report thread looks for periods that have ended.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Target of the report lines, which are not limited.
const REPORT_TARGET: &str = "serving::log";

/// Rate limiter of log lines. Clones share their state.
#[derive(Clone)]
pub(super) struct RateLimit {
    clock: Arc<dyn Clock>,
    sites: Arc<Mutex<HashMap<callsite::Identifier, CallSite>>>,
}

/// State of one call site.
struct CallSite {
    tokens: u32,
    /// Time of the last token refill.
    refilled: Duration,
    period_start: Duration,
    causes: HashMap<String, Cause>,
    /// All causes of the period beyond [`MAX_CAUSES`], counted as one.
    other_causes: Cause,
}

/// Lines of one cause in the current period.
#[derive(Default)]
struct Cause {
    passed: u32,
    suppressed: u64,
    /// Message of the first suppressed line.
    message: String,
}

/// Suppressed lines of one cause, for a report line.
#[derive(Debug, PartialEq, Eq)]
struct SuppressedLines {
    message: String,
    cause: String,
    lines: u64,
}

/// Starts the thread that reports suppressed lines. Without the thread lines are still limited.
pub(super) fn spawn_reports(limit: RateLimit) {
    let report = move || {
        loop {
            std::thread::sleep(REPORT_INTERVAL);
            for SuppressedLines { message, cause, lines } in limit.take_suppressed() {
                tracing::warn!(target: REPORT_TARGET, lines, event = message, cause, "similar log lines suppressed");
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("log-limit".to_owned()).spawn(report) {
        tracing::warn!(%error, "cannot start the log report thread; suppressed log lines are not reported");
    }
}

impl RateLimit {
    /// Creates a limiter with full token buckets.
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        RateLimit { clock, sites: Arc::default() }
    }

    fn passes(&self, event: &Event<'_>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO || metadata.target() == REPORT_TARGET {
            return true;
        }
        let mut text = LineText::default();
        event.record(&mut text);
        let now = self.clock.monotonic();
        let mut sites = self.sites.lock();
        sites.entry(metadata.callsite()).or_insert_with(|| CallSite::new(now)).passes(text, now)
    }

    /// Takes the suppressed lines of every call site whose period has ended.
    fn take_suppressed(&self) -> Vec<SuppressedLines> {
        let now = self.clock.monotonic();
        let mut suppressed = Vec::new();
        for site in self.sites.lock().values_mut() {
            if now.saturating_sub(site.period_start) >= PERIOD {
                site.end_period(now, &mut suppressed);
            }
        }
        suppressed
    }
}

impl CallSite {
    fn new(now: Duration) -> Self {
        CallSite {
            tokens: BURST,
            refilled: now,
            period_start: now,
            causes: HashMap::new(),
            other_causes: Cause::default(),
        }
    }

    /// Counts a line and returns whether it passes.
    fn passes(&mut self, text: LineText, now: Duration) -> bool {
        let refill = now.saturating_sub(self.refilled).as_secs() / SECONDS_PER_LINE;
        if refill > 0 {
            self.tokens = self.tokens.saturating_add(u32::try_from(refill).unwrap_or(u32::MAX)).min(BURST);
            self.refilled += Duration::from_secs(refill * SECONDS_PER_LINE);
        }
        let may_begin_period = self.suppressed() == 0 && now.saturating_sub(self.period_start) >= PERIOD;
        if may_begin_period {
            self.end_period(now, &mut Vec::new());
        }
        let has_own_count = self.causes.len() < MAX_CAUSES || self.causes.contains_key(&text.cause);
        let cause =
            if has_own_count { self.causes.entry(text.cause).or_default() } else { &mut self.other_causes };
        if self.tokens > 0 {
            self.tokens -= 1;
        } else if cause.passed >= LINES_PER_CAUSE {
            if cause.suppressed == 0 {
                cause.message = text.message;
            }
            cause.suppressed += 1;
            return false;
        }
        cause.passed = cause.passed.saturating_add(1);
        true
    }

    /// The number of suppressed lines of the period.
    fn suppressed(&self) -> u64 {
        self.causes.values().chain([&self.other_causes]).map(|cause| cause.suppressed).sum()
    }

    /// Ends the period and adds its suppressed lines to `suppressed`.
    fn end_period(&mut self, now: Duration, suppressed: &mut Vec<SuppressedLines>) {
        let others = std::mem::take(&mut self.other_causes);
        for (text, cause) in self.causes.drain().chain([("other causes".to_owned(), others)]) {
            if cause.suppressed > 0 {
                suppressed.push(SuppressedLines {
                    message: cause.message,
                    cause: text,
                    lines: cause.suppressed,
                });
            }
        }
        self.period_start = now;
    }
}

/// Message and cause of a line.
#[derive(Default)]
struct LineText {
    message: String,
    cause: String,
}

impl Visit for LineText {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            let _ = write!(TruncatingWriter(&mut self.message), "{value:?}");
        } else if CAUSE_FIELDS.contains(&field.name()) {
            let mut text = String::new();
            let _ = write!(TruncatingWriter(&mut text), "{value:?}");
            self.add_cause(&text);
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if CAUSE_FIELDS.contains(&field.name()) {
            self.add_cause(value);
        }
    }
}

impl LineText {
    /// Adds a value without digits and quoted parts, which differ from line to line.
    fn add_cause(&mut self, value: &str) {
        if !self.cause.is_empty() {
            self.cause.push_str("; ");
        }
        let mut quote = None;
        for letter in value.chars() {
            if self.cause.len() >= MAX_CAUSE_BYTES {
                return;
            }
            match (quote, letter) {
                (Some(end), letter) if letter == end => quote = None,
                (Some(_), _) => {}
                (None, '`' | '"') => quote = Some(letter),
                (None, letter) if letter.is_ascii_digit() || letter.is_control() => {}
                (None, letter) => self.cause.push(letter),
            }
        }
    }
}

/// Writer that fails when the text has twice [`MAX_CAUSE_BYTES`] bytes; [`LineText`] shortens causes further.
struct TruncatingWriter<'a>(&'a mut String);

impl std::fmt::Write for TruncatingWriter<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for letter in text.chars() {
            if self.0.len() >= 2 * MAX_CAUSE_BYTES {
                return Err(std::fmt::Error);
            }
            self.0.push(letter);
        }
        Ok(())
    }
}

impl<S> Filter<S> for RateLimit {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn callsite_enabled(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::always()
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        self.passes(event)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::TRACE)
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::clock::ManualClock;
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::{Layer as _, fmt};

    use super::super::captured::Lines;
    use super::*;

    /// Runs a test under a subscriber with the limit.
    fn with_rate_limit(test: impl FnOnce(&RateLimit, &ManualClock, &Lines)) {
        let clock = Arc::new(ManualClock::at(jiff::Timestamp::UNIX_EPOCH));
        let limit = RateLimit::new(clock.clone());
        let lines = Lines::default();
        let layer = fmt::layer().with_writer(lines.clone()).with_filter(limit.clone());
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, || test(&limit, &clock, &lines));
    }

    fn log_failure(request: usize, check: &str) {
        tracing::info!(request, check, "login failed");
    }

    #[test]
    fn log_flood_of_one_cause_is_limited_and_counted() {
        with_rate_limit(|limit, clock, lines| {
            (0..100_000).for_each(|request| log_failure(request, "no such token"));
            assert_eq!(lines.take_count("login failed"), 100);
            assert_eq!(limit.take_suppressed(), [], "the period has not ended");
            clock.advance(Duration::from_secs(5));
            (0..1_000).for_each(|request| log_failure(request, "no such token"));
            assert_eq!(lines.take_count("login failed"), 5, "one in each second");
            clock.advance(Duration::from_secs(5));
            let suppressed = SuppressedLines {
                message: "login failed".to_owned(),
                cause: "no such token".to_owned(),
                lines: 99_900 + 995,
            };
            assert_eq!(limit.take_suppressed(), [suppressed]);
            clock.advance(Duration::from_secs(10));
            assert_eq!(limit.take_suppressed(), [], "reported once");
        });
    }

    #[test]
    fn first_log_lines_of_another_cause_pass_during_flood() {
        with_rate_limit(|limit, clock, lines| {
            (0..10_000).for_each(|request| log_failure(request, "no issuer `a`"));
            lines.take_count("");
            (0..10).for_each(|request| log_failure(request, "it has expired 12 s ago"));
            assert_eq!(lines.take_count("expired"), 3);
            // Values with other digits or quoted parts have the same cause.
            (0..10).for_each(|request| log_failure(request, &format!("it has expired {request} s ago")));
            (0..10).for_each(|request| log_failure(request, &format!("no issuer `{request}`")));
            assert_eq!(lines.take_count(""), 0);
            clock.advance(PERIOD);
            let mut suppressed = limit.take_suppressed();
            suppressed.sort_by_key(|suppressed| suppressed.lines);
            let reported: Vec<(&str, u64)> = suppressed.iter().map(|l| (l.cause.as_str(), l.lines)).collect();
            assert_eq!(reported, [("it has expired  s ago", 17), ("no issuer ", 9_910)]);
        });
    }

    #[test]
    fn log_flood_of_many_causes_is_limited() {
        with_rate_limit(|limit, clock, lines| {
            let letters = |at: usize| "x".repeat(at % 150);
            (0..10_000).for_each(|request| log_failure(request, &letters(request)));
            let passed = lines.take_count("login failed");
            assert!(passed <= 100 + 33 * 3, "{passed}");
            clock.advance(PERIOD);
            let suppressed = limit.take_suppressed();
            assert!(suppressed.len() <= 33, "{}", suppressed.len());
            let lines: u64 = suppressed.iter().map(|suppressed| suppressed.lines).sum();
            assert_eq!(lines, 10_000 - passed as u64);
        });
    }

    #[test]
    fn log_call_sites_are_limited_separately_and_debug_lines_are_not() {
        with_rate_limit(|_, _, lines| {
            for request in 0..1_000 {
                log_failure(request, "no such token");
                tracing::warn!(request, "cannot accept connections");
                tracing::debug!(request, "debugging");
            }
            tracing::error!("a rare error");
            let text = lines.take_text();
            let count = |text_part: &str| text.lines().filter(|line| line.contains(text_part)).count();
            let counts = ["login failed", "cannot accept", "debugging", "a rare error"].map(count);
            assert_eq!(counts, [100, 100, 1_000, 1]);
        });
    }

    #[test]
    fn suppressed_log_line_reports_are_not_limited() {
        with_rate_limit(|_, _, lines| {
            for line in 0..1_000 {
                tracing::warn!(target: REPORT_TARGET, line, "similar log lines suppressed");
            }
            assert_eq!(lines.take_count("suppressed"), 1_000);
        });
    }
}

//! Logs: one line per event on standard error, as text or JSON. In the journal of systemd each line has its priority.
//!
//! Messages are static and lower case; values are fields. A field has the same JSON type in every line.
//!
//! # Contract
//!
//! The flag `-v N` selects the levels. Below 4: INFO, WARN and ERROR. 4 and 5: also DEBUG (rejections with
//! their reasons). From 6 on: also TRACE. Up to `-v 7` libraries log only WARN and ERROR, so other lines come
//! from this code base. Lines at INFO, WARN and ERROR are rate-limited by call site and cause (see
//! [`rate_limit`]); DEBUG and TRACE are not.

mod arrays;
#[cfg(test)]
pub(crate) mod captured;
mod lines;
mod rate_limit;

use std::io::{IsTerminal, Write};
use std::sync::Arc;

use apimachinery::clock::Clock;
use arrays::line_with_arrays;
use lines::{Lines, single_line};
use rate_limit::{RateLimit, spawn_reports};

use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{FilterExt, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

/// Libraries that log only WARN and ERROR up to `-v 7`.
const LIBRARIES: [&str; 11] = [
    "fjall",
    "h2",
    "hyper",
    "hyper_util",
    "lsm_tree",
    "moka",
    "notify",
    "rustls",
    "tokio_util",
    "tonic",
    "tower",
];

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Text for people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// The error of an unknown log format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown log format `{0}`: `text` or `json`")]
pub struct UnknownFormat(String);

impl std::str::FromStr for Format {
    type Err = UnknownFormat;

    /// Parses `text` or `json`, the values of `--logging-format`.
    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        match text {
            "text" => Ok(Format::Text),
            "json" => Ok(Format::Json),
            other => Err(UnknownFormat(other.to_owned())),
        }
    }
}

/// Error of a second set-up in one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("logging is set up already")]
pub struct AlreadySetUp;

/// Sets up logging for the process. The rate limit of lines uses the clock.
///
/// # Errors
///
/// Logging is set up already.
pub fn init(verbosity: u8, format: Format, clock: Arc<dyn Clock>) -> Result<(), AlreadySetUp> {
    let limit = RateLimit::new(clock);
    let filter = |verbosity| filter(verbosity).and(limit.clone());
    let layer = match format {
        Format::Text => fmt::layer()
            .with_writer(Lines::new(single_line))
            .with_ansi(std::io::stderr().is_terminal())
            .with_filter(filter(verbosity))
            .boxed(),
        Format::Json => fmt::layer()
            .with_writer(Lines::new(line_with_arrays))
            .json()
            .flatten_event(true)
            .with_current_span(true)
            .with_span_list(false)
            .with_filter(filter(verbosity))
            .boxed(),
    };
    tracing_subscriber::registry().with(layer).try_init().map_err(|_| AlreadySetUp)?;
    spawn_reports(limit);
    Ok(())
}

/// Returns the filter for `-v N`.
fn filter(verbosity: u8) -> Targets {
    let level = match verbosity {
        0..=3 => Level::INFO,
        4..=5 => Level::DEBUG,
        _ => Level::TRACE,
    };
    let libraries = if verbosity < 8 { LevelFilter::WARN } else { LevelFilter::from_level(level) };
    Targets::new().with_default(level).with_targets(LIBRARIES.map(|name| (name, libraries)))
}

/// Health check `log`: flushes standard error.
///
/// # Errors
///
/// The system error. Standard error has no buffer, so a flush rarely fails.
pub fn check() -> std::io::Result<()> {
    std::io::stderr().flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbosity_enables_own_log_lines_before_library_lines() {
        for (verbosity, target, level, expected) in [
            (0, "apid", Level::INFO, true),
            (3, "apid", Level::DEBUG, false),
            (4, "httpapi", Level::DEBUG, true),
            (5, "apid", Level::TRACE, false),
            (6, "apid", Level::TRACE, true),
            (6, "h2::codec", Level::DEBUG, false),
            (6, "h2", Level::WARN, true),
            (8, "h2", Level::TRACE, true),
        ] {
            assert_eq!(
                filter(verbosity).would_enable(target, &level),
                expected,
                "-v {verbosity} {target} {level}"
            );
        }
    }

    #[test]
    fn log_format_names_are_parsed() {
        assert_eq!("json".parse(), Ok(Format::Json));
        assert!("xml".parse::<Format>().is_err());
    }
}

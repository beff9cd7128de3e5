//! Metrics of the process: `process_*`, as the client libraries of Prometheus define them.
//!
//! # Contract
//!
//! The caller calls [`ProcessMetrics::update`] before each scrape; it reads `/proc`. A value that the system
//! does not report keeps its last value, 0 at first.

use std::sync::atomic::AtomicU64;

use super::{Counter, Definition, Gauge, Metrics, Stability};

const fn alpha(name: &'static str, help: &'static str) -> Definition {
    Definition::new(name, Stability::Alpha, help)
}

const CPU: Definition =
    alpha("process_cpu_seconds_total", "User and system processor time of the process in seconds");
const MAX_FDS: Definition = alpha("process_max_fds", "Maximum number of open file descriptors");
const OPEN_FDS: Definition = alpha("process_open_fds", "Number of open file descriptors");
const RESIDENT: Definition = alpha("process_resident_memory_bytes", "Resident memory in bytes");
const VIRTUAL: Definition = alpha("process_virtual_memory_bytes", "Virtual memory in bytes");
const VIRTUAL_MAX: Definition = alpha(
    "process_virtual_memory_max_bytes",
    "Maximum virtual memory in bytes; 1.8446744073709552e+19 without a limit",
);
const START: Definition =
    alpha("process_start_time_seconds", "Start time of the process in seconds since 1970");
const RECEIVED: Definition = alpha(
    "process_network_receive_bytes_total",
    "Bytes that all network interfaces of the process have received",
);
const SENT: Definition = alpha(
    "process_network_transmit_bytes_total",
    "Bytes that all network interfaces of the process have sent",
);

/// Clock ticks per second in `/proc`: constant on Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// The metrics of the process.
#[derive(Debug)]
pub struct ProcessMetrics {
    cpu: Counter<f64, AtomicU64>,
    max_fds: Gauge,
    open_fds: Gauge,
    resident: Gauge,
    virtual_memory: Gauge,
    virtual_max: Gauge<f64, AtomicU64>,
    start: Gauge<f64, AtomicU64>,
    received: Counter,
    sent: Counter,
}

impl ProcessMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> Self {
        ProcessMetrics {
            cpu: metrics.single_float_counter(&CPU),
            max_fds: metrics.single_gauge(&MAX_FDS),
            open_fds: metrics.single_gauge(&OPEN_FDS),
            resident: metrics.single_gauge(&RESIDENT),
            virtual_memory: metrics.single_gauge(&VIRTUAL),
            virtual_max: metrics.single_float_gauge(&VIRTUAL_MAX),
            start: metrics.single_float_gauge(&START),
            received: metrics.single_counter(&RECEIVED),
            sent: metrics.single_counter(&SENT),
        }
    }

    /// Reads the current values.
    pub fn update(&self) {
        self.update_from_stat();
        if let Ok(limits) = std::fs::read_to_string("/proc/self/limits") {
            self.max_fds.set(to_gauge(limit(&limits, "Max open files").unwrap_or_default()));
            // As in the Go client library: an unlimited address space is the largest 64-bit number.
            let unlimited = u64::MAX as f64;
            self.virtual_max.set(limit(&limits, "Max address space").map_or(unlimited, |bytes| bytes as f64));
        }
        if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
            self.open_fds.set(i64::try_from(open.count()).unwrap_or(i64::MAX));
        }
        if let Some((received, sent)) = network_bytes() {
            raise(&self.received, received);
            raise(&self.sent, sent);
        }
    }

    fn update_from_stat(&self) {
        let Ok(stat) = std::fs::read_to_string("/proc/self/stat") else { return };
        // The name of the program may contain spaces and ends at the last parenthesis.
        let Some((_, fields)) = stat.rsplit_once(") ") else { return };
        let fields: Vec<u64> =
            fields.split(' ').map(|field| field.trim().parse().unwrap_or_default()).collect();
        let field = |number: usize| fields.get(number - FIRST_FIELD).copied().unwrap_or_default();
        let seconds = (field(14) + field(15)) as f64 / TICKS_PER_SECOND;
        self.cpu.inc_by((seconds - self.cpu.get()).max(0.0));
        self.virtual_memory.set(to_gauge(field(23)));
        if let Some(resident) = super::resident_bytes() {
            self.resident.set(to_gauge(resident));
        }
        if let Some(boot) = boot_time() {
            self.start.set(boot as f64 + field(22) as f64 / TICKS_PER_SECOND);
        }
    }
}

/// Number of the first field after the name of the program in `/proc/self/stat`.
const FIRST_FIELD: usize = 3;

/// Raises a counter to `value`, a count that the system reports. A smaller value does not change the counter.
pub fn raise(counter: &Counter, value: u64) {
    counter.inc_by(value.saturating_sub(counter.get()));
}

fn to_gauge(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Returns the soft limit with this name in `/proc/self/limits`; None if it is unlimited or not reported.
fn limit(limits: &str, name: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Start time of the system, in seconds since 1970.
fn boot_time() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// Bytes that all interfaces of the network namespace have received, and bytes that they have sent.
fn network_bytes() -> Option<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/self/net/dev").ok()?;
    let mut sum = (0, 0);
    for (_, counts) in text.lines().filter_map(|line| line.split_once(':')) {
        let counts: Vec<u64> =
            counts.split_whitespace().map(|count| count.parse().unwrap_or_default()).collect();
        sum.0 += counts.first().copied().unwrap_or_default();
        sum.1 += counts.get(8).copied().unwrap_or_default();
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn process_metrics_have_values_of_this_process() {
        let metrics = Metrics::new();
        let process = ProcessMetrics::new(&metrics);
        process.update();
        process.update();
        assert!(process.open_fds.get() > 2);
        assert!(process.max_fds.get() >= process.open_fds.get());
        assert!(process.virtual_memory.get() > process.resident.get());
        assert!(process.resident.get() > 100_000);
        assert!(process.start.get() > 1.6e9, "{}", process.start.get());
        assert!(process.cpu.get() < 3600.0, "a second update does not count again");
        assert!(metrics.text().contains("\n# TYPE process_cpu_seconds_total counter\n"));
    }
}

//! One row of the table: the attack, the measurements of the reference client, and the exceeded limits.

use std::fmt::Write as _;
use std::time::Duration;

use crate::attack::AttackUser;
use crate::limits::Limits;
use crate::process::Peaks;
use crate::reference_client::Samples;
use crate::tally::Counts;

/// Head of the table, in Markdown.
pub const HEAD: &str = "\
| attack | caller | requests | responses | GET p50 / p99 / max ms | create p50 / p99 / max ms | connect max ms | reference client errors | apid MiB | authd MiB | both, data set MiB | CPU s / request | log kB | recovery s | missed |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|";

/// Measurements of one attack.
#[derive(Clone, Debug)]
pub struct Row {
    /// Name of the attack.
    pub name: String,
    /// Caller of the attack; None without an attacker.
    pub caller: Option<AttackUser>,
    /// Requests of the attacker and their responses.
    pub counts: Counts,
    /// Latencies of the reference client.
    pub samples: Samples,
    /// Peaks of resident memory.
    pub peaks: Peaks,
    /// Resident memory of both processes with the data set, in MiB.
    pub base_mib: f64,
    /// CPU time of one request: the maximum of the probes and of the mean during the attack.
    pub cpu: Duration,
    /// Number of bytes that both processes logged.
    pub log: u64,
    /// Time from the end of the attack until the processes were idle and authd responded; None means no recovery.
    pub recovery: Option<Duration>,
    /// Whether apid and authd have run through the whole attack without a restart.
    pub survived: bool,
}

/// Percentiles of latencies in ms; infinite without samples.
#[derive(Clone, Copy, Debug)]
struct Latency {
    p50: f64,
    p99: f64,
    max: f64,
}

impl Latency {
    fn from_samples(samples: &[Duration]) -> Latency {
        let mut ms: Vec<f64> = samples.iter().map(|sample| sample.as_secs_f64() * 1e3).collect();
        ms.sort_unstable_by(f64::total_cmp);
        let sample = |percent: usize| ms.get((ms.len() * percent / 100).min(ms.len().saturating_sub(1)));
        let percentile = |percent| sample(percent).copied().unwrap_or(f64::INFINITY);
        Latency { p50: percentile(50), p99: percentile(99), max: percentile(100) }
    }

    fn text(self) -> String {
        format!("{:.1} / {:.1} / {:.0}", self.p50, self.p99, self.max)
    }
}

impl Row {
    /// Returns a text for each exceeded limit. Errors of the reference client and ended processes also count.
    pub fn exceeded_limits(&self, limits: &Limits) -> Vec<String> {
        let mut missed = Vec::new();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let get = Latency::from_samples(&self.samples.gets);
        if get.p99 > ms(limits.get_p99) {
            missed.push(format!("GET p99 {:.0} ms > {:.0}", get.p99, ms(limits.get_p99)));
        }
        let create = Latency::from_samples(&self.samples.creates);
        if create.p99 > ms(limits.create_p99) {
            missed.push(format!("create p99 {:.0} ms > {:.0}", create.p99, ms(limits.create_p99)));
        }
        if !self.samples.errors.is_empty() {
            missed.push("reference client errors".to_owned());
        }
        if self.cpu > limits.cpu {
            missed.push(format!("CPU {:.1} s > {:.0}", self.cpu.as_secs_f64(), limits.cpu.as_secs_f64()));
        }
        let more = self.peaks.both - self.base_mib;
        if more > limits.memory_mib {
            missed.push(format!("memory +{more:.0} MiB > {:.0}", limits.memory_mib));
        }
        if self.counts.rejection_bytes > limits.rejection_bytes {
            missed.push(format!(
                "rejection of {} kB > {}",
                self.counts.rejection_bytes / 1024,
                limits.rejection_bytes / 1024
            ));
        }
        if self.counts.header_lines > limits.header_lines {
            missed.push(format!("{} header lines > {}", self.counts.header_lines, limits.header_lines));
        }
        if self.log > limits.log {
            missed.push(format!("log {} kB > {}", self.log / 1024, limits.log / 1024));
        }
        if self.peaks.killed {
            missed.push("killed at the memory cap".to_owned());
        } else if !self.survived {
            missed.push("a process ended".to_owned());
        }
        if self.recovery.is_none() {
            missed.push("no recovery after the attack".to_owned());
        }
        missed
    }

    /// Formats the row in Markdown.
    pub fn text(&self, limits: &Limits) -> String {
        let mut answers = String::new();
        for (code, count) in &self.counts.codes {
            let _ = write!(answers, "{count}×{code} ");
        }
        for (cause, count) in &self.counts.failures {
            let _ = write!(answers, "{count} {cause} ");
        }
        let errors: Vec<String> =
            self.samples.errors.iter().map(|(cause, count)| format!("{count} {cause}")).collect();
        let missed = self.exceeded_limits(limits);
        format!(
            "| {} | {} | {} | {} | {} | {} | {:.0} | {} | {:.0} | {:.0} | {:.0}, {:.0} | {:.3} | {} | {} | {} |",
            self.name,
            self.caller.map_or("none", AttackUser::name),
            self.counts.sent,
            answers.trim_end(),
            Latency::from_samples(&self.samples.gets).text(),
            Latency::from_samples(&self.samples.creates).text(),
            Latency::from_samples(&self.samples.connects).max,
            errors.join(", "),
            self.peaks.apid,
            self.peaks.authd,
            self.peaks.both,
            self.base_mib,
            self.cpu.as_secs_f64(),
            self.log / 1024,
            self.recovery.map_or("-".to_owned(), |time| format!("{:.1}", time.as_secs_f64())),
            if missed.is_empty() { "holds".to_owned() } else { format!("**{}**", missed.join("; ")) },
        )
    }
}

#[test]
fn row_above_each_limit_names_it() {
    let ms = Duration::from_millis;
    let polite = Samples {
        gets: vec![ms(1); 100],
        creates: vec![ms(2); 100],
        connects: vec![ms(3)],
        ..Samples::default()
    };
    let good = Row {
        name: "none".to_owned(),
        caller: None,
        counts: Counts::default(),
        samples: polite,
        peaks: Peaks { apid: 100.0, authd: 20.0, both: 120.0, killed: false },
        base_mib: 110.0,
        cpu: ms(10),
        log: 0,
        recovery: Some(ms(100)),
        survived: true,
    };
    let limits = Limits::RELEASE;
    assert_eq!(good.exceeded_limits(&limits), [""; 0]);
    assert!(good.text(&limits).ends_with("| holds |"), "{}", good.text(&limits));
    let exceeded_after = |change: &dyn Fn(&mut Row)| {
        let mut row = good.clone();
        change(&mut row);
        row.exceeded_limits(&limits).join("; ")
    };
    for (expected, missed) in [
        ("GET p99", exceeded_after(&|row| row.samples.gets.splice(..2, [ms(51); 2]).for_each(drop))),
        ("create p99", exceeded_after(&|row| row.samples.creates.splice(..2, [ms(101); 2]).for_each(drop))),
        ("create p99", exceeded_after(&|row| row.samples.creates.clear())),
        (
            "reference client errors",
            exceeded_after(&|row| row.samples.errors.extend([("get 503".to_owned(), 1)])),
        ),
        ("CPU", exceeded_after(&|row| row.cpu = ms(1001))),
        ("memory", exceeded_after(&|row| row.peaks.both = 367.0)),
        ("rejection", exceeded_after(&|row| row.counts.rejection_bytes = 300_000)),
        ("128 header lines", exceeded_after(&|row| row.counts.header_lines = 128)),
        ("log", exceeded_after(&|row| row.log = 1_000_000)),
        ("killed", exceeded_after(&|row| row.peaks.killed = true)),
        ("a process ended", exceeded_after(&|row| row.survived = false)),
        ("no recovery", exceeded_after(&|row| row.recovery = None)),
    ] {
        assert!(missed.starts_with(expected) && !missed.contains(';'), "{expected}: {missed}");
    }
}

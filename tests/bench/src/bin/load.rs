//! Load test of the control plane, compared with the baseline server that sends the same bytes.
//!
//! The test measures throughput per second and per CPU-second, and checks the limits.
//!
//! ```text
//! load [--only NAME] [--rounds 5] [--round-millis 1000]
//! load --server https://127.0.0.1:6443 --token TOKEN --pid APID --pid AUTHD
//! ```
//!
//! Without `--server` the program starts apid and authd from its own directory, on an empty store. Otherwise
//! it creates the namespace `bench-load` and removes it at the end.

#![allow(clippy::disallowed_methods, reason = "a bench measures the machine's time")]

use std::sync::Arc;
use std::time::Duration;

use bench::client::{Error, Target};
use bench::control_plane::ControlPlane;
use bench::delivery::{self, EventSource};
use bench::figure::{self, Limits};
use bench::objects::{self, collection, config_map};
use bench::throughput::{Figure, Load, MeasuredServer, Rounds, measure_closed_loop};
use bytes::Bytes;
use clap::Parser;
use http::{Method, StatusCode};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    limits: Limits,
    /// URL of the server, for example https://127.0.0.1:6443; without it a server is started
    #[arg(long)]
    server: Option<String>,
    /// Bearer token of a user with all permissions
    #[arg(long, default_value = "")]
    token: String,
    /// Process whose CPU time counts (repeatable)
    #[arg(long)]
    pid: Vec<u32>,
    /// Rounds of each measurement, alternating between both servers
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Milliseconds of a round
    #[arg(long, default_value_t = 1000)]
    round_millis: u64,
    /// Concurrent readers, one connection each
    #[arg(long, default_value_t = 16)]
    clients: usize,
    /// Concurrent writers, one connection each
    #[arg(long, default_value_t = 32)]
    writers: usize,
    /// Watches of the fan-out measurement
    #[arg(long, default_value_t = 200)]
    watchers: usize,
    /// Watches of the delivery latency measurement
    #[arg(long, default_value_t = 1000)]
    receivers: usize,
    /// Seconds of the delivery latency measurement
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Run only the measurements whose name contains this
    #[arg(long, default_value = "")]
    only: String,
}

/// Number of objects in the namespace.
const OBJECTS: u64 = 5000;

/// Minimum throughput per CPU-second, relative to the baseline server.
const MIN_RATIO: f64 = 0.6;

/// Minimum creates per second and per CPU-second.
const MIN_CREATES_PER_SECOND: f64 = 10_000.0;

/// Events per second of the measurement of delivery latency, and the maximum p99 latency.
const DELIVERY: (u64, Duration) = (50, Duration::from_millis(20));

/// A higher number of events per second, reported in addition to that of [`DELIVERY`].
const FAST_RATE: u64 = 200;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let args = Args::parse();
    let plane = match &args.server {
        Some(server) => ControlPlane::attach(Target::new(server, &args.token)?, args.pid.clone()),
        None => ControlPlane::start(&[]).await?,
    };
    objects::fill(&plane.target, OBJECTS).await?;
    let bench = Bench { rounds: rounds(&args), args, plane };
    bench.run().await?;
    if !bench.plane.is_started_by_benchmark() {
        objects::remove(&bench.plane.target).await?;
    }
    let limits = bench.args.limits;
    bench.plane.stop().await?;
    limits.finish()
}

fn rounds(args: &Args) -> Rounds {
    Rounds { count: args.rounds, length: Duration::from_millis(args.round_millis) }
}

struct Bench {
    args: Args,
    plane: ControlPlane,
    rounds: Rounds,
}

impl Bench {
    async fn run(&self) -> Result<(), Error> {
        println!(
            "{:<22} {:>10} {:>12} {:>8} {:>8} {:>10} {:>12} {:>8} {:>6}  bound",
            "measure", "per s", "per CPU-s", "p50 ms", "p99 ms", "bare: s", "CPU-s", "p99 ms", "ratio"
        );
        let list = collection();
        for (name, path) in [
            ("get", format!("{list}/item-0")),
            ("list 500 x 1 kB", format!("{list}?limit=500")),
            ("list 5000 x 1 kB", format!("{list}?limit=5000")),
        ] {
            if self.is_selected(name) {
                self.measure_reads(name, path).await?;
            }
        }
        if self.is_selected("create 1 kB") {
            self.measure_creates().await?;
        }
        if self.is_selected("update 1 kB") {
            self.measure_updates().await?;
        }
        let (fan_out, delivery_name) = ("fan-out", "delivery");
        if self.is_selected(fan_out) || self.is_selected(delivery_name) {
            let ours = EventSource::for_objects(self.our_server());
            let bare = EventSource::for_lines(&ours.sample(0).await?).await?;
            if self.is_selected(fan_out) {
                self.measure_fan_out(&ours, &bare).await?;
                // At full speed, the slower server sends more events in one batch, which saves CPU time. So
                // the test also measures at a fixed rate.
                let name = format!("{fan_out} at {FAST_RATE}/s");
                let figures = self.measure_deliveries(&ours, &bare, self.args.watchers, FAST_RATE, 1).await?;
                report(&name, figures, |ours, bare| {
                    check_ratio(ours.per_cpu_second() / bare.per_cpu_second())
                });
            }
            for rate in [DELIVERY.0, FAST_RATE].into_iter().filter(|_| self.is_selected(delivery_name)) {
                let receivers = self.args.receivers;
                let figures = self.measure_deliveries(&ours, &bare, receivers, rate, 2).await?;
                report(&format!("{delivery_name} {receivers} at {rate}/s"), figures, |ours, _| {
                    if rate == DELIVERY.0 {
                        let holds = ours.percentile(0.99) <= DELIVERY.1;
                        (format!("p99 at most {} ms", DELIVERY.1.as_millis()), holds)
                    } else {
                        ("none".to_owned(), true)
                    }
                });
            }
        }
        Ok(())
    }

    fn is_selected(&self, name: &str) -> bool {
        name.contains(&self.args.only)
    }

    fn our_server(&self) -> MeasuredServer {
        MeasuredServer::new(&self.plane.target, &self.plane.pids)
    }

    /// Measures reads of one path on both servers.
    async fn measure_reads(&self, name: &str, path: String) -> Result<(), Error> {
        let ours = self.our_server();
        let (status, body) = ours.target.connect().await?.call(Method::GET, &path, Bytes::new()).await?;
        if status != StatusCode::OK {
            return Err(format!("{name}: {status}").into());
        }
        let bare = MeasuredServer::start_baseline(&body).await?;
        let load = |path: String| Load {
            method: Method::GET,
            expected_status: StatusCode::OK,
            build_request: Arc::new(move |_| (path.clone(), Bytes::new())),
        };
        let servers = [(&ours, load(path)), (&bare, load("/".to_owned()))];
        let figures = measure_closed_loop(servers, self.args.clients, self.rounds).await?;
        report(name, figures, |ours, bare| check_ratio(ours.per_cpu_second() / bare.per_cpu_second()));
        Ok(())
    }

    async fn measure_creates(&self) -> Result<(), Error> {
        let ours = self.our_server();
        let bare = MeasuredServer::start_baseline(&config_map("as-large-as-an-answer-to-a-create")).await?;
        let load = |path: String| Load {
            method: Method::POST,
            expected_status: StatusCode::CREATED,
            build_request: Arc::new(move |number| (path.clone(), config_map(&format!("new-{number}")))),
        };
        let servers = [(&ours, load(collection())), (&bare, load("/".to_owned()))];
        let figures = measure_closed_loop(servers, self.args.writers, self.rounds).await?;
        report("create 1 kB", figures, |ours, _| {
            let holds = ours.per_second() >= MIN_CREATES_PER_SECOND
                && ours.per_cpu_second() >= MIN_CREATES_PER_SECOND;
            (format!("{MIN_CREATES_PER_SECOND} a second and a CPU-second"), holds)
        });
        Ok(())
    }

    /// Measures updates without a precondition. Concurrent writers update different objects.
    async fn measure_updates(&self) -> Result<(), Error> {
        let ours = self.our_server();
        let bare = MeasuredServer::start_baseline(&config_map("as-large-as-an-answer-to-an-update")).await?;
        let load = |path: Option<String>| Load {
            method: Method::PUT,
            expected_status: StatusCode::OK,
            build_request: Arc::new(move |number| {
                let name = format!("item-{}", number % OBJECTS);
                let body = objects::config_map_with(&name, &number.to_string());
                (path.as_ref().map_or("/".to_owned(), |path| format!("{path}/{name}")), body)
            }),
        };
        let servers = [(&ours, load(Some(collection()))), (&bare, load(None))];
        let figures = measure_closed_loop(servers, self.args.writers, self.rounds).await?;
        report("update 1 kB", figures, |_, _| ("none".to_owned(), true));
        Ok(())
    }

    async fn measure_fan_out(&self, ours: &EventSource, bare: &EventSource) -> Result<(), Error> {
        let figures =
            delivery::measure_at_full_speed([ours, bare], self.args.watchers, self.rounds, 1).await?;
        report(&format!("fan-out to {}", self.args.watchers), figures, |ours, bare| {
            check_ratio(ours.per_cpu_second() / bare.per_cpu_second())
        });
        Ok(())
    }

    /// Measures event delivery at a rate. `series` distinguishes the event names of measurements.
    async fn measure_deliveries(
        &self,
        ours: &EventSource,
        bare: &EventSource,
        receivers: usize,
        rate: u64,
        series: u64,
    ) -> Result<[Figure; 2], Error> {
        let length = Duration::from_secs(self.args.seconds);
        // The numbers of these events are above all those of the full-speed measurement.
        let first = series * 100_000_000 + 1_000_000 * rate;
        let ours = delivery::measure_at_rate(ours, receivers, rate, length, first).await?;
        let bare = delivery::measure_at_rate(bare, receivers, rate, length, first).await?;
        Ok([ours, bare])
    }
}

/// Formats the bound of the ratio to the baseline server, and returns whether the ratio meets it.
fn check_ratio(ratio: f64) -> (String, bool) {
    (format!("at least {:.0}%", MIN_RATIO * 100.0), ratio >= MIN_RATIO)
}

fn report(
    name: &str,
    [mut ours, mut bare]: [Figure; 2],
    bound: impl FnOnce(&mut Figure, &Figure) -> (String, bool),
) {
    let (text, holds) = bound(&mut ours, &bare);
    let millis = |figure: &mut Figure, part| figure.percentile(part).as_secs_f64() * 1e3;
    println!(
        "{name:<22} {:>10.0} {:>12.0} {:>8.2} {:>8.2} {:>10.0} {:>12.0} {:>8.2} {:>5.0}%  {text}: {}",
        ours.per_second(),
        ours.per_cpu_second(),
        millis(&mut ours, 0.5),
        millis(&mut ours, 0.99),
        bare.per_second(),
        bare.per_cpu_second(),
        millis(&mut bare, 0.99),
        100.0 * ours.per_cpu_second() / bare.per_cpu_second(),
        figure::verdict(holds),
    );
}

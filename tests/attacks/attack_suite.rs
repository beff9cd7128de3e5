//! Runs attacks one after the other, each beside the reference client, and evaluates the rows.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use crate::attack::{self, AttackMethod, AttackUser};
use crate::catalog;
use crate::client::Prepared;
use crate::dataset;
use crate::generator::{self, Site, Variant};
use crate::plan::Plan;
use crate::process::Sampler;
use crate::reference_client::{ReferenceClient, Samples};
use crate::row::{self, Row};
use crate::server::{Server, ServerHome};
use crate::tally::Tally;

/// Nice value of the attacker threads: the server and the reference client have priority.
const NICE: i32 = 10;
/// Time limit of a probe: one request whose CPU time is measured alone.
const PROBE_TIME_LIMIT: Duration = Duration::from_secs(10);
/// Time after which a short run sends no further probe of the same attack.
const ALL_PROBES_TIME_LIMIT: Duration = Duration::from_secs(8);
/// Time limit for the processes to become idle after an attack.
const RECOVERY_TIME_LIMIT: Duration = Duration::from_secs(10);
/// Idle time before the memory of the data set is measured.
const IDLE_BEFORE_MEASUREMENT: Duration = Duration::from_millis(500);
/// Interval of CPU measurements while the suite waits for idle processes.
const CPU_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum CPU time of idle processes in each [`CPU_INTERVAL`].
const IDLE_CPU_MAX: Duration = Duration::from_millis(20);
/// MiB that may remain after an attack, beyond the data set; with more, a short run restarts the server.
const RESIDUE_MIB: f64 = 64.0;
/// Maximum number of requests of a generated attack. The attack has half as many bodies, because at most two
/// methods (POST and PATCH) send each body.
const BATCH: usize = 48;

#[test]
fn limits_hold_during_every_attack() {
    let plan = Plan::from_environment();
    println!("ATTACKS_SEED={} {plan:?}", plan.seed);
    let mut attack_suite = AttackSuite::start(plan);
    attack_suite.run();
    attack_suite.assert_limits();
}

/// One attack by one user.
struct AttackRun {
    name: String,
    caller: AttackUser,
    method: AttackMethod,
    /// Builds the requests, which are sent in turn.
    requests: Box<dyn Fn() -> Vec<Prepared>>,
    /// Whether the CPU time of each request is measured alone, and not only that of the first.
    probes_all: bool,
    /// Field path of the attacked list or map in each request; empty for an attack of the catalog.
    paths: Vec<String>,
}

/// Run of all attacks: the server, the runtime of the attackers and the rows of the table.
struct AttackSuite {
    plan: Plan,
    runtime: Runtime,
    home: ServerHome,
    server: Option<Server>,
    /// Resident memory of both processes with the data set, in MiB.
    base_mib: f64,
    /// Highest resident memory of authd with the data set, over all restarts, in MiB.
    authd_mib: f64,
    runs: u64,
    rows: Vec<Row>,
    /// Rows of first runs that missed a limit and were repeated.
    repeated: Vec<String>,
    begun: Instant,
}

impl AttackSuite {
    /// Starts a server and writes the data set.
    fn start(plan: Plan) -> AttackSuite {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .on_thread_start(|| {
                // Without the permission to change the nice value, attackers have the priority of the server.
                let _ = rustix::process::nice(NICE);
            })
            .build()
            .expect("a runtime");
        let home = ServerHome::new(&plan.programs);
        let mut attack_suite = AttackSuite {
            plan,
            runtime,
            home,
            server: None,
            base_mib: 0.0,
            authd_mib: 0.0,
            runs: 0,
            rows: Vec::new(),
            repeated: Vec::new(),
            begun: Instant::now(),
        };
        let server = attack_suite.home.start();
        attack_suite.runtime.block_on(async {
            dataset::wait_ready(server.port).await;
            dataset::fill(server.port, attack_suite.plan.objects).await;
        });
        attack_suite.server = Some(server);
        attack_suite.print_and_save(&format!(
            "{} objects, {:?} an attack, limits {:?}\n\n{}",
            attack_suite.plan.objects,
            attack_suite.plan.duration,
            attack_suite.plan.limits,
            row::HEAD
        ));
        attack_suite
    }

    fn run(&mut self) {
        self.restart();
        self.attack(None);
        if self.plan.budget.is_some() {
            // A short run does not check the limits of the row without an attacker.
            self.rows.clear();
        }
        for attack_run in self.planned_attack_runs() {
            let is_late = self.plan.budget.is_some_and(|budget| self.begun.elapsed() > budget);
            if is_late {
                println!("skipped, time limit reached: {}", attack_run.name);
            } else {
                self.attack(Some(&attack_run));
                self.repeat_when_slow(&attack_run);
            }
        }
    }

    /// Repeats an attack of a short run once if it exceeded a limit. The new row replaces the first one, which
    /// counts as repeated.
    ///
    /// Other load of the machine can delay the few requests of a short run.
    fn repeat_when_slow(&mut self, attack_run: &AttackRun) {
        let missed = self.rows.last().is_some_and(|row| !row.exceeded_limits(&self.plan.limits).is_empty());
        if self.plan.budget.is_some() && missed {
            self.attack(Some(attack_run));
            let last = self.rows.len() - 1;
            let first = self.rows.remove(last - 1);
            self.repeated.push(first.text(&self.plan.limits));
        }
    }

    /// Returns the attacks of the plan, in order.
    fn planned_attack_runs(&mut self) -> Vec<AttackRun> {
        let mut attack_runs = Vec::new();
        for attack in catalog::all() {
            let callers: Vec<AttackUser> = if self.plan.is_long {
                self.plan.callers.clone()
            } else {
                attack
                    .short_run_caller
                    .into_iter()
                    .chain((!self.plan.only.is_empty()).then_some(AttackUser::Privileged))
                    .take(1)
                    .collect()
            };
            let requests: std::rc::Rc<dyn Fn() -> Vec<Prepared>> = attack.requests.into();
            for caller in callers {
                let requests = std::rc::Rc::clone(&requests);
                attack_runs.push(AttackRun {
                    name: attack.name.to_owned(),
                    caller,
                    method: attack.method,
                    requests: Box::new(move || requests()),
                    probes_all: false,
                    paths: Vec::new(),
                });
            }
        }
        let mut random = StdRng::seed_from_u64(self.plan.seed);
        let mut generated = self.generate_attack_runs(&mut random);
        if !self.plan.is_long {
            attack_runs.shuffle(&mut random);
            // The generated attacks come first, so that the time limit skips attacks of the catalog.
            generated.append(&mut attack_runs);
            attack_runs = std::mem::take(&mut generated);
        }
        attack_runs.append(&mut generated);
        attack_runs.retain(|attack_run| attack_run.name.contains(&self.plan.only));
        attack_runs
    }

    /// Builds attacks from the OpenAPI schemas of the server: for all lists and maps, or for a random sample.
    fn generate_attack_runs(&self, random: &mut StdRng) -> Vec<AttackRun> {
        let sites = self.runtime.block_on(find_sites(self.server().port));
        let mut picks: Vec<(Site, Variant)> = sites
            .into_iter()
            .flat_map(|site| [Variant::Minimal, Variant::Invalid].map(|variant| (site.clone(), variant)))
            .collect();
        println!("{} bodies can be generated", picks.len());
        if let Some(sample) = self.plan.sample {
            picks.shuffle(random);
            picks.truncate(sample);
        }
        picks.sort_by_key(|(site, _)| site.kind.clone());
        let mut attack_runs = Vec::new();
        for batch in picks.chunks(BATCH / 2) {
            let path = |pick: Option<&(Site, Variant)>| pick.map(|(site, _)| site.path()).unwrap_or_default();
            let name = format!("generated: {} to {}", path(batch.first()), path(batch.last()));
            let for_all_users: Vec<_> =
                batch.iter().filter(|(site, _)| site.is_allowed_for_all_users()).cloned().collect();
            for (caller, batch) in
                [(AttackUser::Privileged, batch.to_vec()), (AttackUser::Unprivileged, for_all_users)]
            {
                if batch.is_empty() || !self.plan.callers.contains(&caller) {
                    continue;
                }
                let paths = batch
                    .iter()
                    .flat_map(|(site, variant)| {
                        vec![format!("{} {variant:?}", site.path()); site.methods().len()]
                    })
                    .collect();
                attack_runs.push(AttackRun {
                    name: name.clone(),
                    caller,
                    method: AttackMethod::Flood(1),
                    requests: Box::new(move || {
                        batch.iter().flat_map(|(site, variant)| site.requests(*variant)).collect()
                    }),
                    probes_all: true,
                    paths,
                });
            }
        }
        attack_runs
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("a server runs")
    }

    /// Restarts the server on the same data, reads the data set, and measures the memory of the server.
    fn restart(&mut self) {
        self.server = None;
        let server = self.home.start();
        self.runtime.block_on(async {
            dataset::wait_ready(server.port).await;
            dataset::load_data_set(server.port).await;
        });
        self.server = Some(server);
        self.wait_idle();
        thread::sleep(IDLE_BEFORE_MEASUREMENT);
        let (apid, authd) = self.server().pair.resident_mib();
        self.base_mib = apid + authd;
        self.authd_mib = self.authd_mib.max(authd);
        if self.runs == 0 {
            self.print_and_save(&format!("<!-- data set: apid {apid:.0} MiB, authd {authd:.0} MiB -->"));
        }
    }

    /// Runs one attack; None if the reference client runs alone.
    fn attack(&mut self, attack_run: Option<&AttackRun>) {
        let has_original_authd = self.server.as_mut().is_some_and(Server::has_original_authd);
        let (apid, authd) = self.server().pair.resident_mib();
        let residue = apid + authd - self.base_mib;
        if self.runs > 0 && (self.plan.is_long || !has_original_authd || residue > RESIDUE_MIB) {
            self.restart();
        }
        self.runs += 1;
        let tally = Tally::default();
        let (port, pair) = (self.server().port, self.server().pair);
        let logged = self.server().log_bytes();
        let sampler = Sampler::start(pair);
        let requests = attack_run.map(|attack_run| (attack_run.requests)()).unwrap_or_default();
        let reference_client =
            ReferenceClient::connect(port, self.runs * 1000 + u64::from(std::process::id()) % 1000);
        let mut cpu = Duration::ZERO;
        if let Some(attack_run) = attack_run {
            let count = if attack_run.probes_all { requests.len() } else { 1 };
            let probing = Instant::now();
            for (number, request) in requests.iter().take(count).enumerate() {
                let probe_cpu = self.probe(attack_run, request, &tally);
                if attack_run.probes_all && probe_cpu > self.plan.limits.cpu {
                    let path = &attack_run.paths[number % attack_run.paths.len()];
                    self.print_and_save(&format!("<!-- {} {path}: {probe_cpu:?} of CPU -->", request.method));
                }
                cpu = cpu.max(probe_cpu);
                let is_late = !self.plan.is_long && probing.elapsed() > ALL_PROBES_TIME_LIMIT;
                if is_late || sampler.has_killed() {
                    break;
                }
            }
        }
        let probes = tally.counts().sent;
        let before = pair.cpu();
        reference_client.begin();
        let began = Instant::now();
        match attack_run {
            Some(attack_run) => self.runtime.block_on(attack::run(
                port,
                attack_run.caller,
                attack_run.method,
                requests,
                self.plan.duration,
                &tally,
            )),
            None => thread::sleep(self.plan.duration),
        }
        let attacked = began.elapsed();
        let samples: Samples = reference_client.stop();
        let recovery = self.wait_recovery();
        let sent = tally.counts().sent - probes;
        if let (Some(before), Some(after), true) = (before, pair.cpu(), sent > 0) {
            cpu = cpu.max((after.saturating_sub(before)) / u32::try_from(sent).unwrap_or(u32::MAX));
        }
        let peaks = sampler.stop();
        let survived = self.server.as_mut().is_some_and(Server::has_original_authd);
        let row = Row {
            name: attack_run.map_or("no attacker".to_owned(), |attack_run| attack_run.name.clone()),
            caller: attack_run.map(|attack_run| attack_run.caller),
            counts: tally.counts(),
            samples,
            peaks,
            base_mib: self.base_mib,
            cpu,
            log: self.server().log_bytes() - logged,
            recovery,
            survived,
        };
        self.print_and_save(&row.text(&self.plan.limits));
        let missed = row.exceeded_limits(&self.plan.limits);
        if !missed.is_empty() && !survived {
            println!("  after {attacked:?}, end of the log:\n{}", self.server().log_tail());
        }
        self.rows.push(row);
        if recovery.is_none() || !survived {
            self.restart();
        }
    }

    /// Measures the CPU time of a single request.
    fn probe(&self, attack_run: &AttackRun, request: &Prepared, tally: &Tally) -> Duration {
        let server = self.server();
        let before = server.pair.cpu();
        let time_limit = if matches!(attack_run.method, AttackMethod::Hold { .. }) {
            CPU_INTERVAL * 5
        } else {
            PROBE_TIME_LIMIT
        };
        self.runtime.block_on(attack::probe(
            server.port,
            attack_run.caller,
            attack_run.method,
            request,
            time_limit,
            tally,
        ));
        self.wait_idle();
        match (before, server.pair.cpu()) {
            (Some(before), Some(after)) => after.saturating_sub(before),
            _ => Duration::ZERO,
        }
    }

    /// Waits until the processes are idle and authd responds, and returns the duration.
    ///
    /// Returns None if they do not recover within [`RECOVERY_TIME_LIMIT`], or a process has ended.
    fn wait_recovery(&self) -> Option<Duration> {
        let began = Instant::now();
        self.wait_idle()?;
        let port = self.server().port;
        self.runtime.block_on(async {
            while began.elapsed() < RECOVERY_TIME_LIMIT {
                if dataset::is_authorized(port, began.elapsed().as_nanos()).await {
                    return Some(began.elapsed());
                }
                tokio::time::sleep(CPU_INTERVAL).await;
            }
            None
        })
    }

    /// Waits until the processes are idle, and returns the duration.
    ///
    /// Returns None if the processes were not idle within [`RECOVERY_TIME_LIMIT`], or one has ended.
    fn wait_idle(&self) -> Option<Duration> {
        let began = Instant::now();
        let pair = self.server().pair;
        let mut last = pair.cpu()?;
        while began.elapsed() < RECOVERY_TIME_LIMIT {
            thread::sleep(CPU_INTERVAL);
            let now = pair.cpu()?;
            if now.saturating_sub(last) <= IDLE_CPU_MAX {
                return Some(began.elapsed() - CPU_INTERVAL);
            }
            last = now;
        }
        None
    }

    fn print_and_save(&self, line: &str) {
        println!("{line}");
        if let Some(path) = &self.plan.table {
            let file = OpenOptions::new().create(true).append(true).open(path);
            writeln!(file.expect("the file of the table"), "{line}").expect("the table is written");
        }
    }

    /// Fails when an attack exceeded a limit.
    fn assert_limits(self) {
        let mut failed: Vec<String> = self
            .rows
            .iter()
            .filter(|row| !row.exceeded_limits(&self.plan.limits).is_empty())
            .map(|row| row.text(&self.plan.limits))
            .collect();
        let (authd, bound) = (self.authd_mib, self.plan.limits.authd_mib);
        if authd > bound {
            failed.push(format!(
                "authd has {authd:.0} MiB after a start with the data set, at most {bound} are allowed"
            ));
        }
        let (repeated, allowed) = (self.repeated.len(), allowed_repeats(self.rows.len()));
        if repeated > allowed {
            failed.push(format!("{repeated} attacks were repeated, at most {allowed} may be:"));
            failed.extend(self.repeated.iter().cloned());
        }
        self.print_and_save(&format!(
            "\n{} attacks, {repeated} repeated, {} beyond limits",
            self.rows.len(),
            failed.len()
        ));
        assert!(
            failed.is_empty(),
            "limits exceeded; ATTACKS_SEED={} and ATTACKS_ONLY=NAME repeat an attack\n{}\n{}",
            self.plan.seed,
            row::HEAD,
            failed.join("\n")
        );
    }
}

/// Number of attacks that may miss a limit in their first run: 1 %, and one attack of a short run.
fn allowed_repeats(attacks: usize) -> usize {
    attacks.div_ceil(100)
}

/// Finds the lists and maps in the bodies of all kinds that the server serves.
async fn find_sites(port: u16) -> Vec<Site> {
    let link = dataset::connect_privileged(port).await.expect("a connection");
    let document = async |path: &str| {
        let answer = link.call(&Prepared::get(path)).await.unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(answer.code, 200, "{path}");
        serde_json::from_slice::<Value>(&answer.body).expect("a document is JSON")
    };
    let index = document("/openapi/v3").await;
    let mut sites = Vec::new();
    for (path, entry) in index["paths"].as_object().expect("paths") {
        if path.starts_with("api/") || path.starts_with("apis/") {
            let address = entry["serverRelativeURL"].as_str().expect("an address");
            sites.extend(generator::sites(&document(address).await));
        }
    }
    assert!(sites.len() > 100, "the documents have {} lists and maps", sites.len());
    sites
}

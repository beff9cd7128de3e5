//! Flow control: who runs, who waits and who is rejected when many requests arrive at once.
//!
//! # Contract
//!
//! A [`FlowControl`] has the flow schemas and priority levels of a [`Configuration`]. [`FlowControl::classify`] returns
//! the schema of a request, [`FlowControl::admit`] waits for its seats. A request occupies its seats until its
//! [`Permit`] is dropped. [`FlowControl::run`] adjusts the levels while the process runs.
//!
//! # Invariants
//!
//! INVARIANT (every request has a schema): the mandatory schema `catch-all` gets what no other schema matches.
//! INVARIANT (configuration changes lose no request): a request stays in the level in which it waits or runs. A level
//! that is removed keeps its seats until it is idle.
//!
//! # Reference
//!
//! KEP-1040 and kube-apiserver 1.33.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::attributes::Attributes;
use apimachinery::clock::Clock;
use apimachinery::user::UserInfo;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use serving::metrics::Metrics;

mod allocation;
mod configuration;
mod demand;
mod dump;
mod fair_queues;
mod level;
mod matching;
mod metrics;
mod retry_after;
mod shuffle;
#[cfg(test)]
mod tests;
mod users;
mod width;
mod work;

pub use configuration::{Configuration, FlowSchema, PriorityLevel};
pub use dump::Dump;
pub use level::Permit;
pub use width::{ListSize, list_work, write_work};
pub use work::Work;

use allocation::{Limits, allocate};
use configuration::CATCH_ALL;
use level::{Arriving, KindCounts, Level};
use metrics::{FlowMetrics, SchemaMetrics};
use users::KnownUsers;

/// Time between two samples of utilization.
const SAMPLE_PERIOD: Duration = Duration::from_secs(1);
/// Samples between two adjustments of the levels' limits, which are ten seconds apart.
const SAMPLES_PER_ADJUSTMENT: u32 = 10;

/// The server's limits, in requests at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// `--max-requests-inflight`.
    pub reads: usize,
    /// `--max-mutating-requests-inflight`.
    pub writes: usize,
}

/// Decides which requests run.
pub struct FlowControl {
    server: ServerLimits,
    clock: Arc<dyn Clock>,
    metrics: Arc<FlowMetrics>,
    plan: ArcSwap<Plan>,
    /// Held while the plan or the limits of its levels change.
    change: Mutex<()>,
}

/// The schemas and levels in force.
#[derive(Default)]
struct Plan {
    /// In the order in which requests are matched.
    schemas: Vec<Arc<Schema>>,
    /// Sorted by name; removed levels with requests are at the end.
    levels: Vec<Arc<Level>>,
    users: KnownUsers,
}

/// A flow schema in force.
pub struct Schema {
    name: String,
    uid: String,
    spec: configuration::SchemaSpec,
    level: Arc<Level>,
    level_uid: String,
    metrics: SchemaMetrics,
}

impl Schema {
    /// Name of the flow schema.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Uid of the flow schema; empty if the object is missing.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Name of the priority level.
    pub fn level(&self) -> &str {
        &self.level.name
    }

    /// Uid of the priority level; empty if the object is missing.
    pub fn level_uid(&self) -> &str {
        &self.level_uid
    }

    /// Returns the key of the flow of the request among the flows of the schema. The users of a level without limits have a flow
    /// each.
    pub fn flow_of<'a>(&'a self, user: &'a UserInfo, request: &'a Attributes) -> &'a str {
        match self.level.is_exempt() {
            true => &user.name,
            false => self.spec.distinguisher(user, request),
        }
    }

    /// The seats that one request of the level occupies, at most.
    pub fn max_seats(&self) -> usize {
        self.level.max_seats()
    }

    /// Records how many watches a write is expected to wake.
    pub fn observe_watches(&self, watches: usize) {
        self.metrics.watch_count.observe(watches as f64);
    }
}

/// A request was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// The reason for the rejection.
    pub reason: RejectionReason,
    /// The time in seconds after which the client should retry.
    pub retry_after_seconds: u32,
}

/// The reason for the rejection of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectionReason {
    /// The level has no free seats, and no queues.
    ConcurrencyLimit,
    /// The queues of the flow are full.
    QueueFull,
    /// The request waited as long as it may.
    TimeOut,
}

impl RejectionReason {
    /// The reason as the metrics of kube-apiserver name it.
    pub fn as_str(self) -> &'static str {
        match self {
            RejectionReason::ConcurrencyLimit => "concurrency-limit",
            RejectionReason::QueueFull => "queue-full",
            RejectionReason::TimeOut => "time-out",
        }
    }
}

impl FlowControl {
    /// Creates flow control with the mandatory schemas and levels only.
    pub fn new(server: ServerLimits, clock: Arc<dyn Clock>, metrics: &Metrics) -> Arc<Self> {
        let control = Arc::new(FlowControl {
            server,
            clock,
            metrics: Arc::new(FlowMetrics::new(metrics)),
            plan: ArcSwap::default(),
            change: Mutex::new(()),
        });
        control.configure(&Configuration::from_objects([], []));
        let weak = Arc::downgrade(&control);
        metrics.collect_with(move || {
            if let Some(control) = weak.upgrade() {
                control.collect();
            }
        });
        control
    }

    /// Puts a configuration into force. Requests that run or wait are not affected, except by changed limits.
    pub fn configure(&self, configuration: &Configuration) {
        let _change = self.change.lock();
        let now = self.clock.monotonic();
        let before = self.plan.load_full();
        let share_sum = configuration.levels.iter().map(|level| u64::from(level.spec.nominal_shares)).sum();
        let mut is_changed = false;
        let mut levels: Vec<Arc<Level>> = Vec::with_capacity(configuration.levels.len());
        for PriorityLevel { name, uid, spec } in &configuration.levels {
            let limits = Limits::new(self.total_seats(), share_sum, spec);
            self.metrics.set_limits(name, limits);
            let known = before.levels.iter().find(|level| level.is_of(name, uid));
            let level = match known {
                Some(level) => {
                    is_changed |= level.configure(uid, spec.response, limits);
                    Arc::clone(level)
                }
                None => {
                    is_changed = true;
                    Arc::new(Level::new(name, uid, spec.response, limits, now))
                }
            };
            levels.push(level);
        }
        let is_removed = |level: &&Arc<Level>| !levels.iter().any(|kept| Arc::ptr_eq(kept, level));
        let removed: Vec<_> =
            before.levels.iter().filter(is_removed).filter(|level| level.remove()).cloned().collect();
        let schemas = configuration
            .schemas
            .iter()
            .filter_map(|schema| self.schema(schema, configuration, &levels, &before));
        let schemas = schemas.collect();
        levels.extend(removed);
        self.replace(&before, Plan { schemas, levels, users: KnownUsers::default() });
        if is_changed {
            self.divide_seats();
        }
    }

    /// Puts a plan into force. Schemas and levels that it no longer has lose their metrics.
    fn replace(&self, before: &Plan, plan: Plan) {
        let plan = Arc::new(plan);
        self.plan.store(Arc::clone(&plan));
        let is_in_force = |gone: &Schema| {
            plan.schemas.iter().any(|kept| kept.name == gone.name && kept.level.name == gone.level.name)
        };
        for gone in before.schemas.iter().filter(|schema| !is_in_force(schema)) {
            self.metrics.forget_schema(&gone.name, &gone.level.name);
        }
        let is_kept = |gone: &Level| plan.levels.iter().any(|kept| kept.name == gone.name);
        for gone in before.levels.iter().filter(|level| !is_kept(level)) {
            self.metrics.forget_level(&gone.name);
        }
    }

    /// Returns a schema in force; the same as before if nothing about it changed.
    fn schema(
        &self,
        schema: &FlowSchema,
        configuration: &Configuration,
        levels: &[Arc<Level>],
        before: &Plan,
    ) -> Option<Arc<Schema>> {
        let FlowSchema { name, uid, spec } = schema;
        let level = levels.iter().find(|level| level.name == spec.level())?;
        let level_uid = &configuration.levels.iter().find(|level| level.name == spec.level())?.uid;
        let is_same = |known: &&Arc<Schema>| {
            known.name == *name
                && known.uid == *uid
                && known.spec == *spec
                && known.level_uid == *level_uid
                && Arc::ptr_eq(&known.level, level)
        };
        let known = before.schemas.iter().find(is_same).cloned();
        Some(known.unwrap_or_else(|| {
            Arc::new(Schema {
                name: name.clone(),
                uid: uid.clone(),
                spec: spec.clone(),
                level: Arc::clone(level),
                level_uid: level_uid.clone(),
                metrics: self.metrics.of_schema(name, &level.name),
            })
        }))
    }

    /// Returns the schema of a request.
    ///
    /// Returns None only without the schema `catch-all`, which [`Configuration::from_objects`] always adds.
    pub fn classify(&self, user: &Arc<UserInfo>, request: &Attributes) -> Option<Arc<Schema>> {
        let plan = self.plan.load();
        let known = plan.users.get(user, &plan.schemas);
        known
            .classify(request)
            .or_else(|| plan.schemas.iter().find(|schema| schema.name == CATCH_ALL))
            .cloned()
    }

    /// Waits until a request of a schema may run. `wait_limit`: how long it waits in a queue, at most.
    ///
    /// # Errors
    ///
    /// The level of the schema rejects the request, at once or after `wait_limit`.
    pub async fn admit(
        &self,
        schema: &Arc<Schema>,
        user: &Arc<UserInfo>,
        attributes: &Arc<Attributes>,
        work: Work,
        wait_limit: Duration,
    ) -> Result<Permit, Rejected> {
        let flow = if schema.level.has_queues() { self.flow_hash(schema, user, attributes) } else { 0 };
        let arriving = Arriving {
            schema: Arc::clone(schema),
            user: Arc::clone(user),
            attributes: Arc::clone(attributes),
            work,
            flow,
        };
        schema.level.admit(&self.clock, arriving, wait_limit).await
    }

    fn flow_hash(&self, schema: &Arc<Schema>, user: &Arc<UserInfo>, attributes: &Attributes) -> u64 {
        let plan = self.plan.load();
        let of_user = plan.users.get(user, &plan.schemas).flow(schema);
        of_user
            .unwrap_or_else(|| shuffle::flow_hash(&schema.name, schema.spec.distinguisher(user, attributes)))
    }

    /// Samples the utilization every second, and lends and borrows seats every ten seconds, until the process ends.
    pub async fn run(self: Arc<Self>) {
        loop {
            for _ in 0..SAMPLES_PER_ADJUSTMENT {
                tokio::time::sleep(SAMPLE_PERIOD).await;
                self.sample();
            }
            self.adjust();
        }
    }

    /// Ends the period of demand and computes the limits of the levels for the next one.
    fn adjust(&self) {
        let _change = self.change.lock();
        let plan = self.plan.load_full();
        if plan.levels.iter().any(|level| level.has_ended()) {
            let levels = plan.levels.iter().filter(|level| !level.has_ended()).cloned().collect();
            let schemas = plan.schemas.clone();
            self.replace(&plan, Plan { schemas, levels, users: KnownUsers::default() });
        }
        self.divide_seats();
    }

    /// Adds a sample to the histograms of utilization.
    fn sample(&self) {
        let plan = self.plan.load();
        let mut counts = KindCounts::default();
        for level in &plan.levels {
            self.metrics.sample(&level.name, level.sample());
            level.count_kinds(&mut counts);
        }
        let ServerLimits { reads, writes } = self.server;
        let samples = [
            ("readOnly", "executing", counts.running_reads, reads),
            ("readOnly", "waiting", counts.waiting_reads, reads),
            ("mutating", "executing", counts.running_writes, writes),
            ("mutating", "waiting", counts.waiting_writes, writes),
        ];
        for (kind, phase, count, limit) in samples {
            self.metrics.sample_kind(kind, phase, count as f64 / limit.max(1) as f64);
        }
    }

    /// The state of all levels, queues and requests.
    pub fn dump(&self) -> Dump {
        let plan = self.plan.load();
        Dump::new(plan.levels.iter().map(|level| (level.name.clone(), level.snapshot())))
    }

    fn total_seats(&self) -> usize {
        self.server.reads + self.server.writes
    }

    /// Divides the seats among the levels. `change` must be locked.
    fn divide_seats(&self) {
        let (now, wall) = (self.clock.monotonic(), self.clock.now());
        let plan = self.plan.load();
        let claims: Vec<_> = plan.levels.iter().map(|level| level.claim(now)).collect();
        let nominal_sum: usize = plan.levels.iter().map(|level| level.nominal_seats()).sum();
        let allocation = allocate(nominal_sum as f64, &claims);
        self.metrics.set_fair_fraction(allocation.fair_fraction);
        for ((level, claim), seats) in plan.levels.iter().zip(&claims).zip(&allocation.seats) {
            let limit = seats.round() as usize;
            let demand = level.set_limit(now, wall, limit);
            self.metrics.set_demand(&level.name, demand, claim.target, limit);
        }
    }

    /// Sets the gauges of requests and seats.
    fn collect(&self) {
        let plan = self.plan.load();
        let gauges = [
            &self.metrics.executing_requests,
            &self.metrics.executing_seats,
            &self.metrics.waiting_requests,
            &self.metrics.waiting_seats,
        ];
        for gauge in gauges {
            gauge.clear();
        }
        for schema in &plan.schemas {
            let labels = metrics::schema_labels(&schema.name, &schema.level.name);
            for gauge in gauges {
                gauge.get_or_create(&labels).set(0);
            }
        }
        for level in &plan.levels {
            let snapshot = level.snapshot();
            self.metrics.set_virtual_time(&level.name, snapshot.virtual_time, snapshot.last_start);
            for (request, (_, position)) in &snapshot.requests {
                let labels = metrics::schema_labels(&request.schema.name, &level.name);
                let (requests, seats) = match position {
                    Some(_) => (&self.metrics.waiting_requests, &self.metrics.waiting_seats),
                    None => (&self.metrics.executing_requests, &self.metrics.executing_seats),
                };
                requests.get_or_create(&labels).inc();
                seats.get_or_create(&labels).inc_by(metrics::gauge_value(request.work.max_seats()));
            }
        }
    }
}

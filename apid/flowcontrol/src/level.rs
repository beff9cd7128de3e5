//! A priority level in force: its seats and queues, and the requests that hold or wait for seats.
//!
//! # Contract
//!
//! [`Level::admit`] returns a [`Permit`] at once or after a wait in a queue. The permit occupies the seats of the request
//! until it is dropped, and for the final time of its work.
//!
//! # Invariants
//!
//! INVARIANT (released): a request leaves the level when its permit is dropped, and when the future of [`Level::admit`]
//! is dropped, also between the moment at which it starts and the moment at which its task runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use apimachinery::attributes::Attributes;
use apimachinery::clock::Clock;
use apimachinery::user::UserInfo;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::allocation::{Claim, Limits};
use crate::configuration::LimitResponse;
use crate::demand::{Demand, SmoothedDemand};
use crate::fair_queues::{Arrival, FairQueues, Load, Place, QueueStart, QueueState, RequestId, Started};
use crate::metrics::{LevelSample, SchemaMetrics};
use crate::retry_after::RetryAfter;
use crate::users::ByNumber;
use crate::work::Work;
use crate::{Rejected, RejectionReason, Schema};

/// Share of a level's nominal limit that one request occupies at most.
const MAX_PART_OF_REQUEST: f64 = 0.15;
/// Seats that one request occupies at most, on any level.
const MAX_SEATS: usize = 10;

/// Wakes a request that waits.
type Ticket = oneshot::Sender<()>;

/// A priority level in force.
pub(crate) struct Level {
    pub(crate) name: String,
    /// Whether requests can wait in queues.
    has_queues: AtomicBool,
    state: Mutex<State>,
}

struct State {
    /// Uid of the object; empty while there is none.
    uid: String,
    queues: FairQueues<Ticket>,
    response: LimitResponse,
    limits: Limits,
    current_limit: usize,
    demand: SmoothedDemand,
    requests: ByNumber<Request>,
    retry_after: RetryAfter,
    counts: Counts,
    /// Time of the last logged rejection.
    logged: Option<Duration>,
    is_removed: bool,
}

/// Numbers of requests since the level is in force.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) dispatched: u64,
    pub(crate) rejected: u64,
    pub(crate) timed_out: u64,
    pub(crate) cancelled: u64,
}

/// Numbers of reads and writes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KindCounts {
    pub(crate) running_reads: usize,
    pub(crate) waiting_reads: usize,
    pub(crate) running_writes: usize,
    pub(crate) waiting_writes: usize,
}

/// A request that runs or waits.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) schema: Arc<Schema>,
    pub(crate) user: Arc<UserInfo>,
    pub(crate) attributes: Arc<Attributes>,
    pub(crate) work: Work,
    pub(crate) arrived: Timestamp,
    pub(crate) started: Option<Timestamp>,
}

/// State of a level at one time, for dumps and metrics.
pub(crate) struct Snapshot {
    pub(crate) load: Load,
    pub(crate) counts: Counts,
    pub(crate) response: LimitResponse,
    /// Whether the level stays only until its requests end.
    pub(crate) is_removed: bool,
    pub(crate) virtual_time: f64,
    pub(crate) last_start: QueueStart,
    pub(crate) queues: Vec<QueueState>,
    pub(crate) requests: Vec<(Request, Place)>,
}

/// Seats of a request. Dropping the permit ends the request.
pub struct Permit {
    level: Arc<Level>,
    schema: Arc<Schema>,
    clock: Arc<dyn Clock>,
    id: RequestId,
    started: Duration,
    work: Work,
    is_watch: bool,
    /// Whether the request waited in a queue, so that earlier decisions about it may be outdated.
    waited: bool,
}

impl Permit {
    /// Name of the flow schema of the request.
    #[cfg(test)]
    pub(crate) fn schema_name(&self) -> &str {
        self.schema.name()
    }

    /// Whether the request waited in a queue.
    pub fn waited(&self) -> bool {
        self.waited
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let now = self.clock.monotonic();
        let service_time = now.saturating_sub(self.started);
        self.schema.metrics.observe_execution(service_time, self.is_watch);
        if self.work.final_seats > 0
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (level, clock) = (Arc::clone(&self.level), Arc::clone(&self.clock));
            let ending = Ending { level, clock, id: self.id, service_time };
            let final_time = self.work.final_time;
            runtime.spawn(async move {
                tokio::time::sleep(final_time).await;
                drop(ending);
            });
            return;
        }
        self.level.finish(&*self.clock, now, self.id, service_time);
    }
}

/// A request that has its response and occupies its final seats. Dropping the value frees its seats, also when the runtime ends.
struct Ending {
    level: Arc<Level>,
    clock: Arc<dyn Clock>,
    id: RequestId,
    service_time: Duration,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.level.finish(&*self.clock, self.clock.monotonic(), self.id, self.service_time);
    }
}

/// Removes a waiting request whose future is dropped.
struct WaitGuard<'a> {
    level: &'a Level,
    clock: &'a dyn Clock,
    id: RequestId,
    schema: &'a SchemaMetrics,
    is_armed: bool,
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        if self.is_armed && self.level.leave(self.clock, self.id) {
            self.schema.cancelled.inc();
            self.level.state.lock().counts.cancelled += 1;
        }
    }
}

/// A request that arrives.
pub(crate) struct Arriving {
    pub(crate) schema: Arc<Schema>,
    pub(crate) user: Arc<UserInfo>,
    pub(crate) attributes: Arc<Attributes>,
    pub(crate) work: Work,
    pub(crate) flow: u64,
}

impl Level {
    pub(crate) fn new(name: &str, uid: &str, response: LimitResponse, limits: Limits, now: Duration) -> Self {
        let current_limit = limits.initial();
        let state = State {
            uid: uid.to_owned(),
            queues: FairQueues::new(response, current_limit, now),
            response,
            limits,
            current_limit,
            demand: SmoothedDemand::default(),
            requests: ByNumber::default(),
            retry_after: RetryAfter::default(),
            counts: Counts::default(),
            logged: None,
            is_removed: false,
        };
        let has_queues = AtomicBool::new(matches!(response, LimitResponse::Queue(_)));
        Level { name: name.to_owned(), has_queues, state: Mutex::new(state) }
    }

    /// Whether this is the level of an object. At the start the mandatory levels have no objects.
    pub(crate) fn is_of(&self, name: &str, uid: &str) -> bool {
        let state = self.state.lock();
        self.name == name && (state.uid == uid || state.uid.is_empty()) && !state.is_removed
    }

    /// Changes the configuration. Returns whether the limits changed.
    pub(crate) fn configure(&self, uid: &str, response: LimitResponse, limits: Limits) -> bool {
        let mut state = self.state.lock();
        uid.clone_into(&mut state.uid);
        if state.response != response {
            state.response = response;
            state.queues.set_response(response);
            self.has_queues.store(matches!(response, LimitResponse::Queue(_)), Ordering::Relaxed);
        }
        std::mem::replace(&mut state.limits, limits) != limits
    }

    /// Ends the period of demand and returns what the level may claim in the next one.
    pub(crate) fn claim(&self, now: Duration) -> Claim {
        let mut state = self.state.lock();
        let demand: Demand = state.queues.next_demand_period(now);
        state.demand.add(demand);
        let Limits { nominal, lower, upper } = state.limits;
        let lower = (lower as f64).max(demand.highest.min(nominal as f64));
        Claim { lower, upper: upper as f64, target: lower.max(state.demand.smoothed) }
    }

    /// Changes the present limit. Returns the demand from which it was computed.
    pub(crate) fn set_limit(&self, now: Duration, wall: Timestamp, limit: usize) -> SmoothedDemand {
        let mut state = self.state.lock();
        state.current_limit = limit;
        let started = state.queues.set_limit(now, limit);
        state.wake(wall, started);
        state.demand
    }

    /// Marks the level as removed. Returns whether it still has requests.
    pub(crate) fn remove(&self) -> bool {
        let mut state = self.state.lock();
        state.is_removed = true;
        !state.queues.is_idle()
    }

    /// Whether requests can wait in queues.
    pub(crate) fn has_queues(&self) -> bool {
        self.has_queues.load(Ordering::Relaxed)
    }

    /// Whether the level has no limit.
    pub(crate) fn is_exempt(&self) -> bool {
        self.state.lock().response == LimitResponse::Exempt
    }

    /// Adds the numbers of requests that run and wait: reads and writes.
    pub(crate) fn count_kinds(&self, counts: &mut KindCounts) {
        for request in self.state.lock().requests.values() {
            let count = match (request.attributes.is_read_only(), request.started.is_some()) {
                (true, true) => &mut counts.running_reads,
                (true, false) => &mut counts.waiting_reads,
                (false, true) => &mut counts.running_writes,
                (false, false) => &mut counts.waiting_writes,
            };
            *count += 1;
        }
    }

    /// The seats of the level by its shares.
    pub(crate) fn nominal_seats(&self) -> usize {
        self.state.lock().limits.nominal
    }

    /// Whether the level is removed and has no requests.
    pub(crate) fn has_ended(&self) -> bool {
        let state = self.state.lock();
        state.is_removed && state.queues.is_idle()
    }

    /// The seats that one request of the level occupies, at most.
    pub(crate) fn max_seats(&self) -> usize {
        let state = self.state.lock();
        match state.response {
            LimitResponse::Exempt | LimitResponse::Reject => MAX_SEATS,
            LimitResponse::Queue(queuing) => {
                let nominal = state.limits.nominal;
                let part = (nominal as f64 * MAX_PART_OF_REQUEST).ceil() as usize;
                part.min(nominal / queuing.hand_size.max(1)).clamp(1, MAX_SEATS)
            }
        }
    }

    /// Waits until the request may run. `wait_limit`: how long it waits in a queue, at most.
    ///
    /// # Errors
    ///
    /// The level rejects the request, at once or after `wait_limit`.
    pub(crate) async fn admit(
        self: &Arc<Self>,
        clock: &Arc<dyn Clock>,
        arriving: Arriving,
        wait_limit: Duration,
    ) -> Result<Permit, Rejected> {
        let (schema, user) = (Arc::clone(&arriving.schema), Arc::clone(&arriving.user));
        let (work, is_watch) = (arriving.work, arriving.attributes.verb == "watch");
        let arrived = clock.monotonic();
        schema.metrics.estimated_seats.observe(work.max_seats() as f64);
        let permit = |id, started, waited| Permit {
            level: Arc::clone(self),
            schema: Arc::clone(&schema),
            clock: Arc::clone(clock),
            id,
            started,
            work,
            is_watch,
            waited,
        };
        let (id, woken) = match self.arrive(arrived, clock.now(), arriving) {
            Ok((id, None)) => {
                schema.metrics.observe_wait(Duration::ZERO, true);
                return Ok(permit(id, arrived, false));
            }
            Ok((id, Some(woken))) => (id, woken),
            Err(rejected) => {
                schema.metrics.observe_wait(Duration::ZERO, false);
                return Err(rejected);
            }
        };
        let mut guard =
            WaitGuard { level: self, clock: &**clock, id, schema: &schema.metrics, is_armed: true };
        let is_woken = tokio::time::timeout(wait_limit, woken).await.is_ok();
        guard.is_armed = false;
        let now = clock.monotonic();
        // The request may have started at the end of the wait.
        let runs = is_woken || !self.stop_waiting(clock.as_ref(), id);
        schema.metrics.observe_wait(now.saturating_sub(arrived), runs);
        if runs {
            return Ok(permit(id, now, true));
        }
        schema.metrics.timed_out.inc();
        let mut state = self.state.lock();
        state.counts.timed_out += 1;
        self.log_rejection(&mut state, now, &user, RejectionReason::TimeOut);
        Err(state.rejected(now, RejectionReason::TimeOut))
    }

    /// Handles an arrival. Returns a receiver if the request waits.
    fn arrive(
        &self,
        now: Duration,
        wall: Timestamp,
        arriving: Arriving,
    ) -> Result<(RequestId, Option<oneshot::Receiver<()>>), Rejected> {
        let Arriving { schema, user, attributes, work, flow } = arriving;
        let mut woken = None;
        let mut state = self.state.lock();
        let ticket = || {
            let (ticket, receiver) = oneshot::channel();
            woken = Some(receiver);
            ticket
        };
        let (id, started, reason) = match state.queues.arrive(now, flow, work, ticket) {
            Arrival::Runs(id) => (id, Some(wall), None),
            Arrival::Waits { id, length } => {
                schema.metrics.queue_length.observe(length as f64);
                (id, None, None)
            }
            Arrival::RejectedByLimit => (0, None, Some(RejectionReason::ConcurrencyLimit)),
            Arrival::RejectedByQueue => (0, None, Some(RejectionReason::QueueFull)),
        };
        if let Some(reason) = reason {
            state.counts.rejected += 1;
            match reason {
                RejectionReason::ConcurrencyLimit => schema.metrics.rejected_by_limit.inc(),
                RejectionReason::QueueFull | RejectionReason::TimeOut => {
                    schema.metrics.rejected_by_queue.inc()
                }
            };
            self.log_rejection(&mut state, now, &user, reason);
            return Err(state.rejected(now, reason));
        }
        if started.is_some() {
            state.counts.dispatched += 1;
            schema.metrics.dispatched.inc();
        }
        state.requests.insert(id, Request { schema, user, attributes, work, arrived: wall, started });
        if started.is_none() {
            // A request of a less busy flow can go before those that wait for more seats than are free.
            let next = state.queues.start_waiting();
            state.wake(wall, next);
        }
        Ok((id, woken))
    }

    /// Logs the first rejection of a minute, with the user who has the most requests in the level.
    fn log_rejection(&self, state: &mut State, now: Duration, user: &UserInfo, reason: RejectionReason) {
        const INTERVAL: Duration = Duration::from_secs(60);
        if state.logged.is_some_and(|logged| now.saturating_sub(logged) < INTERVAL) {
            return;
        }
        state.logged = Some(now);
        let mut requests_of_users: BTreeMap<&str, usize> = BTreeMap::new();
        for request in state.requests.values() {
            *requests_of_users.entry(&request.user.name).or_default() += 1;
        }
        let (busiest, requests) = requests_of_users
            .iter()
            .max_by_key(|(_, count)| **count)
            .map_or(("", 0), |(name, n)| (*name, *n));
        tracing::warn!(
            priority_level = self.name,
            reason = reason.as_str(),
            rejected_user = user.name,
            busiest_user = busiest,
            requests_of_busiest_user = requests,
            seats = state.current_limit,
            "priority level rejects requests; raise its shares or the queue length, or give the busiest user a \
             level of its own"
        );
    }

    /// Removes a waiting request. Returns whether it waited.
    fn stop_waiting(&self, clock: &dyn Clock, id: RequestId) -> bool {
        let mut state = self.state.lock();
        let Some(started) = state.queues.cancel(clock.monotonic(), id) else { return false };
        state.requests.remove(&id);
        state.wake(clock.now(), started);
        true
    }

    /// Removes a request whose future was dropped: it waits, or it has started and nobody knows. Returns whether it
    /// waited.
    fn leave(&self, clock: &dyn Clock, id: RequestId) -> bool {
        let waited = self.stop_waiting(clock, id);
        if !waited {
            self.finish(clock, clock.monotonic(), id, Duration::ZERO);
        }
        waited
    }

    fn finish(&self, clock: &dyn Clock, now: Duration, id: RequestId, service_time: Duration) {
        let mut state = self.state.lock();
        state.requests.remove(&id);
        let started = state.queues.finish(now, id, service_time);
        // Without waiting requests the time of the day is not needed.
        if !started.is_empty() {
            state.wake(clock.now(), started);
        }
    }

    /// The present utilization.
    pub(crate) fn sample(&self) -> LevelSample {
        let state = self.state.lock();
        let load = state.queues.load();
        let ratio = |part: usize, of: usize| part as f64 / of.max(1) as f64;
        let places = match state.response {
            LimitResponse::Queue(queuing) => queuing.queues * queuing.length_limit,
            LimitResponse::Exempt | LimitResponse::Reject => 1,
        };
        LevelSample {
            executing_requests: ratio(load.running, state.current_limit),
            waiting_requests: ratio(load.waiting, places),
            seats: ratio(load.seats_in_use, state.current_limit),
            demand: ratio(load.seats_in_use + load.seats_waiting, state.limits.nominal),
        }
    }

    /// The state of the level.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let state = self.state.lock();
        let request = |id: &RequestId| state.requests.get(id).cloned();
        Snapshot {
            load: state.queues.load(),
            counts: state.counts,
            response: state.response,
            is_removed: state.is_removed,
            virtual_time: state.queues.virtual_time(),
            last_start: state.queues.last_start(),
            queues: state.queues.states().collect(),
            requests: state
                .queues
                .requests()
                .iter()
                .filter_map(|(id, place)| Some((request(id)?, *place)))
                .collect(),
        }
    }
}

impl State {
    /// Wakes requests that start now.
    fn wake(&mut self, wall: Timestamp, started: Vec<Started<Ticket>>) {
        for Started { id, ticket } in started {
            self.counts.dispatched += 1;
            if let Some(request) = self.requests.get_mut(&id) {
                request.started = Some(wall);
                request.schema.metrics.dispatched.inc();
            }
            // The receiver is gone if its request has just timed out or disconnected. Its task then ends the request.
            let _ = ticket.send(());
        }
    }

    fn rejected(&mut self, now: Duration, reason: RejectionReason) -> Rejected {
        Rejected { reason, retry_after_seconds: self.retry_after.reject(now) }
    }
}

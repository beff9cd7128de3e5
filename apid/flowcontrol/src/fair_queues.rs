//! The seats and queues of one level: fair queuing in virtual time.
//!
//! # Contract
//!
//! [`FairQueues::arrive`] starts a request, queues it or rejects it. [`FairQueues::finish`] and
//! [`FairQueues::cancel`] end it; both return the waiting requests that start now. The caller passes the present time.
//! A request that waits has a ticket `T`, which the caller uses to wake it.
//!
//! Virtual time progresses so that each queue with requests gets the same number of seat-seconds for each unit of
//! it. Each queue knows at which virtual time its next request starts; the request that would finish first in virtual
//! time is next. The work of a request is expected when it starts and corrected when it ends.
//!
//! # Invariants
//!
//! INVARIANT (limit): the seats in use exceed the limit only if one request alone needs more seats than the limit, or
//! if the limit was lowered.
//! INVARIANT (work conserving): no request waits while seats are free, unless the next request needs more seats than
//! are free.
//!
//! # Reference
//!
//! KEP-1040, "Fair Queuing for Server Requests". Decisions equal those of kube-apiserver 1.33.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::configuration::LimitResponse;
use crate::demand::DemandIntegrator;
use crate::shuffle;
use crate::work::{EXPECTED_SERVICE_TIME, Work};

/// Identifies a request of a level. Later requests have larger numbers.
pub(crate) type RequestId = u64;

/// The seats and queues of one level.
pub(crate) struct FairQueues<T> {
    response: LimitResponse,
    /// Seats that requests may occupy together. Without effect on an exempt level.
    limit: usize,
    queues: Vec<Queue<T>>,
    running: BTreeMap<RequestId, Running>,
    next_id: RequestId,
    /// Virtual time in seconds, correct at the time `updated`.
    virtual_time: f64,
    updated: Duration,
    /// Queue that started a request last. The search for the next one begins behind it.
    last_queue: usize,
    /// Number of requests that were queued. Successive requests try the queues of their hand in different order.
    queued: usize,
    seats_in_use: usize,
    seats_waiting: usize,
    waiting: usize,
    /// Queues with requests that run or wait.
    active_queues: usize,
    hand: Vec<usize>,
    demand: DemandIntegrator,
    last_start: QueueStart,
}

/// One queue. Requests that run belong to the queue from which they started.
struct Queue<T> {
    waiting: VecDeque<Waiting<T>>,
    /// Virtual time at which the next request of the queue starts.
    next_start: f64,
    running: usize,
    seats_in_use: usize,
    /// Expected work of the waiting requests, in seat-seconds.
    work_waiting: f64,
    seats_waiting: usize,
}

struct Waiting<T> {
    id: RequestId,
    work: Work,
    /// Virtual time of the arrival.
    arrival: f64,
    ticket: T,
}

struct Running {
    /// None: the request did not start from a queue.
    queue: Option<usize>,
    work: Work,
}

/// What happens to a request that arrives.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The request runs until [`FairQueues::finish`].
    Runs(RequestId),
    /// The request waits in a queue. `length`: requests in the queue, with this one.
    Waits { id: RequestId, length: usize },
    /// The level rejects requests above its limit.
    RejectedByLimit,
    /// All queues of the flow are full.
    RejectedByQueue,
}

/// A waiting request that starts now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Started<T> {
    pub(crate) id: RequestId,
    pub(crate) ticket: T,
}

/// Sums over the queues of a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) running: usize,
    pub(crate) waiting: usize,
    pub(crate) seats_in_use: usize,
    pub(crate) seats_waiting: usize,
    /// Queues with requests that run or wait.
    pub(crate) active_queues: usize,
}

/// State of one queue, for people.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct QueueState {
    pub(crate) waiting: usize,
    pub(crate) running: usize,
    pub(crate) seats_in_use: usize,
    pub(crate) next_start: f64,
    pub(crate) seats_waiting: usize,
    pub(crate) max_seats_waiting: usize,
    pub(crate) work_waiting: f64,
}

/// The last start of a request from a queue, in seconds of virtual time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct QueueStart {
    /// When the request started.
    pub(crate) at: f64,
    /// At which time its queue could start it.
    pub(crate) start: f64,
    /// Lowest and highest time at which a queue could start its next request.
    pub(crate) bounds: (f64, f64),
    /// The same, less the expected work of the requests that run.
    pub(crate) discounted_bounds: (f64, f64),
}

/// Place of a request: its queue, and its index there if it waits.
pub(crate) type Place = (Option<usize>, Option<usize>);

impl<T> FairQueues<T> {
    /// Creates the queues of a level without requests.
    pub(crate) fn new(response: LimitResponse, limit: usize, now: Duration) -> Self {
        let mut queues = FairQueues {
            response,
            limit,
            queues: Vec::new(),
            running: BTreeMap::new(),
            next_id: 0,
            virtual_time: 0.0,
            updated: now,
            last_queue: 0,
            queued: 0,
            seats_in_use: 0,
            seats_waiting: 0,
            waiting: 0,
            active_queues: 0,
            hand: Vec::new(),
            demand: DemandIntegrator::begin(now),
            last_start: QueueStart::default(),
        };
        queues.resize();
        queues
    }

    /// Changes what happens above the limit. Requests that wait stay in their queues, also in those beyond a smaller
    /// number of queues; new requests use the new queues only.
    pub(crate) fn set_response(&mut self, response: LimitResponse) {
        self.response = response;
        self.resize();
    }

    /// Changes the limit and returns the requests that start now.
    pub(crate) fn set_limit(&mut self, now: Duration, limit: usize) -> Vec<Started<T>> {
        self.advance(now);
        self.limit = limit;
        self.start_waiting()
    }

    /// Handles a new request. `flow`: hash of its flow. `ticket` is called if the request waits.
    pub(crate) fn arrive(
        &mut self,
        now: Duration,
        flow: u64,
        work: Work,
        ticket: impl FnOnce() -> T,
    ) -> Arrival {
        self.advance(now);
        let arrival = match self.response {
            LimitResponse::Exempt => Arrival::Runs(self.run_now(work)),
            LimitResponse::Reject if self.has_room(work) => Arrival::Runs(self.run_now(work)),
            LimitResponse::Reject => Arrival::RejectedByLimit,
            LimitResponse::Queue(queuing) => {
                let index = self.choose_queue(flow, queuing.queues, queuing.hand_size);
                self.arrive_at(index, queuing.length_limit, work, ticket)
            }
        };
        self.record_demand(now);
        arrival
    }

    /// Ends a request that runs, after its final seats are free too. `service_time`: time from its start until its
    /// response. Returns the requests that start now.
    pub(crate) fn finish(&mut self, now: Duration, id: RequestId, service_time: Duration) -> Vec<Started<T>> {
        self.advance(now);
        let Some(running) = self.running.remove(&id) else { return Vec::new() };
        let seats = running.work.max_seats();
        self.seats_in_use -= seats;
        if let Some(queue) = running.queue.and_then(|index| self.queues.get_mut(index)) {
            queue.running -= 1;
            queue.seats_in_use -= seats;
            let surplus = EXPECTED_SERVICE_TIME.as_secs_f64() - service_time.as_secs_f64();
            queue.next_start -= running.work.seats as f64 * surplus;
            queue.bound_next_start();
            self.active_queues -= usize::from(queue.is_idle());
        }
        let started = self.start_waiting();
        self.resize();
        self.record_demand(now);
        started
    }

    /// Removes a request that waits. Returns the requests that start now; None: the request does not wait.
    pub(crate) fn cancel(&mut self, now: Duration, id: RequestId) -> Option<Vec<Started<T>>> {
        self.advance(now);
        let queue = self.queues.iter_mut().find_map(|queue| {
            let position = queue.waiting.iter().position(|waiting| waiting.id == id)?;
            Some((queue, position))
        });
        let (queue, position) = queue?;
        let removed = queue.remove(position)?;
        queue.bound_next_start();
        self.active_queues -= usize::from(queue.is_idle());
        self.waiting -= 1;
        self.seats_waiting -= removed.work.max_seats();
        let started = self.start_waiting();
        self.resize();
        self.record_demand(now);
        Some(started)
    }

    /// The demand of the period that ends now.
    pub(crate) fn next_demand_period(&mut self, now: Duration) -> crate::demand::Demand {
        self.demand.next_period(now)
    }

    /// Sums over the queues.
    pub(crate) fn load(&self) -> Load {
        Load {
            running: self.running.len(),
            waiting: self.waiting,
            seats_in_use: self.seats_in_use,
            seats_waiting: self.seats_waiting,
            active_queues: self.active_queues,
        }
    }

    /// Whether no request runs or waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting == 0
    }

    /// The present virtual time, in seconds.
    pub(crate) fn virtual_time(&self) -> f64 {
        self.virtual_time
    }

    /// The last start of a request from a queue.
    pub(crate) fn last_start(&self) -> QueueStart {
        self.last_start
    }

    /// The state of each queue.
    pub(crate) fn states(&self) -> impl Iterator<Item = QueueState> {
        self.queues.iter().map(|queue| QueueState {
            waiting: queue.waiting.len(),
            running: queue.running,
            seats_in_use: queue.seats_in_use,
            next_start: queue.next_start,
            seats_waiting: queue.waiting.iter().map(|waiting| waiting.work.seats).sum(),
            max_seats_waiting: queue.seats_waiting,
            work_waiting: queue.work_waiting,
        })
    }

    /// All requests and their places: for each queue those that wait and then those that run, at last those without a
    /// queue.
    pub(crate) fn requests(&self) -> Vec<(RequestId, Place)> {
        let mut requests = Vec::new();
        for (index, queue) in self.queues.iter().enumerate() {
            let waiting = queue.waiting.iter().enumerate();
            requests.extend(waiting.map(|(position, waiting)| (waiting.id, (Some(index), Some(position)))));
            requests.extend(self.running_from(Some(index)));
        }
        requests.extend(self.running_from(None));
        requests
    }

    fn running_from(&self, queue: Option<usize>) -> impl Iterator<Item = (RequestId, Place)> {
        let of_queue = self.running.iter().filter(move |(_, running)| running.queue == queue);
        of_queue.map(move |(id, _)| (*id, (queue, None)))
    }

    /// Advances the virtual time to `now`.
    fn advance(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.updated).as_secs_f64();
        self.updated = self.updated.max(now);
        if self.active_queues > 0 {
            let seats = (self.seats_in_use + self.seats_waiting).min(self.limit);
            self.virtual_time += elapsed * seats as f64 / self.active_queues as f64;
        }
    }

    fn record_demand(&mut self, now: Duration) {
        self.demand.set(now, self.seats_in_use + self.seats_waiting);
    }

    /// Whether the seats for a request are free. One request alone may use more seats than the limit.
    fn has_room(&self, work: Work) -> bool {
        match work.max_seats() {
            seats if seats > self.limit => self.running.is_empty(),
            seats => self.seats_in_use + seats <= self.limit,
        }
    }

    fn run_now(&mut self, work: Work) -> RequestId {
        let id = self.new_id();
        self.run(id, None, work);
        id
    }

    fn run(&mut self, id: RequestId, queue: Option<usize>, work: Work) {
        self.seats_in_use += work.max_seats();
        self.running.insert(id, Running { queue, work });
    }

    fn new_id(&mut self) -> RequestId {
        self.next_id += 1;
        self.next_id
    }

    /// Returns the queue of the flow with the least waiting work. Among equal ones the choice rotates.
    fn choose_queue(&mut self, flow: u64, queues: usize, hand_size: usize) -> usize {
        let mut hand = std::mem::take(&mut self.hand);
        shuffle::deal(flow, queues, hand_size, &mut hand);
        let first = self.queued % hand.len().max(1);
        self.queued = self.queued.wrapping_add(1);
        let (before, from) = hand.split_at(first.min(hand.len()));
        let work = |index: &&usize| self.queues.get(**index).map_or(0.0, |queue| queue.work_waiting);
        let best = from.iter().chain(before).min_by(|a, b| work(a).total_cmp(&work(b))).copied();
        self.hand = hand;
        best.unwrap_or_default()
    }

    fn arrive_at(
        &mut self,
        index: usize,
        length_limit: usize,
        work: Work,
        ticket: impl FnOnce() -> T,
    ) -> Arrival {
        let is_full = self.seats_in_use >= self.limit;
        let starts_at_once = self.waiting == 0 && !is_full && self.has_room(work);
        let virtual_time = self.virtual_time;
        let id = self.next_id + 1;
        let Some(queue) = self.queues.get_mut(index) else { return Arrival::RejectedByQueue };
        if queue.waiting.len() >= length_limit && !starts_at_once {
            return Arrival::RejectedByQueue;
        }
        self.next_id = id;
        if queue.is_idle() {
            queue.next_start = virtual_time;
            self.active_queues += 1;
        }
        if starts_at_once {
            let (start, discounted) = (queue.next_start, queue.discounted_start());
            self.last_start = QueueStart {
                at: virtual_time,
                start,
                bounds: (start, start),
                discounted_bounds: (discounted, discounted),
            };
            queue.start(work);
            self.last_queue = index;
            self.run(id, Some(index), work);
            return Arrival::Runs(id);
        }
        queue.push(Waiting { id, work, arrival: virtual_time, ticket: ticket() });
        let length = queue.waiting.len();
        self.waiting += 1;
        self.seats_waiting += work.max_seats();
        Arrival::Waits { id, length }
    }

    /// Starts waiting requests while seats are free.
    pub(crate) fn start_waiting(&mut self) -> Vec<Started<T>> {
        let mut started = Vec::new();
        while self.waiting > 0 && self.seats_in_use < self.limit {
            let Some(next) = self.start_next() else { break };
            started.push(next);
        }
        started
    }

    /// Starts the waiting request that would finish first in virtual time. None: its seats are not free, and no other
    /// request goes before it.
    fn start_next(&mut self) -> Option<Started<T>> {
        let count = self.queues.len();
        let order = (1..=count).map(|step| (self.last_queue + step) % count);
        let finish_times = order.filter_map(|index| {
            let queue = self.queues.get(index)?;
            let oldest = queue.waiting.front()?;
            Some((index, queue.next_start + oldest.work.seat_seconds(), oldest.work))
        });
        let (index, _, work) = finish_times.min_by(|(_, a, _), (_, b, _)| a.total_cmp(b))?;
        if !self.has_room(work) {
            return None;
        }
        self.last_start = self.start_from(index);
        let queue = self.queues.get_mut(index)?;
        let Waiting { id, ticket, .. } = queue.remove(0)?;
        queue.start(work);
        self.last_queue = index;
        self.waiting -= 1;
        self.seats_waiting -= work.max_seats();
        self.run(id, Some(index), work);
        Some(Started { id, ticket })
    }

    /// Describes a start from a queue before the queue changes.
    fn start_from(&self, index: usize) -> QueueStart {
        let bounds_of = |start: fn(&Queue<T>) -> f64| {
            let waiting = self.queues.iter().filter(|queue| !queue.waiting.is_empty()).map(start);
            waiting
                .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), time| (low.min(time), high.max(time)))
        };
        QueueStart {
            at: self.virtual_time,
            start: self.queues.get(index).map_or(0.0, |queue| queue.next_start),
            bounds: bounds_of(|queue| queue.next_start),
            discounted_bounds: bounds_of(Queue::discounted_start),
        }
    }

    /// Adds missing queues, and removes idle ones beyond the number of queues.
    fn resize(&mut self) {
        let wanted = match self.response {
            LimitResponse::Queue(queuing) => queuing.queues,
            LimitResponse::Exempt | LimitResponse::Reject => 0,
        };
        while self.queues.len() > wanted && self.queues.last().is_some_and(Queue::is_idle) {
            self.queues.pop();
        }
        if self.queues.len() < wanted {
            self.queues.resize_with(wanted, Queue::new);
        }
    }
}

impl<T> Queue<T> {
    fn new() -> Self {
        Queue {
            waiting: VecDeque::new(),
            next_start: 0.0,
            running: 0,
            seats_in_use: 0,
            work_waiting: 0.0,
            seats_waiting: 0,
        }
    }

    fn is_idle(&self) -> bool {
        self.running == 0 && self.waiting.is_empty()
    }

    fn push(&mut self, request: Waiting<T>) {
        self.work_waiting += request.work.seat_seconds();
        self.seats_waiting += request.work.max_seats();
        self.waiting.push_back(request);
    }

    fn remove(&mut self, position: usize) -> Option<Waiting<T>> {
        let removed = self.waiting.remove(position)?;
        self.seats_waiting -= removed.work.max_seats();
        // Sums of fractions do not return to zero exactly.
        self.work_waiting =
            if self.waiting.is_empty() { 0.0 } else { self.work_waiting - removed.work.seat_seconds() };
        Some(removed)
    }

    fn start(&mut self, work: Work) {
        self.running += 1;
        self.seats_in_use += work.max_seats();
        self.next_start += work.seat_seconds();
    }

    /// The start of the next request, less the expected work of the requests that run.
    fn discounted_start(&self) -> f64 {
        self.next_start - self.seats_in_use as f64 * EXPECTED_SERVICE_TIME.as_secs_f64()
    }

    /// The oldest waiting request cannot start before it arrived in virtual time. Without this bound, a correction for
    /// requests that were faster than expected would give the queue credit for time without requests.
    fn bound_next_start(&mut self) {
        if let Some(oldest) = self.waiting.front() {
            self.next_start = self.next_start.max(oldest.arrival);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::Queuing;

    mod fairness;
    mod random;

    fn at(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn queue_response(queues: usize, hand_size: usize, length_limit: usize) -> LimitResponse {
        LimitResponse::Queue(Queuing { queues, hand_size, length_limit })
    }

    fn ids<T>(started: &[Started<T>]) -> Vec<RequestId> {
        started.iter().map(|started| started.id).collect()
    }

    #[test]
    fn exempt_level_runs_every_request() {
        let mut queues = FairQueues::new(LimitResponse::Exempt, 0, at(0.0));
        for id in 1..=100 {
            assert_eq!(queues.arrive(at(0.0), 7, Work::SMALL, || ()), Arrival::Runs(id));
        }
        assert_eq!(queues.load().running, 100);
    }

    #[test]
    fn rejecting_level_runs_requests_up_to_its_limit() {
        let mut queues = FairQueues::new(LimitResponse::Reject, 3, at(0.0));
        let arrive =
            |queues: &mut FairQueues<()>, seats| queues.arrive(at(0.0), 1, Work::of_seats(seats), || ());
        assert_eq!(arrive(&mut queues, 1), Arrival::Runs(1));
        assert_eq!(arrive(&mut queues, 2), Arrival::Runs(2));
        assert_eq!(arrive(&mut queues, 1), Arrival::RejectedByLimit);
        queues.finish(at(1.0), 2, at(1.0));
        assert_eq!(arrive(&mut queues, 3), Arrival::RejectedByLimit, "two seats are free");
        assert_eq!(arrive(&mut queues, 2), Arrival::Runs(3));
    }

    /// kube-apiserver, level without shares and borrowing: the first request runs, the second one is rejected.
    #[test]
    fn rejecting_level_without_seats_runs_one_request() {
        let mut queues = FairQueues::new(LimitResponse::Reject, 0, at(0.0));
        assert_eq!(queues.arrive(at(0.0), 1, Work::SMALL, || ()), Arrival::Runs(1));
        assert_eq!(queues.arrive(at(0.0), 1, Work::SMALL, || ()), Arrival::RejectedByLimit);
    }

    /// kube-apiserver, queue of five, no shares, no borrowing: requests wait until their time limit.
    #[test]
    fn queuing_level_without_seats_runs_no_request() {
        let mut queues = FairQueues::new(queue_response(1, 1, 5), 0, at(0.0));
        for length in 1..=5 {
            assert!(
                matches!(queues.arrive(at(0.0), 1, Work::SMALL, || ()), Arrival::Waits { length: n, .. } if n == length)
            );
        }
        assert_eq!(queues.arrive(at(0.0), 1, Work::SMALL, || ()), Arrival::RejectedByQueue);
    }

    /// kube-apiserver, queue of two, three seats: requests 1 to 3 run, 4 and 5 wait for the end of 1 and 2, 6 to 8 are
    /// rejected.
    #[test]
    fn full_queue_rejects_requests() {
        let mut queues = FairQueues::new(queue_response(1, 1, 2), 3, at(0.0));
        for id in 1..=3 {
            assert_eq!(queues.arrive(at(0.06 * id as f64), 1, Work::SMALL, || ()), Arrival::Runs(id));
        }
        assert_eq!(queues.arrive(at(0.24), 1, Work::SMALL, || ()), Arrival::Waits { id: 4, length: 1 });
        assert_eq!(queues.arrive(at(0.3), 1, Work::SMALL, || ()), Arrival::Waits { id: 5, length: 2 });
        for _ in 6..=8 {
            assert_eq!(queues.arrive(at(0.4), 1, Work::SMALL, || ()), Arrival::RejectedByQueue);
        }
        let state = queues.states().next().unwrap();
        assert_eq!((state.waiting, state.running, state.seats_in_use), (2, 3, 3));
        assert!((state.work_waiting - 0.006).abs() < 1e-9, "kube-apiserver shows 0.00600000ss");
        assert_eq!(ids(&queues.finish(at(2.06), 1, at(2.0))), [4]);
        assert_eq!(ids(&queues.finish(at(2.12), 2, at(2.0))), [5]);
    }

    /// kube-apiserver, eight queues, hands of two, three seats, requests of two users: bob's fourth and carol's first
    /// request run before bob's later ones.
    #[test]
    fn users_with_waiting_requests_take_turns() {
        let (bob, carol) = (shuffle::flow_hash("t", "bob"), shuffle::flow_hash("t", "carol"));
        let mut queues = FairQueues::new(queue_response(8, 2, 10), 3, at(0.0));
        let arrivals = [bob, bob, bob, bob, carol, bob, bob, bob, bob, carol];
        let mut running = VecDeque::new();
        for (index, flow) in arrivals.into_iter().enumerate() {
            let now = 0.06 * index as f64;
            match queues.arrive(at(now), flow, Work::SMALL, || ()) {
                Arrival::Runs(id) => running.push_back((now, id)),
                Arrival::Waits { id, .. } => assert!(id > 3),
                rejected => panic!("{rejected:?}"),
            }
        }
        let mut order = Vec::new();
        while let Some((began, id)) = running.pop_front() {
            for started in queues.finish(at(began + 2.0), id, at(2.0)) {
                order.push(started.id);
                running.push_back((began + 2.0, started.id));
            }
        }
        order[..3].sort_unstable();
        order[3..6].sort_unstable();
        assert_eq!(order, [4, 5, 10, 6, 7, 9, 8], "requests 5 and 10 are carol's");
        assert!(queues.is_idle());
        assert_eq!(queues.load(), Load::default());
    }

    #[test]
    fn wide_request_waits_for_its_seats_and_narrow_ones_do_not_pass() {
        let mut queues = FairQueues::new(queue_response(2, 1, 10), 4, at(0.0));
        let (a, b) = (0, 1);
        for id in 1..=3 {
            assert_eq!(queues.arrive(at(0.0), a, Work::SMALL, || ()), Arrival::Runs(id));
        }
        assert_eq!(queues.arrive(at(0.0), b, Work::of_seats(4), || ()), Arrival::Waits { id: 4, length: 1 });
        assert_eq!(queues.arrive(at(0.0), b, Work::SMALL, || ()), Arrival::Waits { id: 5, length: 2 });
        assert_eq!(ids(&queues.finish(at(1.0), 1, at(1.0))), [0; 0]);
        assert_eq!(ids(&queues.finish(at(1.0), 2, at(1.0))), [0; 0]);
        assert_eq!(ids(&queues.finish(at(1.0), 3, at(1.0))), [4], "all seats are free");
        assert_eq!(ids(&queues.finish(at(2.0), 4, at(1.0))), [5]);
    }

    #[test]
    fn request_wider_than_the_limit_runs_alone() {
        let mut queues = FairQueues::new(queue_response(1, 1, 10), 2, at(0.0));
        assert_eq!(queues.arrive(at(0.0), 1, Work::of_seats(5), || ()), Arrival::Runs(1));
        assert_eq!(queues.arrive(at(0.0), 1, Work::SMALL, || ()), Arrival::Waits { id: 2, length: 1 });
        assert_eq!(ids(&queues.finish(at(1.0), 1, at(1.0))), [2]);
    }

    #[test]
    fn cancelled_request_makes_room_for_the_next_one() {
        let mut queues = FairQueues::new(queue_response(1, 1, 10), 2, at(0.0));
        assert_eq!(queues.arrive(at(0.0), 1, Work::SMALL, || ()), Arrival::Runs(1));
        assert!(matches!(queues.arrive(at(0.0), 1, Work::of_seats(2), || ()), Arrival::Waits { id: 2, .. }));
        assert!(matches!(queues.arrive(at(0.0), 1, Work::SMALL, || ()), Arrival::Waits { id: 3, .. }));
        let started = queues.cancel(at(1.0), 2).unwrap();
        assert_eq!(ids(&started), [3], "one seat is enough");
        assert_eq!(queues.cancel(at(1.0), 2), None);
        assert_eq!(queues.cancel(at(1.0), 3), None, "it runs");
    }

    #[test]
    fn higher_limit_starts_waiting_requests() {
        let mut queues = FairQueues::new(queue_response(1, 1, 10), 1, at(0.0));
        for _ in 0..4 {
            queues.arrive(at(0.0), 1, Work::SMALL, || ());
        }
        assert_eq!(ids(&queues.set_limit(at(1.0), 3)), [2, 3]);
        assert_eq!(ids(&queues.set_limit(at(1.0), 1)), [0; 0]);
        assert_eq!(
            ids(&queues.finish(at(2.0), 1, at(2.0))),
            [0; 0],
            "two requests run, and the limit is one"
        );
    }

    #[test]
    fn requests_in_removed_queues_still_run() {
        let mut queues = FairQueues::new(queue_response(8, 1, 10), 1, at(0.0));
        assert_eq!(queues.arrive(at(0.0), 0, Work::SMALL, || ()), Arrival::Runs(1));
        assert!(matches!(queues.arrive(at(0.0), 7, Work::SMALL, || ()), Arrival::Waits { id: 2, .. }));
        queues.set_response(queue_response(2, 1, 10));
        assert_eq!(queues.states().count(), 8, "the eighth queue holds a request");
        assert_eq!(ids(&queues.finish(at(1.0), 1, at(1.0))), [2]);
        queues.finish(at(2.0), 2, at(1.0));
        assert_eq!(queues.states().count(), 2);
    }

    #[test]
    fn flow_uses_the_queue_of_its_hand_with_the_least_work() {
        let mut queues = FairQueues::new(queue_response(4, 2, 10), 0, at(0.0));
        for _ in 0..6 {
            queues.arrive(at(0.0), 5, Work::SMALL, || ());
        }
        let lengths: Vec<usize> =
            queues.states().map(|state| state.waiting).filter(|length| *length > 0).collect();
        assert_eq!(lengths, [3, 3]);
    }

    #[test]
    fn unused_time_gives_no_credit() {
        let mut queues = FairQueues::new(queue_response(2, 1, 100), 1, at(0.0));
        // Flow 0 runs alone for a long time. Then both flows have many requests: they alternate at once.
        assert_eq!(queues.arrive(at(0.0), 0, Work::SMALL, || ()), Arrival::Runs(1));
        for _ in 0..6 {
            queues.arrive(at(10.0), 0, Work::SMALL, || ());
            queues.arrive(at(10.0), 1, Work::SMALL, || ());
        }
        let mut order = Vec::new();
        let mut last = (1, 10.0);
        while let [next] =
            ids(&queues.finish(at(last.1), last.0, at(if last.0 == 1 { 10.0 } else { 1.0 })))[..]
        {
            order.push(next % 2);
            last = (next, last.1 + 1.0);
        }
        assert_eq!(order[..6], [1, 0, 1, 0, 1, 0]);
    }
}

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

use std::collections::VecDeque;
use std::time::Duration;

use crate::configuration::LimitResponse;
use crate::demand::DemandIntegrator;
use crate::shuffle;
use crate::users::ByNumber;
use crate::work::{EXPECTED_SERVICE_TIME, Work};

/// Identifies a request of a level. Later requests have larger numbers.
pub(crate) type RequestId = u64;

/// The seats and queues of one level.
pub(crate) struct FairQueues<T> {
    response: LimitResponse,
    /// Seats that requests may occupy together. Without effect on an exempt level.
    limit: usize,
    queues: Vec<Queue<T>>,
    running: ByNumber<Running>,
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
    /// Queue from which the request started, if it did.
    queue: Option<usize>,
    work: Work,
}

/// Treatment of a request that arrives.
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
    /// Start of the request.
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
            running: ByNumber::default(),
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

    /// Removes a request that waits. Returns the requests that start now, or None if the request
    /// does not wait.
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

    /// The requests that run from a queue, in the order of their arrival.
    fn running_from(&self, queue: Option<usize>) -> impl Iterator<Item = (RequestId, Place)> {
        let of_queue = self.running.iter().filter(|(_, running)| running.queue == queue);
        let mut ids: Vec<RequestId> = of_queue.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids.into_iter().map(move |id| (id, (queue, None)))
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

    /// Starts the waiting request that would finish first in virtual time. Returns None while its seats are not free,
    /// since no other request goes before it.
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
mod tests;

//! Fairness beside a slow model: generalized processor sharing, in small steps of time.
//!
//! The model divides the seats at each instant evenly among the flows with requests, without regard to whole requests.
//! A flow of the queues may be ahead of or behind the model by a few requests, however long the run.

use std::collections::BTreeMap;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

use super::*;

/// Seconds of one step of the model.
const STEP: f64 = 0.001;
/// Longest service time of a request, in seconds.
const MAX_SERVICE: f64 = 0.05;

/// A flow that sends its next request when fewer than `backlog` of its requests wait or run.
struct Flow {
    hash: u64,
    backlog: usize,
    service: std::ops::Range<f64>,
    seats: usize,
    pending: usize,
    /// Seat-seconds that the flow got from the queues.
    served: f64,
    /// Seat-seconds of the model.
    fair: f64,
}

impl Flow {
    fn new(hash: u64, backlog: usize, service: std::ops::Range<f64>, seats: usize) -> Self {
        Flow { hash, backlog, service, seats, pending: 0, served: 0.0, fair: 0.0 }
    }
}

struct Simulation {
    queues: FairQueues<()>,
    limit: usize,
    flows: Vec<Flow>,
    owners: BTreeMap<RequestId, (usize, f64)>,
    /// End, start and id of each running request.
    running: Vec<(f64, f64, RequestId)>,
    rng: SmallRng,
}

impl Simulation {
    fn new(seed: u64, limit: usize, flows: Vec<Flow>) -> Self {
        let queues = FairQueues::new(queue_response(flows.len(), 1, 1_000), limit, at(0.0));
        let rng = SmallRng::seed_from_u64(seed);
        Simulation { queues, limit, flows, owners: BTreeMap::new(), running: Vec::new(), rng }
    }

    fn run(&mut self, seconds: f64) {
        let steps = (seconds / STEP) as usize;
        for step in 0..steps {
            let now = step as f64 * STEP;
            self.end_requests(now);
            self.send_requests(now);
            self.serve();
        }
    }

    fn end_requests(&mut self, now: f64) {
        while let Some(index) = self.running.iter().position(|(end, _, _)| *end <= now) {
            let (_, began, id) = self.running.swap_remove(index);
            let (flow, _) = self.owners[&id];
            self.flows[flow].pending -= 1;
            for started in self.queues.finish(at(now), id, at(now - began)) {
                self.begin(now, started.id);
            }
        }
    }

    fn send_requests(&mut self, now: f64) {
        for index in 0..self.flows.len() {
            while self.flows[index].pending < self.flows[index].backlog {
                let flow = &mut self.flows[index];
                flow.pending += 1;
                let service = self.rng.random_range(flow.service.clone());
                let arrival = self.queues.arrive(at(now), flow.hash, Work::of_seats(flow.seats), || ());
                match arrival {
                    Arrival::Runs(id) => {
                        self.owners.insert(id, (index, service));
                        self.begin(now, id);
                    }
                    Arrival::Waits { id, .. } => drop(self.owners.insert(id, (index, service))),
                    rejected => panic!("{rejected:?}"),
                }
            }
        }
    }

    fn begin(&mut self, now: f64, id: RequestId) {
        let (_, service) = self.owners[&id];
        self.running.push((now + service, now, id));
    }

    /// Counts one step of service, in the queues and in the model.
    fn serve(&mut self) {
        for (_, _, id) in &self.running {
            let flow = &mut self.flows[self.owners[id].0];
            flow.served += flow.seats as f64 * STEP;
        }
        // All flows always have requests for all seats, so the fair part of each is equal.
        let part = self.limit as f64 / self.flows.len() as f64 * STEP;
        self.flows.iter_mut().for_each(|flow| flow.fair += part);
    }
}

#[test]
fn flows_get_equal_seat_seconds_for_requests_of_any_cost() {
    for seed in 0..5 {
        let flows = vec![
            // Many short requests, long ones, wide ones, and a flow with few requests at once.
            Flow::new(0, 200, 0.001..0.003, 1),
            Flow::new(1, 20, 0.03..MAX_SERVICE, 1),
            Flow::new(2, 20, 0.005..0.02, 3),
            Flow::new(3, 6, 0.01..0.02, 1),
        ];
        let mut simulation = Simulation::new(seed, 8, flows);
        simulation.run(20.0);
        let most = simulation.flows.iter().map(|flow| flow.served).fold(0.0, f64::max);
        for (index, flow) in simulation.flows.iter().enumerate() {
            // Wide requests leave seats empty while they wait for them, so the flows get less than all seats.
            assert!(flow.served > 0.75 * flow.fair, "flow {index}: {} of {}", flow.served, flow.fair);
            // A flow with few waiting requests loses the credit that it would need for requests it did not send.
            assert!(flow.served > 0.85 * most, "flow {index}: {} of {most}", flow.served);
        }
    }
}

#[test]
fn flow_of_narrow_requests_stays_within_a_few_requests_of_the_model() {
    let flows = vec![Flow::new(0, 100, 0.001..0.002, 1), Flow::new(1, 100, 0.04..MAX_SERVICE, 1)];
    let mut simulation = Simulation::new(1, 4, flows);
    simulation.run(30.0);
    for (index, flow) in simulation.flows.iter().enumerate() {
        let difference = (flow.served - flow.fair).abs();
        // Each of the four seats can be one long request ahead, and each step rounds.
        assert!(difference < 10.0 * MAX_SERVICE, "flow {index}: {} and {}", flow.served, flow.fair);
    }
}

//! The invariants of the queues after random operations.

use std::collections::BTreeMap;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

use super::*;

/// Requests as a caller knows them.
#[derive(Default)]
struct Known {
    running: BTreeMap<RequestId, (usize, f64)>,
    waiting: BTreeMap<RequestId, usize>,
}

impl Known {
    fn start(&mut self, now: f64, started: Vec<Started<()>>) {
        for Started { id, .. } in started {
            let seats = self.waiting.remove(&id).expect("only a waiting request starts");
            self.running.insert(id, (seats, now));
        }
    }
}

fn random_response(rng: &mut SmallRng) -> LimitResponse {
    let queues = rng.random_range(1..=8);
    queue_response(queues, rng.random_range(1..=queues.min(3)), rng.random_range(0..6))
}

#[test]
fn queues_conserve_work_and_stay_within_their_limit() {
    for seed in 0..200 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut limit = rng.random_range(0..8);
        let mut queues = FairQueues::new(random_response(&mut rng), limit, at(0.0));
        let mut known = Known::default();
        let (mut now, mut lowered) = (0.0, false);
        for step in 0..400 {
            now += rng.random_range(0.0..0.1);
            match rng.random_range(0..20) {
                0..=8 => {
                    let seats = rng.random_range(1..=4);
                    match queues.arrive(at(now), rng.random(), Work::of_seats(seats), || ()) {
                        Arrival::Runs(id) => drop(known.running.insert(id, (seats, now))),
                        Arrival::Waits { id, .. } => drop(known.waiting.insert(id, seats)),
                        Arrival::RejectedByQueue => {
                            let load = queues.load();
                            assert!(load.waiting > 0 || load.seats_in_use + seats > limit, "{load:?}");
                        }
                        Arrival::RejectedByLimit => panic!("the level has queues"),
                    }
                }
                9..=16 if !known.running.is_empty() => {
                    let index = rng.random_range(0..known.running.len());
                    let id = *known.running.keys().nth(index).unwrap();
                    let (_, began) = known.running.remove(&id).unwrap();
                    known.start(now, queues.finish(at(now), id, at(now - began)));
                }
                17 if !known.waiting.is_empty() => {
                    let index = rng.random_range(0..known.waiting.len());
                    let id = *known.waiting.keys().nth(index).unwrap();
                    known.waiting.remove(&id);
                    known.start(now, queues.cancel(at(now), id).expect("it waits"));
                }
                18 => {
                    limit = rng.random_range(0..8);
                    lowered = true;
                    known.start(now, queues.set_limit(at(now), limit));
                }
                19 => queues.set_response(random_response(&mut rng)),
                _ => {}
            }
            check(&queues, &known, limit, &mut lowered, &format!("seed {seed}, step {step}"));
        }
    }
}

fn check(queues: &FairQueues<()>, known: &Known, limit: usize, lowered: &mut bool, context: &str) {
    let load = queues.load();
    let seats_in_use: usize = known.running.values().map(|(seats, _)| seats).sum();
    assert_eq!(load.running, known.running.len(), "{context}");
    assert_eq!(load.waiting, known.waiting.len(), "{context}");
    assert_eq!(load.seats_in_use, seats_in_use, "{context}");
    assert_eq!(load.seats_waiting, known.waiting.values().sum::<usize>(), "{context}");
    let states: Vec<QueueState> = queues.states().collect();
    assert_eq!(states.iter().map(|state| state.waiting).sum::<usize>(), load.waiting, "{context}");
    assert_eq!(states.iter().map(|state| state.running).sum::<usize>(), load.running, "{context}");
    let active = states.iter().filter(|state| state.waiting + state.running > 0).count();
    assert_eq!(load.active_queues, active, "{context}");
    assert_eq!(queues.is_idle(), known.running.is_empty() && known.waiting.is_empty(), "{context}");
    assert_eq!(queues.requests().len(), load.running + load.waiting, "{context}");

    *lowered &= seats_in_use > limit;
    let is_alone = known.running.len() == 1;
    assert!(seats_in_use <= limit || is_alone || *lowered, "{context}: {load:?} above {limit}");
    // Work conserving: the free seats are fewer than the next request needs. At most four are needed.
    if load.waiting > 0 {
        let free = limit.saturating_sub(seats_in_use);
        assert!(free < 4, "{context}: {load:?}, limit {limit}");
        let narrowest = known.waiting.values().min().unwrap();
        assert!(limit == 0 || !known.running.is_empty(), "{context}: {narrowest} seats could run");
    }
}

//! Seats and queues of one level: decisions that kube-apiserver shows, and edge cases.

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
    let arrive = |queues: &mut FairQueues<()>, seats| queues.arrive(at(0.0), 1, Work::of_seats(seats), || ());
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
    assert_eq!(ids(&queues.finish(at(2.0), 1, at(2.0))), [0; 0], "two requests run, and the limit is one");
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
    while let [next] = ids(&queues.finish(at(last.1), last.0, at(if last.0 == 1 { 10.0 } else { 1.0 })))[..] {
        order.push(next % 2);
        last = (next, last.1 + 1.0);
    }
    assert_eq!(order[..6], [1, 0, 1, 0, 1, 0]);
}

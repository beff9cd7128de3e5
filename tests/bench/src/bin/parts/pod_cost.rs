//! Duration of the steps `conform`, `default` and `validate` for a pod of 4 kB.
//!
//! The benchmark also prints the duration of two steps without a limit: the parse of the body, and the
//! preparation of a creation (name, uid, times, status).

use std::time::Duration;

use apimachinery::clock::{Clock, SeededRng, SystemClock};
use apimachinery::names::{Names, Preset};
use apimachinery::object::Object;
use bench::figure::verdict;
use kinds::{Context, Registry};

use crate::pod;

/// Limit of the total duration of the [limited steps](LIMITED) for one pod.
const LIMIT: Duration = Duration::from_micros(12);
/// Steps whose total duration must not exceed [`LIMIT`].
const LIMITED: [&str; 3] = ["conform", "default", "validate"];
/// Number of timed batches. The fastest batch is reported, to reduce noise from other processes.
const BATCHES: u32 = 200;
const ROUNDS: u32 = 50;

pub(crate) fn run() {
    let names = Names::new(Preset::Kubernetes, "").expect("names");
    let registry = Registry::new(&names);
    let pods = registry.find("", "v1", "pods").expect("a kind");
    let (clock, rng) = (SystemClock::new(), SeededRng::new(1));
    let ctx = Context { names: &names, clock: &clock, rng: &rng, subresource: "" };
    let body = pod::body();
    let parse = || Object(serde_json::from_str(&body).expect("JSON"));
    let conform = || {
        let mut pod = parse();
        pods.conform(&mut pod).expect("a pod");
        pod
    };
    let default = || {
        let mut pod = conform();
        pods.default(&mut pod, &ctx);
        pod
    };
    let prepare = || {
        let mut pod = default();
        pods.prepare_create(&mut pod, "team", &ctx);
        pod
    };
    let validate = || {
        let pod = prepare();
        let errors = pods.validate_create(&pod, &ctx);
        assert!(errors.is_empty(), "{errors:?}");
        pod
    };
    let steps: [(&str, &dyn Fn() -> Object); 5] = [
        ("parse", &parse),
        ("conform", &conform),
        ("default", &default),
        ("prepare", &prepare),
        ("validate", &validate),
    ];
    let (mut previous, mut rules) = (Duration::ZERO, Duration::ZERO);
    for (name, step) in steps {
        let batch = |_| {
            let start = clock.monotonic();
            (0..ROUNDS).for_each(|_| drop(std::hint::black_box(step())));
            clock.monotonic() - start
        };
        let duration = (0..BATCHES).map(batch).min().unwrap_or_default() / ROUNDS;
        let added = duration.saturating_sub(previous);
        println!("{name:<10} {added:>10.1?}");
        if LIMITED.contains(&name) {
            rules += added;
        }
        previous = duration;
    }
    let verdict = verdict(rules <= LIMIT);
    println!("{} bytes: {} {rules:.1?}, at most {LIMIT:?}: {verdict}", body.len(), LIMITED.join(" + "));
}

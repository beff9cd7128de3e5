//! A pod: conforming compared with parsing, and Protobuf encoding compared with JSON.

use apimachinery::clock::{Clock, SystemClock};
use apimachinery::object::Object;
use schema::Schema;

use crate::pod;

/// Number of timed batches. The fastest batch is reported, to reduce noise from other processes.
const BATCHES: u32 = 200;
const ROUNDS: u32 = 50;

pub(crate) fn run() {
    let body = pod::body();
    let parse = || Object(serde_json::from_str(&body).expect("JSON"));
    let clock = SystemClock::new();
    let start = clock.monotonic();
    let schema = Schema::of("core/v1.Pod").expect("a type of the table");
    let lookup_time = clock.monotonic() - start;
    schema.conform(&mut parse()).expect("a pod");
    println!(
        "first use: index and type {lookup_time:?}, first pod {:?}",
        clock.monotonic() - start - lookup_time
    );
    let time = |work: &mut dyn FnMut()| {
        let batch = |_| {
            let start = clock.monotonic();
            (0..ROUNDS).for_each(|_| work());
            clock.monotonic() - start
        };
        (0..BATCHES).map(batch).min().unwrap_or_default() / ROUNDS
    };
    let parse_time = time(&mut || drop(std::hint::black_box(parse())));
    let total_time = time(&mut || {
        let mut pod = parse();
        schema.conform(&mut pod).expect("a pod");
        std::hint::black_box(pod);
    });
    println!(
        "{} bytes: parse {parse_time:?}, conform {:?} more",
        body.len(),
        total_time.saturating_sub(parse_time)
    );
    let mut pod = parse();
    schema.conform(&mut pod).expect("a pod");
    let mut out = Vec::new();
    let encode_time = time(&mut || {
        out.clear();
        serde_json::to_writer(&mut out, &pod.0).expect("a tree");
    });
    println!("as JSON {} bytes in {encode_time:?}", out.len());
    let encode_time = time(&mut || {
        out.clear();
        schema.write_protobuf(&pod, &mut out);
    });
    println!("as Protobuf {} bytes in {encode_time:?}", out.len());
}

//! CEL expressions: usual expressions, and the worst cases within the cost limit.
//!
//! The benchmark measures CPU time where the system reports it, so that other load does not distort the
//! result.

use std::hint::black_box;
use std::time::Duration;

use apimachinery::clock::{Clock, SystemClock};
use expressions::{Cost, Environment, Parsed, Program, Type, Value};
use serde_json::{Value as Json, json};

/// Returns the CPU time of this thread, or the wall-clock time where the system does not report CPU time.
fn elapsed_time(clock: &SystemClock) -> Duration {
    let stats = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = stats.and_then(|text| text.split(' ').next()?.parse().ok());
    nanos.map_or_else(|| clock.monotonic(), Duration::from_nanos)
}

/// Returns the time of one call of `work`: the shortest of several measurements of many calls.
fn measure(clock: &SystemClock, work: &mut dyn FnMut()) -> Duration {
    let mut rounds = 1_u32;
    loop {
        let start = elapsed_time(clock);
        for _ in 0..rounds {
            work();
        }
        let elapsed = elapsed_time(clock).saturating_sub(start);
        if elapsed > Duration::from_millis(50) {
            let repetitions = (0..4).map(|_| {
                let start = elapsed_time(clock);
                for _ in 0..rounds {
                    work();
                }
                elapsed_time(clock).saturating_sub(start)
            });
            return repetitions.chain([elapsed]).min().unwrap_or(elapsed) / rounds;
        }
        rounds *= 2;
    }
}

fn text(name: &str) -> (String, Type) {
    (name.to_owned(), Type::String)
}

/// A type with the fields of the benchmark expressions.
fn schema() -> Type {
    let strings = || Type::list(Type::String);
    Type::object(
        "Widget",
        [
            ("replicas".to_owned(), Type::Int),
            ("maxReplicas".to_owned(), Type::Int),
            text("name"),
            text("s"),
            ("items".to_owned(), strings()),
            ("l".to_owned(), Type::list(Type::Int)),
            ("strings".to_owned(), strings()),
            ("o".to_owned(), Type::map(Type::String, Type::list(Type::Int))),
            ("m".to_owned(), Type::map(Type::String, Type::map(Type::String, Type::Int))),
            ("b64".to_owned(), Type::Bytes),
        ],
    )
}

fn compile(source: &str) -> Program {
    let environment = Environment::new().variable("self", schema());
    environment.compile(source).unwrap_or_else(|error| unreachable!("{source}: {error}"))
}

/// Evaluates a program and returns the used cost units.
fn evaluate(program: &Program, data: &Json, schema: &Type) -> u64 {
    let mut cost = Cost::limit(expressions::limits::CALL);
    let value = Value::of(data, schema).unwrap_or(Value::Null);
    black_box(program.evaluate(&[("self", value)], &mut cost).is_ok());
    cost.used()
}

/// Runs the measurements whose name contains `only`.
pub(crate) fn run(only: &str) {
    let clock = SystemClock::new();
    let schema = schema();
    let small = json!({
        "replicas": 2, "maxReplicas": 3, "name": "abc",
        "items": (0..1_000).map(|i| format!("item number {i}")).collect::<Vec<_>>(),
    });
    let bench = |what: &str, limit: &str, work: &mut dyn FnMut()| {
        if what.contains(only) {
            println!("{:>12.2?}  {limit:>8}  {what}", measure(&clock, work));
        }
    };

    let short = "self.replicas <= self.maxReplicas && self.name.startsWith('a')";
    let program = compile(short);
    bench("evaluate a comparison and startsWith", "1.5 µs", &mut || {
        black_box(evaluate(&program, &small, &schema));
    });
    bench("parse the same expression", "", &mut || {
        black_box(Parsed::new(short).is_ok());
    });
    let environment = Environment::new().variable("self", schema.clone());
    let parsed = Parsed::new(short).unwrap_or_else(|error| unreachable!("{error}"));
    bench("type-check the same expression", "20 µs", &mut || {
        black_box(environment.check(&parsed).is_ok());
    });
    let program = compile("self.items.all(x, x.size() < 64)");
    bench("evaluate all() over 1,000 items", "100 µs", &mut || {
        black_box(evaluate(&program, &small, &schema));
    });

    // Worst-case expressions: 1,000,000 cost units on data as large as a request.
    let large = json!({
        "l": vec![0; 600_000],
        "strings": vec![""; 200_000],
        "s": "é".repeat(300_000),
        "o": {"k": vec![0; 100_000]},
        "m": {"k": (0..50_000).map(|i| (format!("k{i}"), json!(i))).collect::<serde_json::Map<_, _>>()},
        "b64": "QUJD".repeat(50_000),
        "items": ["a"], "name": "abc", "replicas": 1, "maxReplicas": 1,
    });
    let endless = [
        "self.l.all(x, self.l.all(y, self.l.all(z, x + y + z >= 0)))",
        "self.l.map(x, self.l.map(y, x + y)).size() > 0",
        "self.l.all(x, self.l == self.l)",
        "self.l.all(x, self.o == self.o)",
        "self.l.all(x, self.m == self.m)",
        "self.l.all(x, [[self.m]] == [[self.m]])",
        "self.l.all(x, self.m in [{}, self.m])",
        "self.l.all(x, self.m.k.exists(k, true))",
        "self.l.all(x, self.s == self.s)",
        "self.l.all(x, self.s.size() > 0)",
        "self.l.all(x, self.s.charAt(299999) == 'é')",
        "self.l.all(x, self.strings.join(self.s) == '')",
        "self.l.all(x, self.strings.isSorted())",
        "self.l.all(x, self.s.replace('é', self.s) == '')",
        "self.l.all(x, '%s'.format([self.strings]) != '')",
        "self.l.all(x, self.b64.size() > 0)",
        "self.l.all(x, !'a'.matches(self.name + '{1000}'))",
        "self.l.all(x, url('https://a/?' + self.s).getQuery().size() > 0)",
        "self.l.all(x, x in self.l.map(y, y + 1))",
        "self.l.transformMapEntry(i, v, {i: v}).all(k, k >= 0)",
    ];
    for source in endless {
        let program = compile(source);
        bench(source, "50 ms", &mut || {
            black_box(evaluate(&program, &large, &schema));
        });
    }
}

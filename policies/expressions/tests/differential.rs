//! Differential test of generated expressions against `cel` and `cel-core`.
//!
//! All implementations must return the same value, or all must return an error. The test runs
//! `DIFFERENTIAL_ROUNDS` (default 3,000) expressions from `DIFFERENTIAL_SEED`. [`KNOWN_DIFFERENCES`] lists
//! known differences with reasons. Remove an entry that no longer occurs in a long run.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use expressions::{Cost, Environment, Value};

/// A known difference: the other implementation, the condition, and the reason for our result.
struct KnownDifference {
    other: &'static str,
    holds: fn(&Case<'_>) -> bool,
    reason: &'static str,
}

/// Results of one expression in all implementations; `None` for an error.
struct Case<'c> {
    source: &'c str,
    our_result: &'c Option<String>,
    their_result: &'c Option<String>,
}

const KNOWN_DIFFERENCES: &[KnownDifference] = &[KnownDifference {
    other: "cel-core",
    holds: |case| case.source.contains("has(") && case.our_result.is_none() && case.their_result.is_some(),
    reason: "has() of an operand that fails is false in cel-core; the language says that the error remains",
}];

/// Seeded random number generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn pick<'t>(&mut self, from: &[&'t str]) -> &'t str {
        from[self.below(from.len())]
    }
}

/// Types of generated expressions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Int,
    Uint,
    Double,
    Bool,
    String,
    Bytes,
    Ints,
    Strings,
    Map,
}

const KINDS: [Kind; 9] = [
    Kind::Int,
    Kind::Uint,
    Kind::Double,
    Kind::Bool,
    Kind::String,
    Kind::Bytes,
    Kind::Ints,
    Kind::Strings,
    Kind::Map,
];

/// Generates an expression of a type with at most `depth` levels; `names` are int variables in scope.
fn generate(random: &mut Random, kind: Kind, depth: usize, names: &mut Vec<&'static str>) -> String {
    if depth == 0 || random.below(6) == 0 {
        return literal(random, kind, names);
    }
    let depth = depth - 1;
    let mut sub = |random: &mut Random, kind: Kind| generate(random, kind, depth, names);
    if random.below(8) == 0 {
        let condition = sub(random, Kind::Bool);
        return format!("({condition} ? {} : {})", sub(random, kind), sub(random, kind));
    }
    match kind {
        Kind::Int => match random.below(8) {
            0..=2 => {
                let operator = random.pick(&["+", "-", "*", "/", "%"]);
                format!("({} {operator} {})", sub(random, kind), sub(random, kind))
            }
            3 => format!("size({})", sub(random, Kind::String)),
            4 => format!("{}.size()", sub(random, Kind::Ints)),
            5 => format!("{}[{}]", sub(random, Kind::Ints), random.below(4)),
            6 => format!("{}['{}']", sub(random, Kind::Map), random.pick(&["a", "b", "c"])),
            _ => {
                let from = [Kind::Uint, Kind::Double, Kind::String][random.below(3)];
                format!("int({})", sub(random, from))
            }
        },
        Kind::Uint => match random.below(3) {
            0 | 1 => {
                let operator = random.pick(&["+", "-", "*", "/", "%"]);
                format!("({} {operator} {})", sub(random, kind), sub(random, kind))
            }
            _ => format!("uint({})", sub(random, Kind::Int)),
        },
        Kind::Double => match random.below(3) {
            0 | 1 => {
                let operator = random.pick(&["+", "-", "*", "/"]);
                format!("({} {operator} {})", sub(random, kind), sub(random, kind))
            }
            _ => format!("double({})", sub(random, Kind::Int)),
        },
        Kind::Bool => match random.below(12) {
            0 => format!("({} && {})", sub(random, kind), sub(random, kind)),
            1 => format!("({} || {})", sub(random, kind), sub(random, kind)),
            2 => format!("!{}", sub(random, kind)),
            3 | 4 => {
                let of = KINDS[random.below(KINDS.len())];
                let operator = random.pick(&["==", "!="]);
                format!("({} {operator} {})", sub(random, of), sub(random, of))
            }
            5 | 6 => {
                let of = [Kind::Int, Kind::Uint, Kind::Double, Kind::String][random.below(4)];
                let operator = random.pick(&["<", "<=", ">", ">="]);
                format!("({} {operator} {})", sub(random, of), sub(random, of))
            }
            7 => {
                let function = random.pick(&["contains", "startsWith", "endsWith"]);
                format!("{}.{function}({})", sub(random, Kind::String), sub(random, Kind::String))
            }
            8 => format!("({} in {})", sub(random, Kind::Int), sub(random, Kind::Ints)),
            9 => format!("({} in {})", sub(random, Kind::String), sub(random, Kind::Map)),
            10 => format!("has({{'a': {}}}.{})", sub(random, Kind::Int), random.pick(&["a", "b"])),
            _ => {
                let range = sub(random, Kind::Ints);
                let name = if names.len() == 1 { "y" } else { "x" };
                names.push(name);
                let body = generate(random, Kind::Bool, depth, names);
                names.pop();
                format!("{range}.{}({name}, {body})", random.pick(&["all", "exists", "exists_one"]))
            }
        },
        Kind::String => match random.below(3) {
            0 => format!("({} + {})", sub(random, kind), sub(random, kind)),
            1 => format!("{}[{}]", sub(random, Kind::Strings), random.below(3)),
            _ => {
                let from = [Kind::Int, Kind::Uint, Kind::Bool][random.below(3)];
                format!("string({})", sub(random, from))
            }
        },
        Kind::Bytes => format!("bytes({})", sub(random, Kind::String)),
        Kind::Ints => match random.below(4) {
            0 => format!("({} + {})", sub(random, kind), sub(random, kind)),
            1 => format!("[{}, {}]", sub(random, Kind::Int), sub(random, Kind::Int)),
            _ => {
                let range = sub(random, Kind::Ints);
                let name = if names.len() == 1 { "y" } else { "x" };
                let function = random.pick(&["map", "filter"]);
                let of = if function == "map" { Kind::Int } else { Kind::Bool };
                names.push(name);
                let body = generate(random, of, depth, names);
                names.pop();
                format!("{range}.{function}({name}, {body})")
            }
        },
        Kind::Strings => format!("[{}, {}]", sub(random, Kind::String), sub(random, Kind::String)),
        Kind::Map => format!("{{'a': {}, 'b': {}}}", sub(random, Kind::Int), sub(random, Kind::Int)),
    }
}

fn literal(random: &mut Random, kind: Kind, names: &[&'static str]) -> String {
    const INTS: &[&str] = &["0", "1", "2", "-1", "7", "100", "9223372036854775807", "-9223372036854775807"];
    match kind {
        Kind::Int if !names.is_empty() && random.below(2) == 0 => names[random.below(names.len())].to_owned(),
        Kind::Int => random.pick(INTS).to_owned(),
        Kind::Uint => random.pick(&["0u", "1u", "3u", "18446744073709551615u"]).to_owned(),
        Kind::Double => random.pick(&["0.0", "1.0", "1.5", "-2.25", "1e10", "1e-3"]).to_owned(),
        Kind::Bool => random.pick(&["true", "false"]).to_owned(),
        Kind::String => random.pick(&["''", "'a'", "'abc'", "'é😀'", "'12'", "'b c'"]).to_owned(),
        Kind::Bytes => random.pick(&["b''", "b'abc'"]).to_owned(),
        Kind::Ints => random.pick(&["[1]", "[1, 2, 3]", "[0, -1]", "[5, 5]"]).to_owned(),
        Kind::Strings => random.pick(&["['a']", "['a', 'b']"]).to_owned(),
        Kind::Map => random.pick(&["{'a': 1}", "{'a': 1, 'b': 2}", "{'c': 0}"]).to_owned(),
    }
}

fn double(d: f64) -> String {
    if d.is_nan() { "NaN".to_owned() } else { format!("{d:e}") }
}

fn entries(pairs: impl Iterator<Item = (String, String)>) -> String {
    let sorted: BTreeMap<String, String> = pairs.collect();
    format!("{sorted:?}")
}

fn format_value(value: &Value<'_>) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(b) => b.to_string(),
        Value::Int(i) => i.to_string(),
        Value::Uint(u) => format!("{u}u"),
        Value::Double(d) => double(*d),
        Value::String(s) => format!("{:?}", s.as_str()),
        Value::Bytes(b) => format!("b{b:?}"),
        Value::List(list) => {
            let items: Vec<String> = list.iter().map(|item| format_value(&item.unwrap())).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Map(map) => {
            entries(map.entries().unwrap().iter().map(|(k, v)| (format_value(k), format_value(v))))
        }
        other => format!("{other:?}"),
    }
}

fn evaluate_ours(source: &str) -> Option<String> {
    // An environment for new expressions rejects constant parts that fail, also in branches without effect.
    let program = Environment::stored().compile(source).ok()?;
    program.evaluate(&[], &mut Cost::limit(1_000_000)).ok().map(|value| format_value(&value))
}

fn format_cel_value(value: &cel::Value) -> String {
    use cel::Value;
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(b) => b.to_string(),
        Value::Int(i) => i.to_string(),
        Value::UInt(u) => format!("{u}u"),
        Value::Float(d) => double(*d),
        Value::String(s) => format!("{:?}", s.as_str()),
        Value::Bytes(b) => format!("b{:?}", b.as_slice()),
        Value::List(list) => {
            format!("[{}]", list.iter().map(format_cel_value).collect::<Vec<_>>().join(", "))
        }
        Value::Map(map) => entries(map.map.iter().map(|(k, v)| {
            let key = match k {
                cel::objects::Key::String(s) => format!("{s:?}"),
                other => format!("{other:?}"),
            };
            (key, format_cel_value(v))
        })),
        other => format!("{other:?}"),
    }
}

fn evaluate_with_cel(source: &str) -> Option<String> {
    let program = cel::Program::compile(source).ok()?;
    program.execute(&cel::Context::default()).ok().map(|value| format_cel_value(&value))
}

fn format_cel_core_value(value: &cel_core::Value) -> String {
    use cel_core::{MapKey, Value};
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(b) => b.to_string(),
        Value::Int(i) => i.to_string(),
        Value::UInt(u) => format!("{u}u"),
        Value::Double(d) => double(*d),
        Value::String(s) => format!("{:?}", &**s),
        Value::Bytes(b) => format!("b{:?}", &**b),
        Value::List(list) => {
            format!("[{}]", list.iter().map(format_cel_core_value).collect::<Vec<_>>().join(", "))
        }
        Value::Map(map) => entries(map.iter().map(|(k, v)| {
            let key = match k {
                MapKey::String(s) => format!("{:?}", &**s),
                other => format!("{other:?}"),
            };
            (key, format_cel_core_value(v))
        })),
        other => format!("{other:?}"),
    }
}

fn evaluate_with_cel_core(source: &str) -> Option<String> {
    let env = cel_core::Env::with_standard_library();
    let program = env.program(&env.compile(source).ok()?).ok()?;
    match program.eval_empty() {
        cel_core::Value::Error(_) => None,
        value => Some(format_cel_core_value(&value)),
    }
}

#[test]
fn generated_expressions_match_other_cel_implementations() {
    let number = |name: &str, default: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (seed, rounds) = (number("DIFFERENTIAL_SEED", 8), number("DIFFERENTIAL_ROUNDS", 3_000));
    let mut random = Random(seed);
    let mut unknown = Vec::new();
    let mut counts = vec![0_u64; KNOWN_DIFFERENCES.len()];
    let mut values = 0;
    for round in 0..rounds {
        let kind = KINDS[random.below(KINDS.len())];
        let depth = 1 + random.below(4);
        let source = generate(&mut random, kind, depth, &mut Vec::new());
        let our_result = evaluate_ours(&source);
        values += u64::from(our_result.is_some());
        for (other, evaluate) in
            [("cel", evaluate_with_cel as fn(&str) -> Option<String>), ("cel-core", evaluate_with_cel_core)]
        {
            // Other implementations may panic, which counts as an error.
            let their_result = catch_unwind(AssertUnwindSafe(|| evaluate(&source))).unwrap_or(None);
            if our_result == their_result {
                continue;
            }
            let case = Case { source: &source, our_result: &our_result, their_result: &their_result };
            match KNOWN_DIFFERENCES.iter().position(|known| known.other == other && (known.holds)(&case)) {
                Some(at) => counts[at] += 1,
                None => unknown.push(format!(
                    "{other}, round {round}: {source}\n   our result {our_result:?}\n   their result {their_result:?}"
                )),
            }
        }
    }
    for (known, count) in KNOWN_DIFFERENCES.iter().zip(counts) {
        println!("{}: {count} times: {}", known.other, known.reason);
    }
    println!("{rounds} expressions from seed {seed}, {values} with a value");
    assert!(values > rounds / 4, "too few expressions have a value: {values} of {rounds}");
    let examples: Vec<&String> = unknown.iter().take(20).collect();
    assert!(unknown.is_empty(), "seed {seed}: {} unknown differences, such as\n{examples:#?}", unknown.len());
}

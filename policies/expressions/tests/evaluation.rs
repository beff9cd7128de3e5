//! Tests of cost limits, error positions, and values and data that would make evaluation slow.

use expressions::{Cost, Environment, EvalError, Type, Value};
use serde_json::{Value as Json, json};

/// Result and cost of an expression without variables.
fn run(source: &str, limit: u64) -> (Result<String, EvalError>, u64) {
    let program = Environment::new().compile(source).unwrap_or_else(|error| panic!("{source}: {error}"));
    let mut cost = Cost::limit(limit);
    let outcome = program.evaluate(&[], &mut cost).map(|value| format!("{value:?}"));
    (outcome, cost.used())
}

#[test]
fn cost_limit_is_exact_and_never_absorbed() {
    for source in [
        "1 == 1",
        "[1, 2, 3].all(x, x > 0)",
        "[1, 2].map(x, x * 2).size() == 2",
        "'abc'.matches('^a') && {'a': 1}.a == 1",
        "[1, 2, 3].all(x, x > 0) || true",
        "[1, 2, 3].exists(x, [4, 5].all(y, y < x)) || [1].exists_one(x, x == 1)",
        "optional.of(1).optMap(x, x + 1).orValue(7) == 2",
        "['b', 'a'].isSorted() ? 'x' + 'y' == 'xy' : sets.contains([1], [1])",
    ] {
        let (value, units) = run(source, 1_000_000);
        assert!(value.is_ok(), "{source}: {value:?}");
        for limit in 0..units {
            assert_eq!(run(source, limit).0, Err(EvalError::CostLimit), "{source} with {limit} of {units}");
        }
        assert_eq!(run(source, units), (value, units), "{source}");
    }
    assert_eq!(EvalError::CostLimit.to_string(), "operation cancelled: actual cost limit exceeded");
}

#[test]
fn work_that_kubernetes_does_not_count_uses_units_of_limit() {
    let numbers: serde_json::Map<String, Json> = (0..4_000).map(|i| (format!("k{i}"), json!(i))).collect();
    let data = json!({
        "m": {"k": numbers}, "l": [vec![0; 4_000]], "texts": vec!["a"; 4_000], "s": "é".repeat(100_000),
        "small": {"a": {"b": [1, 2, 3, 4]}},
    });
    let environment = Environment::new().variable("v", Type::Dyn);
    let evaluate = |source: &str, limit: u64| {
        let program = environment.compile(source).unwrap_or_else(|error| panic!("{source}: {error}"));
        let mut cost = Cost::limit(limit);
        let outcome = program.evaluate(&[("v", Value::of(&data, &Type::Dyn).unwrap())], &mut cost);
        (outcome.map(|value| format!("{value:?}")), cost.used())
    };
    for source in [
        "v.m == v.m",
        "v.m != v.m || true",
        "v.l == v.l",
        "[[v.m]] == [[v.m]]",
        "{'a': v.m} == {'a': v.m}",
        "optional.of(v.m) == optional.of(v.m)",
        "v.m in [v.m]",
        "!(1 in v.texts)",
        "sets.contains([v.m], [v.m])",
        "sets.equivalent([v.l], [v.l])",
        "{v.m: 1}.size() == 1",
        "{v.s: 1}.size() == 1",
        "{1: 1}[?v.s] == optional.none()",
        "v.m.k.exists(k, true)",
        "v.m.k.exists(k, x, true)",
        "v.texts.isSorted()",
        "'%s'.format([v.m]) != ''",
        "!isURL(v.s + v.s)",
    ] {
        let (value, units) = evaluate(source, 1_000_000);
        assert_eq!(value, Ok("true".to_owned()), "{source}");
        assert!(units >= 2_000, "{source}: {units}");
        assert_eq!(evaluate(source, 1_999).0, Err(EvalError::CostLimit), "{source}");
    }
    assert_eq!(evaluate("v.small == v.small", 5), (Ok("true".to_owned()), 5));
}

#[test]
fn cost_and_decision_are_equal_on_idle_and_busy_machine() {
    const SOURCES: [&str; 3] = [
        "[1, 2, 3, 4, 5].all(x, [x, x].exists(y, y == x))",
        "'abcabcabc'.matches('(abc)+') && ['b', 'a'].map(s, s + s).size() == 2",
        "[3, 1, 2].isSorted() || {'a': [1, 2]}.a.exists_one(x, x == 1)",
    ];
    // A limit of one unit less than the cost rejects; the cost accepts.
    let decide = |source: &str, units: u64| {
        (run(source, units).0.is_ok(), run(source, units - 1).0, run(source, u64::MAX).1)
    };
    let idle = SOURCES.map(|source| {
        let units = run(source, u64::MAX).1;
        assert!(units > 5, "{source}: {units}");
        (source, units, decide(source, units))
    });
    assert!(
        idle.iter()
            .all(|(_, _, (accepted, rejected, _))| *accepted && *rejected == Err(EvalError::CostLimit))
    );
    // More threads than processors: each evaluation loses its processor now and then.
    let threads = 4 * std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                for _ in 0..200 {
                    for (source, units, expected) in &idle {
                        assert_eq!(decide(source, *units), *expected, "{source} under load");
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
}

#[test]
fn cost_limit_applies_to_sum_over_expressions() {
    let program = Environment::new().compile("[1, 2, 3].all(x, x > 0)").unwrap();
    let mut total = Cost::limit(150);
    let mut ended = 0;
    for _ in 0..10 {
        let mut call = Cost::limit(1_000);
        program.evaluate(&[], &mut call).unwrap();
        if total.charge(call.used()).is_err() {
            break;
        }
        ended += 1;
    }
    // Each evaluation costs 16 units.
    assert_eq!((ended, total.used()), (9, 160));
}

#[test]
fn compile_errors_have_position_and_caret() {
    let schema = Type::object("root", [("a".to_owned(), Type::Int)]);
    let environment = Environment::new().variable("self", schema);
    for (source, expected) in [
        ("self.missing > 0", "ERROR: <input>:1:5: undefined field 'missing'\n | self.missing > 0\n | ....^"),
        (
            "true &&\n  'é' + self.a == 'x'",
            "ERROR: <input>:2:7: found no matching overload for '_+_' applied to '(string, int)'\n \
             |   'é' + self.a == 'x'\n | ...．..^",
        ),
        (
            "x + y",
            "ERROR: <input>:1:1: undeclared reference to 'x' (in container '')\n | x + y\n | ^\n\
             ERROR: <input>:1:5: undeclared reference to 'y' (in container '')\n | x + y\n | ....^",
        ),
    ] {
        let error = environment.compile(source).err().unwrap();
        assert_eq!(error.to_string(), expected, "{source}");
    }
}

/// Values with shared parts grow exponentially at low cost; evaluation rejects them.
#[test]
fn exponentially_growing_values_are_rejected() {
    for grow in ["[x, x]", "x + x", "{'a': [x], 'b': [x]}.map(k, x)"] {
        let mut source = String::from("x == x");
        for _ in 0..36 {
            source = format!("optional.of({grow}).optMap(x, {source})");
        }
        let source = format!("optional.of([1]).optMap(x, {source}) == optional.none()");
        let refused = Err(EvalError::Failed("the value is too large".to_owned()));
        assert_eq!(run(&source, 1_000_000).0, refused, "{grow}");
    }
}

/// INVARIANT (cost covers work): evaluation charges before the work.
///
/// Otherwise each of these expressions would take minutes or exhaust the memory on large data.
#[test]
fn long_results_and_long_constant_lists_cost_units() {
    let clauses = "%.1000f".repeat(500);
    let zeros = vec!["0.0"; 500].join(", ");
    let (value, units) = run(&format!("'{clauses}'.format([{zeros}]).size() > 500000"), u64::MAX);
    assert!(value.is_ok() && units > 400, "{value:?} {units}");
    let constants: Vec<String> = (0..10_000).map(|number| number.to_string()).collect();
    let (_, units) = run(&format!("-1 in [{}]", constants.join(", ")), u64::MAX);
    assert!(units > 30, "{units}");
    assert_eq!(run("0 in [1, 2, 3]", u64::MAX), (Ok("false".to_owned()), 0));
    // The result of 100,000,000 bytes is not created.
    let source = format!("'{}'.replace('a', '{}').size()", "a".repeat(10_000), "b".repeat(10_000));
    assert_eq!(run(&source, u64::MAX).0.unwrap_err().to_string(), "the value is too large");
}

#[test]
fn types_that_uses_of_empty_lists_determine_are_finite() {
    let compile = |source: &str| Environment::new().compile(source).map(drop);
    let error = compile("[[]].all(x, x in x)").unwrap_err();
    assert!(error.to_string().contains("found no matching overload for '@in'"), "{error}");
    assert!(compile("[[]].all(x, [[]].all(y, x in y && y in x))").is_err());
    // Each link doubles the parts of the type.
    let doubled = format!("[1]{}", ".map(a, {a: a})".repeat(60));
    for source in
        [doubled.clone(), format!("1 in [] && {doubled}.size() == 1"), format!("{doubled} == {doubled}")]
    {
        assert_eq!(compile(&source), Ok(()), "{source}");
    }
}

#[test]
fn cost_limit_stops_slow_expressions_on_large_data() {
    let fields = [
        ("l", Type::list(Type::Int)),
        ("strings", Type::list(Type::String)),
        ("s", Type::String),
        ("o", Type::map(Type::String, Type::list(Type::Int))),
        ("b64", Type::Bytes),
        ("set", Type::list_of_kind(Type::Int, expressions::ListKind::Set)),
    ];
    let schema = Type::object("root", fields.map(|(name, ty)| (name.to_owned(), ty)));
    let data: Json = json!({
        "l": vec![0; 300_000], "strings": vec![""; 100_000], "s": "é".repeat(200_000),
        "o": {"k": vec![0; 100_000]}, "b64": "QUJD".repeat(50_000), "set": (0..50_000).collect::<Vec<_>>(),
    });
    for source in [
        "self.l.all(x, self.l.all(y, self.l.all(z, x + y + z >= 0)))",
        "self.l.all(x, self.o == self.o)",
        "self.l.all(x, self.set == self.set)",
        "self.l.all(x, (self.set + self.set).size() > 0)",
        "self.l.all(x, self.s == self.s)",
        "self.l.all(x, self.strings.join(self.s) == '')",
        "self.l.all(x, self.strings.isSorted())",
        "self.l.all(x, self.s.replace('é', self.s) == '')",
        "self.l.all(x, '%s'.format([self.strings]) != '')",
        "self.l.all(x, self.b64.size() > 0)",
        "self.l.all(x, !'a'.matches(string(x) + '{1000}'))",
        "self.l.all(x, [url('https://a/?' + self.s)].all(u, u.getQuery().size() > 0))",
        "self.l.all(x, sets.contains([self.o], [self.o]))",
        "self.l.all(x, self.o in [self.o])",
    ] {
        let program = Environment::new().variable("self", schema.clone()).compile(source).unwrap();
        let mut cost = Cost::limit(100_000);
        let value = Value::of(&data, &schema).unwrap();
        let outcome = program.evaluate(&[("self", value)], &mut cost).map(|value| format!("{value:?}"));
        assert_eq!(outcome, Err(EvalError::CostLimit), "{source}");
    }
}

//! The language as tables: expression, and its value, its mistake or its error.

use expressions::{Cost, Environment, ListKind, Type, Value};
use serde_json::json;

/// Evaluates without variables and shows the value; errors of compiling begin with `compile: `, those of
/// running with `error: `.
fn outcome(source: &str) -> String {
    let program = match Environment::new().compile(source) {
        Ok(program) => program,
        Err(error) => {
            let first = error.issues.first().map(|issue| issue.message.clone());
            return format!("compile: {}", first.unwrap_or_default());
        }
    };
    let result = program.evaluate(&[], &mut Cost::limit(1_000_000));
    match result {
        Ok(value) => format!("{value:?}"),
        Err(error) => format!("error: {error}"),
    }
}

fn check(table: &[(&str, &str)]) {
    let mut wrong = Vec::new();
    for (source, want) in table {
        let got = outcome(source);
        if got != *want {
            wrong.push(format!("{source}\n   want {want}\n   got  {got}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn literals_and_arithmetic() {
    check(&[
        ("1 + 2 * 3", "7"),
        ("7 / 2", "3"),
        ("-7 / 2", "-3"),
        ("-7 % 3", "-1"),
        ("0x1F", "31"),
        ("1e3", "1000.0"),
        ("3u - 1u", "2u"),
        ("1u - 2u", "error: unsigned integer overflow"),
        ("9223372036854775807 + 1", "error: integer overflow"),
        ("-(-9223372036854775807 - 1)", "error: integer overflow"),
        ("1 / 0", "error: division by zero"),
        ("1 % 0", "error: modulus by zero"),
        ("1.0 / 0.0 > 1e308", "true"),
        ("'a' + 'b'", "\"ab\""),
        ("b'a' + b'b'", "b\"ab\""),
        ("[1] + [2]", "[1, 2]"),
        ("'\\u00e9' == 'é'", "true"),
        ("1 + 'a'", "compile: found no matching overload for '_+_' applied to '(int, string)'"),
        ("dyn(1) + 'a'", "error: no such overload"),
        ("foo", "compile: undeclared reference to 'foo' (in container '')"),
        ("foo(1)", "compile: undeclared reference to 'foo' (in container '')"),
        ("1.foo()", "compile: undeclared reference to 'foo' (in container '')"),
        ("[1, 'a']", "compile: expected type 'int' but found 'string'"),
        ("[1, dyn('a')]", "[1, \"a\"]"),
        ("true ? 1 : 2", "1"),
        (
            "true ? 1 : 'a'",
            "compile: found no matching overload for '_?_:_' applied to '(bool, int, string)'",
        ),
        ("1 ? 1 : 2", "compile: found no matching overload for '_?_:_' applied to '(int, int, int)'"),
    ]);
}

#[test]
fn comparisons() {
    check(&[
        ("1 < 1.5 && 2u > 1 && 1 <= 1u", "true"),
        ("9223372036854775807 > 9.2e18", "true"),
        ("dyn(1) == 1.0", "true"),
        ("dyn(1u) == 1", "true"),
        ("dyn(1) == 'a'", "false"),
        ("1 == 1.0", "compile: found no matching overload for '_==_' applied to '(int, double)'"),
        ("0.0 / 0.0 == 0.0 / 0.0", "false"),
        ("0.0 / 0.0 < 1.0", "false"),
        ("'a' < 'b' && b'a' < b'b' && false < true", "true"),
        ("[1, 2] == [1, 2]", "true"),
        ("[1, 2] == [2, 1]", "false"),
        ("{'a': 1, 'b': 2} == {'b': 2, 'a': 1}", "true"),
        ("{'a': 1} == {'a': 2}", "false"),
        ("2 in [1, 2]", "true"),
        ("'a' in {'a': 1}", "true"),
        ("1 in ['a']", "compile: found no matching overload for '@in' applied to '(int, list(string))'"),
        ("null == null", "true"),
        ("timestamp('2020-01-01T00:00:00Z') < timestamp('2020-01-02T00:00:00Z')", "true"),
    ]);
}

#[test]
fn logic_absorbs_errors_but_not_the_budget() {
    check(&[
        ("false && 1 / 0 == 1", "false"),
        ("1 / 0 == 1 && false", "false"),
        ("1 / 0 == 1 || true", "true"),
        ("1 / 0 == 1 && true", "error: division by zero"),
        ("true || 1 / 0 == 1", "true"),
        ("!true", "false"),
        ("true && 1", "compile: expected type 'bool' but found 'int'"),
        ("[1, 0].exists(x, 1 / x == 1)", "true"),
        ("[0, 1].exists(x, 1 / x == 1)", "true"),
        ("[0, 1].all(x, 1 / x == 1)", "error: division by zero"),
        ("[0, 2].all(x, 1 / x == 1)", "false"),
    ]);
    let program = Environment::new().compile("[1, 2, 3].all(x, x > 0) || true").unwrap();
    assert_eq!(
        program.evaluate(&[], &mut Cost::limit(45)).unwrap_err().to_string(),
        "operation cancelled: actual cost limit exceeded"
    );
}

#[test]
fn macros() {
    check(&[
        ("[1, 2, 3].all(x, x > 0)", "true"),
        ("[1, 2, 3].exists_one(x, x > 2)", "true"),
        ("[1, 2, 3].existsOne(x, x > 1)", "false"),
        ("[1, 2].map(x, x * 2)", "[2, 4]"),
        ("[1, 2].map(x, x > 1, x * 2)", "[4]"),
        ("[1, 2].filter(x, x > 1)", "[2]"),
        ("{'a': 1}.map(k, k)", "[\"a\"]"),
        ("[[1], [2]].map(x, x.map(x, x + 1))", "[[2], [3]]"),
        ("[5, 6].all(i, v, v == i + 5)", "true"),
        ("{'a': 'b'}.exists(k, v, k != v)", "true"),
        ("[1, 2].transformList(i, v, i > 0, v + i)", "[3]"),
        ("{'a': 1}.transformMap(k, v, v + 1)", "{\"a\": 2}"),
        ("{'a': 'b'}.transformMapEntry(k, v, {v: k})", "{\"b\": \"a\"}"),
        ("['a', 'a'].transformMapEntry(i, v, {v: i})", "error: insert failed: key \"a\" already exists"),
        ("[1].map(x, y)", "compile: undeclared reference to 'y' (in container '')"),
        (
            "1.all(x, true)",
            "compile: expression of type 'int' cannot be range of a comprehension (must be list, map, or dynamic)",
        ),
        ("[1].all(1, true)", "compile: argument must be a simple name"),
        ("[1].all(x, x)", "compile: expected type 'bool' but found 'int'"),
        ("has(1)", "compile: invalid argument to has() macro"),
        ("has({'a': 1}.a)", "true"),
        ("has({'a': 1}.b)", "false"),
    ]);
}

#[test]
fn access() {
    check(&[
        ("[1, 2][1]", "2"),
        ("[1][1]", "error: index out of bounds: 1"),
        ("[1][-1]", "error: index out of bounds: -1"),
        ("[1]['a']", "compile: found no matching overload for '_[_]' applied to '(list(int), string)'"),
        ("{'a': 1}['a']", "1"),
        ("{'a': 1}.a", "1"),
        ("{'a': 1}.b", "error: no such key: b"),
        ("{1: 'x'}[1]", "\"x\""),
        ("{1: 'x', 1: 'y'}", "error: insert failed: key 1 already exists"),
        ("(1).a", "compile: type 'int' does not support field selection"),
    ]);
}

#[test]
fn conversions_and_types() {
    check(&[
        ("int(2.9)", "2"),
        ("int(-2.5)", "-2"),
        ("int('12')", "12"),
        ("int('x')", "error: type conversion error from 'string' to 'int': `x`"),
        ("int(1e19)", "error: integer overflow"),
        ("uint(-1)", "error: unsigned integer overflow"),
        ("uint(3) == 3u", "true"),
        ("double('1.5')", "1.5"),
        ("string(1.0)", "\"1\""),
        ("string(2.5)", "\"2.5\""),
        ("string(1e30)", "\"1e+30\""),
        ("string(true)", "\"true\""),
        ("string(b'a')", "\"a\""),
        ("bytes('a')", "b\"a\""),
        ("bool('true')", "true"),
        ("type(1) == int", "true"),
        ("type('a') == type('b')", "true"),
        ("type(timestamp('2020-01-01T00:00:00Z')) == google.protobuf.Timestamp", "true"),
        ("type([1]) == list && type({}) == map && type(null) == null_type && type(type(1)) == type", "true"),
        ("size('héé')", "3"),
        ("size([1, 2]) + {'a': 1}.size()", "3"),
    ]);
}

#[test]
fn times() {
    check(&[
        ("timestamp('2024-03-05T06:07:08.009Z').getFullYear()", "2024"),
        ("timestamp('2024-03-05T06:07:08.009Z').getMonth()", "2"),
        ("timestamp('2024-03-05T06:07:08.009Z').getDayOfMonth()", "4"),
        ("timestamp('2024-03-05T06:07:08.009Z').getDate()", "5"),
        ("timestamp('2024-03-05T06:07:08.009Z').getDayOfWeek()", "2"),
        ("timestamp('2024-03-05T06:07:08.009Z').getDayOfYear()", "64"),
        ("timestamp('2024-03-05T06:07:08.009Z').getHours('+02:30')", "8"),
        ("timestamp('2024-03-05T06:07:08.009Z').getMilliseconds()", "9"),
        ("duration('1h30m').getMinutes()", "90"),
        ("string(duration('1h30m'))", "\"5400s\""),
        ("string(timestamp('2024-03-05T06:07:08Z') + duration('1s'))", "\"2024-03-05T06:07:09Z\""),
        ("timestamp('2024-03-05T06:07:08Z') - timestamp('2024-03-05T06:07:07Z') == duration('1s')", "true"),
        ("timestamp('9999-12-30T00:00:00Z') + duration('48h')", "error: timestamp overflow"),
        ("timestamp('bad')", "error: invalid timestamp `bad`"),
        ("duration('bad')", "error: invalid duration `bad`"),
    ]);
}

#[test]
fn strings() {
    check(&[
        ("'héllo'.charAt(1)", "\"é\""),
        ("'abc'.charAt(3)", "\"\""),
        ("'abc'.charAt(4)", "error: index out of range: 4"),
        ("'hello'.indexOf('l')", "2"),
        ("'hello'.indexOf('l', 3)", "3"),
        ("'hello'.indexOf('x')", "-1"),
        ("'hello'.lastIndexOf('l')", "3"),
        ("'hello'.lastIndexOf('l', 2)", "2"),
        ("'héllo'.lowerAscii() + 'aÉ'.upperAscii()", "\"hélloAÉ\""),
        ("'aaa'.replace('a', 'b', 2)", "\"bba\""),
        ("'aaa'.replace('a', 'b')", "\"bbb\""),
        ("'a,b,c'.split(',')", "[\"a\", \"b\", \"c\"]"),
        ("'a,b,c'.split(',', 2)", "[\"a\", \"b,c\"]"),
        ("'a,b,c'.split(',', 0)", "[]"),
        ("'abc'.split('', 2)", "[\"a\", \"bc\"]"),
        ("['a', 'b'].join('-')", "\"a-b\""),
        ("['a', 'b'].join()", "\"ab\""),
        ("[1].join()", "compile: found no matching overload for 'join' applied to 'list(int).()'"),
        ("'tacocat'.substring(0, 4)", "\"taco\""),
        ("'tacocat'.substring(4)", "\"cat\""),
        ("'abc'.substring(2, 1)", "error: invalid substring range. start: 2, end: 1"),
        ("'  a '.trim()", "\"a\""),
        ("strings.quote('a\"b')", "\"\\\"a\\\\\\\"b\\\"\""),
        ("'%s is %d and %.2f'.format(['x', 3, 1.5])", "\"x is 3 and 1.50\""),
        ("'%x %b %e'.format([255, 5, 1500.0])", "\"ff 101 1.500000e+03\""),
        ("'%s'.format([[1, 2]])", "\"[1, 2]\""),
        ("'%d'.format(['x'])", "error: error during formatting: `%d` cannot show argument 0 of type string"),
        ("'abc'.contains('b') && 'abc'.startsWith('a') && 'abc'.endsWith('c')", "true"),
        ("'a'.contains(1)", "compile: found no matching overload for 'contains' applied to 'string.(int)'"),
    ]);
}

#[test]
fn lists() {
    check(&[
        ("[1, 2, 2].indexOf(2)", "1"),
        ("[1, 2, 2].lastIndexOf(2)", "2"),
        ("[1].indexOf(3)", "-1"),
        ("[2, 1].min() + [2, 1].max()", "3"),
        ("[].min()", "error: min called on empty list"),
        ("[1, 2].sum()", "3"),
        ("[].sum()", "0"),
        ("[1, 2].isSorted() && ![2, 1].isSorted()", "true"),
        ("['a'].sum()", "compile: found no matching overload for 'sum' applied to 'list(string).()'"),
    ]);
}

/// A rule on typed data, as a schema would give it.
#[test]
fn typed_data() {
    let entry =
        |name: &str| Type::object(name, [("key".to_owned(), Type::String), ("value".to_owned(), Type::Int)]);
    let keyed = || Type::list_of_kind(entry("entry"), ListKind::Map(vec!["key".to_owned()]));
    let set = || Type::list_of_kind(Type::Int, ListKind::Set);
    let schema = Type::object(
        "root",
        [
            ("n".to_owned(), Type::Double),
            ("i".to_owned(), Type::Int),
            ("port".to_owned(), Type::Dyn),
            ("b64".to_owned(), Type::Bytes),
            ("day".to_owned(), Type::Timestamp),
            ("wait".to_owned(), Type::Duration),
            ("s1".to_owned(), set()),
            ("s2".to_owned(), set()),
            ("m1".to_owned(), keyed()),
            ("m2".to_owned(), keyed()),
            ("a.b".to_owned(), Type::Int),
            ("namespace".to_owned(), Type::String),
            ("absent".to_owned(), Type::Int),
            ("labels".to_owned(), Type::map(Type::String, Type::String)),
        ],
    );
    let data = json!({
        "n": 2, "i": 3, "port": "http", "b64": "YWJj", "day": "2024-01-02", "wait": "90s",
        "s1": [1, 2], "s2": [2, 3],
        "m1": [{"key": "x", "value": 1}], "m2": [{"key": "y", "value": 2}, {"key": "x", "value": 3}],
        "a.b": 5, "namespace": "ns", "labels": {"k": "v"}, "undeclared": 1,
    });
    let table = [
        ("type(self.n) == double && self.n == 2.0", "true"),
        ("type(self.port) == string && self.port == 'http'", "true"),
        ("self.b64 == b'abc'", "true"),
        ("self.day < timestamp('2030-01-01T00:00:00Z')", "true"),
        ("self.wait <= duration('1h')", "true"),
        ("self.s1 + self.s2", "[1, 2, 3]"),
        ("self.s1 == [2, 1]", "true"),
        ("[2, 1] == self.s1", "false"),
        ("(self.m1 + self.m2).map(e, e.value)", "[3, 2]"),
        ("self.a__dot__b == 5 && self.__namespace__ == 'ns'", "true"),
        ("has(self.absent)", "false"),
        ("has(self.labels.k) && !has(self.labels.z)", "true"),
        ("self.absent == 1", "error: no such key: absent"),
        ("self.?absent.orValue(7)", "7"),
        ("self.undeclared", "compile: undefined field 'undeclared'"),
        ("self.i == 'a'", "compile: found no matching overload for '_==_' applied to '(int, string)'"),
        ("self.labels.all(k, v, k != v)", "true"),
        ("self.?labels[?'k'].optMap(x, size(x)).value()", "1"),
    ];
    for (source, want) in table {
        let got = match Environment::new().variable("self", schema.clone()).compile(source) {
            Err(error) => format!("compile: {}", error.issues[0].message),
            Ok(program) => {
                let value = Value::of(&data, &schema).unwrap();
                match program.evaluate(&[("self", value)], &mut Cost::limit(10_000)) {
                    Ok(value) => format!("{value:?}"),
                    Err(error) => format!("error: {error}"),
                }
            }
        };
        assert_eq!(got, want, "{source}");
    }
}

#[test]
fn costs() {
    for (source, want) in [
        ("1", 0),
        ("1 == 1", 1),
        ("'a' == 'b'", 1),
        ("[1, 2]", 40),
        ("{'a': 1}", 30),
        ("[1, 2, 3].all(x, true)", 40 + 3 * 3 + 1),
        ("[1, 2, 3].exists(x, x == 3)", 40 + 3 * (4 + 2) + 1),
        ("'0123456789a' + 'b'", 2),
        ("'0123456789a'.startsWith('b')", 1),
        ("'0123456789a'.contains('0123456789a')", 4),
        ("1 in [1, 2, 3]", 43),
        ("[1, 2][0]", 42),
        ("{'a': {'b': 1}}.a.b", 63),
        ("has({'a': 1}.a)", 30),
        ("true ? 1 : 2", 0),
        ("[1, 2].map(x, x)", 40 + 10 + 2 * (10 + 1 + 1 + 1) + 1),
    ] {
        let program = Environment::new().compile(source).unwrap();
        let mut cost = Cost::limit(1_000);
        program.evaluate(&[], &mut cost).unwrap();
        assert_eq!(cost.used(), want, "{source}");
        // The budget is exact: one unit less is not enough.
        if want > 0 {
            assert!(program.evaluate(&[], &mut Cost::limit(want - 1)).is_err(), "{source}");
        }
        assert!(program.evaluate(&[], &mut Cost::limit(want)).is_ok(), "{source}");
    }
}

#[test]
fn mistakes_have_a_place_and_a_caret() {
    let schema = Type::object("root", [("a".to_owned(), Type::Int)]);
    let error = Environment::new().variable("self", schema).compile("self.missing > 0").err().unwrap();
    assert_eq!(
        error.to_string(),
        "ERROR: <input>:1:5: undefined field 'missing'\n | self.missing > 0\n | ....^"
    );
}

#[test]
fn regular_expressions() {
    check(&[
        ("'abc'.matches('^a')", "true"),
        ("'éb'.matches('^\\\\w')", "false"),
        ("'abc 123'.find('[0-9]+')", "\"123\""),
        ("'abc'.find('[0-9]+')", "\"\""),
        ("'1 2'.findAll('[0-9]')", "[\"1\", \"2\"]"),
        ("'1 2'.findAll('[0-9]', 1)", "[\"1\"]"),
        ("'1 2'.findAll('[0-9]', 0)", "[]"),
        ("'a'.matches(dyn('['))", "error: error parsing regexp: missing closing ]: `[`"),
        ("'a'.matches('[')", "compile: error parsing regexp: missing closing ]: `[`"),
        ("'a'.matches(1)", "compile: found no matching overload for 'matches' applied to 'string.(int)'"),
    ]);
}

#[test]
fn optionals() {
    check(&[
        ("{'a': 1}.?a", "optional.of(1)"),
        ("{'a': 1}.?b", "optional.none()"),
        ("{'a': {'b': 1}}.?a.b", "optional.of(1)"),
        ("{'a': {'b': 1}}.?z.b", "optional.none()"),
        ("{'a': {'b': 1}}.?z.?b.orValue(7)", "7"),
        ("[1][?0].value()", "1"),
        ("[1][?9].value()", "error: optional.none() dereference"),
        ("[1, ?[1][?9], ?optional.of(5)]", "[1, 5]"),
        ("{'a': 1, ?'b': optional.none()}", "{\"a\": 1}"),
        ("optional.of(1) == optional.of(1)", "true"),
        ("optional.ofNonZeroValue('').hasValue()", "false"),
        ("optional.none().or(optional.of(3)).value()", "3"),
        ("optional.of(2).optMap(x, x + 1)", "optional.of(3)"),
        ("optional.of('k').optFlatMap(x, {'k': 1}[?x])", "optional.of(1)"),
        (
            "optional.of(1).orValue('a')",
            "compile: found no matching overload for 'orValue' applied to 'optional_type(int).(string)'",
        ),
        ("1.orValue(2)", "compile: found no matching overload for 'orValue' applied to 'int.(int)'"),
    ]);
}

#[test]
fn sets() {
    check(&[
        ("sets.contains([1, 2], [1])", "true"),
        ("sets.contains([1], [1, 2])", "false"),
        ("sets.contains([1], [])", "true"),
        ("sets.equivalent(['a', 'b'], ['b', 'a', 'a'])", "true"),
        ("sets.intersects([1, 2], [2])", "true"),
        ("sets.intersects([1, 2], [])", "false"),
        (
            "sets.contains(1, [])",
            "compile: found no matching overload for 'sets.contains' applied to '(int, list(dyn))'",
        ),
    ]);
}

/// Values that share their parts grow exponentially at a low cost: they are refused.
#[test]
fn values_stay_small() {
    for grow in ["[x, x]", "x + x", "{'a': [x], 'b': [x]}.map(k, x)"] {
        let mut source = String::from("x == x");
        for _ in 0..36 {
            source = format!("optional.of({grow}).optMap(x, {source})");
        }
        let source = format!("optional.of([1]).optMap(x, {source}) == optional.none()");
        assert_eq!(outcome(&source), "error: the value is too large", "{grow}");
    }
}

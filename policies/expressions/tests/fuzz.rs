//! Fuzz targets for parser, checker, evaluation and text functions.
//! No input causes a panic; accepted input gives consistent results.
//!
//! [`fuzzing::run`] describes the environment variables.

use expressions::{Bounds, Cost, Environment, Schema, SchemaType, Type, Value};
use fuzzing::run_text;

/// Cost limit of one evaluation.
const COST_LIMIT: u64 = 20_000;

fn dynamic() -> Environment {
    Environment::stored().variable("self", Type::Dyn).variable("text", Type::String)
}

/// Guard and parser: an expression, or errors with positions inside the text.
fn run_parser(text: &str) {
    if let Err(error) = Environment::new().compile(text) {
        assert!(!error.issues.is_empty());
        let lines = text.lines().count().max(1) + 1;
        for issue in &error.issues {
            assert!(issue.line >= 1 && issue.line <= lines && issue.column >= 1, "{issue}");
        }
        let _ = error.to_string();
    }
}

/// Checker: the value of a program has the result type of the program.
fn run_type_checker(text: &str) {
    let Ok(program) = Environment::new().compile(text) else { return };
    let _ = program.estimate(&[]);
    let Ok(value) = program.evaluate(&[], &mut Cost::limit(COST_LIMIT)) else { return };
    let has_result_type = match program.result_type() {
        Type::Bool => matches!(value, Value::Bool(_)),
        Type::Int => matches!(value, Value::Int(_)),
        Type::Uint => matches!(value, Value::Uint(_)),
        Type::Double => matches!(value, Value::Double(_)),
        Type::String => matches!(value, Value::String(_)),
        Type::Bytes => matches!(value, Value::Bytes(_)),
        Type::List(_) => matches!(value, Value::List(_)),
        _ => true,
    };
    assert!(has_result_type, "{value:?} is not a {}", program.result_type());
}

/// Evaluation: stays within its cost limit and is deterministic.
fn run_evaluation(text: &str) {
    let Ok(program) = dynamic().compile(text) else { return };
    let data = serde_json::json!({
        "a": [1, 2.5, "x", null, true, {"b": "2024-01-02T03:04:05Z"}], "m": {"k": "v", "1": [[]]}, "s": "aé😀b",
    });
    let any = Type::Dyn;
    let run = || {
        let mut cost = Cost::limit(COST_LIMIT);
        let variables = [("self", Value::of(&data, &any).unwrap()), ("text", Value::text("10.0.0.0/8"))];
        let outcome = program.evaluate(&variables, &mut cost).map(|value| format!("{value:?}"));
        (outcome, cost.used())
    };
    let (first, second) = (run(), run());
    assert_eq!(first, second);
    assert!(first.1 <= COST_LIMIT || first.0.is_err(), "{first:?}");
}

/// Functions that parse text: each gets the whole input.
fn run_text_functions(text: &str) {
    const READERS: &[&str] = &[
        "int(text)",
        "uint(text)",
        "double(text)",
        "bool(text)",
        "bytes(text)",
        "timestamp(text)",
        "duration(text)",
        "timestamp(0).getHours(text)",
        "isURL(text)",
        "url(text).getQuery()",
        "url(text).getEscapedPath() + url(text).getHost() + url(text).getPort()",
        "isIP(text)",
        "string(ip(text))",
        "ip.isCanonical(text)",
        "string(cidr(text))",
        "cidr('10.0.0.0/8').containsIP(text)",
        "cidr(text).containsCIDR(text)",
        "isQuantity(text)",
        "quantity(text).add(1).asApproximateFloat()",
        "quantity(text).compareTo(quantity(text))",
        "isSemver(text)",
        "isSemver(text, true)",
        "semver(text).compareTo(semver(text))",
        "'abc'.matches(text)",
        "text.find(text)",
        "text.findAll(text)",
        "text.format([1, 'a', 2.5, [text]])",
        "text.split(text)",
        "text.replace(text, 'x')",
        "strings.quote(text)",
        "text.substring(1)",
        "text.indexOf(text, 1)",
        "text.lastIndexOf('a', 1)",
        "text.charAt(1)",
        "format.qualifiedName().validate(text)",
        "format.uri().validate(text)",
        "format.byte().validate(text)",
        "format.date().validate(text)",
        "format.datetime().validate(text)",
        "format.named(text)",
        "authorizer.group('').resource('x').fieldSelector(text).check('get')",
    ];
    let environment = dynamic();
    for reader in READERS {
        let Ok(program) = environment.compile(reader) else { continue };
        let outcome = program.evaluate(&[("text", Value::text(text))], &mut Cost::limit(10_000_000));
        let twice = program.evaluate(&[("text", Value::text(text))], &mut Cost::limit(10_000_000));
        assert_eq!(format!("{outcome:?}"), format!("{twice:?}"), "{reader}");
    }
    // Formatted text parses to the same value.
    for same in [
        "string(ip(string(ip(text)))) == string(ip(text))",
        "cidr(string(cidr(text))) == cidr(text)",
        "timestamp(string(timestamp(text))) == timestamp(text)",
        "duration(string(duration(text))) == duration(text)",
        "text.split('').join() == text && bytes(text) == bytes(string(bytes(text)))",
    ] {
        let program = environment.compile(same).unwrap();
        let outcome = program.evaluate(&[("text", Value::text(text))], &mut Cost::limit(10_000_000));
        assert!(!matches!(outcome, Ok(Value::Bool(false))), "{same}");
    }
}

/// Schema of a string field with this format.
struct Field(&'static str);

impl Schema for Field {
    fn schema_type(&self) -> SchemaType {
        SchemaType::String
    }
    fn format(&self) -> Option<&str> {
        Some(self.0)
    }
    fn properties(&self) -> Vec<(&str, &dyn Schema)> {
        Vec::new()
    }
    fn additional_properties(&self) -> Option<&dyn Schema> {
        None
    }
    fn items(&self) -> Option<&dyn Schema> {
        None
    }
    fn list_kind(&self) -> expressions::ListKind {
        expressions::ListKind::Atomic
    }
    fn embedded(&self) -> bool {
        false
    }
    fn max_length(&self) -> Option<u64> {
        None
    }
    fn max_items(&self) -> Option<u64> {
        None
    }
    fn max_properties(&self) -> Option<u64> {
        None
    }
    fn longest_enum(&self) -> Option<u64> {
        None
    }
    fn requires(&self, _property: &str) -> bool {
        false
    }
    fn has_default(&self) -> bool {
        false
    }
}

/// String formats: a field of each format gets the whole input.
fn run_string_formats(text: &str) {
    let json = serde_json::Value::String(text.to_owned());
    for format in ["byte", "date", "date-time", "duration", "uuid"] {
        let schema = Field(format);
        let ty = Type::of_schema(&schema, "field").unwrap();
        assert!(Bounds::of_schema(&schema).is_some());
        if let Ok(value) = Value::of(&json, &ty) {
            assert!(value.equals(&value.clone()), "{format}");
        }
    }
    let _ = expressions::escape(text);
}

const EXPRESSIONS: &[&str] = &[
    "self.a.all(x, x == 1 || type(x) == string) && has(self.m.k) ? self.s.size() : -1",
    "[1, 2u, 3.5, 'x', b'y\\x00', null, true].exists(e, e in {1: 'a', 'b': [r'\\d']})",
    "self.a.map(x, x > 0, {'k': x}).filter(y, y.k != 2)[?0].k.orValue(7) + 1",
    "self.m.transformMapEntry(k, v, {v: k}).?v.optMap(t, t + '!').or(optional.of('')).value()",
    "timestamp('2024-01-02T03:04:05Z') + duration('1h30m') > timestamp(0) // comment",
    "\"%s %d %.2f %x\".format([text, 1, 2.5, 255]).replace(' ', '-', 2).split('-').join(',').upperAscii()",
    "'''long\n'quoted''' + \"\"\"text\"\"\" + r\"raw\\\" + '\\u00e9\\U0001F600\\101'",
    "isIP(text) || cidr(text).containsIP('10.1.1.1') && quantity('1Gi').isGreaterThan(quantity('1k'))",
    "url('https://a:80/b?c=d').getQuery()['c'][0].matches('^d$') ? 0x1F : 1e3 < 2.0",
    "sets.contains([1, 2], [1]) && format.dns1123Label().validate(text).hasValue() && !isSemver('1.2')",
    "((((((1 + 2) * 3) - 4) / 5) % 6) == -7) != (!!true && [[[[]]]] == [])",
];
const TEXTS: &[&str] = &[
    "",
    "a",
    "10.0.0.0/8",
    "2001:db8::/32",
    "::ffff:1.2.3.4",
    "fe80::1%eth0",
    "https://u:p@[::1]:80/a%20b?x=1&x=2;y#f",
    "-1.5e3",
    "9223372036854775808",
    "1Gi",
    "100m",
    "+.5e-12",
    "v1.2.3-alpha.1+build",
    "2024-02-29T23:59:60.123+05:30",
    "9999-12-31T23:59:59.999999999Z",
    "1h2m3.5s",
    "-0.5us",
    "America/New_York",
    "(?i)^[a-z[:^alpha:]\\d]{2,3}?(\\pL|\\x{41})*$",
    "%s %d %.3f %e %x %o %b %%",
    "aGVsbG8=",
    "é😀\u{0}\n\"\\",
    "example.com/Name_x",
    "metadata.name=x,a!=b",
];

#[test]
fn fuzz_parser() {
    run_text("parse", EXPRESSIONS, run_parser);
}

#[test]
fn fuzz_type_checker() {
    run_text("check", EXPRESSIONS, run_type_checker);
}

#[test]
fn fuzz_evaluation() {
    run_text("evaluate", EXPRESSIONS, run_evaluation);
}

#[test]
fn fuzz_text_functions() {
    run_text("texts", TEXTS, run_text_functions);
}

#[test]
fn fuzz_string_formats() {
    run_text("fields", TEXTS, run_string_formats);
}

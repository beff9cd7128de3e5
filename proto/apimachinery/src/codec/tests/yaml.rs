//! Tests of YAML documents that kube-apiserver accepts, writes or rejects.

use super::*;
use crate::clock::{Rng, SeededRng};
use crate::codec::{DecodeError, Decoded, Limits};
use serde_json::{Map, Value, json};

fn decoded(text: &str) -> Decoded {
    decode(text.as_bytes(), Limits::BODY).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn decode_error(text: &str) -> DecodeError {
    match decode(text.as_bytes(), Limits::BODY) {
        Ok(decoded) => panic!("{text}: {:?}", decoded.value),
        Err(e) => e,
    }
}

#[test]
fn yaml_documents_decode_like_reference() {
    for (text, expected) in [
        ("", json!(null)),
        ("# only a comment\n", json!(null)),
        ("---\n...\n", json!(null)),
        ("just words", json!("just words")),
        ("{\"a\": [1, true, null, \"x\"]}", json!({"a": [1, true, null, "x"]})),
        ("name: y\nother: 'y'\nthird: !!str y\n", json!({"name": true, "other": "y", "third": "y"})),
        ("a: first\n---\na: second\n", json!({"a": "first"})),
        ("a: first\n---\n[broken", json!({"a": "first"})),
        ("a: |\n  line 1\n  line 2\nb: >-\n  one\n  two\n", json!({"a": "line 1\nline 2\n", "b": "one two"})),
        (
            "when: 2001-12-14T21:59:43Z\nday: 2001-12-14\n",
            json!({"when": "2001-12-14T21:59:43Z", "day": "2001-12-14"}),
        ),
        ("num: 3.0\nf: 3.5\nbig: 1e20\n", json!({"num": 3, "f": 3.5, "big": 1e20})),
        ("1: a\ntrue: b\n1.5: c\n", json!({"1": "a", "true": "b", "1.5": "c"})),
        ("a:\nb: ~\n", json!({"a": null, "b": null})),
        ("bin: !!binary aGVsbG8=\n", json!({"bin": "hello"})),
        ("x: !local text\nz: !<tag:example.com,2000:t> 5\n", json!({"x": "text", "z": "5"})),
        ("a: &x {k: v}\nb: *x\nc: [*x]\n", json!({"a": {"k": "v"}, "b": {"k": "v"}, "c": [{"k": "v"}]})),
        ("&k key: 1\nother: *k\n", json!({"key": 1, "other": "key"})),
        (
            "base: &b {p: 1, q: 2}\nd:\n  q: 3\n  <<: *b\n",
            json!({"base": {"p": 1, "q": 2}, "d": {"p": 1, "q": 3}}),
        ),
        ("d:\n  <<: [{x: 1}, {x: 2, z: 3}]\n", json!({"d": {"x": 1, "z": 3}})),
        ("\u{feff}a: 1\n", json!({"a": 1})),
        ("a: \"\\u00e9\\n\"\r\nb: 1\r\n", json!({"a": "é\n", "b": 1})),
    ] {
        assert_eq!(decoded(text), Decoded { value: expected, duplicates: vec![] }, "{text}");
    }
}

#[test]
fn duplicate_yaml_keys_are_reported_and_last_value_wins() {
    for (text, value, duplicates) in [
        ("data:\n  a: one\n  a: two\n", json!({"data": {"a": "two"}}), vec!["data.a"]),
        ("1: a\n'1': b\n", json!({"1": "b"}), vec!["1"]),
        (
            "spec:\n  containers:\n  - name: x\n  - name: y\n    name: z\n",
            json!({"spec": {"containers": [{"name": "x"}, {"name": "z"}]}}),
            vec!["spec.containers[1].name"],
        ),
        ("a: 1\na: {b: 1, b: 2}\nc: 0\nc: 0\n", json!({"a": {"b": 2}, "c": 0}), vec!["a", "a.b", "c"]),
    ] {
        let decoded = decoded(text);
        assert_eq!(decoded.value, value, "{text}");
        assert_eq!(decoded.duplicates, duplicates, "{text}");
    }
}

#[test]
fn yaml_without_json_equivalent_is_rejected_with_line() {
    for text in [
        "a: [1",
        "a: b: c",
        "a: .nan",
        "- .inf",
        "? [a]\n: b",
        "? {a: b}\n: c",
        "~: a",
        "a: *missing",
        "a: &x [*x]",
        "<<: 5",
        "a: !!int x",
        "a: !!binary '*'",
        "a:\n\t- b",
        "a: 'open",
    ] {
        match decode_error(text) {
            DecodeError::Syntax(message) => assert!(message.starts_with("yaml: line "), "{text}: {message}"),
            other => panic!("{text}: {other:?}"),
        }
    }
    assert!(matches!(decode(b"a: \xff", Limits::BODY), Err(DecodeError::Syntax(_))));
}

#[test]
fn yaml_depth_size_and_alias_copies_are_limited() {
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    assert!(decode(nested(100).as_bytes(), Limits::BODY).is_ok());
    assert_eq!(decode_error(&nested(101)), DecodeError::TooDeep(100));
    assert_eq!(decode_error(&"[".repeat(100_000)), DecodeError::TooDeep(100));
    let block: String = (0..150).map(|depth| " ".repeat(depth) + "a:\n").collect();
    assert_eq!(decode_error(&block), DecodeError::TooDeep(100));
    assert_eq!(decode_error(&"- ".repeat(100_000)), DecodeError::TooDeep(100));
    assert_eq!(
        decode(b"12345", Limits { bytes: 4, depth: 9, ..Limits::BODY }),
        Err(DecodeError::TooLarge(4))
    );

    // Each line references the previous line nine times.
    let mut laughs = "a0: &a0 lol\n".to_owned();
    for i in 1..30 {
        let before = vec![format!("*a{}", i - 1); 9].join(", ");
        laughs.push_str(&format!("a{i}: &a{i} [{before}]\n"));
    }
    assert_eq!(decode_error(&laughs), DecodeError::TooLarge(Limits::BODY.bytes));

    // An alias at depth 60 whose value is itself 60 levels deep.
    let deep = format!("a: &a {}\nb: {}*a{}\n", nested(60), "[".repeat(60), "]".repeat(60));
    assert_eq!(decode_error(&deep), DecodeError::TooDeep(100));
}

#[test]
fn yaml_output_matches_kubectl_format() {
    let tree = json!({
        "apiVersion": "v1",
        "data": {"a": "plain text", "yes": "no", "num": "007", "multi": "x\n  y\n", "json": "{\"k\":1}", "empty": ""},
        "items": [{"name": "x", "ports": [80, 1.5]}, [], {}, [[1], null]],
        "metadata": {"creationTimestamp": "2024-01-02T03:04:05Z", "labels": {"app.kubernetes.io/name": "nginx:1.21"}},
        "ip": "10.0.0.1",
    });
    let expected = r#"apiVersion: v1
data:
  a: plain text
  empty: ""
  json: '{"k":1}'
  multi: |
    x
      y
  num: "007"
  "yes": "no"
ip: 10.0.0.1
items:
- name: x
  ports:
  - 80
  - 1.5
- []
- {}
- - - 1
  - null
metadata:
  creationTimestamp: "2024-01-02T03:04:05Z"
  labels:
    app.kubernetes.io/name: nginx:1.21
"#;
    assert_eq!(String::from_utf8(encode(&tree)).unwrap(), expected);
    assert_eq!(decoded(expected).value, tree);
}

#[test]
fn ambiguous_yaml_strings_are_quoted() {
    for text in [
        "",
        " ",
        "a ",
        " a",
        "y",
        "No",
        "null",
        "~",
        "1",
        "-1",
        "0x1f",
        "0o7",
        "1e3",
        "1_0",
        "1,000",
        ".5",
        ".inf",
        "12:30:45",
        "190:20:30",
        "2001-12-14",
        "2001-12-14 21:59:43",
        "<<",
        "=",
        "- a",
        "-",
        "--- a",
        "...",
        "? a",
        "a: b",
        "a:",
        "a #b",
        "#a",
        "&a",
        "*a",
        "!a",
        "%a",
        "@a",
        "`a",
        "|",
        ">",
        "[a]",
        "{a}",
        "'a'",
        "\"a\"",
        "a\tb",
        "é: x",
        "\u{85}",
        "1.2e3",
    ] {
        let written = String::from_utf8(encode(&json!({"k": text}))).unwrap();
        let value = written.trim_start_matches("k: ");
        assert!(value.starts_with(['"', '\'']), "{text:?} is written as {value:?}");
        assert_eq!(decoded(&written).value, json!({"k": text}), "{written}");
    }
    for text in [
        "a",
        "a b",
        "nginx:1.21@sha256:00ff",
        "/var/run",
        "a-b_c.d",
        "x=y",
        "10.0.0.1",
        "1.33.0",
        "5m",
        "100Mi",
        "élan",
        "a#b",
    ] {
        assert_eq!(String::from_utf8(encode(&json!(text))).unwrap(), format!("{text}\n"));
    }
}

/// Random tree with strings of characters that are special in YAML.
fn random(rng: &SeededRng, depth: usize) -> Value {
    let pick = |n: u128| usize::try_from(rng.bits() % n).unwrap_or(0);
    let text = || {
        const PIECES: [&str; 40] = [
            "a", "b", " ", " ", "\n", "\n", "\t", ":", "#", "-", "?", ",", "[", "]", "{", "}", "&", "*", "!",
            "|", ">", "'", "\"", "%", "@", "`", "\\", "1", "0", ".", "e", "y", "null", "true", "~", "é",
            "\u{85}", "\u{2028}", "\r", "\u{1}",
        ];
        (0..pick(8)).map(|_| PIECES[pick(40)]).collect::<String>()
    };
    match pick(if depth == 0 { 6 } else { 10 }) {
        0 => Value::Null,
        1 => Value::Bool(pick(2) == 0),
        2 => json!(rng.bits() as i64),
        3 => json!(f64::from(rng.bits() as i32) / 7.0 + 0.123),
        4 | 5 => Value::String(text()),
        6 | 7 => (0..pick(4)).map(|_| random(rng, depth - 1)).collect(),
        _ => Value::Object((0..pick(4)).map(|_| (text(), random(rng, depth - 1))).collect::<Map<_, _>>()),
    }
}

#[test]
fn random_trees_round_trip_through_yaml() {
    let seed = 7;
    let rng = SeededRng::new(seed);
    for round in 0..20_000 {
        let tree = random(&rng, 5);
        let written = encode(&tree);
        match decode(&written, Limits::BODY) {
            Ok(read) => {
                assert_eq!(
                    read.value,
                    tree,
                    "seed {seed}, round {round}:\n{}",
                    String::from_utf8_lossy(&written)
                );
                assert!(read.duplicates.is_empty());
            }
            Err(e) => {
                panic!("seed {seed}, round {round}: {e}\n{}\n{tree}", String::from_utf8_lossy(&written))
            }
        }
    }
}

#[test]
fn long_keys_round_trip_through_yaml() {
    for length in [900, 1100, 50_000] {
        let key = "k".repeat(length);
        for value in [json!("v"), json!({"a": {"b": 1}}), json!([1, [2]]), json!("two\nlines\n")] {
            let tree = json!({"a": 0, key.clone(): value, "z": [{key.clone(): 1, "zz": 2}]});
            assert_eq!(decoded(&String::from_utf8(encode(&tree)).unwrap()).value, tree, "{length}");
        }
    }
}

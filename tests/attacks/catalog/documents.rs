//! Attacks with OpenAPI documents of many definitions.

use super::Attack;
use crate::attack::AttackMethod::Flood;
use crate::attack::AttackUser::{Privileged, Unprivileged};
use crate::client::Prepared;
use crate::dataset::{documented_definition, large_document};

fn compressed(path: impl Into<String>) -> Prepared {
    Prepared::get(path.into()).header("accept-encoding", "gzip")
}

/// Builds a change of a definition, after which the documents are built again.
fn change(number: usize, text: &str) -> Prepared {
    let body = format!(
        r#"[{{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/description","value":"{text}"}}]"#
    );
    Prepared::with_body("PATCH", documented_definition(number), "application/json-patch+json", body)
}

pub fn attacks() -> Vec<Attack> {
    vec![
        Attack::new("OpenAPI of 300 definitions", Flood(16), Some(Unprivileged), || {
            vec![Prepared::get(large_document()), compressed(large_document()), compressed("/openapi/v2")]
        }),
        Attack::new("OpenAPI of 300 definitions that change", Flood(16), Some(Privileged), || {
            let read = || compressed(large_document());
            vec![change(0, "a"), read(), compressed("/openapi/v2"), change(0, "b"), read(), read()]
        }),
    ]
}

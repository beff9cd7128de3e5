//! Attacks with small bodies whose admission is heavy: parameters, costly expressions, many webhook entries.

use super::Attack;
use crate::admission_objects::{COSTLY, ENTRIES, PARAMETERS, webhook_configuration};
use crate::attack::AttackMethod::Flood;
use crate::attack::AttackUser::Privileged;
use crate::client::Prepared;
use crate::dataset::NAMESPACE;

/// A create of an object as a dry run.
fn create(resource: &str, fields: &str) -> Prepared {
    let body = format!(r#"{{"metadata":{{"name":"a"}},{fields}}}"#);
    Prepared::post(format!("/api/v1/namespaces/{NAMESPACE}/{resource}?dryRun=All"), body)
}

fn pod_template() -> Prepared {
    create(ENTRIES, r#""template":{"spec":{"containers":[{"name":"c","image":"i"}]}}"#)
}

pub fn attacks() -> Vec<Attack> {
    vec![
        Attack::new("admission: a policy with 3,000 parameters", Flood(16), Some(Privileged), || {
            vec![create(PARAMETERS, r#""spec":{"limits":[]}"#)]
        }),
        Attack::new("admission: policies with costly expressions", Flood(16), Some(Privileged), || {
            vec![create(COSTLY, r#""spec":{"hard":{"pods":"1"}}"#)]
        }),
        Attack::new(
            "admission: 20,000 webhook entries",
            Flood(16),
            Some(Privileged),
            || vec![pod_template()],
        ),
        Attack::new("admission: 20,000 webhook entries that change", Flood(8), Some(Privileged), || {
            let change = |value: u8| {
                let body = format!(r#"{{"metadata":{{"labels":{{"number":"{value}"}}}}}}"#);
                Prepared::with_body("PATCH", webhook_configuration(0), "application/merge-patch+json", body)
            };
            vec![change(1), pod_template(), change(2), pod_template()]
        }),
    ]
}

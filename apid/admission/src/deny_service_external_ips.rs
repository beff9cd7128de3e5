//! DenyServiceExternalIPs: rejects new external IPs of services.
//! A user could intercept traffic with an external IP.

use apimachinery::object::{Object, Value};
use apimachinery::status::Status;

use crate::tree::items_at;
use crate::{Attributes, Interest, ObjectKind, Plugin};

const SERVICE: ObjectKind = ObjectKind::new("", "Service");

pub(crate) struct DenyServiceExternalIps;

impl Plugin for DenyServiceExternalIps {
    const INTEREST: Interest = Interest::only(&[(SERVICE, "")]);

    async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Object>) -> Result<(), Status> {
        let old = attributes.old.map_or(&[][..], addresses);
        let is_new = |address: &Value| !old.contains(address);
        match object {
            Some(service) if addresses(service).iter().any(is_new) => {
                Err(attributes.forbidden("Use of external IPs is denied by admission control."))
            }
            _ => Ok(()),
        }
    }
}

fn addresses(service: &Object) -> &[Value] {
    items_at(service, &["spec", "externalIPs"])
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;
    use serde_json::json;

    use super::*;
    use crate::Operation;
    use crate::testing::{Fake, TestedWrite};

    #[tokio::test]
    async fn new_external_ips_are_rejected_and_removal_is_allowed() {
        let fake = Fake::new(Preset::Kubernetes);
        let service = |ips: &[&str]| json!({"metadata": {"name": "s"}, "spec": {"externalIPs": ips}});
        for (old, new, refused) in [
            (None, service(&[]), false),
            (None, json!({"metadata": {"name": "s"}, "spec": {}}), false),
            (None, service(&["192.0.2.1"]), true),
            (Some(service(&["192.0.2.1", "192.0.2.2"])), service(&["192.0.2.2", "192.0.2.1"]), false),
            (Some(service(&["192.0.2.1", "192.0.2.2"])), service(&["192.0.2.2"]), false),
            (Some(service(&["192.0.2.1"])), service(&["192.0.2.2"]), true),
            (Some(service(&[])), service(&["192.0.2.2"]), true),
        ] {
            let operation = if old.is_some() { Operation::Update } else { Operation::Create };
            let write = TestedWrite { kind: ("", "Service"), operation, old, ..TestedWrite::default() };
            let answer = fake.run_plugin(&DenyServiceExternalIps, write, new.clone()).await;
            let expected = "services \"s\" is forbidden: Use of external IPs is denied by admission control.";
            assert_eq!(answer.message(), if refused { expected } else { "" }, "{new}");
        }
    }
}

//! AlwaysDeny: rejects every write, also writes of apid itself. Clients test their error handling with it.

use apimachinery::object::Object;
use apimachinery::status::Status;

use crate::{Attributes, Interest, Operation, Plugin};

pub(crate) struct AlwaysDeny;

impl Plugin for AlwaysDeny {
    const INTEREST: Interest = Interest::ALL_RESOURCES.on(&Operation::ALL);

    async fn mutate(&self, attributes: &Attributes<'_>, _: Option<&mut Object>) -> Result<(), Status> {
        Err(attributes.forbidden("admission control is denying all modifications"))
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;
    use serde_json::json;

    use super::*;
    use crate::always_admit::AlwaysAdmit;
    use crate::testing::{Fake, TestedWrite};

    #[tokio::test]
    async fn always_deny_rejects_and_always_admit_allows_every_operation() {
        let fake = Fake::new(Preset::Kubernetes);
        let object = || json!({"metadata": {"name": "x"}});
        for operation in [Operation::Create, Operation::Update, Operation::Delete, Operation::Connect] {
            let write = || TestedWrite {
                operation,
                old: Some(object()),
                kind: ("", "ConfigMap"),
                ..TestedWrite::default()
            };
            let answer = fake.run_plugin(&AlwaysDeny, write(), object()).await;
            assert_eq!(
                answer.message(),
                "configmaps \"x\" is forbidden: admission control is denying all modifications"
            );
            assert!(fake.run_plugin(&AlwaysAdmit, write(), object()).await.result.is_ok());
        }
    }
}

//! CertificateApproval, CertificateSigning and ClusterTrustBundleAttest: permissions on signers.
//! The plugins require a verb on the virtual resource `signers`, by full signer name or by its domain.

use apimachinery::attributes::Attributes as RequestAttributes;
use apimachinery::object::Object;
use apimachinery::status::Status;

use crate::{Attributes, Interest, ObjectKind, Operation, Plugin, WriteTarget};

const REQUEST: ObjectKind = ObjectKind::new("certificates", "CertificateSigningRequest");
const BUNDLE: ObjectKind = ObjectKind::new("certificates", "ClusterTrustBundle");

/// Plugin that requires a permission on the signer of an object.
pub(crate) struct SignerCheck {
    targets: &'static [WriteTarget],
    operations: &'static [Operation],
    verb: &'static str,
    /// Text of the rejection before the signer name.
    rejection: &'static str,
}

impl SignerCheck {
    /// CertificateApproval: a user who approves or denies a request must have `approve` for its signer.
    pub(crate) const APPROVAL: Self = SignerCheck {
        targets: &[(REQUEST, "approval")],
        operations: &[Operation::Update],
        verb: "approve",
        rejection: "user not permitted to approve requests with signerName",
    };

    /// CertificateSigning: a user who writes the certificate or conditions of a request must have `sign`.
    pub(crate) const SIGNING: Self = SignerCheck {
        targets: &[(REQUEST, "status")],
        operations: &[Operation::Update],
        verb: "sign",
        rejection: "user not permitted to sign requests with signerName",
    };

    /// ClusterTrustBundleAttest: a user who writes the trust anchors of a signer must have `attest`.
    pub(crate) const ATTEST: Self = SignerCheck {
        targets: &[(BUNDLE, "")],
        operations: &[Operation::Create, Operation::Update],
        verb: "attest",
        rejection: "user not permitted to attest for signerName",
    };

    async fn check(&self, attributes: &Attributes<'_>, signer: &str) -> Result<(), Status> {
        let environment = attributes.environment;
        let whole_domain = signer.split('/').next().map(|domain| format!("{domain}/*")).unwrap_or_default();
        for name in [signer, &whole_domain] {
            let request = RequestAttributes {
                verb: self.verb.to_owned(),
                resource_request: true,
                group: environment.names.group("certificates"),
                version: "*".to_owned(),
                resource: "signers".to_owned(),
                name: name.to_owned(),
                ..RequestAttributes::default()
            };
            if environment.authorizer.decide(attributes.user, request).await?.allowed() {
                return Ok(());
            }
        }
        Err(attributes.forbidden(&format!("{} \"{signer}\"", self.rejection)))
    }
}

/// Whether a write changes neither certificate nor conditions.
fn leaves_signature_unchanged(old: Option<&Object>, new: &Object) -> bool {
    let field = |object: &Object, field: &str| object.at(&["status", field]).cloned();
    old.is_some_and(|old| {
        ["certificate", "conditions"].iter().all(|name| field(old, name) == field(new, name))
    })
}

impl Plugin for SignerCheck {
    fn interest(&self) -> Interest {
        Interest::only(self.targets).on(self.operations)
    }

    async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Object>) -> Result<(), Status> {
        let Some(new) = object else { return Ok(()) };
        if self.verb == "sign" && leaves_signature_unchanged(attributes.old, new) {
            return Ok(());
        }
        // The signer name is immutable, so the old object has it; only a new bundle has no old object.
        let signer = attributes.old.unwrap_or(new).str_at(&["spec", "signerName"]).unwrap_or("");
        if self.verb == "attest" && signer.is_empty() {
            return Ok(());
        }
        self.check(attributes, signer).await
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{Fake, TestedWrite};

    #[tokio::test]
    async fn signer_permission_is_checked_by_name_and_domain() {
        let request = |status: Value| json!({"metadata": {"name": "r"}, "spec": {"signerName": "x.io/own"}, "status": status});
        let signed = request(json!({"certificate": "Yw=="}));
        for (right, subresource, new, rejection) in [
            ("bob approve signers x.io/own", "approval", request(json!({})), "approve requests"),
            ("alice approve signers x.io/own", "approval", request(json!({})), ""),
            ("alice approve signers x.io/*", "approval", request(json!({})), ""),
            ("alice approve signers y.io/*", "approval", request(json!({})), "approve requests"),
            ("alice approve signers x.io/own", "status", signed.clone(), "sign requests"),
            ("alice sign signers x.io/own", "status", signed.clone(), ""),
            ("none none none none", "status", request(json!({})), ""),
        ] {
            let fake = Fake::new(Preset::Kubernetes).with_right(right);
            let plugin = match subresource {
                "approval" => SignerCheck::APPROVAL,
                _ => SignerCheck::SIGNING,
            };
            let write = TestedWrite {
                operation: Operation::Update,
                kind: ("certificates", "CertificateSigningRequest"),
                subresource,
                old: Some(request(json!({}))),
                ..TestedWrite::default()
            };
            let answer = fake.run_plugin(&plugin, write, new).await;
            let expected = match rejection {
                "" => String::new(),
                verb => format!(
                    "certificatesigningrequests.certificates.k8s.io \"r\" is forbidden: user not permitted to {verb} with signerName \"x.io/own\""
                ),
            };
            assert_eq!(answer.message(), expected, "{right} {subresource}");
        }
    }
}

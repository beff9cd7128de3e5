//! CertificateSubjectRestriction: rejects requests for client certificates with the group `system:masters`.

use apimachinery::object::Object;
use apimachinery::status::Status;
use apimachinery::user::MASTERS;

use crate::{Attributes, Interest, ObjectKind, Operation, Plugin, certificate_request};

pub(crate) struct CertificateSubjectRestriction;

impl Plugin for CertificateSubjectRestriction {
    const INTEREST: Interest =
        Interest::only(&[(ObjectKind::new("certificates", "CertificateSigningRequest"), "")])
            .on(&[Operation::Create]);

    async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Object>) -> Result<(), Status> {
        // The signer of client certificates for the API server.
        let signer = attributes.environment.names.label_key("kube-apiserver-client");
        let is_for_signer = |request: &&Object| request.str_at(&["spec", "signerName"]) == Some(&signer);
        let Some(request) = object.filter(is_for_signer) else { return Ok(()) };
        let encoded = request.str_at(&["spec", "request"]).unwrap_or("");
        let subject = certificate_request::identity(encoded)
            .map_err(|reason| attributes.forbidden(&format!("failed to parse CSR: {reason}")))?;
        if subject.organizations.iter().any(|group| group == MASTERS) {
            let reason = format!("use of {signer} signer with {MASTERS} group is not allowed");
            return Err(attributes.forbidden(&reason));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
    use serde_json::json;

    use super::*;
    use crate::testing::{Fake, TestedWrite};

    fn request(organization: &str) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, organization);
        let pem = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        STANDARD.encode(pem)
    }

    #[tokio::test]
    async fn client_certificate_for_system_masters_is_rejected() {
        let fake = Fake::new(Preset::Kubernetes);
        let plugin = CertificateSubjectRestriction;
        let clients = "kubernetes.io/kube-apiserver-client";
        const WRONG_BLOCK: &str = "failed to parse CSR: PEM block type must be CERTIFICATE REQUEST";
        const CERTIFICATE_BLOCK: &str = "-----BEGIN CERTIFICATE-----\nbm8=\n-----END CERTIFICATE-----\n";
        for (signer, request, refusal) in [
            (clients, request("team-a"), ""),
            (
                clients,
                request(MASTERS),
                "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed",
            ),
            ("example.com/own", request(MASTERS), ""),
            (clients, "bm8=".to_owned(), WRONG_BLOCK),
            (clients, STANDARD.encode(CERTIFICATE_BLOCK), WRONG_BLOCK),
        ] {
            let write =
                TestedWrite { kind: ("certificates", "CertificateSigningRequest"), ..TestedWrite::default() };
            let object =
                json!({"metadata": {"name": "r"}, "spec": {"signerName": signer, "request": request}});
            let answer = fake.run_plugin(&plugin, write, object).await;
            let expected = match refusal {
                "" => String::new(),
                reason => {
                    format!("certificatesigningrequests.certificates.k8s.io \"r\" is forbidden: {reason}")
                }
            };
            assert_eq!(answer.message(), expected);
        }
    }
}

//! Built-in signer: an approved CertificateSigningRequest gets a certificate that authenticates a client.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};
use serving::certs::not_after;
use tests::harness::{Client, ControlPlane, Options, eventually};

use crate::e2e::kubectl::{Kubectl, RELEASES, installed};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

/// Starts a server that signs with the authority whose client certificates it accepts.
async fn plane_with_signer() -> ControlPlane {
    let mut plane = ControlPlane::new_stopped(Options::kubernetes());
    let flags = [("cert", "client-ca.crt"), ("key", "client-ca.key")]
        .map(|(flag, file)| format!("--cluster-signing-{flag}-file={}", plane.dir().join(file).display()));
    plane.relaunch_with(&flags.each_ref().map(String::as_str)).await;
    plane
}

/// A request object for a user with its key.
fn request(name: &str, signer: &str, usages: &[&str], user: &str, group: &str) -> (Value, KeyPair) {
    let mut params = CertificateParams::new(Vec::<String>::new()).expect("parameters");
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, group);
    params.distinguished_name.push(DnType::CommonName, user);
    let key = KeyPair::generate().expect("a key");
    let pem = params.serialize_request(&key).expect("a request").pem().expect("PEM");
    let object = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {
            "signerName": signer, "usages": usages, "expirationSeconds": 600, "request": STANDARD.encode(pem),
        },
    });
    (object, key)
}

/// Creates and approves a request. Returns its path.
async fn create_approved(admin: &Client, request: &Value) -> String {
    let mut created = admin.post(REQUESTS, request).await.expect(201);
    let path = format!("{REQUESTS}/{}", created["metadata"]["name"].as_str().expect("a name"));
    created["status"] = json!({"conditions": [{"type": "Approved", "status": "True", "reason": "Test"}]});
    admin.put(&format!("{path}/approval"), &created).await.expect(200);
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn approved_request_gets_certificate_that_authenticates() {
    for release in RELEASES {
        let Some(program) = installed(release) else { continue };
        let plane = plane_with_signer().await;
        let kubectl = Kubectl::new(program, release, &plane, "admin");
        let usages = ["client auth", "digital signature"];
        let (object, key) = request("jane", "kubernetes.io/kube-apiserver-client", &usages, "jane", "team-a");
        kubectl.ok("create -f -", &object.to_string());
        assert!(kubectl.ok("get csr jane", "").contains("Pending"));
        kubectl.ok("certificate approve jane", "");
        let admin = plane.admin();
        let certificate = eventually("the certificate", || async {
            let request = admin.get(&format!("{REQUESTS}/jane")).await.expect(200);
            request["status"]["certificate"].as_str().map(str::to_owned)
        })
        .await;
        assert!(kubectl.ok("get csr jane", "").contains("Approved,Issued"));

        let certificate = STANDARD.decode(certificate).expect("base64");
        let remaining =
            not_after(&certificate).expect("a certificate").as_second() - Timestamp::now().as_second();
        assert!((500..=600).contains(&remaining), "{remaining} s");
        let certificate = String::from_utf8(certificate).expect("PEM");
        let jane = Client::with_certificate(plane.anonymous().port(), &certificate, &key.serialize_pem());
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let review =
            jane.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &review).await.expect(201);
        let user = &review["status"]["userInfo"];
        assert_eq!(user["username"], "jane", "kubectl {release}");
        assert_eq!(user["groups"], json!(["team-a", "system:authenticated"]));
    }
}

#[tokio::test]
async fn request_that_breaks_signer_rules_fails() {
    let plane = plane_with_signer().await;
    let admin = plane.admin();
    let node = ["client auth", "digital signature"];
    let kubelet = "kubernetes.io/kube-apiserver-client-kubelet";
    let (foreign, _) = request("foreign", "example.com/own", &["client auth"], "jane", "team-a");
    let (wrong, _) = request("wrong", kubelet, &node, "system:node:n1", "team-a");
    let (valid, _) = request("valid", kubelet, &node, "system:node:n1", "system:nodes");
    let foreign = create_approved(&admin, &foreign).await;
    let wrong = create_approved(&admin, &wrong).await;
    let failed = eventually("the condition Failed", || async {
        let request = admin.get(&wrong).await.expect(200);
        assert_eq!(request["status"]["certificate"], json!(null));
        let conditions = request["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|condition| condition["type"] == "Failed")
    })
    .await;
    assert_eq!(failed["reason"], "SignerValidationFailure");
    assert_eq!(failed["message"], "subject organization is not system:nodes");
    assert!(failed["lastUpdateTime"].is_string(), "the cleaner needs the time: {failed}");
    let valid = create_approved(&admin, &valid).await;
    eventually("the certificate", || async {
        let request = admin.get(&valid).await.expect(200);
        request["status"]["certificate"].is_string().then_some(())
    })
    .await;
    let foreign = admin.get(&foreign).await.expect(200);
    assert_eq!(foreign["status"]["conditions"].as_array().map(Vec::len), Some(1), "{foreign}");
    assert_eq!(foreign["status"]["certificate"], json!(null));
}

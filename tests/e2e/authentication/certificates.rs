//! Client certificates (requirements A-X509): several CAs, revocation and hot reload.

use std::fs;
use std::process::Command;

use jiff::Timestamp;
use tests::harness::{ControlPlane, Options, eventually};

use super::{Ca, path_flag, user_name};

#[tokio::test]
async fn client_ca_hot_reload_adds_and_removes_cas() {
    let dir = tempfile::tempdir().expect("a folder");
    let (old, new) = (Ca::new(dir.path(), "old"), Ca::new(dir.path(), "new"));
    let file = dir.path().join("ca.crt");
    fs::write(&file, old.pem()).expect("the CA bundle");
    let plane = ControlPlane::start(Options::default().flag(&path_flag("client-ca-file", &file))).await;
    let (jane, joe) =
        (old.client(&plane, "jane", &["system:masters"]), new.client(&plane, "joe", &["system:masters"]));
    assert_eq!(
        (user_name(&plane, &jane).await.as_deref(), user_name(&plane, &joe).await),
        (Some("jane"), None)
    );

    // An invalid file keeps the last-known-good CA bundle, and apid logs the failure.
    fs::write(&file, "-----BEGIN CERTIFICATE-----\nhalf a certifi").expect("the invalid file");
    eventually("the failure is logged", || async {
        let ready = plane.admin().get("/readyz?verbose").await.text();
        (plane.log().contains("file reload failed") && ready.contains("ok")).then_some(())
    })
    .await;
    assert_eq!(user_name(&plane, &jane).await.as_deref(), Some("jane"));

    // CA rotation: first both CAs, as during the replacement of the client certificates, then only the new
    // CA.
    fs::write(&file, old.pem() + &new.pem()).expect("the CA bundle");
    eventually("authd accepts the new CA", || async { user_name(&plane, &joe).await }).await;
    assert_eq!(user_name(&plane, &jane).await.as_deref(), Some("jane"));
    let watched = "/api/v1/namespaces/default/configmaps?watch=1";
    let (mut of_jane, mut of_joe) = (jane.watch(watched).await, joe.watch(watched).await);
    fs::write(&file, new.pem()).expect("the CA bundle");
    let ended = async { (of_jane.next().await, of_joe.next().await) };
    let ended = tokio::time::timeout(tests::harness::DEADLINE, ended).await.expect("the watches end");
    assert_eq!(ended, (None, None), "the watches end without an error event, so that clients reconnect");
    assert_eq!(
        (user_name(&plane, &jane).await, user_name(&plane, &joe).await.as_deref()),
        (None, Some("joe"))
    );
    drop(joe.watch(watched).await);
}

#[tokio::test]
async fn revoked_client_certificate_is_rejected_after_crl_reload() {
    let dir = tempfile::tempdir().expect("a folder");
    let ca = Ca::new(dir.path(), "ca");
    let file = dir.path().join("revoked.pem");
    fs::write(&file, ca.revoke(&[1])).expect("the CRL");
    let options = Options::default()
        .flag(&path_flag("client-ca-file", &ca.cert))
        .flag(&path_flag("client-crl-file", &file));
    let plane = ControlPlane::start(options).await;
    let (root, jane) = (
        ca.client_with_serial(&plane, "root", "system:masters", 7),
        ca.client_with_serial(&plane, "jane", "system:masters", 8),
    );
    let gone = ca.client_with_serial(&plane, "gone", "system:masters", 1);
    assert_eq!(user_name(&plane, &gone).await, None, "revoked from the start");
    let watched = "/api/v1/namespaces/default/configmaps?watch=1";
    let mut watch = root.watch(watched).await;
    fs::write(&file, ca.revoke(&[1, 7])).expect("the CRL");
    let ended = tokio::time::timeout(tests::harness::DEADLINE, watch.next()).await.expect("the watch ends");
    assert_eq!(ended, None);
    assert_eq!(
        (user_name(&plane, &root).await, user_name(&plane, &jane).await.as_deref()),
        (None, Some("jane"))
    );
    assert!(plane.log().contains("a certificate of the chain is revoked"), "the log names the reason");
    // authd rejects a CRL of a different CA with the same name.
    let impostor = tempfile::tempdir().expect("a folder");
    fs::write(&file, Ca::new(impostor.path(), "ca").revoke(&[8])).expect("the CRL");
    eventually("the failure is logged", || async {
        plane.log().contains("is not signed by the CA of that name").then_some(())
    })
    .await;
    assert_eq!(
        (user_name(&plane, &root).await, user_name(&plane, &jane).await.as_deref()),
        (None, Some("jane"))
    );
}

#[tokio::test]
async fn server_presents_configured_serving_certificate() {
    let dir = tempfile::tempdir().expect("a folder");
    let pair =
        serving::certs::ensure_serving_pair(dir.path(), &[], Timestamp::now()).expect("a serving pair");
    let options = Options::default()
        .flag(&path_flag("tls-cert-file", &pair.cert))
        .flag(&path_flag("tls-private-key-file", &pair.key));
    let plane = ControlPlane::start(options).await;
    let url = format!("{}/livez", plane.url());
    let curl = |ca: &std::path::Path| {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--fail", "--output", "/dev/null", "--cacert"]).arg(ca).arg(&url);
        curl.status().map(|status| status.success()).ok()
    };
    let Some(trusted) = curl(&pair.ca) else { return prerequisites::skip("curl", "it is not on PATH") };
    assert!(trusted, "the CA of the configured certificate verifies the server");
    assert_eq!(curl(&Ca::new(dir.path(), "other").cert), Some(false));
}

//! Client certificates (requirements A-X509): several CAs, revocation and hot reload.

use std::fs;
use std::path::Path;
use std::process::Command;

use jiff::Timestamp;
use tests::harness::{Client, ControlPlane, Options, eventually, program};

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

/// Calls `apid certs` on a folder.
fn certs(folder: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(program("apid"));
    let output = command.arg("certs").arg("--cert-dir").arg(folder).args(arguments).output();
    let output = output.expect("apid runs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Starts a server with the files of a folder of `apid certs`.
async fn plane_with_certs(folder: &Path) -> ControlPlane {
    let mut options = Options::default().flag(&path_flag("cert-dir", folder));
    for (flag, file) in [("client-ca-file", "ca.crt"), ("client-crl-file", "ca.crl")] {
        options = options.flag(&path_flag(flag, &folder.join(file)));
    }
    ControlPlane::start(options).await
}

/// The files `USER.crt` and `USER.key` of a folder.
fn pair_of(folder: &Path, user: &str) -> [String; 2] {
    ["crt", "key"].map(|ending| fs::read_to_string(folder.join(format!("{user}.{ending}"))).expect("a file"))
}

/// A client with a certificate and its key.
fn with_pair(plane: &ControlPlane, [certificate, key]: &[String; 2]) -> Client {
    Client::with_certificate(plane.anonymous().port(), certificate, key)
}

/// A client with the files `USER.crt` and `USER.key` of a folder.
fn client_of(plane: &ControlPlane, folder: &Path, user: &str) -> Client {
    with_pair(plane, &pair_of(folder, user))
}

#[tokio::test]
async fn certificate_revoked_by_apid_certs_is_rejected_without_restart() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().join("certs");
    for user in ["alice", "bob"] {
        certs(&folder, &["--client", user, "--group", "system:masters"]);
    }
    let plane = plane_with_certs(&folder).await;
    let (alice, bob) = (client_of(&plane, &folder, "alice"), client_of(&plane, &folder, "bob"));
    assert_eq!(user_name(&plane, &alice).await.as_deref(), Some("alice"), "the empty list revokes nothing");
    // The certificate that another one replaced is revoked with the user, too.
    certs(&folder, &["--client", "alice", "--group", "system:masters", "--force"]);
    let second = client_of(&plane, &folder, "alice");
    assert_eq!(user_name(&plane, &second).await.as_deref(), Some("alice"));
    let mut watch = alice.watch("/api/v1/namespaces/default/configmaps?watch=1").await;
    let printed = certs(&folder, &["--revoke", "alice"]);
    let revoked_at = std::time::Instant::now();
    let serial = printed.split("serial ").nth(1).and_then(|text| text.split_whitespace().next());
    let serial = serial.expect("a serial number");
    let ended = tokio::time::timeout(tests::harness::DEADLINE, watch.next()).await.expect("the watch ends");
    assert_eq!(ended, None);
    assert!(revoked_at.elapsed().as_secs() <= 10, "{:?}", revoked_at.elapsed());
    for client in [&alice, &second] {
        assert_eq!(user_name(&plane, client).await, None);
    }
    assert_eq!(user_name(&plane, &bob).await.as_deref(), Some("bob"));
    assert!(plane.log().contains(serial), "the log names the serial number as `--list` does");
    let list = certs(&folder, &["--list"]);
    assert_eq!(list.matches("revoked").count(), 2, "{list}");
}

#[tokio::test]
async fn commands_of_the_guide_rotate_the_ca_without_an_outage() {
    if Command::new("curl").arg("--version").output().is_err() {
        return prerequisites::skip("curl", "it is not on PATH");
    }
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().join("certs");
    for user in ["alice", "before", "added", "switched", "renewed"] {
        certs(&folder, &["--client", user, "--group", "system:masters"]);
    }
    let old_alice = pair_of(&folder, "alice");
    let mut plane = plane_with_certs(&folder).await;
    let steps = steps_of_the_guide();
    let run = |line: &str| {
        let apid = program("apid").parent().expect("a folder").display().to_string();
        let path = format!("{apid}:{}", std::env::var("PATH").expect("PATH"));
        let mut bash = Command::new("bash");
        bash.args(["-ec", line]).env("C", &folder).env("PATH", path);
        let output = bash.output().expect("bash runs");
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let trusts = |plane: &ControlPlane, bundle: &Path| {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--fail", "--output", "/dev/null", "--cacert"]).arg(bundle);
        curl.arg(format!("{}/livez", plane.url())).status().expect("curl runs").success()
    };
    // The old and the new certificate of each revoked user.
    let mut revoked = Vec::new();
    let mut revoke = |user: &str| {
        revoked.push((user.to_owned(), pair_of(&folder, user)));
        certs(&folder, &["--revoke", user]);
    };
    let old_bundle = dir.path().join("old.crt");
    fs::copy(folder.join("ca.crt"), &old_bundle).expect("a copy");

    revoke("before");
    run(&steps[0][0]);
    revoke("added");
    assert!(trusts(&plane, &old_bundle), "the server still has a certificate of the old CA");
    run(&steps[1][0]);
    let bundle = fs::read_to_string(folder.join("ca.crt")).expect("the bundle");
    let (new_ca, _) = bundle.split_once("-----END CERTIFICATE-----").expect("a certificate");
    let new_bundle = dir.path().join("new.crt");
    fs::write(&new_bundle, format!("{new_ca}-----END CERTIFICATE-----\n")).expect("the new CA");
    revoke("switched");
    let old_of_renewed = pair_of(&folder, "renewed");
    run(&steps[1][1]);
    eventually("the server has a certificate of the new CA", || async {
        assert!(trusts(&plane, &folder.join("ca.crt")), "a client with both CAs has no outage");
        trusts(&plane, &new_bundle).then_some(())
    })
    .await;
    revoke("renewed");
    revoked.push(("the old certificate of renewed".to_owned(), old_of_renewed));
    let new_alice = pair_of(&folder, "alice");
    assert_ne!(new_alice, old_alice);

    for is_restarted in [false, true] {
        if is_restarted {
            plane.stop().await;
            plane.launch().await;
        }
        for (user, pair) in &revoked {
            let client = with_pair(&plane, pair);
            eventually(&format!("{user} is rejected, restarted: {is_restarted}"), || async {
                user_name(&plane, &client).await.is_none().then_some(())
            })
            .await;
        }
        for pair in [&old_alice, &new_alice] {
            assert_eq!(user_name(&plane, &with_pair(&plane, pair)).await.as_deref(), Some("alice"));
        }
    }
    run(&steps[2][0]);
    run(&steps[2][1]);
    let old = with_pair(&plane, &old_alice);
    eventually("the old CA is gone", || async { user_name(&plane, &old).await.is_none().then_some(()) })
        .await;
    assert_eq!(user_name(&plane, &with_pair(&plane, &new_alice)).await.as_deref(), Some("alice"));
    for (user, pair) in &revoked {
        assert_eq!(user_name(&plane, &with_pair(&plane, pair)).await, None, "{user}");
    }
}

/// The commands of each step of the guide in docs/operations.md.
fn steps_of_the_guide() -> Vec<Vec<String>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
    let text = fs::read_to_string(file).expect("the document");
    let (_, guide) = text.split_once("\n### Rotation of the CA\n").expect("the guide");
    let (guide, _) = guide.split_once("\n## ").expect("the next section");
    let mut steps = Vec::new();
    for line in guide.lines() {
        if line.starts_with(|c: char| c.is_ascii_digit()) {
            steps.push(Vec::new());
        } else if let Some(command) = line.strip_prefix("       ") {
            steps.last_mut().expect("a step").push(command.to_owned());
        }
    }
    assert_eq!(steps.iter().map(Vec::len).collect::<Vec<_>>(), [1, 2, 2]);
    steps
}

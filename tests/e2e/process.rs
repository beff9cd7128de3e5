//! The apid process: command-line errors, an unavailable authd, signals, and orphan processes.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;
use tests::harness::{Client, ControlPlane, DEADLINE, Options, eventually, program};

/// Runs a start that fails; returns the exit code and standard error.
fn failed_startup(mut command: Command) -> (i32, String) {
    let output = command.stdin(Stdio::null()).output().expect("the program runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().expect("an exit code"), text)
}

fn apid(data_dir: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(program("apid"));
    command.arg("--data-dir").arg(data_dir).args(["--bind-address=127.0.0.1", "--secure-port=0"]).args(flags);
    command
}

#[test]
fn invalid_flags_are_reported_together_with_exit_code_64() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data");
    for (flags, words) in [
        (
            &["--nope", "--names=other", "--history-retention=soon"][..],
            &["nope", "names", "soon", "spawn-authd"][..],
        ),
        (&["--spawn-authd", "--enable-admission-plugins=NoSuch"], &["NoSuch"]),
        (&["--spawn-authd", "--enable-admission-plugins=PodSecurityPolicy"], &["PodSecurityPolicy"]),
        (
            &["--spawn-authd", "--enable-admission-plugins=ImagePolicyWebhook"],
            &["ImagePolicyWebhook", "not implemented"],
        ),
        (&["--spawn-authd", "--feature-gates=NoSuch=true"], &["NoSuch"]),
        (&["--spawn-authd", "--feature-gates=BtreeWatchCache=false"], &["BtreeWatchCache", "locked to true"]),
        (&["--spawn-authd", "--feature-gates=WatchList=true,DryRun=maybe"], &["DryRun=maybe"]),
        (
            &["--spawn-authd", "--encryption-provider-config=/nowhere/at/all"],
            &["encryption-provider-config", "/nowhere/at/all"],
        ),
        (
            &["--spawn-authd", "--encryption-provider-config-automatic-reload"],
            &["requires `--encryption-provider-config`"],
        ),
        (&["--spawn-authd", "--tls-min-version=VersionTLS13"], &["tls-min-version", "not implemented"]),
        (&["--spawn-authd", "--authorization-mode=Node,Webhook"], &["Webhook"]),
        (&["--spawn-authd", "--authorization-mode=RBAC,RBAC,Foo"], &["Foo", "RBAC"]),
        (&["--spawn-authd", "--token-auth-file=/nowhere/at/all"], &["/nowhere/at/all"]),
    ] {
        let (code, text) = failed_startup(apid(&data, flags));
        assert_eq!(code, 64, "{flags:?}: {text}");
        for word in words {
            assert!(text.contains(word), "{flags:?}: `{word}` is missing in: {text}");
        }
        assert!(!data.join("apid.port").exists(), "{flags:?}: apid must not bind a port");
        assert!(!data.join("store").exists(), "{flags:?}: apid must not create a store");
    }
}

#[test]
fn store_of_other_names_preset_is_rejected() {
    let dir = tempfile::tempdir().expect("a folder");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let data = runtime.block_on(async {
        let mut plane = ControlPlane::start(Options::default()).await;
        plane.stop().await;
        let copy = dir.path().join("data");
        let copied = Command::new("cp").arg("-r").arg(plane.data_dir()).arg(&copy).status().expect("cp runs");
        assert!(copied.success());
        copy
    });
    for flags in [&["--names=kubernetes"][..], &["--api-domain=other.test"]] {
        let (code, text) = failed_startup(apid(&data, &[&["--spawn-authd"], flags].concat()));
        assert_eq!(code, 1, "{text}");
        let cause = "the store was created with names `svc` and cannot be opened with names";
        assert!(text.contains(cause) && text.contains("; start with `--names svc"), "{text}");
    }
}

/// A process that is killed when the test ends.
struct KillOnDrop(std::process::Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn requests_without_authd_return_503_except_health() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data");
    let socket = format!("--authd-socket={}", dir.path().join("missing").display());
    let mut command = apid(&data, &[&socket, "--authorization-mode=RBAC"]);
    let _running = KillOnDrop(command.stderr(Stdio::null()).spawn().expect("apid starts"));
    let port = eventually("apid writes its port", || async {
        std::fs::read_to_string(data.join("apid.port")).ok()?.trim().parse().ok()
    })
    .await;
    let client = Client::new(port, Some("admin-token".to_owned()));
    eventually("livez passes", || async { (client.get("/livez").await.status == 200).then_some(()) }).await;
    let ready = client.get("/readyz?verbose").await;
    assert_eq!(ready.status, 500);
    assert!(ready.text().contains("[-]authd failed"), "{}", ready.text());
    for path in ["/api/v1/namespaces", "/apis", "/version", "/metrics", "/livez/ping", "/readyz/authd"] {
        let answer = client.get(path).await;
        let status = answer.expect(503);
        assert_eq!(
            (status["kind"].as_str(), status["reason"].as_str()),
            (Some("Status"), Some("ServiceUnavailable"))
        );
        assert_eq!(answer.header("retry-after"), "1", "{path}");
    }
}

#[tokio::test]
async fn sigterm_ends_watches_and_stops_authd() {
    let mut plane = ControlPlane::start(Options::default()).await;
    let mode = std::fs::metadata(plane.data_dir()).expect("the data directory").permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "only the owner may access the data directory");
    plane
        .admin()
        .post("/api/v1/namespaces/default/configmaps", &json!({"metadata": {"name": "x"}}))
        .await
        .expect(201);
    let mut watch = plane.admin().watch("/api/v1/configmaps?watch=1&allowWatchBookmarks=true").await;
    let authd = plane.authd_pids();
    assert_eq!(authd.len(), 1);
    let (ended, ()) = tokio::join!(
        async {
            while watch.next().await.is_some() {}
            true
        },
        plane.stop()
    );
    assert!(ended);
    assert!(!is_running(authd[0]), "authd ends with apid");
    plane.launch().await;
    plane.admin().get("/api/v1/namespaces/default/configmaps/x").await.expect(200);
}

/// The clients are an idle watcher, a watcher that does not read its events, and a client that does not read its list.
#[tokio::test]
async fn sigterm_ends_within_five_seconds_for_clients_that_do_not_read() {
    let mut plane = ControlPlane::start(Options::default()).await;
    let client = plane.admin();
    let maps = "/api/v1/namespaces/default/configmaps";
    let idle = client.watch("/api/v1/namespaces?watch=1").await;
    let slow = client.watch(&format!("{maps}?watch=1")).await;
    for number in 0..8 {
        let map = json!({"metadata": {"name": format!("x-{number}")}, "data": {"text": "x".repeat(900_000)}});
        client.post(maps, &map).await.expect(201);
    }
    let unread = client.watch(maps).await;
    let begin = std::time::Instant::now();
    plane.stop().await;
    let elapsed = begin.elapsed();
    assert!(elapsed < Duration::from_secs(5), "{elapsed:?}");
    drop((idle, slow, unread));
}

#[tokio::test]
async fn shutdown_delay_serves_requests_and_fails_readyz() {
    let plane = ControlPlane::start(Options::default().flag("--shutdown-delay-duration=3s")).await;
    let admin = plane.admin();
    let pid = i32::try_from(plane.pid()).ok().and_then(rustix::process::Pid::from_raw).expect("a process id");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a signal");
    eventually("readyz fails", || async { (admin.get("/readyz").await.status == 500).then_some(()) }).await;
    admin.get("/api/v1/namespaces/default").await.expect(200);
    let begin = std::time::Instant::now();
    let mut passed = 0;
    while let Ok(response) = admin.try_request("GET", "/livez", &[], b"").await {
        assert_eq!(response.status, 200, "/livez passes until the listener closes");
        passed += 1;
        assert!(begin.elapsed() < DEADLINE, "the listener closes after the delay");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(passed > 10, "{passed} successful checks during the delay");
    assert!(admin.try_request("GET", "/healthz", &[], b"").await.is_err(), "/healthz fails after the stop");
}

/// Requirements D-GATE: the gates of the register with stage and default in `--help`.
#[test]
fn help_lists_registered_feature_gates_with_stage_and_default() {
    let output = Command::new(program("apid")).arg("--help").output().expect("the program runs");
    let help = String::from_utf8_lossy(&output.stdout);
    for (gate, stage, default) in [
        ("AllowUnsafeMalformedObjectDeletion", "ALPHA", false),
        ("APIResponseCompression", "BETA", true),
        ("AuthorizeNodeWithSelectors", "BETA", true),
        ("AuthorizeWithSelectors", "BETA", true),
        ("CBORServingAndStorage", "ALPHA", false),
        ("DeclarativeValidation", "BETA", true),
        ("DeclarativeValidationTakeover", "BETA", false),
        ("ListFromCacheSnapshot", "ALPHA", false),
        ("StructuredAuthenticationConfiguration", "BETA", true),
        ("WatchList", "BETA", false),
    ] {
        let line = format!("{gate}=true|false ({stage} - default={default})");
        assert!(help.lines().any(|text| text.trim() == line), "`{line}` is missing in:\n{help}");
    }
}

#[tokio::test]
async fn feature_gates_flag_is_accepted_with_warning_for_stable_gates() {
    let gates = "--feature-gates=ConsistentListFromCache=false,ListFromCacheSnapshot=false,\
                 StructuredAuthenticationConfiguration=true,ServerSideApply=true";
    let plane = ControlPlane::start(Options::default().flag(gates)).await;
    let log = plane.log();
    assert!(log.contains("setting GA feature gate ServerSideApply=true: it will be removed"), "{log}");
    assert!(
        log.contains("feature gate ConsistentListFromCache=false is accepted and has no effect here"),
        "{log}"
    );
    assert!(!log.contains("feature gate ListFromCacheSnapshot"), "{log}");
}

#[tokio::test]
async fn killed_authd_is_restarted_and_authd_of_killed_apid_exits() {
    let mut plane = ControlPlane::start(Options::default()).await;
    for _ in 0..3 {
        let before = plane.authd_pids();
        plane.kill_authd();
        eventually("apid starts a new authd", || async {
            let now = plane.authd_pids();
            (now.len() == 1 && now != before).then_some(())
        })
        .await;
        let admin = plane.admin();
        eventually("the new authd authorizes requests", || async {
            (admin.get("/api/v1/namespaces").await.status == 200).then_some(())
        })
        .await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let authd = plane.authd_pids();
    plane.kill();
    eventually("authd ends", || async { (!is_running(authd[0])).then_some(()) }).await;
}

/// Whether a process exists and is no zombie.
fn is_running(pid: u32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

#[tokio::test(flavor = "multi_thread")]
async fn unresponsive_authd_process_is_replaced() {
    let plane = ControlPlane::start(Options::default()).await;
    // Until authd has answered once, apid waits 30 s before it replaces authd.
    eventually("authd answers a health check", || async {
        plane.log().contains("authd answers its health check").then_some(())
    })
    .await;
    plane.signal_authd(rustix::process::Signal::STOP);
    eventually("apid logs that it kills authd", || async {
        plane.log().contains("authd does not answer its health check; killing it").then_some(())
    })
    .await;
    eventually("readyz passes with the new authd, without SIGCONT", || async {
        (plane.anonymous().get("/readyz").await.status == 200).then_some(())
    })
    .await;
    plane.user("carol").get("/api").await.expect(200);
}

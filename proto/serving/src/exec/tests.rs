//! Tests of plugins that are shell scripts: their input, their output, and the credential cache.

use super::*;
use crate::client_config::Cluster;
use apimachinery::clock::ManualClock;
use apimachinery::names::Preset;
use apimachinery::object::Value;
use std::io::{Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::TempDir;

const V1: &str = "client.authentication.example.test/v1";
const V1BETA1: &str = "client.authentication.example.test/v1beta1";
const LONG: Duration = Duration::from_secs(60);

fn names() -> Names {
    Names::new(Preset::Svc, "example.test").unwrap()
}

/// Directory with a plugin `bin/plugin` and a log of its runs.
struct PluginFixture {
    dir: TempDir,
    clock: Arc<ManualClock>,
}

impl PluginFixture {
    /// Creates a plugin that is a shell script. Its working directory is arbitrary; `$0` is the path of the
    /// script.
    fn new(script: &str) -> PluginFixture {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("bin")).unwrap();
        let fixture =
            PluginFixture { dir, clock: Arc::new(ManualClock::at("2026-01-01T00:00:00Z".parse().unwrap())) };
        fixture.write_script(script);
        fixture
    }

    fn write_script(&self, script: &str) {
        let file = self.dir.path().join("bin/plugin");
        let runs = self.dir.path().join("runs");
        std::fs::write(&file, format!("#!/bin/sh\necho run >> {}\n{script}\n", runs.display())).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn exec(&self) -> Exec {
        Exec {
            command: "./bin/plugin".into(),
            api_version: V1.into(),
            interactive_mode: "Never".into(),
            dir: self.dir.path().to_owned(),
            ..Exec::default()
        }
    }

    fn plugin(&self, exec: &Exec, input: Option<File>) -> Plugin {
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        Plugin::new(exec, &names(), ClusterInfo::default(), input, LONG, clock).unwrap()
    }

    fn run_count(&self) -> usize {
        std::fs::read_to_string(self.dir.path().join("runs")).map_or(0, |log| log.lines().count())
    }

    /// Reads a file that the plugin wrote.
    fn read_file(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }
}

fn token(credentials: &Credentials) -> &str {
    credentials.token.as_ref().and_then(Secret::text).unwrap_or_default()
}

/// Builds a script that prints an ExecCredential with this API version and status.
fn printing_script(version: &str, status: &str) -> String {
    let document = format!(r#"{{"kind":"ExecCredential","apiVersion":"{version}","status":{status}}}"#);
    format!("cat <<'END'\n{document}\nEND")
}

fn input_file(text: &str) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.rewind().unwrap();
    file
}

#[test]
fn exec_plugin_config_errors_are_reported() {
    let good = Exec { command: "c".into(), api_version: V1BETA1.into(), ..Exec::default() };
    let errors_after = |change: fn(&mut Exec)| {
        let mut exec = good.clone();
        change(&mut exec);
        exec.errors(&names())
    };
    for (change, expected) in [
        ((|_| ()) as fn(&mut Exec), None),
        (|e| e.command.clear(), Some("command is missing")),
        (|e| e.api_version.clear(), Some("apiVersion is missing")),
        (
            |e| e.api_version = "client.authentication.k8s.io/v1".into(),
            Some("apiVersion `client.authentication.k8s.io/v1` is not known"),
        ),
        (|e| e.api_version = "client.authentication.example.test/v1alpha1".into(), Some("apiVersion `")),
        (|e| e.api_version = V1.into(), Some("interactiveMode is missing")),
        (|e| e.interactive_mode = "Sometimes".into(), Some("interactiveMode `Sometimes` is not known")),
        (|e| (e.api_version, e.interactive_mode) = (V1.into(), "Always".into()), None),
    ] {
        let errors = errors_after(change);
        assert_eq!(errors.len(), usize::from(expected.is_some()), "{errors:?}");
        assert!(expected.is_none_or(|expected| errors[0].starts_with(expected)), "{errors:?}");
    }
    let kubernetes = Names::new(Preset::Kubernetes, "").unwrap();
    let exec = Exec { api_version: "client.authentication.k8s.io/v1beta1".into(), ..good };
    assert_eq!(exec.errors(&kubernetes), [""; 0]);
}

#[tokio::test]
async fn exec_plugin_gets_args_env_and_exec_info() {
    for version in [V1, V1BETA1] {
        let script = format!(
            "cd \"$(dirname \"$0\")/..\"\nprintf '%s\\n' \"$@\" > args\nprintf '%s' \"$WORD\" > word\n\
             printf '%s' \"$SVC_EXEC_INFO\" > info\ncat > stdin\n{}",
            printing_script(version, r#"{"token": "t"}"#)
        );
        let fixture = PluginFixture::new(&script);
        let mut exec = fixture.exec();
        exec.api_version = version.into();
        exec.args = vec!["one".into(), "two words".into(), "$HOME".into()];
        exec.env = vec![("WORD".into(), Secret::new("given"))];
        let plugin = fixture.plugin(&exec, Some(input_file("unread input")));
        assert_eq!(token(&plugin.credentials().await.unwrap()), "t");
        assert_eq!(fixture.read_file("args"), "one\ntwo words\n$HOME\n");
        assert_eq!(fixture.read_file("word"), "given");
        assert_eq!(fixture.read_file("stdin"), "", "standard input is closed");
        let info: Value = serde_json::from_str(&fixture.read_file("info")).unwrap();
        let expected = serde_json::json!({"kind": "ExecCredential", "apiVersion": version, "spec": {"interactive": false}});
        assert_eq!(info, expected);
    }
}

#[tokio::test]
async fn exec_plugin_with_provide_cluster_info_gets_cluster() {
    let script =
        format!("printf '%s' \"$SVC_EXEC_INFO\" > \"$0.info\"\n{}", printing_script(V1, r#"{"token": "t"}"#));
    let fixture = PluginFixture::new(&script);
    std::fs::write(fixture.path().join("ca.crt"), "PEM").unwrap();
    let cluster = Cluster {
        server: "https://h:1/p".into(),
        certificate_authority: Some(fixture.path().join("ca.crt")),
        tls_server_name: Some("name".into()),
        extensions: [
            ("client.authentication.example.test/exec".to_owned(), serde_json::json!({"audience": ["a"]})),
            ("other".to_owned(), serde_json::json!("not for plugins")),
        ]
        .into(),
        ..Cluster::default()
    };
    let info = ClusterInfo::new(&cluster, "client.authentication.example.test/exec").unwrap();
    let exec = Exec { provide_cluster_info: true, ..fixture.exec() };
    let clock = Arc::clone(&fixture.clock) as Arc<dyn Clock>;
    let plugin = Plugin::new(&exec, &names(), info, None, LONG, clock).unwrap();
    plugin.credentials().await.unwrap();
    let info: Value = serde_json::from_str(&fixture.read_file("bin/plugin.info")).unwrap();
    let expected = serde_json::json!({
        "server": "https://h:1/p", "tls-server-name": "name", "certificate-authority-data": "UEVN",
        "config": {"audience": ["a"]},
    });
    assert_eq!(info["spec"]["cluster"], expected);
    let absent = Cluster { certificate_authority: Some("/no/such".into()), ..Cluster::default() };
    assert_eq!(ClusterInfo::new(&absent, "x").unwrap_err().0, Path::new("/no/such"));
}

#[tokio::test]
async fn exec_plugin_stdin_follows_interactive_mode_and_terminal() {
    let script = format!(
        "cat > \"$0.stdin\"\nprintf '%s' \"$SVC_EXEC_INFO\" > \"$0.info\"\n{}",
        printing_script(V1BETA1, r#"{"token": "t"}"#)
    );
    // Mode, whether there is a terminal, and what the plugin gets: whether it is interactive, and its input.
    // None if the plugin does not run.
    for (mode, has_terminal, expected) in [
        ("Never", true, Some((false, ""))),
        ("Never", false, Some((false, ""))),
        ("IfAvailable", true, Some((true, "typed"))),
        ("IfAvailable", false, Some((false, ""))),
        ("", true, Some((true, "typed"))),
        ("", false, Some((false, ""))),
        ("Always", true, Some((true, "typed"))),
        ("Always", false, None),
    ] {
        let fixture = PluginFixture::new(&script);
        let exec = Exec { api_version: V1BETA1.into(), interactive_mode: mode.into(), ..fixture.exec() };
        let plugin = fixture.plugin(&exec, has_terminal.then(|| input_file("typed")));
        let actual = plugin.credentials().await;
        match expected {
            Some((interactive, read)) => {
                actual.unwrap();
                let info: Value = serde_json::from_str(&fixture.read_file("bin/plugin.info")).unwrap();
                assert_eq!(info["spec"]["interactive"], interactive, "{mode} {has_terminal}");
                assert_eq!(fixture.read_file("bin/plugin.stdin"), read, "{mode} {has_terminal}");
            }
            None => {
                assert_eq!(actual.unwrap_err(), ExecError::NoInput("./bin/plugin".into()));
                assert_eq!(fixture.run_count(), 0);
            }
        }
    }
}

#[tokio::test]
async fn invalid_exec_plugin_output_is_rejected_without_quoting_it() {
    let fixture = PluginFixture::new("");
    let plugin = fixture.plugin(&fixture.exec(), None);
    let expired = r#"{"token": "hunter2", "expirationTimestamp": "yesterday"}"#;
    for (script, expected) in [
        ("echo hunter2".to_owned(), "printed no JSON document"),
        ("".to_owned(), "printed no JSON document"),
        ("echo '{\"token\": \"hunter2\"}'".to_owned(), "printed a `` where an `ExecCredential` is needed"),
        (
            printing_script(V1BETA1, r#"{"token": "hunter2"}"#),
            "printed version `client.authentication.example.test/v1beta1` while",
        ),
        (printing_script(V1, "null"), "printed no status"),
        (printing_script(V1, "[]"), "printed no status"),
        (printing_script(V1, "{}"), "printed neither a token nor a certificate"),
        (printing_script(V1, r#"{"token": 5}"#), "printed a status.token that is not a string"),
        (printing_script(V1, r#"{"token": "hunter2 x"}"#), "printed a token that a header cannot contain"),
        (printing_script(V1, expired), "printed an expirationTimestamp that is not an RFC 3339 time"),
        (
            printing_script(V1, r#"{"clientKeyData": "hunter2"}"#),
            "printed a clientKeyData without a clientCertificateData",
        ),
        (
            printing_script(V1, r#"{"clientCertificateData": "hunter2"}"#),
            "printed a clientCertificateData without a clientKeyData",
        ),
        (
            printing_script(V1, r#"{"clientCertificateData": "hunter2", "clientKeyData": "hunter2"}"#),
            "printed a certificate and a key that cannot be used",
        ),
        ("exit 3".to_owned(), "failed: exit status: 3"),
        ("head -c 1100000 /dev/zero".to_owned(), "printed more than 1048576 bytes"),
    ] {
        fixture.write_script(&script);
        let error = plugin.credentials().await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("the credential plugin `./bin/plugin` {expected}")), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[tokio::test]
async fn missing_exec_plugin_returns_error_with_install_hint() {
    let fixture = PluginFixture::new("");
    for (command, hint, expected) in [
        (
            "./bin/absent",
            "run: install it",
            "the credential plugin `./bin/absent` is not installed: run: install it",
        ),
        (
            "no-such-program-on-the-path",
            "",
            "the credential plugin `no-such-program-on-the-path` is not installed",
        ),
    ] {
        let exec = Exec { command: command.into(), install_hint: hint.into(), ..fixture.exec() };
        let error = fixture.plugin(&exec, None).credentials().await.unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}

#[tokio::test]
async fn exec_plugin_command_without_slash_is_found_in_path() {
    let fixture = PluginFixture::new("");
    let document = printing_script(V1, r#"{"token": "from-the-path"}"#);
    let exec = Exec { command: "sh".into(), args: vec!["-c".into(), document], ..fixture.exec() };
    assert_eq!(token(&fixture.plugin(&exec, None).credentials().await.unwrap()), "from-the-path");
}

#[tokio::test]
async fn exec_plugin_credentials_are_cached_until_expiry_or_rejection() {
    let fixture = PluginFixture::new(&printing_script(
        V1,
        r#"{"token": "t", "expirationTimestamp": "2026-01-01T01:00:00Z"}"#,
    ));
    let plugin = fixture.plugin(&fixture.exec(), None);
    let (first, second) = tokio::join!(plugin.credentials(), plugin.credentials());
    assert!(Arc::ptr_eq(&first.unwrap(), &second.unwrap()), "concurrent callers share one run");
    fixture.clock.advance(Duration::from_secs(3599));
    plugin.credentials().await.unwrap();
    assert_eq!(fixture.run_count(), 1, "before the expiration");
    fixture.clock.advance(Duration::from_secs(1));
    plugin.credentials().await.unwrap();
    assert_eq!(fixture.run_count(), 2, "at the expiration");
    plugin.credentials().await.unwrap();
    assert_eq!(fixture.run_count(), 3, "expired credentials are not cached");

    fixture.write_script(&printing_script(V1, r#"{"token": "lasting"}"#));
    let first = plugin.credentials().await.unwrap();
    assert_eq!(fixture.run_count(), 4);
    fixture.clock.advance(Duration::from_secs(1_000_000));
    assert!(
        Arc::ptr_eq(&first, &plugin.credentials().await.unwrap()),
        "credentials without expiration stay cached"
    );
    plugin.reject(&first).await;
    let second = plugin.credentials().await.unwrap();
    assert_eq!(fixture.run_count(), 5, "rejected");
    plugin.reject(&first).await;
    assert!(
        Arc::ptr_eq(&second, &plugin.credentials().await.unwrap()),
        "rejecting old credentials keeps newer ones"
    );
    let again = fixture.plugin(&fixture.exec(), None);
    again.credentials().await.unwrap();
    assert_eq!(fixture.run_count(), 6, "the cache does not outlive the process");
}

#[tokio::test]
async fn hanging_exec_plugin_is_killed_with_its_children() {
    let fixture = PluginFixture::new("sleep 1000 & echo $! > \"$0.pid\"; wait");
    let clock = Arc::clone(&fixture.clock) as Arc<dyn Clock>;
    let short = Duration::from_millis(300);
    let plugin = Plugin::new(&fixture.exec(), &names(), ClusterInfo::default(), None, short, clock).unwrap();
    let error = plugin.credentials().await.unwrap_err().to_string();
    assert!(error.ends_with("was ended because it took longer than 300ms"), "{error}");
    let pid = fixture.read_file("bin/plugin.pid");
    if !pid.is_empty() {
        let stat = format!("/proc/{}/stat", pid.trim());
        // A killed process may remain a zombie for a moment.
        let has_ended = || std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
        while !has_ended() {
            tokio::task::yield_now().await;
        }
    }
}

//! The units in `deploy/systemd`: `systemd-analyze` accepts them, and the sandbox of each service is tight.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use prerequisites::skip;
use tests::harness::program;

/// Maximum exposure of a service, from 0 (closed) to 10 (open).
const MAX_EXPOSURE: f64 = 2.0;
const SERVICES: [&str; 3] = ["authd.service", "apid.service", "apid-backup.service"];
/// First release of systemd that scores a unit file which is not installed.
const OFFLINE_SECURITY: u32 = 250;

fn units() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/systemd")
}

/// The release of systemd-analyze; None without the program.
fn systemd_release() -> Option<u32> {
    let output = Command::new("systemd-analyze").arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().nth(1)?.split(['.', '~', '-']).next()?.parse().ok()
}

#[test]
fn systemd_accepts_all_units_without_a_warning() {
    if systemd_release().is_none() {
        return skip("systemd-analyze", "no systemd-analyze of release 250 or later");
    }
    let root = tempfile::tempdir().expect("a folder");
    let (bin, system) = (root.path().join("usr/bin"), root.path().join("etc/systemd/system"));
    fs::create_dir_all(&bin).expect("a folder");
    fs::create_dir_all(&system).expect("a folder");
    for program in ["usr/bin/apid", "usr/bin/authd", "bin/kill"] {
        let path = root.path().join(program);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, "#!/bin/sh\n").expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(units()).expect("the folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if name.ends_with(".service") || name.ends_with(".timer") {
            fs::copy(&path, system.join(&name)).expect("a copy");
            names.push(name);
        }
    }
    for target in ["network-online", "multi-user", "timers", "sysinit", "basic", "shutdown"] {
        fs::write(system.join(format!("{target}.target")), "[Unit]\nDescription=test\n").expect("a file");
    }
    assert_eq!(names.len(), 4, "{names:?}");
    let verify = |names: &[String]| {
        let output = Command::new("systemd-analyze")
            .args(["verify", "--man=no", "--recursive-errors=no"])
            .arg(format!("--root={}", root.path().display()))
            .args(names)
            .output()
            .expect("the program runs");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (success, messages) = verify(&names);
    assert!(success && messages.is_empty(), "{messages}");
    fs::write(system.join("broken.service"), "[Service]\nType=never\nExecStart=/usr/bin/apid\n")
        .expect("a file");
    assert!(verify(&["broken.service".to_owned()]).1.contains("never"), "a wrong unit is found");
}

#[test]
fn exposure_of_each_service_is_below_the_limit() {
    if systemd_release().is_none_or(|release| release < OFFLINE_SECURITY) {
        return skip("systemd-analyze", "no systemd-analyze of release 250 or later");
    }
    for service in SERVICES {
        let output = Command::new("systemd-analyze")
            .args(["security", "--offline=true", "--no-pager"])
            .arg(units().join(service))
            .output()
            .expect("the program runs");
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        let line = text.lines().find(|line| line.contains("Overall exposure level")).unwrap_or_default();
        let score = line.rsplit(": ").next().and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
        let score = score.unwrap_or_else(|| panic!("no score of {service}: {text}"));
        assert!(score < MAX_EXPOSURE, "{service}: {score}\n{text}");
    }
}

#[test]
fn services_notify_reload_and_have_a_watchdog() {
    for service in &SERVICES[..2] {
        let text = fs::read_to_string(units().join(service)).expect("the unit");
        for line in ["Type=notify", "ExecReload=/bin/kill -HUP $MAINPID", "WatchdogSec=30", "Restart=always"]
        {
            assert!(text.lines().any(|other| other == line), "{service}: {line}");
        }
    }
    for service in SERVICES {
        let text = fs::read_to_string(units().join(service)).expect("the unit");
        assert!(
            text.lines().any(|line| line == "LimitCORE=0"),
            "{service}: a core dump has Secrets and keys"
        );
    }
    let apid = fs::read_to_string(units().join("apid.service")).expect("the unit");
    assert!(apid.contains("After=network-online.target authd.service\n"), "{apid}");
}

#[test]
fn authd_notifies_readiness_and_feeds_the_watchdog() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("notify");
    let received = std::os::unix::net::UnixDatagram::bind(&path).expect("a socket");
    received.set_read_timeout(Some(std::time::Duration::from_secs(60))).expect("a timeout");
    let mut authd = Command::new(program("authd"))
        .args(["--authorization-mode=RBAC", "--socket-mode=0660"])
        .arg(format!("--socket={}", dir.path().join("authd.sock").display()))
        .arg(format!("--generated-key-file={}", dir.path().join("key").display()))
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "200000")
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("authd starts");
    let mut bytes = [0; 256];
    let mut message = || {
        let length = received.recv(&mut bytes).expect("a notification");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    assert!(message().starts_with("READY=1\n"));
    let mode = fs::metadata(dir.path().join("authd.sock")).expect("the socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    assert_eq!([message(), message()], ["WATCHDOG=1", "WATCHDOG=1"]);
    let pid = rustix::process::Pid::from_child(&authd);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a signal");
    assert!(authd.wait().expect("authd ends").success());
    assert!(std::iter::from_fn(|| Some(message())).take(5).any(|text| text.starts_with("STOPPING=1")));
}

//! Restore drill: a backup of a running server, and a start on the restored store.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tests::harness::{ControlPlane, Options, program};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Objects before the backup.
const OBJECTS: usize = 300;

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().expect("a version").parse().expect("a number")
}

/// Runs `apid store backup --server` with the token of a user.
pub(super) fn backup(plane: &ControlPlane, user: &str, to: &Path) -> Output {
    backup_with(plane, user, to, &[])
}

fn backup_with(plane: &ControlPlane, user: &str, to: &Path, flags: &[&str]) -> Output {
    let token = plane.dir().join(format!("{user}.token"));
    fs::write(&token, format!("{user}-token\n")).expect("the token file");
    Command::new(program("apid"))
        .args(["store", "backup", "--server", &plane.url(), "--to"])
        .arg(to)
        .arg("--certificate-authority")
        .arg(plane.data_dir().join("certs/ca.crt"))
        .arg("--token-file")
        .arg(token)
        .args(flags)
        .output()
        .expect("apid runs")
}

#[tokio::test(flavor = "multi_thread")]
async fn backup_of_running_server_is_restored_and_served() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut plane = ControlPlane::start(Options::default()).await;
    let admin = plane.admin();
    let map =
        |name: &str, value: usize| json!({"metadata": {"name": name}, "data": {"k": value.to_string()}});
    for number in 0..OBJECTS {
        admin.post(MAPS, &map(&format!("m{number}"), 0)).await.expect(201);
    }
    // Writes go on during the backup. Each pair is written in order, so that a backup of one revision never has
    // a newer `first` beside an older `second`.
    admin.post(MAPS, &map("second", 0)).await.expect(201);
    admin.post(MAPS, &map("first", 0)).await.expect(201);
    let writer = plane.admin();
    let writes = tokio::spawn(async move {
        let mut round = 0;
        loop {
            round += 1;
            for name in ["second", "first"] {
                let patch = json!({"data": {"k": round.to_string()}});
                let path = format!("{MAPS}/{name}");
                writer.patch(&path, "application/merge-patch+json", &patch).await.expect(200);
            }
        }
    });
    let file = dir.path().join("backup");
    let output = tokio::task::block_in_place(|| backup(&plane, "admin", &file));
    writes.abort();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("objects of revision"), "{output:?}");
    let log = plane.log();
    let names_user = |line: &str| line.contains("backup started") && line.contains(r#"user="admin""#);
    assert!(log.lines().any(names_user), "without an audit log, the log names the user: {log}");

    let refused = dir.path().join("refused");
    let output = tokio::task::block_in_place(|| backup(&plane, "carol", &refused));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("403"), "{output:?}");
    assert_eq!(fs::read_dir(dir.path()).expect("the folder").count(), 1, "a refused backup leaves no file");

    let bounded = dir.path().join("bounded");
    let output = tokio::task::block_in_place(|| backup_with(&plane, "admin", &bounded, &["--max-size=1Ki"]));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("larger than 1024 bytes"), "{output:?}");
    assert_eq!(fs::read_dir(dir.path()).expect("the folder").count(), 1, "a large backup leaves no file");

    let last = version(&admin.get(&format!("{MAPS}/first")).await.expect(200));
    plane.stop().await;
    let data = dir.path().join("data");
    fs::create_dir(&data).expect("a folder");
    let restored = Command::new(program("apid"))
        .args(["store", "restore", "--data-dir"])
        .arg(&data)
        .arg("--from")
        .arg(&file)
        .output()
        .expect("apid runs");
    assert!(restored.status.success(), "{restored:?}");

    let plane = ControlPlane::start(Options { data_dir: Some(data), ..Options::default() }).await;
    let admin = plane.admin();
    let list = admin.get(&format!("{MAPS}?resourceVersion=0")).await.expect(200);
    let value = |name: &str| -> usize {
        let items = list["items"].as_array().expect("items");
        let found = items.iter().find(|item| item["metadata"]["name"] == name).expect(name);
        found["data"]["k"].as_str().expect("a value").parse().expect("a number")
    };
    for number in 0..OBJECTS {
        assert_eq!(value(&format!("m{number}")), 0);
    }
    let (first, second) = (value("first"), value("second"));
    assert!(
        second == first || second == first + 1,
        "the backup must show one revision: first is {first}, second is {second}"
    );
    let created = admin.post(MAPS, &map("new", 1)).await.expect(201);
    assert!(version(&created) > last, "no revision is reused");
}

//! `/store/backup`: the backup of a running server.

use storage::engine::fjall::offline::ArchiveFile;

use super::{MAPS, Server, audit_log, map};
use audit::AuditLog;
use authclient::Auth;

#[tokio::test]
async fn backup_of_running_server_contains_all_objects_of_one_revision() {
    let server = Server::start().await;
    for number in 0..200 {
        assert_eq!(server.post(MAPS, map(&format!("m{number}"), "1")).await.code, 201);
    }
    let revision = server.api_state.store.revision();
    let reply = server.send("POST", "/store/backup", &[], "").await;
    assert_eq!((reply.code, reply.header("content-type")), (200, "application/octet-stream"));
    let folder = tempfile::tempdir().unwrap();
    let mut file = ArchiveFile::create(&folder.path().join("backup")).unwrap();
    file.write(&reply.body).unwrap();
    let summary = file.verify().unwrap();
    assert_eq!(summary.revision, revision);
    let stored = server.api_state.store.range("", "", 0, None).await.unwrap().rows.len();
    assert_eq!(summary.objects, stored as u64);
    assert_eq!(summary.identity.preset, "svc");

    let mut cut = ArchiveFile::create(&folder.path().join("cut")).unwrap();
    cut.write(&reply.body[..reply.body.len() - 5]).unwrap();
    assert!(cut.verify().is_err(), "a truncated backup is damaged");
}

#[tokio::test]
async fn backup_requires_verb_post_on_its_path() {
    let server =
        Server::start_with_audit(|clock| Auth::allow_except(clock, "/store/backup"), AuditLog::off()).await;
    for method in ["GET", "POST"] {
        assert_eq!(server.send(method, "/store/backup", &[], "").await.code, 403, "{method}");
    }
    assert_eq!(server.get("/version").await.code, 200);
    // A role with `get` on all paths does not permit a backup.
    let server = Server::start().await;
    for method in ["GET", "HEAD", "PUT"] {
        assert_eq!(server.send(method, "/store/backup", &[], "").await.code, 405, "{method}");
    }
}

#[tokio::test]
async fn second_backup_at_the_same_time_gets_429() {
    let server = Server::start().await;
    let permit = server.http_state.backups.clone().try_acquire_owned().unwrap();
    let rejected = server.send("POST", "/store/backup", &[], "").await;
    assert_eq!((rejected.code, rejected.header("retry-after")), (429, "1"));
    drop(permit);
    assert_eq!(server.send("POST", "/store/backup", &[], "").await.code, 200);
}

#[tokio::test]
async fn backup_of_an_unreadable_store_is_rejected_with_the_reason() {
    let server = Server::start().await;
    server.api_state.store.close().await;
    let rejected = server.send("POST", "/store/backup", &[], "").await;
    let text = String::from_utf8_lossy(&rejected.body).into_owned();
    assert_eq!(rejected.code, 503, "{text}");
    assert!(text.contains("the backup does not start: ") && text.contains("closed"), "{text}");
}

#[tokio::test]
async fn backup_is_audited_with_revision_at_begin_and_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    let server = Server::start_with_audit(|clock| Auth::allow_all(clock), audit_log(&path)).await;
    let revision = server.api_state.store.revision();
    assert_eq!(server.send("POST", "/store/backup", &[], "").await.code, 200);
    let lines = || -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(&path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    while lines().len() < 2 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    for (line, stage) in lines().iter().zip(["ResponseStarted", "ResponseComplete"]) {
        assert_eq!((&line["stage"], &line["verb"]), (&stage.into(), &"post".into()), "{line}");
        assert_eq!(line["responseStatus"]["code"], 200, "{line}");
        let annotation = &line["annotations"]["audit.example.test/backup-revision"];
        assert_eq!(annotation, &revision.to_string(), "{line}");
    }
}

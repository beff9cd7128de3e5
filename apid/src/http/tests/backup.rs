//! `/store/backup`: the backup of a running server.

use storage::engine::fjall::offline::ArchiveFile;

use super::{MAPS, Server, map};
use crate::audit::AuditLog;
use crate::auth::Auth;

#[tokio::test]
async fn backup_of_running_server_contains_all_objects_of_one_revision() {
    let server = Server::start().await;
    for number in 0..200 {
        assert_eq!(server.post(MAPS, map(&format!("m{number}"), "1")).await.code, 201);
    }
    let revision = server.server_state.store.revision();
    let reply = server.get("/store/backup").await;
    assert_eq!((reply.code, reply.header("content-type")), (200, "application/octet-stream"));
    let folder = tempfile::tempdir().unwrap();
    let mut file = ArchiveFile::create(&folder.path().join("backup")).unwrap();
    file.write(&reply.body).unwrap();
    let summary = file.verify().unwrap();
    assert_eq!(summary.revision, revision);
    let stored = server.server_state.store.range("", "", 0, None).await.unwrap().rows.len();
    assert_eq!(summary.objects, stored as u64);
    assert_eq!(summary.identity.preset, "svc");

    let mut cut = ArchiveFile::create(&folder.path().join("cut")).unwrap();
    cut.write(&reply.body[..reply.body.len() - 5]).unwrap();
    assert!(cut.verify().is_err(), "a truncated backup is damaged");
    assert_eq!(server.post("/store/backup", map("x", "1")).await.code, 405);
}

#[tokio::test]
async fn backup_requires_verb_get_on_its_path() {
    let server =
        Server::start_with_audit(|clock| Auth::allow_except(clock, "/store/backup"), AuditLog::off()).await;
    assert_eq!(server.get("/store/backup").await.code, 403);
    assert_eq!(server.get("/version").await.code, 200);
}

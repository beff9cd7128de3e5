//! Hot reload of the authentication configuration under load (requirements A-JWT-3 to A-JWT-5).
//!
//! No request sees a partial file, and no valid request fails.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::json;
use tests::harness::{ControlPlane, Options, eventually};

use super::issuer::{Issuer, Key};
use super::{authentication_config, token_username};

/// Number of edits of the file.
const EDITS: usize = 100;

fn replace_by_rename(dir: &Path, content: &str) {
    std::fs::write(dir.join("next"), content).unwrap();
    std::fs::rename(dir.join("next"), dir.join("authentication.yaml")).unwrap();
}

fn overwrite(dir: &Path, content: &str) {
    std::fs::write(dir.join("authentication.yaml"), content).unwrap();
}

/// Replaces the file as the kubelet updates ConfigMap volumes: by a symlink into a new folder.
fn replace_by_symlink(dir: &Path, content: &str, at: usize) {
    let folder = dir.join(format!("..{at}"));
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("file"), content).unwrap();
    symlink(folder.join("file"), dir.join("next")).unwrap();
    std::fs::rename(dir.join("next"), dir.join("authentication.yaml")).unwrap();
}

#[tokio::test]
async fn hot_reload_under_load_is_atomic() {
    let key = Key::ec("k", "ES256");
    let issuer = Issuer::start(&[&key]).await;
    let dir = tempfile::tempdir().unwrap();
    // Username and group both contain the version; a response from two versions would mix them.
    let version = |at: usize| {
        let mapping = format!(
            "  claimMappings:\n    username: {{expression: '\"v{at}:\" + claims.sub'}}\n    groups: {{expression: '[\"v{at}\"]'}}\n"
        );
        authentication_config(&issuer, &[("one", &mapping), ("two", "")])
    };
    overwrite(dir.path(), &version(0));
    let path = dir.path().join("authentication.yaml");
    let plane = Arc::new(
        ControlPlane::start(Options::default().flag(&format!("--authentication-config={}", path.display())))
            .await,
    );
    let group = plane.names().group("authentication");
    let review = json!({"apiVersion": format!("{group}/v1"), "kind": "SelfSubjectReview"});
    let url = format!("/apis/{group}/v1/selfsubjectreviews");

    let (done, request_count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut load = Vec::new();
    for worker in 0..3 {
        let claims = issuer.claims("one", json!({"sub": format!("w{worker}")}));
        let client = plane.token(&key.sign("ES256", &claims));
        let (done, request_count, review, url) =
            (Arc::clone(&done), Arc::clone(&request_count), review.clone(), url.clone());
        load.push(tokio::spawn(async move {
            while !done.load(Ordering::SeqCst) {
                let user = client.post(&url, &review).await.expect(201)["status"]["userInfo"].clone();
                let (username, group) =
                    (user["username"].as_str().unwrap(), user["groups"][0].as_str().unwrap());
                assert_eq!(
                    username,
                    format!("{group}:w{worker}"),
                    "the response mixes two versions of the file"
                );
                request_count.fetch_add(1, Ordering::SeqCst);
            }
        }));
    }

    let token = |sub: &str| key.sign("ES256", &issuer.claims("one", json!({"sub": sub})));
    let mut good = 0;
    let mut bad = 0;
    let failed_reloads = || plane.log().matches("file reload failed").count();
    for at in 1..=EDITS {
        let text = version(at);
        let refused = failed_reloads();
        match at % 5 {
            0 => replace_by_rename(dir.path(), &text),
            1 => replace_by_symlink(dir.path(), &text, at),
            // A truncated file: cut in the middle of the second authenticator.
            2 => overwrite(dir.path(), &text[..text.len() - 20]),
            // The error is on a different line each time, because authd does not log the same error again.
            3 => {
                let wrong = text.replace("claims.sub'", "claims.sub'}, nonsense: {");
                replace_by_rename(dir.path(), &("\n".repeat(at) + &wrong));
            }
            _ => {
                std::fs::remove_file(&path).unwrap();
                overwrite(dir.path(), &text);
            }
        }
        // Edits are faster than reloads. Every tenth edit waits until its version is active.
        if at % 10 == 0 {
            good += 1;
            let want = format!("v{at}:probe");
            eventually(&want, || async {
                (token_username(&plane, &token("probe")).await == want).then_some(())
            })
            .await;
        }
        if at % 25 == 3 {
            bad += 1;
            eventually("the log reports a failed reload", || async {
                (failed_reloads() > refused).then_some(())
            })
            .await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    done.store(true, Ordering::SeqCst);
    for worker in load {
        worker.await.expect("no valid request fails");
    }
    assert_eq!((good, bad), (10, 4));
    assert!(request_count.load(Ordering::SeqCst) > 100, "{request_count:?} requests");
    // authd fetches the keys of an unchanged issuer once, regardless of the number of reloads.
    assert_eq!(issuer.requested_paths("one"), ["/.well-known/openid-configuration", "/keys"]);
}

#[tokio::test]
async fn hot_reload_accepts_added_issuer_and_rejects_removed_issuer() {
    let key = Key::ec("k", "ES256");
    let issuer = Issuer::start(&[&key]).await;
    let dir = tempfile::tempdir().unwrap();
    overwrite(dir.path(), &authentication_config(&issuer, &[("one", "")]));
    let flag = format!("--authentication-config={}", dir.path().join("authentication.yaml").display());
    let plane = ControlPlane::start(Options::default().flag(&flag)).await;
    let token = |of: &str| key.sign("ES256", &issuer.claims(of, json!({"sub": of})));
    assert_eq!(
        (token_username(&plane, &token("one")).await, token_username(&plane, &token("two")).await),
        ("one".into(), String::new())
    );
    replace_by_rename(dir.path(), &authentication_config(&issuer, &[("two", "")]));
    eventually("the added issuer is accepted", || async {
        (token_username(&plane, &token("two")).await == "two").then_some(())
    })
    .await;
    let first = token("one");
    eventually("the removed issuer is rejected", || async {
        token_username(&plane, &first).await.is_empty().then_some(())
    })
    .await;
    replace_by_rename(
        dir.path(),
        "apiVersion: apiserver.config.svc.internal/v1beta1\nkind: AuthenticationConfiguration\n",
    );
    eventually("tokens are rejected without issuers", || async {
        token_username(&plane, &token("two")).await.is_empty().then_some(())
    })
    .await;
}

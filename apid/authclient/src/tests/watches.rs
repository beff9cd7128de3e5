//! Tests of open watches: no event goes out on an authorization older than the policy.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use apimachinery::clock::Clock;
use apimachinery::decision::Decision;
use authproto::auth::{AuthorizeResponse, Dependencies, ObjectRef};
use futures_util::future::join_all;

use super::*;
use crate::transport::scripted::{ScriptedAuthd, verdict};
use crate::watches::authorization::MAX_REQUESTS;

struct Setup {
    auth: Arc<Auth>,
    vector: Arc<PolicyRevisions>,
    script: Arc<ScriptedAuthd>,
    allowed: Arc<AtomicBool>,
    clock: Arc<ManualClock>,
}

fn setup() -> Setup {
    let allowed = Arc::new(AtomicBool::new(true));
    let is_allowed = allowed.clone();
    let script = ScriptedAuthd::new(move |request| {
        let namespace = request.attributes.clone().unwrap().namespace;
        let depends_on = Some(Dependencies { rbac_namespace: vec![namespace], ..Dependencies::default() });
        Ok(AuthorizeResponse { depends_on, ..verdict(is_allowed.load(Ordering::SeqCst)) })
    });
    let (vector, clock) = (vector(), clock());
    vector.start_at(Revision(1));
    let auth = Auth::scripted(script.clone(), vector.clone(), clock.clone());
    Setup { auth, vector, script, allowed, clock }
}

impl Setup {
    async fn open(&self, client: &str) -> WatchGuard {
        self.auth.guard(&self.auth.authorize(&user(client), pods("a"), "").await.unwrap())
    }
}

#[tokio::test]
async fn event_after_policy_write_waits_for_reauthorization() {
    let s = setup();
    let guard = s.open("u").await;
    write(&s.vector, "configmaps/a/x", 2);
    assert!(guard.admits(Revision(2)), "without a policy write authd must get no request");
    write(&s.vector, "rolebindings/a/b", 3);
    write(&s.vector, "configmaps/a/x", 4);
    assert!(guard.admits(Revision(1)), "an event from before the authorization may go out");
    assert!(!guard.admits(Revision(4)));
    s.script.take_request_count();
    guard.renew(Revision(4)).await.unwrap();
    assert!(guard.admits(Revision(4)));
    assert_eq!(s.script.take_request_count(), 1);
}

#[tokio::test]
async fn denied_watch_ends_with_403_reason() {
    let s = setup();
    let guard = s.open("u").await;
    s.allowed.store(false, Ordering::SeqCst);
    write(&s.vector, "rolebindings/a/b", 3);
    guard.changed().await;
    assert!(!guard.admits(Revision(3)) && !guard.admits(Revision(1)));
    assert_eq!(guard.renew(Revision(3)).await.unwrap_err().code, 403);

    s.allowed.store(true, Ordering::SeqCst);
    write(&s.vector, "rolebindings/a/b", 4);
    let again = s.open("u").await;
    assert!(again.admits(Revision(4)), "a stream opened after the grant must not inherit the denial");
}

#[tokio::test]
async fn denial_overtaken_by_grant_does_not_end_watch() {
    let s = setup();
    let _before = s.open("u").await;
    let opened = Arc::new(parking_lot::Mutex::new(None));
    let (auth, vector, slot) = (s.auth.clone(), s.vector.clone(), opened.clone());
    let dependencies = vector
        .dependencies(Some(&Dependencies { rbac_namespace: vec!["a".into()], ..Dependencies::default() }));
    *s.script.authorize.lock() = Box::new(move |_| {
        // While the response with the denial is in flight, a policy write grants the permission, and a stream
        // that was authorized after this write arrives.
        write(&vector, "rolebindings/a/b", 4);
        let validity = Validity {
            as_of: 4,
            dependencies: dependencies.clone(),
            epoch: Some(auth.epochs.number()),
            ..Validity::default()
        };
        let authorized = Authorized {
            identity: user("u"),
            attributes: Arc::new(pods("a")),
            cached_decision: Arc::new(CachedDecision { decision: Decision::default(), validity }),
        };
        slot.lock().get_or_insert_with(|| auth.guard(&authorized));
        Ok(verdict(false))
    });
    write(&s.vector, "rolebindings/a/b", 3);
    while opened.lock().is_none() {
        tokio::task::yield_now().await;
    }
    let guard = opened.lock().take().unwrap();
    guard.renew(Revision(4)).await.unwrap();
    assert!(guard.admits(Revision(4)));
}

#[tokio::test]
async fn watches_of_one_user_share_authorization() {
    let s = setup();
    let mut guards = Vec::new();
    for i in 0..300 {
        guards.push(s.open(&format!("u{}", i % 10)).await);
    }
    s.script.take_request_count();
    write(&s.vector, "rolebindings/a/b", 3);
    join_all(guards.iter_mut().map(|guard| guard.renew(Revision(3)))).await;
    assert!(guards.iter().all(|guard| guard.admits(Revision(3))));
    assert_eq!(s.script.take_request_count(), 10, "each user must need one request");
    // The next policy write removes closed streams.
    drop(guards);
    write(&s.vector, "rolebindings/a/b", 4);
    let _last = s.open("u").await;
    write(&s.vector, "rolebindings/a/b", 5);
    while s.auth.watches.authorization_count() > 1 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn watch_continues_under_constant_policy_writes() {
    let s = setup();
    let guard = s.open("u").await;
    let vector = s.vector.clone();
    let policy_writer = tokio::spawn(async move {
        for revision in 3.. {
            write(&vector, "rolebindings/a/b", revision);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    for _ in 0..50 {
        let upto = Revision(s.vector.observed());
        guard.renew(upto).await.unwrap();
        assert!(guard.admits(upto));
    }
    policy_writer.abort();
}

#[tokio::test]
async fn watch_ends_with_its_identity() {
    let s = setup();
    let account = ObjectRef {
        resource: "serviceaccounts".into(),
        namespace: "a".into(),
        name: "mine".into(),
        ..ObjectRef::default()
    };
    let (dependencies, _) = s.vector.track_objects(&[account], 1);
    let mut client = user("u");
    client.validity = Arc::new(Validity { dependencies, ..Validity::internal() });
    let guard = s.auth.guard(&s.auth.authorize(&client, pods("a"), "").await.unwrap());
    let other = s.open("u").await;
    write(&s.vector, "serviceaccounts/a/mine", 3);
    guard.changed().await;
    assert!(!guard.admits(Revision(1)));
    assert_eq!(guard.renew(Revision(3)).await.unwrap_err().code, 401);
    assert!(other.admits(Revision(3)), "a watch with another credential of the user must continue");
}

#[tokio::test]
async fn watch_ends_when_clock_is_set_before_not_before_time() {
    let s = setup();
    s.clock.advance(Duration::from_secs(100));
    let mut client = user("u");
    let not_before = Some(jiff::Timestamp::from_second(60).unwrap());
    client.validity = Arc::new(Validity { not_before, ..Validity::internal() });
    let guard = s.auth.guard(&s.auth.authorize(&client, pods("a"), "").await.unwrap());
    assert!(guard.admits(Revision(1)));
    s.clock.set_back(Duration::from_secs(41));
    assert!(!guard.admits(Revision(1)));
    tokio::time::timeout(Duration::from_secs(5), guard.changed()).await.unwrap();
    assert_eq!(guard.renew(Revision(1)).await.unwrap_err().code, 401);
}

#[tokio::test]
async fn idle_watch_is_woken_when_the_clock_is_set_back() {
    let s = setup();
    s.clock.advance(Duration::from_secs(100));
    let mut client = user("u");
    let not_before = Some(jiff::Timestamp::from_second(60).unwrap());
    client.validity = Arc::new(Validity { not_before, ..Validity::internal() });
    let guard = s.auth.guard(&s.auth.authorize(&client, pods("a"), "").await.unwrap());
    let mut changed = Box::pin(guard.changed());
    assert!(tokio::time::timeout(Duration::from_millis(20), &mut changed).await.is_err());
    s.clock.set_back(Duration::from_secs(41));
    tokio::time::timeout(Duration::from_secs(5), changed).await.unwrap();
}

#[tokio::test]
async fn impersonated_watch_ends_with_impersonation_right() {
    let s = setup();
    let may_impersonate = Arc::new(AtomicBool::new(true));
    let is_allowed = may_impersonate.clone();
    *s.script.authorize.lock() = Box::new(move |request| {
        let is_impersonation = request.attributes.as_ref().unwrap().verb == "impersonate";
        let depends_on = Some(match is_impersonation {
            true => Dependencies { rbac_cluster: true, ..Dependencies::default() },
            false => Dependencies { rbac_namespace: vec!["a".into()], ..Dependencies::default() },
        });
        Ok(AuthorizeResponse {
            depends_on,
            ..verdict(!is_impersonation || is_allowed.load(Ordering::SeqCst))
        })
    });
    let headers = [
        (http::HeaderName::from_static("impersonate-user"), "other".parse().unwrap()),
        (http::HeaderName::from_static("impersonate-group"), "team".parse().unwrap()),
    ];
    let other = s.auth.impersonate(&user("u"), &headers.into_iter().collect(), "").await;
    let other = other.unwrap().unwrap();
    let authorized_as_other = s.auth.authorize(&other, pods("a"), "").await.unwrap();
    let mut guard = s.auth.guard(&authorized_as_other);
    let mut second_guard = s.auth.guard(&s.auth.check(&authorized_as_other, pods("a")).await.unwrap());
    let own_guard = s.auth.guard(
        &s.auth
            .authorize(&Identity { impersonation_rights: Vec::new(), ..other }, pods("a"), "")
            .await
            .unwrap(),
    );
    assert!(guard.admits(Revision(1)));

    write(&s.vector, "clusterroles/unrelated", 3);
    assert!(!guard.admits(Revision(3)), "the impersonation right must be re-authorized");
    guard.renew(Revision(3)).await.unwrap();
    assert!(guard.admits(Revision(3)));

    may_impersonate.store(false, Ordering::SeqCst);
    write(&s.vector, "clusterroles/impersonator", 4);
    tokio::time::timeout(Duration::from_secs(5), guard.changed()).await.unwrap();
    for guard in [&mut guard, &mut second_guard] {
        assert!(!guard.admits(Revision(4)));
        let refused = guard.renew(Revision(4)).await.unwrap_err();
        assert_eq!(refused.code, 403);
        assert!(refused.message.contains("cannot impersonate"), "{}", refused.message);
    }
    assert!(own_guard.admits(Revision(4)), "the impersonated user's own watch must continue");
}

#[tokio::test]
async fn watch_ends_30_seconds_after_loss_of_authd() {
    let s = setup();
    let guard = s.open("u").await;
    s.auth.disconnect_authd();
    s.clock.advance(Duration::from_secs(30));
    assert!(guard.admits(Revision(2)), "cached authorization must hold while policy has not changed");
    s.clock.advance(Duration::from_secs(1));
    guard.changed().await;
    assert!(!guard.admits(Revision(2)));
    assert_eq!(guard.renew(Revision(2)).await.unwrap_err().code, 503);
}

#[tokio::test]
async fn internal_watch_needs_no_policy() {
    let s = setup();
    let attributes = pods("a");
    let guard = s.auth.guard(&Authorized::internal(Arc::default(), attributes, "a controller"));
    s.auth.disconnect_authd();
    s.clock.advance(Duration::from_secs(100));
    write(&s.vector, "rolebindings/a/b", 3);
    assert!(guard.admits(Revision(3)));
    guard.renew(Revision(3)).await.unwrap();
    assert_eq!(s.script.take_request_count(), 0);
}

#[tokio::test]
async fn watch_ends_with_authentication_change_and_survives_policy_change() {
    let s = setup();
    let epoch = s.script.epoch.lock().clone();
    s.auth.epochs.observe(Some(&epoch));
    let mut client = user("u");
    client.validity = Arc::new(Validity { epoch: Some(s.auth.epochs.number()), ..Validity::default() });
    let guard = s.auth.guard(&s.auth.authorize(&client, pods("a"), "").await.unwrap());
    let policy = authproto::auth::Epoch { generation: epoch.generation + 1, ..epoch };
    *s.script.epoch.lock() = policy.clone();
    s.auth.epochs.observe(Some(&policy));
    guard.renew(Revision(1)).await.unwrap();
    assert!(guard.admits(Revision(1)), "a policy change must re-authorize the watch");

    let methods = authproto::auth::Epoch {
        generation: policy.generation + 1,
        identities: policy.identities + 1,
        ..policy
    };
    *s.script.epoch.lock() = methods.clone();
    s.auth.epochs.observe(Some(&methods));
    guard.changed().await;
    assert!(guard.is_outdated() && !guard.admits(Revision(1)));
    assert_eq!(guard.renew(Revision(1)).await.unwrap_err().code, 401);
}

/// Lets a webhook decide: its responses take `latency` and have the TTL `ttl`.
fn decide_by_webhook(s: &Setup, latency: Duration, ttl: Duration) {
    let (clock, allowed) = (s.clock.clone(), s.allowed.clone());
    *s.script.authorize.lock() = Box::new(move |_| {
        clock.advance(latency);
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap() + 1;
        Ok(AuthorizeResponse { ttl_ms, ..verdict(allowed.load(Ordering::SeqCst)) })
    });
}

#[tokio::test]
async fn watch_with_zero_ttl_webhook_reauthorizes_once_per_second() {
    let s = setup();
    decide_by_webhook(&s, Duration::ZERO, Duration::ZERO);
    let guard = s.open("u").await;
    s.script.take_request_count();
    for revision in 2..1000 {
        write(&s.vector, "configmaps/a/x", revision);
        assert!(guard.admits(Revision(revision)), "{revision}");
    }
    assert_eq!(s.script.take_request_count(), 0);
    s.clock.advance(Duration::from_secs(1));
    write(&s.vector, "configmaps/a/x", 1000);
    assert!(!guard.admits(Revision(1000)));
    guard.renew(Revision(1000)).await.unwrap();
    assert!(guard.admits(Revision(1000)));
    assert_eq!(s.script.take_request_count(), 1);

    s.allowed.store(false, Ordering::SeqCst);
    s.clock.advance(Duration::from_secs(1));
    write(&s.vector, "configmaps/a/x", 1001);
    assert_eq!(guard.renew(Revision(1001)).await.unwrap_err().code, 403, "the webhook now denies");
}

#[tokio::test]
async fn expired_response_covers_events_before_its_request() {
    let s = setup();
    decide_by_webhook(&s, Duration::from_secs(9), Duration::from_secs(2));
    let guard = s.open("u").await;
    for revision in [5, 6] {
        write(&s.vector, "configmaps/a/x", revision);
        assert!(!guard.admits(Revision(revision)), "the event is newer than the expired response");
        guard.renew(Revision(revision)).await.unwrap();
        assert!(guard.admits(Revision(revision)));
    }
}

#[tokio::test]
async fn hanging_webhook_does_not_delay_end_of_other_watches() {
    let s = setup();
    let allowed = s.allowed.clone();
    *s.script.authorize.lock() = Box::new(move |request| {
        let user = request.user.clone().unwrap().name;
        let depends_on = Some(Dependencies { rbac_namespace: vec!["a".into()], ..Dependencies::default() });
        match user.as_str() {
            "elsewhere" => Ok(AuthorizeResponse { ttl_ms: 1, ..verdict(true) }),
            _ => Ok(AuthorizeResponse { depends_on, ..verdict(allowed.load(Ordering::SeqCst)) }),
        }
    });
    let slow = s.open("elsewhere").await;
    let guard = s.open("u").await;
    s.script.hang_requests_of("elsewhere");
    s.allowed.store(false, Ordering::SeqCst);
    s.clock.advance(Duration::from_secs(2));
    write(&s.vector, "rolebindings/a/b", 3);
    let renewal = slow.renew(Revision(3));
    tokio::pin!(renewal);
    tokio::select! {
        biased;
        _ = &mut renewal => panic!("the webhook must hang"),
        () = guard.changed() => {}
    }
    assert_eq!(guard.renew(Revision(3)).await.unwrap_err().code, 403);
}

/// A watch whose request hangs, although no TTL limited it before, does not delay another watch.
#[tokio::test]
async fn hanging_request_does_not_delay_other_watches() {
    let s = setup();
    let allowed = s.allowed.clone();
    *s.script.authorize.lock() = Box::new(move |request| {
        let user = request.user.clone().unwrap().name;
        let depends_on = Some(Dependencies { rbac_namespace: vec!["a".into()], ..Dependencies::default() });
        let allowed = user == "elsewhere" || allowed.load(Ordering::SeqCst);
        Ok(AuthorizeResponse { depends_on, ..verdict(allowed) })
    });
    let (slow, guard) = (s.open("elsewhere").await, s.open("u").await);
    s.script.hang_requests_of("elsewhere");
    write(&s.vector, "rolebindings/a/b", 3);
    let renewal = slow.renew(Revision(3));
    tokio::pin!(renewal);
    // Twice: a later policy write does not wait for the pending request either.
    for revision in [3, 4] {
        if revision == 4 {
            s.allowed.store(false, Ordering::SeqCst);
            write(&s.vector, "rolebindings/a/b", 4);
        }
        let result = tokio::select! {
            biased;
            _ = &mut renewal => panic!("the webhook must hang"),
            result = guard.renew(Revision(revision)) => result,
        };
        assert_eq!(result.map_err(|status| status.code), if revision == 3 { Ok(()) } else { Err(403) });
    }
    assert!(!slow.admits(Revision(3)), "no event may go out without a confirmed authorization");
}

/// Opens `watches` watches, each in its own namespace, on decisions that depend on the cluster-wide policy.
///
/// With `is_timed`, the decisions have the TTL 0, as decisions of a webhook.
async fn open_many(s: &Setup, watches: usize, is_timed: bool) -> Vec<WatchGuard> {
    let ttl_ms = u64::from(is_timed);
    *s.script.authorize.lock() = Box::new(move |_| {
        let depends_on = Some(Dependencies { rbac_cluster: true, ..Dependencies::default() });
        Ok(AuthorizeResponse { depends_on, ttl_ms, ..verdict(true) })
    });
    let mut guards = Vec::new();
    for n in 0..watches {
        let list = pods(&format!("n{n}"));
        guards.push(s.auth.guard(&s.auth.authorize(&user("u"), list, "").await.unwrap()));
    }
    s.script.take_request_count();
    guards
}

/// Waits until authd has received this many requests.
async fn wait_for_requests(s: &Setup, count: usize) {
    while s.script.request_count.load(Ordering::SeqCst) < count {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn slow_authd_gets_limited_concurrent_watch_requests() {
    const WATCHES: usize = 4 * MAX_REQUESTS;
    for is_timed in [true, false] {
        let s = setup();
        let guards = open_many(&s, WATCHES, is_timed).await;
        s.script.hang(|_| true);
        write(&s.vector, "clusterroles/r", 3);
        wait_for_requests(&s, MAX_REQUESTS).await;
        // Requests beyond the limit would arrive within this time.
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(s.script.take_request_count(), MAX_REQUESTS, "webhook: {is_timed}");
        s.script.hang(|_| false);
        let renewed = join_all(guards.iter().map(|guard| guard.renew(Revision(3)))).await;
        assert!(renewed.iter().all(Result::is_ok), "every watch must be re-authorized");
        assert!(guards.iter().all(|guard| guard.admits(Revision(3))));
    }
}

#[tokio::test]
async fn hanging_webhook_of_many_watches_does_not_delay_watches_without_ttl() {
    let s = setup();
    let timed = open_many(&s, MAX_REQUESTS + 1, true).await;
    let others = open_many(&s, 1, false).await;
    s.script.hang(|request| request.attributes.as_ref().is_some_and(|a| a.namespace != "n0"));
    s.clock.advance(Duration::from_secs(2));
    write(&s.vector, "clusterroles/r", 3);
    wait_for_requests(&s, MAX_REQUESTS).await;
    others[0].renew(Revision(3)).await.unwrap();
    assert!(!timed[1].admits(Revision(3)));
}

#[tokio::test]
async fn policy_write_during_reauthorization_is_not_missed() {
    let s = setup();
    let guard = s.open("u").await;
    let (vector, allowed) = (s.vector.clone(), s.allowed.clone());
    let is_first_request = AtomicBool::new(true);
    let depends_on = || Some(Dependencies { rbac_namespace: vec!["a".into()], ..Dependencies::default() });
    *s.script.authorize.lock() = Box::new(move |_| {
        let before = allowed.load(Ordering::SeqCst);
        if is_first_request.swap(false, Ordering::SeqCst) {
            allowed.store(false, Ordering::SeqCst);
            write(&vector, "rolebindings/a/b", 4);
        }
        Ok(AuthorizeResponse { depends_on: depends_on(), ..verdict(before) })
    });
    write(&s.vector, "rolebindings/a/b", 3);
    guard.changed().await;
    assert_eq!(guard.renew(Revision(4)).await.unwrap_err().code, 403);
}

#[tokio::test]
async fn watch_waits_while_authd_cannot_reauthenticate() {
    let s = setup();
    s.script.ttl.store(3001, Ordering::SeqCst);
    let token = bearer("u");
    let client = s.auth.authenticate(&credentials(&token, "/")).await.unwrap();
    let guard = s.auth.guard(&s.auth.authorize(&client, pods("a"), "").await.unwrap());
    s.clock.advance(Duration::from_secs(3));
    s.script.fail_authentications(1);
    assert_eq!(s.auth.authenticate(&credentials(&token, "/")).await.unwrap_err().code, 503);
    s.script.fail_authentications(2);
    s.script.take_request_count();
    assert!(!guard.admits(Revision(1)), "no event may go out meanwhile");
    guard.renew(Revision(1)).await.unwrap();
    assert!(guard.admits(Revision(1)));
    assert_eq!(s.script.take_request_count(), 3);
}

/// A manual clock with additional microseconds on its monotonic time.
struct OffsetClock(Arc<ManualClock>, AtomicU64);

impl Clock for OffsetClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn monotonic(&self) -> Duration {
        self.0.monotonic() + Duration::from_micros(self.1.load(Ordering::SeqCst))
    }
}

#[tokio::test]
async fn watch_reauthenticates_only_after_cached_identity_expires() {
    let s = setup();
    let clock = Arc::new(OffsetClock(clock(), AtomicU64::new(100)));
    let auth = Auth::scripted(s.script.clone(), s.vector.clone(), clock.clone());
    s.script.ttl.store(3001, Ordering::SeqCst);
    let token = bearer("u");
    let client = auth.authenticate(&credentials(&token, "/")).await.unwrap();
    let guard = auth.guard(&auth.authorize(&client, pods("a"), "").await.unwrap());
    s.script.reject_token("u");
    clock.0.advance(Duration::from_secs(3));
    for (micros, want) in [(0, Ok(())), (99, Ok(())), (100, Err(401))] {
        clock.1.store(micros, Ordering::SeqCst);
        assert_eq!(guard.admits(Revision(1)), want.is_ok(), "{micros}");
        assert_eq!(guard.renew(Revision(1)).await.map_err(|status| status.code), want, "{micros}");
    }
}

/// A manual clock whose wall time is an hour back while the flag is set.
struct SetBackClock(Arc<ManualClock>, AtomicBool);

impl Clock for SetBackClock {
    fn now(&self) -> Timestamp {
        let back = if self.1.load(Ordering::SeqCst) { Duration::from_secs(3600) } else { Duration::ZERO };
        self.0.now() - back
    }

    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }
}

#[tokio::test]
async fn wall_clock_set_back_does_not_extend_webhook_ttl() {
    for name in ["u", "bad"] {
        let s = setup();
        let clock = Arc::new(SetBackClock(clock(), AtomicBool::new(false)));
        let auth = Auth::scripted(s.script.clone(), s.vector.clone(), clock.clone());
        s.script.ttl.store(3001, Ordering::SeqCst);
        let token = bearer(name);
        let log_in = || async { auth.authenticate(&credentials(&token, "/")).await };
        let first = log_in().await;
        let guard = match &first {
            Ok(client) => Some(auth.guard(&auth.authorize(client, pods("a"), "").await.unwrap())),
            Err(_) => None,
        };
        clock.1.store(true, Ordering::SeqCst);
        for (passed, requests) in [(2999, 0), (1, 1)] {
            clock.0.advance(Duration::from_millis(passed));
            s.script.take_request_count();
            assert!(
                guard.as_ref().is_none_or(|guard| guard.admits(Revision(1)) == (requests == 0)),
                "{passed}"
            );
            assert_eq!(log_in().await.is_ok(), first.is_ok());
            assert_eq!(s.script.take_request_count(), requests, "{name} after {passed} ms more");
        }
    }
}

#[tokio::test]
async fn watch_reauthenticates_when_webhook_ttl_expires() {
    let s = setup();
    s.script.ttl.store(3001, Ordering::SeqCst);
    let token = bearer("u");
    let client = s.auth.authenticate(&credentials(&token, "/")).await.unwrap();
    let guard = s.auth.guard(&s.auth.authorize(&client, pods("a"), "").await.unwrap());
    s.script.take_request_count();
    for _ in 0..3 {
        s.clock.advance(Duration::from_millis(2999));
        assert!(guard.admits(Revision(1)));
        s.clock.advance(Duration::from_millis(1));
        assert!(!guard.admits(Revision(1)));
        guard.changed().await;
        guard.renew(Revision(1)).await.unwrap();
        assert!(guard.admits(Revision(1)));
        assert_eq!(s.script.take_request_count(), 1, "only the identity must be requested again");
    }
    s.script.reject_token("u");
    s.clock.advance(Duration::from_secs(3));
    guard.changed().await;
    assert_eq!(guard.renew(Revision(1)).await.unwrap_err().code, 401);
    assert!(!format!("{client:?}").contains("Bearer"));
}

//! Tests of the watch cache against a store with complete history.

mod exact;
mod fake;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;

use self::fake::FakeStore;
use super::*;

/// Rows are text; a value that begins with `!` does not decode.
#[derive(Default)]
struct Text {
    decoded: Arc<AtomicUsize>,
}

impl Decode for Text {
    type Entry = String;

    fn decode(&self, _key: &str, value: &Bytes) -> Result<String, DecodeError> {
        self.decoded.fetch_add(1, Ordering::SeqCst);
        let text = String::from_utf8(value.to_vec()).map_err(|error| error.to_string())?;
        if text.starts_with('!') { Err("the value begins with `!`".into()) } else { Ok(text) }
    }
}

struct Setup {
    fake: Arc<FakeStore>,
    cache: Arc<Cache<Text>>,
    decoded: Arc<AtomicUsize>,
    pods: Arc<Resource<Text>>,
}

fn setup(limits: Limits) -> Setup {
    let cache = Arc::new(Cache::new(limits));
    let fake = FakeStore::new(Arc::clone(&cache) as Arc<dyn Observer>);
    let store: Arc<dyn Store> = fake.clone();
    cache.attach(&store);
    let decoded = Arc::<AtomicUsize>::default();
    let pods = cache.resource("/pods/", Text { decoded: Arc::clone(&decoded) });
    Setup { fake, cache, decoded, pods }
}

fn summary(events: &[Arc<Event<Text>>]) -> Vec<(EventKind, &str, u64)> {
    events.iter().map(|event| (event.kind(), event.key(), event.revision().0)).collect()
}

/// Polls the watcher once: the result if it is ready.
async fn ready(watcher: &mut Watcher<Text>) -> Option<Result<Vec<Arc<Event<Text>>>, WatchError>> {
    tokio::select! {
        biased;
        events = watcher.next() => Some(events),
        () = std::future::ready(()) => None,
    }
}

#[tokio::test]
async fn list_of_idle_resource_has_newest_store_revision() {
    let Setup { fake, cache, pods, .. } = setup(Limits::default());
    let nodes = cache.resource("/nodes/", Text::default());
    fake.write(&[("/pods/a/x", Some("1"))]);
    assert_eq!(pods.snapshot().await.unwrap().revision(), Revision(1));
    fake.write(&[("/nodes/n", Some("1")), ("/nodes/n", Some("2"))]);
    let snapshot = pods.snapshot().await.unwrap();
    assert_eq!((snapshot.revision(), snapshot.len()), (Revision(3), 1));
    assert_eq!(snapshot.item("/pods/a/x").unwrap().revision(), Revision(1), "an item has its own revision");
    fake.write(&[("/elsewhere", Some("1"))]);
    assert_eq!(
        nodes.snapshot().await.unwrap().revision(),
        Revision(4),
        "keys outside all resources advance the revision"
    );
    assert_eq!(cache.revision(), Revision(4));
    let (item, revision) = nodes.get("/nodes/n").await.unwrap();
    assert_eq!((item.unwrap().entry().unwrap().as_str(), revision), ("2", Revision(4)));
    assert!(nodes.get("/nodes/m").await.unwrap().0.is_none());
}

#[tokio::test]
async fn snapshot_is_immutable_and_iterates_scopes_in_key_order() {
    let Setup { fake, pods, .. } = setup(Limits::default());
    fake.write(&[
        ("/pods/b/x", Some("1")),
        ("/pods/a/y", Some("1")),
        ("/pods/a/x", Some("1")),
        ("/pods/aa/x", Some("1")),
    ]);
    let before = pods.snapshot().await.unwrap();
    fake.write(&[("/pods/a/x", None), ("/pods/a/y", Some("2"))]);
    let keys = |snapshot: &Snapshot<Text>, scope: &str, start: &str| {
        snapshot.scope(scope, start).map(|item| item.key().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(keys(&before, "/pods/", ""), ["/pods/a/x", "/pods/a/y", "/pods/aa/x", "/pods/b/x"]);
    assert_eq!(keys(&before, "/pods/a/", ""), ["/pods/a/x", "/pods/a/y"]);
    assert_eq!(keys(&before, "/pods/a/", "/pods/a/x\0"), ["/pods/a/y"]);
    assert_eq!(keys(&before, "/pods/a/x", ""), ["/pods/a/x"]);
    assert_eq!(keys(&before, "/pods/a", ""), Vec::<String>::new(), "a scope without a slash is one key");
    let after = pods.snapshot().await.unwrap();
    assert_eq!(keys(&after, "/pods/a/", ""), ["/pods/a/y"]);
    assert_eq!(after.item("/pods/a/y").unwrap().entry().unwrap(), "2");
}

#[tokio::test]
async fn cache_entries_are_decoded_lazily_and_once() {
    let Setup { fake, pods, decoded, .. } = setup(Limits::default());
    let (_, mut first) = pods.snapshot_and_watch("/pods/").await.unwrap();
    let (_, mut second) = pods.snapshot_and_watch("/pods/a/").await.unwrap();
    fake.write(&[("/pods/a/x", Some("1")), ("/pods/a/bad", Some("!"))]);
    assert_eq!(decoded.load(Ordering::SeqCst), 0, "a write decodes nothing");
    let events = first.next().await.unwrap();
    assert_eq!(events[0].after().unwrap().entry().unwrap(), "1");
    let shared = second.next().await.unwrap();
    assert_eq!(shared[0].after().unwrap().entry().unwrap(), "1");
    assert_eq!(pods.get("/pods/a/x").await.unwrap().0.unwrap().entry().unwrap(), "1");
    assert_eq!(decoded.load(Ordering::SeqCst), 1);
    let error = shared[1].after().unwrap().entry().unwrap_err().to_string();
    assert!(
        error.contains("/pods/a/bad") && error.contains("revision 2") && error.contains("begins with"),
        "{error}"
    );
}

fn form_of(shape: u8) -> Form {
    Form { representation: 0, kind: EventKind::Added, shape, media_type: 0, second: 0 }
}

#[tokio::test]
async fn cache_event_is_encoded_once_per_form() {
    let Setup { fake, pods, .. } = setup(Limits::default());
    let (_, mut watcher) = pods.snapshot_and_watch("/pods/").await.unwrap();
    fake.write(&[("/pods/a/x", Some("1"))]);
    let event = watcher.next().await.unwrap().remove(0);
    let encodings = AtomicUsize::new(0);
    let form = |form| {
        event.form(form_of(form), || {
            encodings.fetch_add(1, Ordering::SeqCst);
            Ok::<_, ()>(Bytes::from(format!("{form}")))
        })
    };
    assert_eq!((form(1), form(2), form(1)), (Ok("1".into()), Ok("2".into()), Ok("1".into())));
    assert_eq!(encodings.load(Ordering::SeqCst), 2);
    assert_eq!(event.form(form_of(3), || Err("no")), Err("no"), "a failure is not cached");
    assert_eq!(form(3), Ok("3".into()));
    for more in 10..30 {
        assert_eq!(form(more), Ok(more.to_string().into()), "forms above the cache limit are encoded again");
    }
}

#[tokio::test]
async fn encoding_of_one_form_does_not_block_other_forms() {
    let Setup { fake, pods, .. } = setup(Limits::default());
    let (_, mut watcher) = pods.snapshot_and_watch("/pods/").await.unwrap();
    fake.write(&[("/pods/a/x", Some("1"))]);
    let event = watcher.next().await.unwrap().remove(0);
    let encode = |text: &'static str| Ok::<_, ()>(Bytes::from(text));
    let (started, has_started) = std::sync::mpsc::channel();
    let (finish, may_finish) = std::sync::mpsc::channel();
    let slow = {
        let event = Arc::clone(&event);
        std::thread::spawn(move || {
            event.form(form_of(1), || {
                started.send(()).unwrap();
                may_finish
                    .recv_timeout(Duration::from_secs(5))
                    .expect("the other form was encoded meanwhile");
                encode("slow")
            })
        })
    };
    has_started.recv().unwrap();
    assert!(!event.is_form_ready(form_of(1)));
    assert_eq!(event.form(form_of(2), || encode("other")), Ok("other".into()));
    finish.send(()).unwrap();
    assert_eq!(slow.join().unwrap(), Ok("slow".into()));
    assert!(
        event.is_form_ready(form_of(1))
            && event.is_form_ready(form_of(2))
            && !event.is_form_ready(form_of(3))
    );
}

#[tokio::test]
async fn scoped_watcher_sees_only_its_scope_and_deletes_carry_last_state() {
    let Setup { fake, pods, .. } = setup(Limits::default());
    fake.write(&[("/pods/a/x", Some("1"))]);
    let (_, mut all) = pods.snapshot_and_watch("/pods/").await.unwrap();
    let (_, mut namespace) = pods.snapshot_and_watch("/pods/a/").await.unwrap();
    let (_, mut one) = pods.snapshot_and_watch("/pods/a/x").await.unwrap();
    fake.write(&[
        ("/pods/aa/x", Some("1")),
        ("/pods/a/xx", Some("1")),
        ("/pods/a/x", Some("2")),
        ("/pods/a/x", None),
    ]);
    let (added, modified, deleted) = (EventKind::Added, EventKind::Modified, EventKind::Deleted);
    let of_one = [(modified, "/pods/a/x", 4), (deleted, "/pods/a/x", 5)];
    assert_eq!(
        summary(&all.next().await.unwrap()),
        [(added, "/pods/aa/x", 2), (added, "/pods/a/xx", 3), of_one[0], of_one[1]]
    );
    assert_eq!(summary(&namespace.next().await.unwrap()), [(added, "/pods/a/xx", 3), of_one[0], of_one[1]]);
    let events = one.next().await.unwrap();
    assert_eq!(summary(&events), of_one);
    let deletion = &events[1];
    assert!(deletion.after().is_none());
    assert_eq!(deletion.before().unwrap().entry().unwrap(), "2");
    assert_eq!((deletion.revision(), deletion.before().unwrap().revision()), (Revision(5), Revision(4)));
    assert!(ready(&mut one).await.is_none());
}

#[tokio::test]
async fn relay_wakes_all_of_many_watchers() {
    let Setup { fake, pods, .. } = setup(Limits::default());
    let mut waiting = Vec::new();
    for number in 0..40 {
        let scope = format!("/pods/{}", if number % 2 == 0 { "" } else { "a/" });
        let (_, mut watcher) = pods.snapshot_and_watch(&scope).await.unwrap();
        waiting.push(tokio::spawn(async move {
            let mut summary = Vec::new();
            while summary.len() < 50 {
                summary.extend(watcher.next().await.unwrap().iter().map(|event| event.revision().0));
            }
            summary
        }));
    }
    for _ in 0..50 {
        tokio::task::yield_now().await;
        fake.write(&[("/pods/a/x", Some("1"))]);
    }
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap(), (1..=50).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn watcher_progress_is_last_delivered_or_newest_when_idle() {
    let Setup { fake, pods, .. } = setup(Limits { batch_bytes: 1, ..Limits::default() });
    let (_, mut watcher) = pods.snapshot_and_watch("/pods/a/").await.unwrap();
    assert_eq!(watcher.progress(), Revision(0));
    fake.write(&[("/pods/b/x", Some("1"))]);
    assert_eq!(watcher.progress(), Revision(1), "changes outside the scope advance the progress");
    fake.write(&[("/pods/a/x", Some("1")), ("/pods/a/x", Some("2")), ("/elsewhere", Some("1"))]);
    assert_eq!(watcher.progress(), Revision(1), "two events are pending");
    assert_eq!(summary(&watcher.next().await.unwrap()), [(EventKind::Added, "/pods/a/x", 2)]);
    assert_eq!(watcher.progress(), Revision(2));
    assert_eq!(summary(&watcher.next().await.unwrap()), [(EventKind::Modified, "/pods/a/x", 3)]);
    assert_eq!(watcher.progress(), Revision(4));
}

#[tokio::test]
async fn first_watch_before_load_extends_ring_once() {
    let Setup { fake, pods, .. } = setup(Limits::default());
    let nodes = "/nodes/n";
    fake.write(&[("/pods/a/x", Some("1")), (nodes, Some("1")), ("/pods/b/x", Some("1")), (nodes, Some("2"))]);
    fake.write(&[(nodes, Some("3")), (nodes, Some("4")), (nodes, Some("5")), ("/pods/a/x", Some("2"))]);
    pods.snapshot().await.unwrap();
    fake.write(&[("/pods/a/x", Some("3"))]);
    assert_eq!(fake.history_reads(), 0, "no watch needs the past");
    let of_one = [
        (EventKind::Added, "/pods/a/x", 1),
        (EventKind::Modified, "/pods/a/x", 8),
        (EventKind::Modified, "/pods/a/x", 9),
    ];
    let mut watcher = pods.watch("/pods/a/", Revision(0)).await.unwrap();
    let events = watcher.next().await.unwrap();
    assert_eq!(summary(&events), of_one);
    assert_eq!((watcher.progress(), fake.history_reads()), (Revision(9), 2), "two ranges of five entries");
    assert!(
        Arc::ptr_eq(events[0].after().unwrap(), events[1].before().unwrap()),
        "consecutive events share an item"
    );
    for scope in ["/pods/a/x", "/pods/"] {
        let mut other = pods.watch(scope, Revision(3)).await.unwrap();
        assert_eq!(summary(&other.next().await.unwrap()), of_one[1..], "{scope}");
    }
    let mut quiet = pods.watch("/pods/q/", Revision(0)).await.unwrap();
    assert!(ready(&mut quiet).await.is_none());
    assert_eq!((quiet.progress(), fake.history_reads()), (Revision(9), 2), "the past is read once");

    fake.compact_now(Revision(2));
    let error = pods.watch("/pods/a/", Revision(1)).await.unwrap_err();
    assert!(matches!(error, WatchError::Store(Error::Compacted { .. })), "{error}");
    pods.watch("/pods/a/", Revision(2)).await.unwrap();

    let mut future = pods.watch("/pods/a/", Revision(10)).await.unwrap();
    fake.write(&[("/pods/a/y", Some("1")), ("/pods/a/y", Some("2"))]);
    assert_eq!(summary(&future.next().await.unwrap()), [(EventKind::Modified, "/pods/a/y", 11)]);
}

#[tokio::test]
async fn watch_older_than_ring_reads_engine_history() {
    let Setup { fake, pods, .. } = setup(Limits { ring_bytes: 8_000, ..Limits::default() });
    for _ in 0..40 {
        fake.write(&[("/pods/a/x", Some("1")), ("/nodes/n", Some("1"))]);
    }
    pods.snapshot().await.unwrap();
    let mut all = Vec::new();
    let mut watcher = pods.watch("/pods/", Revision(1)).await.unwrap();
    while watcher.progress() < fake.newest() {
        all.extend(summary(&watcher.next().await.unwrap()).into_iter().map(|(.., revision)| revision));
    }
    assert_eq!(all, (1..40).map(|i| 2 * i + 1).collect::<Vec<_>>());
    let read = fake.history_reads();
    let mut late = pods.watch("/pods/", Revision(77)).await.unwrap();
    assert_eq!(summary(&late.next().await.unwrap()), [(EventKind::Modified, "/pods/a/x", 79)]);
    assert_eq!(fake.history_reads(), read, "the ring holds the newest past events");
    let mut quiet = pods.watch("/pods/q/", Revision(0)).await.unwrap();
    assert!(ready(&mut quiet).await.is_none(), "an idle scope catches up without events");
    assert_eq!(quiet.progress(), Revision(80));
}

#[tokio::test]
async fn ring_byte_limit_includes_encoded_forms() {
    let Setup { fake, pods, .. } = setup(Limits { ring_bytes: 100_000, ..Limits::default() });
    let (_, mut watcher) = pods.snapshot_and_watch("/pods/").await.unwrap();
    let retained_events = || {
        pods.if_loaded(|loaded, _| loaded.rings.read_all_after(loaded.rings.floor(), usize::MAX).unwrap())
            .unwrap()
    };
    for _ in 0..50 {
        fake.write(&[("/pods/a/x", Some("1"))]);
        let event = watcher.next().await.unwrap().remove(0);
        event.form(form_of(1), || Ok::<_, ()>(Bytes::from(vec![0; 20_000]))).unwrap();
    }
    assert_eq!(retained_events().len(), 5);
    let encoded = || pods.shared().encoded_bytes.load(Ordering::SeqCst);
    assert_eq!(encoded(), 100_000, "the limit, before the next event");
    fake.write(&[("/pods/a/x", Some("1"))]);
    assert_eq!((retained_events().len(), encoded()), (5, 80_000));
}

#[tokio::test]
async fn snapshot_at_past_revision_is_available_within_snapshot_age() {
    let all = [
        vec![],
        vec!["/pods/a/x"],
        vec!["/pods/a/x", "/pods/a/y"],
        vec!["/pods/a/y"],
        vec!["/pods/a/y", "/pods/a/z"],
    ];
    for age in [Limits::default().snapshot_age, std::time::Duration::ZERO] {
        let Setup { fake, pods, .. } = setup(Limits { snapshot_age: age, ..Limits::default() });
        pods.snapshot().await.unwrap();
        let keys = async |at| {
            let snapshot = pods.snapshot_at(Revision(at)).await.unwrap()?;
            assert_eq!(snapshot.revision(), Revision(at));
            Some(snapshot.scope("/pods/", "").map(|item| item.key().to_string()).collect::<Vec<_>>())
        };
        fake.write(&[("/pods/a/x", Some("1")), ("/pods/a/y", Some("1"))]);
        fake.write(&[("/pods/a/x", None), ("/pods/a/z", Some("1"))]);
        for (at, want) in (0..4).zip(&all) {
            let want = (!age.is_zero()).then(|| want.iter().map(ToString::to_string).collect());
            assert_eq!(keys(at).await, want, "{at}");
        }
        assert_eq!(keys(4).await.unwrap(), all[4], "the newest state is always available");
        fake.write(&[("/elsewhere", Some("1"))]);
        assert_eq!(keys(4).await.unwrap(), all[4], "available while nothing changes");
        assert_eq!(keys(5).await.unwrap(), all[4]);
        assert_eq!(keys(6).await, None, "a future revision is unavailable");
    }
}

#[tokio::test]
async fn snapshot_at_compacted_revision_beyond_snapshot_age_fails_for_unchanged_resource() {
    let Setup { fake, pods, .. } = setup(Limits { snapshot_age: Duration::ZERO, ..Limits::default() });
    fake.write(&[("/pods/a/x", Some("1")), ("/pods/a/y", Some("1")), ("/elsewhere", Some("1"))]);
    pods.snapshot().await.unwrap();
    assert!(pods.snapshot_at(Revision(2)).await.is_ok());
    fake.compact_now(Revision(3));
    let compacted = Error::Compacted { requested: Revision(2), compacted: Revision(3) };
    assert_eq!(pods.snapshot_at(Revision(2)).await.map(drop), Err(compacted));
    assert!(pods.snapshot_at(Revision(3)).await.unwrap().is_some(), "the compacted revision is readable");
}

#[tokio::test]
async fn compaction_evicts_events_and_keeps_newer_ones() {
    let Setup { fake, cache, pods, .. } = setup(Limits::default());
    pods.snapshot().await.unwrap();
    fake.write(&[("/pods/a/x", Some("1")), ("/pods/a/y", Some("1"))]);
    fake.write(&[("/pods/a/x", None)]);
    cache.evict_compacted();
    assert_eq!(summary(&pods.watch("/pods/", Revision(0)).await.unwrap().next().await.unwrap()).len(), 3);
    fake.compact_now(Revision(2));
    cache.evict_compacted();
    assert_eq!(cache.shared.account.lock().events(), 1);
    let mut watcher = pods.watch("/pods/", Revision(2)).await.unwrap();
    assert_eq!(summary(&watcher.next().await.unwrap()), [(EventKind::Deleted, "/pods/a/x", 3)]);
}

#[tokio::test]
async fn count_at_past_revision_matches_history() {
    let Setup { fake, pods, .. } = setup(Limits::default());
    fake.write(&[("/pods/a/x", Some("1")), ("/pods/b/x", Some("1"))]);
    let before = fake.newest();
    assert_eq!(pods.count_at("/pods/", "", before), None, "a count does not load the resource");
    fake.write(&[("/pods/a/y", Some("1"))]);
    pods.snapshot().await.unwrap();
    let loaded = fake.newest();
    for batch in [
        [("/pods/a/x", Some("2")), ("/pods/a/z", Some("1"))],
        [("/pods/a/y", None), ("/pods/b/y", Some("1"))],
        [("/pods/a/x", None), ("/services/a", Some("1"))],
        [("/pods/a/x", Some("3")), ("/pods/b/x", None)],
    ] {
        fake.write(&batch);
    }
    assert_eq!(pods.count_at("/pods/", "", before), None, "before the ring");
    assert_eq!(pods.count_at("/pods/", "", Revision(fake.newest().0 + 1)), None, "not observed");
    for at in loaded.0..=fake.newest().0 {
        let rows = fake.rows(Some(Revision(at)));
        for scope in ["/pods/", "/pods/a/", "/pods/b/", "/pods/c/", "/pods/a/x"] {
            for start in ["", "/pods/a/y", "/pods/a/y\0", "/pods/b/", "/pods/z"] {
                let within = |key: &&String| ring::in_scope(scope, key) && key.as_str() >= start;
                let expected = rows.keys().filter(within).count();
                let counted = pods.count_at(scope, start, Revision(at));
                assert_eq!(counted, Some(expected), "{scope} from {start:?} at {at}");
            }
        }
    }
}

#[tokio::test]
async fn pinned_snapshot_is_revoked_when_ring_moves_past_it() {
    let Setup { fake, pods, .. } = setup(Limits { ring_bytes: 4_000, ..Limits::default() });
    fake.write(&[("/pods/a/x", Some("1")), ("/pods/a/y", Some("1"))]);
    let (pin, mut watcher) = pods.pin_and_watch("/pods/").await.unwrap();
    let old = Arc::downgrade(&pin.items("/pods/", "", 1).unwrap()[0]);
    fake.write(&[("/pods/a/x", Some("2"))]);
    let rest = pin.items("/pods/a/", "/pods/a/x\0", 1 << 20).unwrap();
    assert_eq!((rest.len(), rest[0].value()), (1, &Bytes::from("1")));
    assert_eq!(pin.items("/pods/", "", 200).unwrap().len(), 2, "as many items as fit");
    assert!(old.upgrade().is_some());
    for _ in 0..10 {
        fake.write(&[("/pods/a/z", Some("1"))]);
    }
    assert!(pin.items("/pods/", "", 1).is_none());
    assert!(old.upgrade().is_none(), "an idle reader keeps no old item alive");
    assert!(matches!(watcher.next().await, Err(WatchError::Lagged { .. })));
    for _ in 0..1_000 {
        fake.write(&[("/elsewhere", Some("1"))]);
        pods.pin_and_watch("/pods/").await.unwrap();
    }
}

/// Whether a lease is revoked.
async fn is_revoked(lease: &ItemLease) -> bool {
    tokio::select! {
        biased;
        () = lease.revoked() => true,
        () = std::future::ready(()) => false,
    }
}

/// Writes values of 1,000 bytes to ten keys of a scope.
fn write_ten_values(fake: &FakeStore, scope: &str, value: char) {
    let value = value.to_string().repeat(1_000);
    for key in 0..10 {
        fake.write(&[(&format!("{scope}{key}"), Some(&value))]);
    }
}

/// Limits under which the rings hold about 15 of the changes of [`write_ten_values`], and readers hold 19 superseded
/// items.
const SMALL_RINGS: Limits = Limits { ring_bytes: 40_000, batch_bytes: 1 << 20, snapshot_age: Duration::ZERO };

#[tokio::test]
async fn oldest_leases_are_revoked_when_superseded_items_exceed_limit() {
    let Setup { fake, pods, .. } = setup(SMALL_RINGS);
    let mut readers = Vec::new();
    for round in "abcdef".chars() {
        write_ten_values(&fake, "/pods/a/", round);
        let snapshot = pods.snapshot().await.unwrap();
        let items: Vec<_> = snapshot.scope("/pods/", "").map(Arc::clone).collect();
        readers.push((pods.lease("/pods/", snapshot.revision()), items));
        let mut remaining_readers = Vec::new();
        for (lease, items) in readers {
            // A reader drops its items when its lease is revoked.
            if !is_revoked(&lease).await {
                remaining_readers.push((lease, items));
            }
        }
        readers = remaining_readers;
    }
    let values = readers.iter().map(|(_, items)| char::from(items[0].value()[0])).collect::<String>();
    assert_eq!(
        values, "cdef",
        "readers hold 15 superseded items outside the ring: ten of `c` and five of `d`"
    );
}

#[tokio::test]
async fn lease_without_superseded_items_is_not_revoked() {
    let Setup { fake, cache, pods, .. } = setup(SMALL_RINGS);
    let nodes = cache.resource("/nodes/", Text::default());
    nodes.snapshot().await.unwrap();
    write_ten_values(&fake, "/pods/a/", 'a');
    let snapshot = pods.snapshot().await.unwrap();
    let lease = |scope: &str, revision| pods.lease(scope, revision);
    let leases = ["/pods/a/", "/pods/a/3"].map(|scope| lease(scope, snapshot.revision()));
    let other_scopes = ["/pods/b/", "/pods/a/x", "/nodes/"].map(|scope| lease(scope, snapshot.revision()));
    let mut kept_items = Vec::new();
    for round in "bcdefgh".chars() {
        write_ten_values(&fake, "/pods/a/", round);
        let items: Vec<_> = pods.snapshot().await.unwrap().scope("/pods/", "").map(Arc::clone).collect();
        write_ten_values(&fake, "/nodes/", round);
        write_ten_values(&fake, "/nodes/", round);
        // The items of this round leave the ring while they are in memory.
        write_ten_values(&fake, "/pods/a/", round);
        write_ten_values(&fake, "/nodes/", round);
        write_ten_values(&fake, "/nodes/", round);
        kept_items.push(items);
    }
    for lease in &leases {
        assert!(is_revoked(lease).await, "{lease:?}");
    }
    for lease in &other_scopes {
        assert!(!is_revoked(lease).await, "{lease:?}");
    }
    assert!(!is_revoked(&lease("/pods/a/", fake.newest())).await);
}

#[tokio::test]
async fn lease_is_not_revoked_when_readers_drop_superseded_items() {
    let Setup { fake, pods, .. } = setup(SMALL_RINGS);
    write_ten_values(&fake, "/pods/a/", 'a');
    let lease = pods.lease("/pods/", fake.newest());
    for _ in 0..20 {
        let snapshot = pods.snapshot().await.unwrap();
        // The items of the snapshot leave the ring before the end of the third round.
        for value in ['b', 'c', 'd'] {
            write_ten_values(&fake, "/pods/a/", value);
        }
        drop(snapshot);
    }
    assert!(!is_revoked(&lease).await);
}

#[tokio::test]
async fn readers_of_unregistered_resource_hold_items_up_to_limit() {
    for (keys, is_above_limit) in [(10, false), (30, true)] {
        let Setup { fake, cache, pods, .. } = setup(SMALL_RINGS);
        for key in 0..keys {
            fake.write(&[(&format!("/pods/a/{key}"), Some(&"x".repeat(1_000)))]);
        }
        let (pin, _watcher) = pods.pin_and_watch("/pods/").await.unwrap();
        let snapshot = pods.snapshot().await.unwrap();
        let lease = pods.lease("/pods/a/", snapshot.revision());
        assert!(cache.unregister("/pods/"));
        assert_eq!(is_revoked(&lease).await, is_above_limit, "{keys} keys");
        assert!(pin.items("/pods/", "", 1).is_none(), "a pin is revoked");
        drop(snapshot);
    }
}

#[tokio::test]
async fn events_of_unregistered_resource_are_evicted() {
    let Setup { fake, cache, pods, .. } = setup(SMALL_RINGS);
    let (_, mut watcher) = pods.snapshot_and_watch("/pods/").await.unwrap();
    write_ten_values(&fake, "/pods/a/", 'a');
    let event = watcher.next().await.unwrap().first().map(Arc::downgrade).unwrap();
    assert!(event.upgrade().is_some(), "the ring holds the event");
    assert!(cache.unregister("/pods/"));
    let nodes = cache.resource("/nodes/", Text::default());
    nodes.snapshot().await.unwrap();
    for round in "abc".chars() {
        write_ten_values(&fake, "/nodes/", round);
    }
    assert!(event.upgrade().is_none(), "an idle watcher keeps no event alive");
}

#[tokio::test]
async fn watcher_of_unregistered_resource_reads_observed_events_before_it_ends() {
    let Setup { fake, cache, pods, .. } = setup(Limits::default());
    let (_, mut watcher) = pods.snapshot_and_watch("/pods/").await.unwrap();
    fake.write(&[("/pods/a/x", Some("1"))]);
    fake.write(&[("/pods/a/x", None)]);
    assert!(cache.unregister("/pods/"));
    assert_eq!(watcher.next().await.unwrap().len(), 2);
    assert!(matches!(watcher.next().await, Err(WatchError::Retired)));
}

#[tokio::test]
async fn unregistered_resource_ends_watchers_and_can_be_registered_again() {
    let Setup { fake, cache, pods, .. } = setup(Limits::default());
    fake.write(&[("/pods/a/x", Some("1"))]);
    let (_, mut watcher) = pods.snapshot_and_watch("/pods/a/").await.unwrap();
    let waiting = tokio::spawn(async move { watcher.next().await.map(|events| events.len()) });
    tokio::task::yield_now().await;
    assert!(cache.unregister("/pods/"));
    assert!(!cache.unregister("/pods/"), "a second call finds no resource");
    assert!(matches!(waiting.await.unwrap(), Err(WatchError::Retired)));
    fake.write(&[("/pods/a/x", Some("2"))]);
    let (item, revision) = pods.get("/pods/a/x").await.unwrap();
    assert_eq!((item.unwrap().revision(), revision), (Revision(2), Revision(2)), "the store has the key");
    assert!(pods.get("/pods/a/w").await.unwrap().0.is_none());
    assert!(matches!(pods.snapshot().await, Err(Error::Unavailable(_))));
    assert!(matches!(
        pods.page_at("/pods/", "", 0, usize::MAX, Revision(1)).await,
        Err(Error::Unavailable(_))
    ));
    assert!(matches!(pods.watch("/pods/", Revision(1)).await, Err(WatchError::Store(Error::Unavailable(_)))));
    let again = cache.resource("/pods/", Text::default());
    assert!(!Arc::ptr_eq(&pods, &again));
    let snapshot = again.snapshot().await.unwrap();
    assert_eq!(snapshot.item("/pods/a/x").unwrap().revision(), Revision(2));
    let freed = Arc::downgrade(&pods);
    drop(pods);
    assert!(freed.upgrade().is_none());
}

#[tokio::test]
async fn slow_watcher_lags_and_resumes_from_position() {
    let Setup { fake, pods, cache, .. } = setup(Limits { ring_bytes: 4000, ..Limits::default() });
    let nodes = cache.resource("/nodes/", Text::default());
    let (_, mut slow) = pods.snapshot_and_watch("/pods/").await.unwrap();
    let (_, mut quiet) = pods.snapshot_and_watch("/pods/q/").await.unwrap();
    nodes.snapshot().await.unwrap();
    fake.write(&[("/pods/a/x", Some("1"))]);
    assert_eq!(slow.next().await.unwrap().len(), 1);
    fake.write(&[("/pods/a/x", Some("2"))]);
    for _ in 0..20 {
        fake.write(&[("/nodes/n", Some("1"))]);
    }
    let error = slow.next().await.unwrap_err();
    assert!(matches!(error, WatchError::Lagged { position: Revision(1) }), "{error}");
    assert_eq!(slow.progress(), Revision(1));
    let mut again = pods.watch("/pods/", Revision(1)).await.unwrap();
    assert_eq!(summary(&again.next().await.unwrap()), [(EventKind::Modified, "/pods/a/x", 2)]);
    assert!(ready(&mut quiet).await.is_none(), "events outside the scope do not end the watcher");
    fake.write(&[("/pods/q/x", Some("1"))]);
    assert_eq!(summary(&quiet.next().await.unwrap()), [(EventKind::Added, "/pods/q/x", 23)]);
}

#[tokio::test]
async fn page_at_revision_reads_engine_and_reuses_unchanged_items() {
    let Setup { fake, pods, .. } = setup(Limits::default());
    fake.write(&[
        ("/pods/a/x", Some("1")),
        ("/pods/a/y", Some("1")),
        ("/pods/a/z", Some("1")),
        ("/pods/b/x", Some("1")),
    ]);
    let keys =
        |page: &ItemPage<Text>| page.items.iter().map(|item| item.key().to_string()).collect::<Vec<_>>();
    let now = pods.snapshot().await.unwrap();
    fake.write(&[("/elsewhere", Some("1"))]);
    for (writes, same) in [(&[][..], true), (&[("/pods/a/x", None), ("/pods/a/y", Some("2"))][..], false)] {
        fake.write(writes);
        let page = pods.page_at("/pods/a/", "/pods/a/x\0", 1, usize::MAX, Revision(4)).await.unwrap();
        assert_eq!((keys(&page), page.more), (vec!["/pods/a/y".to_owned()], true));
        assert_eq!((page.revision, page.items[0].revision()), (Revision(4), Revision(2)));
        assert_eq!(Arc::ptr_eq(&page.items[0], now.item("/pods/a/y").unwrap()), same);
        let page = pods.page_at("/pods/a/", "/pods/a/y\0", 0, usize::MAX, Revision(5)).await.unwrap();
        assert_eq!((keys(&page), page.more), (vec!["/pods/a/z".to_owned()], false));
        let page = pods.page_at("/pods/a/x", "", 0, usize::MAX, Revision(4)).await.unwrap();
        assert_eq!(keys(&page), ["/pods/a/x"]);
    }
    let page = pods.page_at("/pods/", "", 0, 1, Revision(4)).await.unwrap();
    assert_eq!((keys(&page), page.more), (vec!["/pods/a/x".to_owned()], true), "one item exceeds the limit");
    fake.compact_now(Revision(6));
    assert!(matches!(
        pods.page_at("/pods/", "", 0, usize::MAX, Revision(5)).await,
        Err(Error::Compacted { .. })
    ));
    assert!(matches!(
        pods.page_at("/pods/", "", 0, usize::MAX, Revision(99)).await,
        Err(Error::Future { .. })
    ));
}

#[tokio::test]
async fn dropped_watcher_and_store_are_freed() {
    let Setup { fake, cache, pods, .. } = setup(Limits::default());
    let (_, watcher) = pods.snapshot_and_watch("/pods/a/").await.unwrap();
    let old = pods.watch("/pods/a/", Revision(0)).await.unwrap();
    let scopes = || pods.if_loaded(|loaded, _| loaded.rings.ring_of("/pods/a/").is_some()).unwrap();
    drop(watcher);
    assert!(scopes());
    drop(old);
    assert!(!scopes());
    assert_eq!(Arc::strong_count(&fake), 1, "the cache does not keep the store alive");
    let nodes = cache.resource("/nodes/", Text::default());
    drop(fake);
    assert!(matches!(nodes.snapshot().await, Err(Error::Unavailable(_))));
    pods.snapshot().await.expect("the loaded state is still served");
    let weak = Arc::downgrade(&pods);
    drop((cache, pods, nodes));
    assert!(weak.upgrade().is_none(), "no cycle");
}

#[tokio::test]
async fn wait_for_revision_returns_when_observed() {
    let Setup { fake, cache, pods, .. } = setup(Limits::default());
    let waiting = tokio::spawn({
        let pods = Arc::clone(&pods);
        async move { pods.wait_for(Revision(3)).await }
    });
    fake.write(&[("/elsewhere", Some("1")), ("/elsewhere", Some("2"))]);
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    fake.write(&[("/elsewhere", Some("3"))]);
    waiting.await.unwrap();
    cache.wait_for(Revision(3)).await;
}

#[tokio::test]
async fn failed_or_cancelled_load_is_retried() {
    let Setup { fake, pods, .. } = setup(Limits::default());
    fake.write(&[("/pods/a/x", Some("1"))]);
    fake.fail_next_range();
    assert!(matches!(pods.snapshot().await, Err(Error::Unavailable(_))));
    {
        let gate = fake.close_gate();
        let mut load = Box::pin(pods.snapshot());
        tokio::select! {
            biased;
            _ = &mut load => panic!("the gate is closed"),
            () = tokio::task::yield_now() => {}
        }
        fake.write(&[("/pods/a/y", Some("1"))]);
        drop(load);
        drop(gate);
    }
    fake.write(&[("/pods/a/x", None)]);
    let snapshot = pods.snapshot().await.unwrap();
    assert_eq!((snapshot.revision(), snapshot.len()), (Revision(3), 1));
}

#[tokio::test]
async fn change_already_in_loaded_rows_is_not_applied_twice() {
    let Setup { fake, cache, pods, .. } = setup(Limits::default());
    let first = fake.write_unobserved(&[("/pods/a/x", Some("1"))]);
    let second = fake.write_unobserved(&[("/pods/a/x", Some("2")), ("/pods/a/y", Some("1"))]);
    let third = fake.write_unobserved(&[("/pods/a/y", None)]);
    let (snapshot, mut watcher) = pods.snapshot_and_watch("/pods/").await.unwrap();
    assert_eq!((snapshot.revision(), snapshot.len()), (Revision(4), 1));
    for changes in [first, second, third] {
        cache.observe(&changes);
        let now = pods.snapshot().await.unwrap();
        assert_eq!((now.revision(), now.len()), (Revision(4), 1), "after {changes:?}");
        assert_eq!(now.item("/pods/a/x").unwrap().entry().unwrap(), "2");
        assert!(ready(&mut watcher).await.is_none());
    }
    fake.write(&[("/pods/a/x", Some("3"))]);
    let events = watcher.next().await.unwrap();
    assert_eq!(summary(&events), [(EventKind::Modified, "/pods/a/x", 5)]);
    assert_eq!(events[0].before().unwrap().revision(), Revision(2));
}

#[test]
fn observers_are_called_in_order() {
    struct Note(&'static str, Arc<Mutex<Vec<(&'static str, u64)>>>);
    impl Observer for Note {
        fn observe(&self, changes: &[Change]) {
            self.1.lock().extend(changes.iter().map(|change| (self.0, change.revision.0)));
        }
    }
    let notes = Arc::<Mutex<Vec<_>>>::default();
    let [first, second] =
        ["first", "second"].map(|name| Arc::new(Note(name, Arc::clone(&notes))) as Arc<dyn Observer>);
    let fake = FakeStore::new(Arc::new(crate::Observers(vec![first, second])));
    fake.write(&[("/a", Some("1")), ("/b", Some("1"))]);
    assert_eq!(*notes.lock(), [("first", 1), ("first", 2), ("second", 1), ("second", 2)]);
}

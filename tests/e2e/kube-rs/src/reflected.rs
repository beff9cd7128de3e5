//! A reflector with a thousand objects, over server restarts and over compacted history.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::reflector::Store;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, reflector, watcher as watch};
use kube::{Client, ResourceExt};
use serde_json::json;

use crate::typed::object;
use crate::{DEADLINE, answer, ask};

const LABEL: &str = "part=reflected";

/// Time before a request is repeated.
const PAUSE: Duration = Duration::from_millis(50);

/// Initial list strategy of a reflector.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Initial {
    /// Paged list, then a watch.
    List,
    /// Streaming list: a watch that begins with all objects.
    Stream,
}

/// A reflector with the versions that its events delivered.
struct RecordedReflector {
    events: Pin<Box<dyn Stream<Item = Result<Event<ConfigMap>, watcher::Error>>>>,
    store: Store<ConfigMap>,
    /// Resource versions of each object, in the order of events.
    delivered_versions: BTreeMap<String, Vec<u64>>,
    /// Number of complete lists.
    complete_lists: usize,
}

impl RecordedReflector {
    fn new(api: &Api<ConfigMap>, initial: Initial) -> Self {
        let config = watcher::Config::default().labels(LABEL);
        let config = match initial {
            Initial::List => config.page_size(300),
            Initial::Stream => config.streaming_lists(),
        };
        let (store, writer) = reflector::store();
        let events = reflector(writer, watch(api.clone(), config).default_backoff());
        RecordedReflector {
            events: Box::pin(events),
            store,
            delivered_versions: BTreeMap::new(),
            complete_lists: 0,
        }
    }

    /// Processes events until the store equals the list of the server.
    async fn until_current(&mut self, api: &Api<ConfigMap>) {
        let list = ListParams::default().labels(LABEL);
        let listed = persistent(async || api.list(&list).await).await.expect("a list");
        let expected = versions(&listed.items);
        let reached = tokio::time::timeout(DEADLINE, async {
            while self.complete_lists == 0 || self.state() != expected {
                match self.events.next().await.expect("a watcher never ends") {
                    // A list whose server ended begins again with its first page.
                    Ok(Event::Init) => self.delivered_versions.clear(),
                    Ok(Event::InitDone) => self.complete_lists += 1,
                    Ok(Event::InitApply(object) | Event::Apply(object)) => {
                        self.delivered_versions.entry(object.name_any()).or_default().push(version(&object));
                    }
                    Ok(Event::Delete(object)) => drop(self.delivered_versions.remove(&object.name_any())),
                    // The server is down or the history is compacted: the watcher retries by itself.
                    Err(error) => eprintln!("watcher: {error}"),
                }
            }
        });
        assert!(
            reached.await.is_ok(),
            "the reflector did not reach the state of the server within {DEADLINE:?} ({} complete lists): {:?} instead \
             of {expected:?}",
            self.complete_lists,
            self.state()
        );
    }

    fn state(&self) -> BTreeMap<String, u64> {
        self.store.state().iter().map(|object| (object.name_any(), version(object))).collect()
    }

    /// Asserts that each version of an object was delivered once, in order.
    fn assert_delivered_once(&self) {
        for (name, versions) in &self.delivered_versions {
            assert!(versions.is_sorted_by(|a, b| a < b), "{name}: {versions:?}");
        }
    }
}

fn version(object: &ConfigMap) -> u64 {
    object.resource_version().and_then(|version| version.parse().ok()).expect("a number")
}

fn versions(objects: &[ConfigMap]) -> BTreeMap<String, u64> {
    objects.iter().map(|object| (object.name_any(), version(object))).collect()
}

async fn create(api: &Api<ConfigMap>, names: impl Iterator<Item = String>) {
    let made = stream::iter(names).map(|name| async move {
        let object: ConfigMap = object(
            json!({"metadata": {"name": name, "labels": {"part": "reflected"}}, "data": {"round": "0"}}),
        );
        api.create(&PostParams::default(), &object).await
    });
    made.buffer_unordered(16).try_for_each(|_| async { Ok(()) }).await.expect("created");
}

/// Updates ten objects, deletes ten and creates ten.
async fn change(api: &Api<ConfigMap>, round: usize) {
    for index in round * 20..round * 20 + 10 {
        let patch = Patch::Merge(json!({"data": {"round": round.to_string()}}));
        api.patch(&format!("object-{index}"), &PatchParams::default(), &patch).await.expect("patched");
        api.delete(&format!("object-{}", index + 10), &DeleteParams::default()).await.expect("deleted");
    }
    create(api, (0..10).map(|index| format!("late-{round}-{index}"))).await;
}

/// A watcher continues after server restarts: no second list, no duplicate and no missing event.
pub(crate) async fn run(client: Client, initial: Initial) {
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    create(&api, (0..1000).map(|index| format!("object-{index}"))).await;
    let mut reflected = RecordedReflector::new(&api, initial);
    reflected.until_current(&api).await;
    assert_eq!(reflected.state().len(), 1000);
    for (round, event) in ["", "restart", "kill"].into_iter().enumerate() {
        if !event.is_empty() {
            ask(event);
        }
        change(&api, round).await;
        reflected.until_current(&api).await;
        assert_eq!(reflected.state().len(), 1000);
    }
    assert_eq!(reflected.complete_lists, 1, "the watcher resumes without a second list");
    reflected.assert_delivered_once();
}

/// Retries a request after a broken connection. Returns None if an earlier attempt of a write has taken effect.
///
/// # Panics
///
/// The server rejects the request.
async fn persistent<T>(mut request: impl AsyncFnMut() -> Result<T, kube::Error>) -> Option<T> {
    let mut is_repeated = false;
    loop {
        match request().await {
            Ok(response) => return Some(response),
            Err(kube::Error::Api(status)) if is_repeated && [404, 409].contains(&status.code) => return None,
            Err(kube::Error::Api(status)) => panic!("a request is rejected: {status:?}"),
            Err(error) => eprintln!("reconnect: {error}"),
        }
        is_repeated = true;
        tokio::time::sleep(PAUSE).await;
    }
}

/// A watcher continues while servers end at any time and others respond: no second list, no duplicate and no missing event.
/// The test decides about each further round. `OBJECTS` is the number of objects.
pub(crate) async fn through_failures(client: Client) {
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    let made = |name: String| -> ConfigMap {
        object(json!({"metadata": {"name": name, "labels": {"part": "reflected"}}, "data": {"round": "0"}}))
    };
    let create = async |name: String| {
        let object = made(name);
        persistent(async || api.create(&PostParams::default(), &object).await).await;
    };
    let objects = std::env::var("OBJECTS").ok().and_then(|text| text.parse().ok()).unwrap_or(1000);
    stream::iter(0..objects)
        .map(|index| create(format!("object-{index}")))
        .buffer_unordered(16)
        .collect::<Vec<()>>()
        .await;
    let mut reflected = RecordedReflector::new(&api, Initial::List);
    reflected.until_current(&api).await;
    let mut round = 0;
    while answer("round") == "more\n" {
        for index in (0..10).map(|index| (round * 20 + index) % objects) {
            let patch = Patch::Merge(json!({"data": {"round": format!("{round}")}}));
            let (changed, replaced) =
                (format!("object-{index}"), format!("object-{}", (index + 10) % objects));
            persistent(async || api.patch(&changed, &PatchParams::default(), &patch).await).await;
            persistent(async || api.delete(&replaced, &DeleteParams::default()).await).await;
            create(replaced).await;
        }
        reflected.until_current(&api).await;
        assert_eq!(reflected.state().len(), objects);
        round += 1;
    }
    assert_eq!(reflected.complete_lists, 1, "the watcher resumes without a second list");
    reflected.assert_delivered_once();
    eprintln!("{round} rounds");
}

/// A watcher that falls behind compacted history lists again, and drops objects that were deleted meanwhile.
pub(crate) async fn trimmed(client: Client) {
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    create(&api, (0..40).map(|index| format!("object-{index}"))).await;
    let mut reflected = RecordedReflector::new(&api, Initial::List);
    reflected.until_current(&api).await;
    assert_eq!(reflected.complete_lists, 1);
    ask("trim");
    reflected.until_current(&api).await;
    assert_eq!(reflected.complete_lists, 2, "the watcher listed again");
    change(&api, 1).await;
    reflected.until_current(&api).await;
    assert_eq!(reflected.complete_lists, 2);
}

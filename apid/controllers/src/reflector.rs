//! Reflector of a background task: reports the objects of a collection, then every change. [`follow_keys`] reports changes
//! of keys that are no objects.

use std::sync::Arc;
use std::time::Duration;

use kinds::entry::Entry;
use storage::{Change, Store};

use super::stored;
use verbs::{Item, Items};

/// Pause before the reflector lists and watches again.
const PAUSE: Duration = Duration::from_secs(1);

/// A notification about an object.
#[derive(Clone, Copy)]
pub(super) enum ObjectEvent<'a> {
    /// The object exists; its current state.
    Exists(&'a Entry),
    /// The object was deleted; its last state.
    Deleted(&'a Entry),
}

impl<'a> ObjectEvent<'a> {
    /// Returns the current or last state of the object.
    pub(super) fn entry(self) -> &'a Entry {
        let (ObjectEvent::Exists(entry) | ObjectEvent::Deleted(entry)) = self;
        entry
    }

    /// Returns the name of the object if it exists.
    pub(super) fn existing_name(self) -> Option<String> {
        match self {
            ObjectEvent::Exists(entry) => Some(entry.name().to_owned()),
            ObjectEvent::Deleted(_) => None,
        }
    }
}

/// Calls `observe` for every existing object of a collection, then for every change in order.
///
/// After a failed watch, the reflector lists and watches again. `observe` may then get an unchanged object
/// again, and gets no deletion between the failure and the new watch. The reflector returns when the kind is
/// no longer served. Objects that cannot be decoded are skipped.
pub(super) async fn reflect(items: Arc<Items>, observe: impl FnMut(ObjectEvent<'_>) + Send) {
    reflect_matching(items, |_| true, observe).await;
}

/// Calls `observe` as [`reflect`] does, but only for the objects with this name, in all namespaces.
///
/// Objects with other names are not decoded.
pub(super) async fn reflect_named(
    items: Arc<Items>,
    name: &str,
    observe: impl FnMut(ObjectEvent<'_>) + Send,
) {
    // A storage key ends with a slash and the name.
    let has_name = |item: &Item| item.key().strip_suffix(name).is_some_and(|rest| rest.ends_with('/'));
    reflect_matching(items, has_name, observe).await;
}

/// Calls `observe` as [`reflect`] does, but only for the items that `is_selected` accepts.
async fn reflect_matching(
    items: Arc<Items>,
    is_selected: impl Fn(&Item) -> bool + Send + Sync,
    mut observe: impl FnMut(ObjectEvent<'_>) + Send,
) {
    loop {
        if let Err(reason) = reflect_once(&items, &is_selected, &mut observe).await {
            tracing::debug!(prefix = %items.prefix(), %reason, "watch of a background task failed; listing again");
        }
        // The kind is not served any more, or its definition changed.
        if items.is_retired() {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn reflect_once(
    items: &Arc<Items>,
    is_selected: &(impl Fn(&Item) -> bool + Send + Sync),
    observe: &mut (impl FnMut(ObjectEvent<'_>) + Send),
) -> Result<(), String> {
    let prefix = items.prefix().to_string();
    let (snapshot, mut watcher) = items.snapshot_and_watch(&prefix).await.map_err(|e| e.to_string())?;
    for item in snapshot.scope(&prefix, "").filter(|item| is_selected(item)) {
        if let Some(entry) = stored::entry(item) {
            observe(ObjectEvent::Exists(entry));
        }
    }
    drop(snapshot);
    loop {
        for event in watcher.next().await.map_err(|e| e.to_string())? {
            match (event.before(), event.after()) {
                (_, Some(after)) if is_selected(after) => {
                    if let Some(entry) = stored::entry(after) {
                        observe(ObjectEvent::Exists(entry));
                    }
                }
                (Some(before), None) if is_selected(before) => {
                    if let Some(entry) = stored::entry(before) {
                        observe(ObjectEvent::Deleted(entry));
                    }
                }
                _ => {}
            }
        }
    }
}

/// Calls `observe` with each change of the keys below a prefix of the store, until the process ends.
///
/// At the start and after a failed watch, `observe` gets None: any key may have changed before the watch.
pub(super) async fn follow_keys(
    store: &dyn Store,
    prefix: &str,
    mut observe: impl FnMut(Option<&Change>) + Send,
) {
    loop {
        if let Ok(mut watch) = store.watch(prefix, store.revision()).await {
            observe(None);
            while let Ok(changes) = watch.next().await {
                changes.iter().for_each(|change| observe(Some(change)));
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::{Names, Preset};
    use apimachinery::object::Object;
    use kinds::Registry;
    use kinds::entry::Decoder;
    use serde_json::json;
    use storage::cache::Limits;
    use storage::engine::memory::MemoryStore;
    use storage::{Op, Store};
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;
    use verbs::Cache;

    async fn create(store: &Arc<dyn Store>, namespace: &str, name: &str) {
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": namespace, "name": name}
        });
        let row = kinds::entry::encode(&Object::from_value(map).unwrap());
        store.commit(&format!("core/configmaps/{namespace}/{name}"), Op::Create(row)).await.unwrap();
    }

    #[tokio::test]
    async fn objects_with_another_name_are_neither_observed_nor_decoded() {
        let registry = Registry::new(&Names::new(Preset::Kubernetes, "").unwrap());
        let cache = Arc::new(Cache::new(Limits::default()));
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(cache.clone()));
        cache.attach(&store);
        let config_maps = registry.find("", "v1", "configmaps").unwrap();
        let items = cache.resource("core/configmaps/", Decoder::new(config_maps));
        create(&store, "a", "wanted").await;
        create(&store, "a", "not-wanted").await;
        let (sender, mut observed) = unbounded_channel();
        let follow = reflect_named(Arc::clone(&items), "wanted", move |event| {
            let _ = sender.send(match event {
                ObjectEvent::Exists(map) => format!("{}/{} exists", map.namespace(), map.name()),
                ObjectEvent::Deleted(map) => format!("{}/{} is deleted", map.namespace(), map.name()),
            });
        });
        let check = async {
            assert_eq!(observed.recv().await.unwrap(), "a/wanted exists");
            for (namespace, name) in [("b", "other"), ("wanted", "other"), ("b", "wanted")] {
                create(&store, namespace, name).await;
            }
            assert_eq!(observed.recv().await.unwrap(), "b/wanted exists");
            for key in ["core/configmaps/b/other", "core/configmaps/b/wanted"] {
                let row = store.get(key, None).await.unwrap().unwrap();
                store.commit(key, Op::Delete(row.revision)).await.unwrap();
            }
            assert_eq!(observed.recv().await.unwrap(), "b/wanted is deleted");
        };
        tokio::select! {
            () = follow => panic!("the reflector returned"),
            result = tokio::time::timeout(Duration::from_secs(10), check) => result.unwrap(),
        }
        let snapshot = items.snapshot().await.unwrap();
        let decoded = snapshot.scope("core/configmaps/", "").filter(|item| item.is_decoded());
        let keys: Vec<&str> = decoded.map(|item| &**item.key()).collect();
        assert_eq!(keys, ["core/configmaps/a/wanted"]);
    }
    #[tokio::test]
    async fn followed_keys_are_observed_after_the_begin_of_the_watch() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(Arc::new(Cache::new(Limits::default()))));
        let (sender, mut observed) = unbounded_channel();
        let follow = follow_keys(&*store, "/servers/", move |change| {
            let _ = sender.send(change.map(|change| (change.key.to_string(), change.new.is_some())));
        });
        let check = async {
            assert_eq!(observed.recv().await.unwrap(), None);
            store.commit("/others/a", Op::Create("a".into())).await.unwrap();
            let created = store.commit("/servers/b", Op::Create("b".into())).await.unwrap();
            assert_eq!(observed.recv().await.unwrap(), Some(("/servers/b".to_owned(), true)));
            store.commit("/servers/b", Op::Delete(created.revision)).await.unwrap();
            assert_eq!(observed.recv().await.unwrap(), Some(("/servers/b".to_owned(), false)));
        };
        tokio::select! {
            () = follow => panic!("the watch ended"),
            result = tokio::time::timeout(Duration::from_secs(10), check) => result.unwrap(),
        }
    }
}

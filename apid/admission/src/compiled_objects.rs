//! Compiled form of all objects of a kind, rebuilt after each change of an object.
//!
//! # Invariants
//!
//! INVARIANT (fresh): a write is evaluated with the objects that were acknowledged before its arrival. The
//! number of the last change is read before the objects, so that a concurrent change leads to another build.
//! INVARIANT (fast path): without a change a call costs one comparison and does not wait.
//! INVARIANT (changed objects): a build decodes and compiles only the objects that changed since the last build.
//! INVARIANT (one build): concurrent writes after a change wait for one build, so that many large objects are decoded
//! once. The build runs on a blocking thread, not on an I/O thread.

use std::collections::HashMap;
use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::status::Status;
use parking_lot::RwLock;
use tokio::runtime::Handle;
use tokio::sync::Mutex;

use crate::{ObjectKind, Reader};

/// Compiles one object.
type CompileObject<P> = dyn Fn(&Arc<Object>) -> P + Send + Sync;
/// Builds the form of all objects of a kind from their compiled objects, in key order.
type Combine<P, T> = dyn Fn(&[Arc<P>]) -> T + Send + Sync;
/// Compiled objects by namespace, name and revision of their source.
type ByVersion<P> = HashMap<(String, String, u64), Arc<P>>;

/// Compiled form `T` of all objects of a kind, built from the compiled form `P` of each object.
pub(crate) struct CompiledObjects<P, T>(Arc<Shared<P, T>>);

struct Shared<P, T> {
    kind: ObjectKind,
    compile: Box<CompileObject<P>>,
    combine: Box<Combine<P, T>>,
    current: RwLock<Option<Arc<Form<P, T>>>>,
    /// Held during a build.
    building: Arc<Mutex<()>>,
}

/// A compiled form.
struct Form<P, T> {
    /// The number of the last change that the form includes.
    change: u64,
    objects: ByVersion<P>,
    compiled: Arc<T>,
}

impl<P: Send + Sync + 'static, T: Send + Sync + 'static> CompiledObjects<P, T> {
    /// Creates the compiled form of a kind; the first use builds it. `compile` gets each new and changed object,
    /// `combine` the compiled form of all objects.
    pub(crate) fn new(
        kind: ObjectKind,
        compile: impl Fn(&Arc<Object>) -> P + Send + Sync + 'static,
        combine: impl Fn(&[Arc<P>]) -> T + Send + Sync + 'static,
    ) -> Self {
        let (compile, combine) = (Box::new(compile), Box::new(combine));
        let (current, building) = (RwLock::new(None), Arc::default());
        CompiledObjects(Arc::new(Shared { kind, compile, combine, current, building }))
    }

    /// The compiled form of the objects, with every acknowledged write.
    ///
    /// # Errors
    ///
    /// The objects cannot be read.
    pub(crate) async fn get(&self, reader: &Arc<dyn Reader>) -> Result<Arc<T>, Status> {
        match reader.last_change(self.0.kind).and_then(|change| self.0.since(change)) {
            Some(compiled) => Ok(compiled),
            None => self.rebuild(reader).await,
        }
    }

    /// Builds the form, unless another write has built one meanwhile that includes all changes before this call.
    ///
    /// Later changes do not matter, so that a series of changes does not make each waiting write build a form.
    async fn rebuild(&self, reader: &Arc<dyn Reader>) -> Result<Arc<T>, Status> {
        let needed = reader.last_change(self.0.kind);
        let building = Arc::clone(&self.0.building).lock_owned().await;
        if let Some(compiled) = needed.and_then(|change| self.0.since(change)) {
            return Ok(compiled);
        }
        let (shared, reader, runtime) = (Arc::clone(&self.0), Arc::clone(reader), Handle::current());
        // A build outlives the request that started it, and keeps the lock.
        let build = move || {
            let _building = building;
            runtime.block_on(shared.build(&*reader))
        };
        tokio::task::spawn_blocking(build).await.map_err(Status::internal)?
    }
}

impl<P, T> Shared<P, T> {
    /// The form, if it includes a change.
    fn since(&self, change: u64) -> Option<Arc<T>> {
        let current = self.current.read();
        current.as_ref().filter(|form| form.change >= change).map(|form| Arc::clone(&form.compiled))
    }

    async fn build(&self, reader: &dyn Reader) -> Result<Arc<T>, Status> {
        let change = reader.last_change(self.kind);
        let items = reader.items(self.kind).await?;
        let previous = self.current.read().clone();
        let mut objects = ByVersion::with_capacity(items.len());
        let mut in_order = Vec::with_capacity(items.len());
        for item in items {
            let decoded = || Ok::<_, Status>(Arc::new((self.compile)(&item.decode()?)));
            let version = (item.namespace.clone(), item.name.clone(), item.revision);
            let unchanged = previous.as_ref().and_then(|form| form.objects.get(&version).cloned());
            let compiled = unchanged.map_or_else(decoded, Ok)?;
            in_order.push(Arc::clone(&compiled));
            objects.insert(version, compiled);
        }
        let compiled = Arc::new((self.combine)(&in_order));
        // Before the first load of the kind, the number of its last change is unknown. The compiled form is
        // then not kept, and the next call compiles again.
        if let Some(change) = change {
            *self.current.write() = Some(Arc::new(Form { change, objects, compiled: Arc::clone(&compiled) }));
        }
        Ok(compiled)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use apimachinery::names::Preset;
    use serde_json::json;

    use super::*;
    use crate::testing::Fake;

    fn config_map(name: &str, revision: u32) -> serde_json::Value {
        json!({"metadata": {"name": name, "resourceVersion": revision.to_string()}})
    }

    #[tokio::test]
    async fn compiled_objects_are_rebuilt_after_a_change_and_only_then() {
        static COMPILED: AtomicUsize = AtomicUsize::new(0);
        static BUILDS: AtomicUsize = AtomicUsize::new(0);
        let fake = Fake::new(Preset::Svc);
        let reader = fake.environment.reader;
        let compile = |object: &Arc<Object>| {
            COMPILED.fetch_add(1, Ordering::SeqCst);
            format!("{}{}", object.name(), object.resource_version())
        };
        let names =
            CompiledObjects::new(ObjectKind::new("", "ConfigMap"), compile, |names: &[Arc<String>]| {
                BUILDS.fetch_add(1, Ordering::SeqCst);
                names.iter().map(|name| String::clone(name)).collect::<Vec<_>>()
            });
        assert!(names.get(&reader).await.unwrap().is_empty());
        let changes = [("a", 1, vec!["a1"]), ("b", 2, vec!["a1", "b2"]), ("a", 3, vec!["a3", "b2"])];
        for (number, (name, revision, expected)) in changes.into_iter().enumerate() {
            fake.backend.put("", "ConfigMap", config_map(name, revision));
            for _ in 0..10 {
                assert_eq!(*names.get(&reader).await.unwrap(), expected);
            }
            assert_eq!(COMPILED.load(Ordering::SeqCst), number + 1, "a change compiles one object");
        }
        assert_eq!(BUILDS.load(Ordering::SeqCst), 4);
    }

    #[tokio::test]
    async fn write_that_waits_takes_a_form_of_its_arrival_despite_later_changes() {
        let fake = Fake::new(Preset::Svc);
        let (reader, kind) = (fake.environment.reader, ObjectKind::new("", "ConfigMap"));
        let count = CompiledObjects::new(kind, |_| (), |objects: &[Arc<()>]| objects.len());
        fake.backend.put("", "ConfigMap", config_map("a", 1));
        assert_eq!(*count.get(&reader).await.unwrap(), 1);
        fake.backend.put("", "ConfigMap", config_map("b", 2));
        let building = Arc::clone(&count.0.building).lock_owned().await;
        let mut waiting = std::pin::pin!(count.rebuild(&reader));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        count.0.build(&*reader).await.unwrap();
        fake.backend.put("", "ConfigMap", config_map("c", 3));
        drop(building);
        assert_eq!(*waiting.await.unwrap(), 2);
        assert_eq!(*count.get(&reader).await.unwrap(), 3);
    }
}

//! Compiled form of all objects of a kind, rebuilt after each change of an object.
//!
//! # Invariants
//!
//! INVARIANT (fresh): a write is evaluated with the objects that were acknowledged before its arrival. The
//! number of the last change is read before the objects, so that a concurrent change leads to another build.
//! INVARIANT (fast path): without a change a call costs one comparison and does not wait.
//! INVARIANT (one build): concurrent writes after a change wait for one build, so that many large objects are decoded
//! once. The build runs on a blocking thread, not on an I/O thread.

use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::status::Status;
use parking_lot::RwLock;
use tokio::runtime::Handle;
use tokio::sync::Mutex;

use crate::{ObjectKind, Reader};

/// Compiles the objects of a kind; the second argument is the previous result, if there is one.
type Compile<T> = dyn Fn(&[Arc<Object>], Option<&T>) -> T + Send + Sync;

/// Compiled form `T` of all objects of a kind.
pub(crate) struct CompiledObjects<T>(Arc<Shared<T>>);

struct Shared<T> {
    kind: ObjectKind,
    compile: Box<Compile<T>>,
    current: RwLock<Option<Form<T>>>,
    /// Held during a build.
    building: Arc<Mutex<()>>,
}

/// A compiled form.
struct Form<T> {
    /// The number of the last change that the form includes.
    change: u64,
    compiled: Arc<T>,
}

impl<T: Send + Sync + 'static> CompiledObjects<T> {
    /// Creates the compiled form of a kind; the first use compiles it. `compile` gets the objects in key
    /// order, and the previous form, from which it can reuse unchanged parts.
    pub(crate) fn new(
        kind: ObjectKind,
        compile: impl Fn(&[Arc<Object>], Option<&T>) -> T + Send + Sync + 'static,
    ) -> Self {
        let (compile, current, building) = (Box::new(compile), RwLock::new(None), Arc::default());
        CompiledObjects(Arc::new(Shared { kind, compile, current, building }))
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

impl<T> Shared<T> {
    /// The form, if it includes a change.
    fn since(&self, change: u64) -> Option<Arc<T>> {
        let current = self.current.read();
        current.as_ref().filter(|form| form.change >= change).map(|form| Arc::clone(&form.compiled))
    }

    async fn build(&self, reader: &dyn Reader) -> Result<Arc<T>, Status> {
        let change = reader.last_change(self.kind);
        let objects = reader.list(self.kind, "").await?;
        let previous = self.current.read().as_ref().map(|form| Arc::clone(&form.compiled));
        let compiled = Arc::new((self.compile)(&objects, previous.as_deref()));
        // Before the first load of the kind, the number of its last change is unknown. The compiled form is
        // then not kept, and the next call compiles again.
        if let Some(change) = change {
            *self.current.write() = Some(Form { change, compiled: Arc::clone(&compiled) });
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

    #[tokio::test]
    async fn compiled_objects_are_rebuilt_after_a_change_and_only_then() {
        static BUILDS: AtomicUsize = AtomicUsize::new(0);
        let fake = Fake::new(Preset::Svc);
        let reader = fake.environment.reader;
        let kind = ObjectKind::new("", "ConfigMap");
        let names = CompiledObjects::new(kind, |objects, _: Option<&Vec<String>>| {
            BUILDS.fetch_add(1, Ordering::SeqCst);
            objects.iter().map(|object| object.name().to_owned()).collect()
        });
        assert!(names.get(&reader).await.unwrap().is_empty());
        for (name, expected) in [("a", vec!["a"]), ("b", vec!["a", "b"])] {
            fake.backend.put("", "ConfigMap", json!({"metadata": {"name": name}}));
            for _ in 0..10 {
                assert_eq!(*names.get(&reader).await.unwrap(), expected);
            }
        }
        assert_eq!(BUILDS.load(Ordering::SeqCst), 3);
    }

    #[tokio::test]
    async fn write_that_waits_takes_a_form_of_its_arrival_despite_later_changes() {
        let fake = Fake::new(Preset::Svc);
        let (reader, kind) = (fake.environment.reader, ObjectKind::new("", "ConfigMap"));
        let names = CompiledObjects::new(kind, |objects, _: Option<&usize>| objects.len());
        fake.backend.put("", "ConfigMap", json!({"metadata": {"name": "a"}}));
        assert_eq!(*names.get(&reader).await.unwrap(), 1);
        fake.backend.put("", "ConfigMap", json!({"metadata": {"name": "b"}}));
        let building = Arc::clone(&names.0.building).lock_owned().await;
        let mut waiting = std::pin::pin!(names.rebuild(&reader));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        names.0.build(&*reader).await.unwrap();
        fake.backend.put("", "ConfigMap", json!({"metadata": {"name": "c"}}));
        drop(building);
        assert_eq!(*waiting.await.unwrap(), 2);
        assert_eq!(*names.get(&reader).await.unwrap(), 3);
    }
}

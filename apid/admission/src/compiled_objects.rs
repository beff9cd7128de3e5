//! Compiled form of all objects of a kind, rebuilt after each change of an object.
//!
//! # Invariants
//!
//! INVARIANT (fresh): a write is evaluated with the objects that were acknowledged before its arrival. The
//! number of the last change is read before the objects, so that a concurrent change leads to another build.
//! INVARIANT (fast path): without a change a call costs one comparison and no task switch.

use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::status::Status;
use parking_lot::RwLock;

use crate::{MaybeFuture, ObjectKind, Reader};

/// Compiles the objects of a kind; the second argument is the previous result, if there is one.
type Compile<T> = dyn Fn(&[Arc<Object>], Option<&T>) -> T + Send + Sync;

/// Compiled form `T` of all objects of a kind.
pub struct CompiledObjects<T> {
    reader: Arc<dyn Reader>,
    kind: ObjectKind,
    compile: Box<Compile<T>>,
    /// The number of the last change that the compiled form includes, and the form.
    current: RwLock<Option<(u64, Arc<T>)>>,
}

impl<T: Send + Sync + 'static> CompiledObjects<T> {
    /// Creates the compiled form of a kind; the first use compiles it. `compile` gets the objects in key
    /// order, and the previous form, from which it can reuse unchanged parts.
    pub fn new(
        reader: Arc<dyn Reader>,
        kind: ObjectKind,
        compile: impl Fn(&[Arc<Object>], Option<&T>) -> T + Send + Sync + 'static,
    ) -> Self {
        CompiledObjects { reader, kind, compile: Box::new(compile), current: RwLock::new(None) }
    }

    /// The compiled form of the objects, with every acknowledged write; an error if they cannot be read.
    pub fn get(&self) -> MaybeFuture<'_, Result<Arc<T>, Status>> {
        let change = self.reader.last_change(self.kind);
        if let (Some(change), Some((compiled_change, compiled))) = (change, &*self.current.read())
            && change == *compiled_change
        {
            return MaybeFuture::Ready(Ok(Arc::clone(compiled)));
        }
        self.reader.list(self.kind, "").map(move |objects| Ok(self.build(change, &objects?)))
    }

    fn build(&self, change: Option<u64>, objects: &[Arc<Object>]) -> Arc<T> {
        let previous = self.current.read().as_ref().map(|(_, compiled)| Arc::clone(compiled));
        let compiled = Arc::new((self.compile)(objects, previous.as_deref()));
        // Before the first load of the kind, the number of its last change is unknown. The compiled form is
        // then not kept, and the next call compiles again.
        if let Some(change) = change {
            let mut current = self.current.write();
            if current.as_ref().is_none_or(|(compiled_change, _)| *compiled_change <= change) {
                *current = Some((change, Arc::clone(&compiled)));
            }
        }
        compiled
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
        let reader = fake.environment().reader;
        let kind = ObjectKind::new("", "ConfigMap");
        let names = CompiledObjects::new(reader, kind, |objects, _: Option<&Vec<String>>| {
            BUILDS.fetch_add(1, Ordering::SeqCst);
            objects.iter().map(|object| object.name().to_owned()).collect()
        });
        assert!(names.get().get().await.unwrap().is_empty());
        for (name, expected) in [("a", vec!["a"]), ("b", vec!["a", "b"])] {
            fake.backend.put("", "ConfigMap", json!({"metadata": {"name": name}}));
            for _ in 0..10 {
                assert_eq!(*names.get().get().await.unwrap(), expected);
            }
        }
        assert_eq!(BUILDS.load(Ordering::SeqCst), 3);
    }
}

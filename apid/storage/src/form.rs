//! A store whose values have another form in the engine.
//!
//! # Contract
//!
//! [`FormedStore`] converts values between the form of the callers and the form of the engine. A value that cannot be
//! converted becomes an unreadable one, so that one damaged object does not stop the reads of others. Keys, revisions and
//! order stay.

use std::ops::ControlFlow;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{
    Change, CommitOutcome, ENCRYPTED_PREFIX, Error, Held, Observer, Op, Page, PageFilling, Result, Revision,
    RevisionRange, Row, Store, Watch, unreadable_reason, unreadable_value,
};

/// Number of values that are converted without a pause for other tasks.
const VALUES_PER_TURN: usize = 64;

/// The conversion of values.
pub trait Form: Send + Sync + 'static {
    /// Converts a value of the engine to the form of the callers.
    ///
    /// # Errors
    ///
    /// The reason why the value is damaged.
    fn read(&self, key: &str, value: &Bytes) -> Result<Bytes, String>;

    /// Converts a value of a caller to the form of the engine.
    ///
    /// # Errors
    ///
    /// The reason why the value is no object of its key.
    fn write(&self, key: &str, value: &Bytes) -> Result<Bytes, String>;
}

/// The store; see the module documentation.
pub struct FormedStore {
    form: Arc<dyn Form>,
    engine: Arc<dyn Store>,
}

impl FormedStore {
    /// A store over an engine.
    pub fn new(form: Arc<dyn Form>, engine: Arc<dyn Store>) -> Self {
        FormedStore { form, engine }
    }

    /// Wraps an observer of the engine: the observer gets each change in the form of the callers.
    pub fn observer(form: Arc<dyn Form>, observer: Arc<dyn Observer>) -> Arc<dyn Observer> {
        Arc::new(FormedObserver { form, observer })
    }

    async fn read_page(&self, mut page: Page) -> Page {
        for (index, row) in page.rows.iter_mut().enumerate() {
            row.value = read(&*self.form, &row.key, &row.value);
            if index % VALUES_PER_TURN == VALUES_PER_TURN - 1 {
                tokio::task::yield_now().await;
            }
        }
        page
    }

    fn write(&self, key: &str, value: &Bytes) -> Result<Bytes> {
        if unreadable_reason(value).is_some() {
            return Err(Error::Corrupt(format!("key `{key}`: an unreadable object cannot be written")));
        }
        self.form.write(key, value).map_err(|reason| Error::Corrupt(format!("key `{key}`: {reason}")))
    }
}

/// Converts a value of the engine. Values that a layer below could not read stay as they are.
fn read(form: &dyn Form, key: &str, value: &Bytes) -> Bytes {
    if unreadable_reason(value).is_some() {
        return value.clone();
    }
    form.read(key, value).unwrap_or_else(|reason| {
        tracing::warn!(key, reason, "a stored object is unreadable");
        unreadable_value(&reason)
    })
}

/// Rejects a value that the layer below did not decrypt: it cannot be converted for another engine.
fn check_decrypted(row: &Row) -> Result<()> {
    let reason = match unreadable_reason(&row.value) {
        Some(reason) => reason,
        None if row.value.starts_with(ENCRYPTED_PREFIX) => "there is no `--encryption-provider-config`",
        None => return Ok(()),
    };
    Err(Error::Unavailable(format!(
        "key `{}` is encrypted and cannot be decrypted: {reason}; give the server a file of \
         `--encryption-provider-config` with its key, or use `etcdctl snapshot save`",
        row.key
    )))
}

fn read_row(form: &dyn Form, row: Row) -> Row {
    Row { value: read(form, &row.key, &row.value), ..row }
}

fn read_change(form: &dyn Form, change: Change) -> Change {
    let new = change.new.as_ref().map(|value| read(form, &change.key, value));
    Change { old: change.old.map(|row| read_row(form, row)), new, ..change }
}

async fn read_changes(form: &dyn Form, changes: Vec<Change>) -> Vec<Change> {
    let mut converted = Vec::with_capacity(changes.len());
    for change in changes {
        converted.push(read_change(form, change));
        if converted.len() % VALUES_PER_TURN == 0 {
            tokio::task::yield_now().await;
        }
    }
    converted
}

struct FormedObserver {
    form: Arc<dyn Form>,
    observer: Arc<dyn Observer>,
}

impl Observer for FormedObserver {
    fn observe(&self, changes: &[Change]) {
        let converted: Vec<_> =
            changes.iter().map(|change| read_change(&*self.form, change.clone())).collect();
        self.observer.observe(&converted);
    }

    fn progress(&self, through: Revision) {
        self.observer.progress(through);
    }
}

#[async_trait]
impl Store for FormedStore {
    fn inner(&self) -> Option<&dyn Store> {
        Some(&*self.engine)
    }

    fn revision(&self) -> Revision {
        self.engine.revision()
    }

    fn compacted(&self) -> Revision {
        self.engine.compacted()
    }

    async fn get(&self, key: &str, at: Option<Revision>) -> Result<Option<Row>> {
        Ok(self.engine.get(key, at).await?.map(|row| read_row(&*self.form, row)))
    }

    async fn range(&self, prefix: &str, start: &str, limit: usize, at: Option<Revision>) -> Result<Page> {
        Ok(self.read_page(self.engine.range(prefix, start, limit, at).await?).await)
    }

    async fn rows_within(
        &self,
        prefix: &str,
        start: &str,
        limit: usize,
        bytes: usize,
        at: Revision,
    ) -> Result<Page> {
        // The engine counts the bytes of its own form: one of its pages can leave room for more rows.
        let mut filling = PageFilling::new(start, limit, bytes, at);
        loop {
            let (start, rows, bytes) = (filling.start(), filling.rows_left(), filling.bytes_left());
            let next = self.engine.rows_within(prefix, start, rows, bytes, at).await?;
            match filling.include(self.read_page(next).await) {
                ControlFlow::Break(page) => return Ok(page),
                ControlFlow::Continue(rest) => filling = rest,
            }
        }
    }

    /// Encrypted values have the form of the callers inside: they are decrypted, converted and encrypted again.
    ///
    /// # Errors
    ///
    /// As in the contract, and `Unavailable` for a value that the layer below cannot decrypt.
    async fn stored_rows_within(
        &self,
        prefix: &str,
        start: &str,
        bytes: usize,
        at: Revision,
    ) -> Result<Page> {
        let page = self.engine.rows_within(prefix, start, 0, bytes, at).await?;
        page.rows.iter().try_for_each(check_decrypted)?;
        let mut page = self.read_page(page).await;
        for row in &mut page.rows {
            row.value = self.engine.archived_value(&row.key, &row.value)?;
        }
        Ok(page)
    }

    async fn commit(&self, key: &str, op: Op) -> Result<CommitOutcome> {
        self.commit_holding(key, op, &[]).await
    }

    async fn commit_holding(&self, key: &str, op: Op, held: &[Held]) -> Result<CommitOutcome> {
        let op = match op {
            Op::Create(value) => Op::Create(self.write(key, &value)?),
            Op::Update(value, at) => Op::Update(self.write(key, &value)?, at),
            Op::Delete(at) => Op::Delete(at),
        };
        self.engine.commit_holding(key, op, held).await.map_err(|error| match error {
            Error::Exists(row) => Error::Exists(Box::new(read_row(&*self.form, *row))),
            Error::Conflict(row) => Error::Conflict(Box::new(read_row(&*self.form, *row))),
            other => other,
        })
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>> {
        let inner = self.engine.watch(prefix, after).await?;
        Ok(Box::new(FormedWatch { inner, form: Arc::clone(&self.form) }))
    }

    async fn history(
        &self,
        prefix: &str,
        after: Revision,
        upto: Revision,
        bytes: usize,
    ) -> Result<RevisionRange> {
        let RevisionRange { changes, through } = self.engine.history(prefix, after, upto, bytes).await?;
        Ok(RevisionRange { changes: read_changes(&*self.form, changes).await, through })
    }

    async fn compact(&self, upto: Revision) -> Result<()> {
        self.engine.compact(upto).await
    }

    fn health(&self) -> Result<()> {
        self.engine.health()
    }

    async fn close(&self) {
        self.engine.close().await;
    }
}

/// A watch with changes in the form of the callers. The conversion does not wait, so that a cancelled call loses none.
struct FormedWatch {
    inner: Box<dyn Watch>,
    form: Arc<dyn Form>,
}

#[async_trait]
impl Watch for FormedWatch {
    async fn next(&mut self) -> Result<Vec<Change>> {
        let changes = self.inner.next().await?;
        Ok(changes.into_iter().map(|change| read_change(&*self.form, change)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::memory::MemoryStore;

    /// Bits of the values are inverted in the engine.
    struct Inverted;

    impl Form for Inverted {
        fn read(&self, _: &str, value: &Bytes) -> Result<Bytes, String> {
            if value == "damaged" {
                return Err("a damage".to_owned());
            }
            Ok(value.iter().map(|byte| !byte).collect())
        }

        fn write(&self, _: &str, value: &Bytes) -> Result<Bytes, String> {
            Ok(value.iter().map(|byte| !byte).collect())
        }
    }

    mod conformance {
        use super::*;

        crate::conformance!(|observer| {
            let form: Arc<dyn Form> = Arc::new(Inverted);
            let engine = MemoryStore::new(FormedStore::observer(Arc::clone(&form), observer));
            (Arc::new(FormedStore::new(form, Arc::new(engine))), Box::new(()))
        });
    }

    #[tokio::test]
    async fn damaged_value_is_unreadable_and_cannot_be_written() {
        struct Nothing;
        impl Observer for Nothing {
            fn observe(&self, _: &[Change]) {}
        }
        let engine: Arc<dyn Store> = Arc::new(MemoryStore::new(Arc::new(Nothing)));
        let store = FormedStore::new(Arc::new(Inverted), Arc::clone(&engine));
        engine.commit("a", Op::Create("damaged".into())).await.unwrap();
        store.commit("b", Op::Create("y".into())).await.unwrap();
        let rows = store.range("", "", 0, None).await.unwrap().rows;
        assert_eq!(unreadable_reason(&rows[0].value), Some("a damage"));
        assert_eq!(rows[1].value, "y");
        let refused = store.commit("c", Op::Create(rows[0].value.clone())).await;
        assert!(matches!(refused, Err(Error::Corrupt(_))), "{refused:?}");
        engine.commit("d", Op::Create("k8s:enc:x".into())).await.unwrap();
        let refused = store.stored_rows_within("", "", 1000, store.revision()).await;
        assert!(refused.is_err_and(|error| error.to_string().contains("key `d` is encrypted")));
    }
}

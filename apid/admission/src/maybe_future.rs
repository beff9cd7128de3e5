//! A result that is either ready or a future.

use std::future::Future;
use std::pin::Pin;

use apimachinery::status::Status;

/// A value that is ready, or a future of the value. Only a future allocates.
pub enum MaybeFuture<'a, T> {
    /// The value is ready.
    Ready(T),
    /// The value is pending.
    Pending(Pin<Box<dyn Future<Output = T> + Send + 'a>>),
}

/// The result of a phase of a plugin: the plugin admits the write, or rejects it with a Status.
pub type Admission<'a> = MaybeFuture<'a, Result<(), Status>>;

impl<'a, T> MaybeFuture<'a, T> {
    /// Wraps a future.
    pub fn later(future: impl Future<Output = T> + Send + 'a) -> Self {
        MaybeFuture::Pending(Box::pin(future))
    }

    /// Waits for the value.
    pub async fn get(self) -> T {
        match self {
            MaybeFuture::Ready(value) => value,
            MaybeFuture::Pending(future) => future.await,
        }
    }

    /// Applies a function to the value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U + Send + 'a) -> MaybeFuture<'a, U>
    where
        T: 'a,
    {
        match self {
            MaybeFuture::Ready(value) => MaybeFuture::Ready(f(value)),
            MaybeFuture::Pending(future) => MaybeFuture::later(async move { f(future.await) }),
        }
    }
}

impl<'a, T: Send + 'a> MaybeFuture<'a, Result<Option<T>, Status>> {
    /// Applies `run` to the value, if there is one. A ready `None` gives a ready result, without an
    /// allocation.
    pub(crate) fn if_some<F>(self, run: impl FnOnce(T) -> F + Send + 'a) -> Admission<'a>
    where
        F: Future<Output = Result<(), Status>> + Send + 'a,
    {
        match self {
            MaybeFuture::Ready(Ok(None)) => MaybeFuture::Ready(Ok(())),
            value => MaybeFuture::later(async move {
                match value.get().await? {
                    Some(value) => run(value).await,
                    None => Ok(()),
                }
            }),
        }
    }
}

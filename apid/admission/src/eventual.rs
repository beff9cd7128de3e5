//! A result that is either ready or a future.

use std::future::Future;
use std::pin::Pin;

/// A value that is ready, or a future of the value. Only a future allocates.
pub enum Eventual<'a, T> {
    /// The value is ready.
    Now(T),
    /// The value is pending.
    Later(Pin<Box<dyn Future<Output = T> + Send + 'a>>),
}

impl<'a, T> Eventual<'a, T> {
    /// Wraps a future.
    pub fn later(future: impl Future<Output = T> + Send + 'a) -> Self {
        Eventual::Later(Box::pin(future))
    }

    /// Waits for the value.
    pub async fn get(self) -> T {
        match self {
            Eventual::Now(answer) => answer,
            Eventual::Later(future) => future.await,
        }
    }

    /// Applies a function to the value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U + Send + 'a) -> Eventual<'a, U>
    where
        T: 'a,
    {
        match self {
            Eventual::Now(answer) => Eventual::Now(f(answer)),
            Eventual::Later(future) => Eventual::later(async move { f(future.await) }),
        }
    }
}

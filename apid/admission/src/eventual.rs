//! An answer that is there, or that somebody waits for.

use std::future::Future;
use std::pin::Pin;

/// An answer that is there at once, or later. Only what waits allocates.
pub enum Eventual<'a, T> {
    /// The answer.
    Now(T),
    /// The answer is still to come.
    Later(Pin<Box<dyn Future<Output = T> + Send + 'a>>),
}

impl<'a, T> Eventual<'a, T> {
    /// The answer of a future.
    pub fn later(future: impl Future<Output = T> + Send + 'a) -> Self {
        Eventual::Later(Box::pin(future))
    }

    /// Waits for the answer.
    pub async fn get(self) -> T {
        match self {
            Eventual::Now(answer) => answer,
            Eventual::Later(future) => future.await,
        }
    }

    /// What a function makes of the answer.
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

//! What plugins may know of other objects.

use apimachinery::status::Status;

use crate::Eventual;

/// What matters of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceState {
    /// New objects may come.
    Active,
    /// Its deletion has begun.
    Terminating,
}

/// Reads other objects; the process implements it over its watch cache.
pub trait Reader: Send + Sync + 'static {
    /// The state of a namespace as of the newest write; None when there is none. An error when it cannot be known.
    fn namespace<'a>(&'a self, name: &'a str) -> Eventual<'a, Result<Option<NamespaceState>, Status>>;
}

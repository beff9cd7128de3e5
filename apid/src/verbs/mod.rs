//! The verbs of the API: one readable function each, from a decoded request to its result.
//!
//! # Contract
//!
//! A verb gets a [`Call`]: whose request it is (an [`Authorized`]), which collection, which object. It answers a value or
//! the Status that the client sees; it knows no HTTP. Top to bottom a write reads: decode, default, prepare, admit,
//! validate, store. For updates everything from "current object" to "validated" runs inside the compare-and-swap loop of
//! [`modify`]. The loops of the process and authd's writes call the same functions.
//!
//! # Invariants
//!
//! INVARIANT (no-op writes): a write that changes nothing stores nothing: same resourceVersion, no event.
//! INVARIANT (one reading of versions): data of another revision is never answered under the number that was asked for.

mod admit;
mod alarm;
mod create;
pub(crate) mod decode;
mod delete;
mod delete_collection;
pub mod deletion;
pub mod envelope;
mod escalation;
mod evict;
mod failure;
mod get;
mod list;
mod metrics;
mod modify;
pub mod options;
mod order;
mod ownership;
pub mod patch;
mod review;
mod scale;
mod selection;
mod shown;
mod token;
mod token_request;
mod update;
mod version;
mod watch;

pub use admit::Surroundings;
pub use create::create;
pub use decode::Payload;
pub use delete::{Deleted, delete};
pub use delete_collection::delete_collection;
pub use evict::evict;
pub use get::get;
pub use list::{Listed, list};
pub use metrics::ReadMetrics;
pub use order::order;
pub use review::review;
pub use shown::Shown;
pub use token::TokenKey;
pub use token_request::token_request;
pub use update::update;
pub use watch::{Begin, Change, Notice, Watching, watch};

use std::sync::Arc;

use admission::Notes;
use apimachinery::object::Object;
use apimachinery::status::Status;
use kinds::{Context, Resource, Storage};

use crate::auth::Authorized;
use crate::plane::{Collection, Item, Plane};

/// Who does something, and to what.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// The process.
    pub plane: &'a Plane,
    /// Whose request it is.
    pub by: &'a Authorized,
    /// The kind and its objects.
    pub collection: &'a Collection,
    /// The API version of bodies and answers.
    pub version: &'a str,
    /// The namespace, `""` for cluster-scoped kinds and for lists over all namespaces.
    pub namespace: &'a str,
    /// The object's name, `""` when the collection is meant.
    pub name: &'a str,
    /// The subresource, `""` for the object itself.
    pub subresource: &'a str,
    /// What admission has to say beside yes and no.
    pub notes: &'a Notes,
    /// The id under which logs show the request.
    pub request_id: &'a str,
}

/// The result of a write.
#[derive(Clone, Debug)]
pub struct Written {
    /// Whether the object is new: HTTP says 201 then.
    pub created: bool,
    /// The object as it is now.
    pub object: Shown,
    /// What the client should know.
    pub warnings: Vec<String>,
}

impl<'a> Call<'a> {
    /// What rules of the kind may look at.
    fn context(&self) -> Context<'a> {
        Context {
            names: &self.plane.names,
            clock: &*self.plane.clock,
            chance: &*self.plane.chance,
            subresource: self.subresource,
        }
    }

    /// The kind that a subresource shows its object as, when it is no part of the object: a Scale.
    pub fn view(&self) -> Option<&'a Arc<Resource>> {
        if self.subresource.is_empty() {
            return None;
        }
        let served = &self.collection.served;
        let subresource = served.kind.subresources.iter().find(|s| s.name == self.subresource)?;
        let body = self.plane.registry.body(served, subresource, &self.plane.names)?;
        (body.kind.storage == Storage::View).then_some(body)
    }

    /// The body of a write: an object of the version served, made into one of the stored version. With it come warnings.
    fn decode(
        &self,
        payload: Payload<'_>,
        validation: options::FieldValidation,
    ) -> Result<(Object, Vec<String>), Status> {
        let served = &self.collection.served;
        let limits = self.plane.body_limits;
        let (mut object, warnings) = decode::decode(served, self.version, payload, validation, limits)?;
        self.notes.set_reference(&object);
        served
            .to_stored(&mut object, &self.plane.names)
            .map_err(|error| Status::bad_request(error.to_string()))?;
        Ok((object, warnings))
    }

    /// The storage key of the object.
    fn key(&self) -> String {
        self.collection.resource.key(self.namespace, self.name)
    }

    /// The object as the cache holds it: it shows every commit that was answered.
    async fn item(&self) -> Result<Option<Arc<Item>>, Status> {
        let (item, _) = self.collection.items.get(&self.key()).await.map_err(|error| self.failure(error))?;
        Ok(item)
    }

    /// The object as the cache holds it, or 404.
    async fn found(&self) -> Result<Arc<Item>, Status> {
        let missing = || Status::not_found(&self.collection.resource.group_resource, self.name);
        self.item().await?.ok_or_else(missing)
    }

    /// Whether the caller may do something else to the object, too.
    async fn may_also(&self, verb: &str) -> Result<(), Status> {
        let mut attributes = self.by.attributes().clone();
        verb.clone_into(&mut attributes.verb);
        let allowed = self.plane.auth.authorize_also(self.by, attributes).await;
        allowed.map(drop).map_err(|refusal| *refusal.status)
    }

    /// The keys of the collection: all, or those of the namespace.
    fn scope(&self) -> String {
        let resource = &self.collection.resource;
        match self.namespace {
            namespace if resource.kind.namespaced && !namespace.is_empty() => {
                format!("{}{namespace}/", resource.key_prefix)
            }
            _ => resource.key_prefix.clone(),
        }
    }

    /// The same call for another object of the collection.
    fn on<'b>(&self, namespace: &'b str, name: &'b str) -> Call<'b>
    where
        'a: 'b,
    {
        Call { namespace, name, ..*self }
    }
}

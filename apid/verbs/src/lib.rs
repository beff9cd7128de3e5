//! The verbs of the API: one function each, from a decoded request to its result.
//!
//! # Contract
//!
//! A verb gets a [`Call`]: the authorized request (an [`Authorized`]), the collection and the name of the
//! object. A verb returns a value or the Status that the client sees; verbs do not depend on HTTP. A write
//! runs these steps in order: decode, default, prepare, mutating admission, validate, validating admission,
//! store. For updates, all steps after decoding run inside the compare-and-swap loop of [`modify`].
//! Background tasks and authd's writes call the same functions.
//!
//! [`ApiState`] is the state that all verbs share. [`CurrentKinds`] has the served kinds with their collections,
//! [`conversion`] converts custom objects between versions, and [`addresses`] allocates addresses of Services.
//!
//! # Invariants
//!
//! INVARIANT (no-op writes): a write that changes nothing stores nothing: same resourceVersion, no event. The
//! exception is an object that an earlier key encrypted.
//! INVARIANT (exact revisions): a read at an exact revision returns the data of that revision, or fails.

pub mod addresses;
mod admit;
mod allocation;
mod audited_object;
mod binding_like;
mod component_statuses;
mod connect;
mod containers;
mod continue_token;
pub mod conversion;
mod create;
mod declarative_validation;
mod decode;
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
mod ownership;
mod parameter_access;
pub mod patch;
mod proxies;
mod replicas_paths;
mod request_conversions;
mod response_object;
mod review;
mod scale;
mod selection;
mod separate_store;
mod served_kinds;
mod state;
mod token_request;
mod unreadable_objects;
mod update;
mod version;
mod watch;
mod watch_cache;
mod watch_interrupts;

pub use admit::AdmissionBackend;
pub use binding_like::create_binding_like;
pub use connect::{ConnectOptions, STREAMS};
pub use containers::{NodeRequest, node_request};
pub use continue_token::TokenKey;
pub use create::create;
pub use declarative_validation::{DeclarativeValidation, Validator, type_table_validator};
pub use decode::{Payload, decode_error_status};
pub use delete::{DeleteResult, delete};
pub use delete_collection::{BatchLimits, DeletedCollection, MayBegin, delete_collection};
pub use evict::evict;
pub use get::get;
pub use list::{ListResult, STORE_PAGE_COST, list};
pub use metrics::{ReadMetrics, WatchEventMetrics};
pub use proxies::{ProxyRequest, ProxyTarget, proxy_request};
pub use response_object::ResponseObject;
pub use review::review;
pub use separate_store::{Caches, SeparateStore};
pub use served_kinds::{Collection, CurrentKinds, ServedKinds};
pub use state::ApiState;
pub use token_request::token_request;
pub use unreadable_objects::{MAX_KEYS as MAX_UNREADABLE_KEYS, UnreadableObjects};
pub use update::update;
pub use watch::{ChangedObject, WatchNotice, WatchStart, WatchStream, watch};
pub use watch_cache::{Cache, Event, Item, Items, Pin, Snapshot, Watcher};

use std::borrow::Cow;
use std::sync::Arc;

use admission::Recorder;
use apimachinery::object::Object;
use apimachinery::status::Status;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use kinds::{Context, Kind, Storage};
use serving::gates::Gate;
use storage::Store;

use authclient::Authorized;

/// The request context of a verb.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// State of the API.
    pub api_state: &'a ApiState,
    /// The served kinds at the beginning of the request.
    pub kinds: &'a ServedKinds,
    /// The authorized request.
    pub authorized: &'a Authorized,
    /// The kind and its objects.
    pub collection: &'a Collection,
    /// The API version of request and response bodies.
    pub version: &'a str,
    /// The namespace, `""` for cluster-scoped kinds and for lists over all namespaces.
    pub namespace: &'a str,
    /// The object's name, `""` for requests on the collection.
    pub name: &'a str,
    /// The subresource, `""` for the object itself.
    pub subresource: &'a str,
    /// Warnings and audit annotations of admission.
    pub recorder: &'a Recorder,
    /// The request id in logs and calls to authd.
    pub request_id: &'a str,
    /// Monotonic time at which the request ends; None without a limit.
    pub deadline: Option<std::time::Duration>,
    /// The memory limit of the user; None for work of apid itself.
    pub memory: Option<&'a dyn MemoryLimit>,
}

/// The future of a verb.
///
/// The future is boxed, so that the code of a verb is compiled in this crate. The body of an `async fn` is
/// compiled in each crate that awaits it.
pub type VerbFuture<'a, T> = BoxFuture<'a, Result<T, Status>>;

/// The memory that the responses of a user may hold.
pub trait MemoryLimit: Sync {
    /// Counts further bytes of the response to this request until the response is sent.
    ///
    /// # Errors
    ///
    /// 429: the responses of the user exceed the limit.
    fn reserve(&self, bytes: usize) -> Result<(), Status>;
}

/// The result of a write.
#[derive(Clone, Debug)]
pub struct WriteResult {
    /// Whether the object was created (HTTP 201).
    pub created: bool,
    /// The object after the write.
    pub object: ResponseObject,
}

/// Returns the context in which the rules of a kind run, for requests to a subresource.
fn context<'a>(api_state: &'a ApiState, subresource: &'a str) -> Context<'a> {
    Context { names: &api_state.names, clock: &*api_state.clock, rng: &*api_state.rng, subresource }
}

impl<'a> Call<'a> {
    /// Returns the context in which the rules of the kind run: names, clock, random numbers, subresource.
    fn context(&self) -> Context<'a> {
        context(self.api_state, self.subresource)
    }

    /// Returns the kind of the body of a virtual subresource, such as Scale; None for another subresource.
    pub fn virtual_kind(&self) -> Option<&'a Arc<Kind>> {
        if self.subresource.is_empty() {
            return None;
        }
        let served = &self.collection.kind;
        let subresource = served.subresource(self.subresource)?;
        let body = self.kinds.registry.body(served, subresource, &self.api_state.names)?;
        (body.storage == Storage::VirtualSubresource).then_some(body)
    }

    /// Decodes the body of a write and converts it from the served to the stored version. Returns warnings.
    fn decode(
        &self,
        payload: Payload<'_>,
        validation: options::FieldValidation,
    ) -> Result<(Object, Vec<String>), Status> {
        let served = &self.collection.kind;
        let names = &self.api_state.names;
        let (mut object, warnings) =
            decode::decode(served, self.version, payload, validation, self.api_state)?;
        self.recorder.set_reference(&object);
        audited_object::record(
            self.recorder,
            served,
            self.collection.kind.internal(),
            &object,
            &self.context(),
        );
        served.to_stored(&mut object, names).map_err(|error| Status::bad_request(error.to_string()))?;
        Ok((object, warnings))
    }

    /// Returns the store of the collection if it is not the main one.
    fn separate_store(&self) -> Option<&'a Arc<SeparateStore>> {
        self.api_state.separate_store_of(&self.collection.kind)
    }

    /// Returns the store of the object.
    fn store(&self) -> Result<Arc<dyn Store>, Status> {
        self.collection.items.store().map_err(|error| self.failure(error))
    }

    /// Returns the storage key of the object.
    fn key(&self) -> String {
        self.collection.kind.key(self.namespace, self.name)
    }

    /// Returns the stored object from the watch cache, which contains every acknowledged commit.
    async fn stored_item(&self) -> Result<Option<Arc<Item>>, Status> {
        let (item, _) = self.collection.items.get(&self.key()).await.map_err(|error| self.failure(error))?;
        Ok(item)
    }

    /// Returns the object from the watch cache, in the served version if the kind has a converter.
    async fn item(&self) -> Result<Option<Arc<Item>>, Status> {
        match (self.stored_item().await?, &self.collection.converter) {
            (Some(item), Some(converter)) => converter.item(&item).await.map(Some),
            (item, _) => Ok(item),
        }
    }

    /// Encodes an object for a commit, in the storage version. Custom objects are CBOR if its gate is on.
    async fn encode(&self, object: &Object) -> Result<Bytes, Status> {
        let is_cbor =
            self.collection.kind.is_custom() && self.api_state.gates.enabled(Gate::CborServingAndStorage);
        let encode = |object: Cow<'_, Object>| {
            if is_cbor {
                kinds::entry::encode_cbor(object.into_owned())
            } else {
                kinds::entry::encode(&object)
            }
        };
        match &self.collection.converter {
            Some(converter) => Ok(encode(Cow::Owned(converter.write(object).await?))),
            None => Ok(encode(Cow::Borrowed(object))),
        }
    }

    /// Returns an object that is not committed as a read would return it after a commit.
    ///
    /// An object of a custom kind passes through the storage version, which drops fields that this version lacks, and
    /// gets the defaults of its status.
    async fn uncommitted(&self, mut object: Object) -> Result<ResponseObject, Status> {
        match &self.collection.converter {
            Some(converter) => object = converter.read(converter.write(&object).await?).await?,
            None => self.collection.kind.internal().refresh(&mut object),
        }
        Ok(ResponseObject::from_tree(object))
    }

    /// As [`Call::item`], with 404 for a missing object.
    async fn get_or_404(&self) -> Result<Arc<Item>, Status> {
        let not_found = || Status::not_found(&self.collection.kind.internal().group_resource, self.name);
        self.item().await?.ok_or_else(not_found)
    }

    /// Returns the collection of another kind; None if no objects of the kind are stored.
    fn collection_of(&self, group: &str, kind: &str) -> Option<&'a Arc<Collection>> {
        self.kinds.collection(self.kinds.registry.find_kind(group, kind)?)
    }

    /// Checks that the body names the object of the URL (requirement D-META-11).
    fn check_name(&self, object: &Object) -> Result<(), Status> {
        match object.name() {
            name if name == self.name => Ok(()),
            "" => Err(self.name_required()),
            name => Err(Status::bad_request(format!(
                "the name of the object ({name}) does not match the name on the URL ({})",
                self.name
            ))),
        }
    }

    /// 400 for a body without a name.
    fn name_required(&self) -> Status {
        let name = self.name;
        Status::bad_request(format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        ))
    }

    /// Authorizes another verb on the same object.
    async fn authorize_verb(&self, verb: &str) -> Result<(), Status> {
        let mut attributes = self.authorized.attributes().clone();
        verb.clone_into(&mut attributes.verb);
        let allowed = self.api_state.auth.check(self.authorized, attributes).await;
        allowed.map(drop).map_err(|rejection| *rejection.status)
    }

    /// Returns the key prefix of the collection, or of its namespace.
    fn scope(&self) -> String {
        match self.namespace {
            "" => self.collection.kind.key_prefix.clone(),
            namespace => self.collection.kind.key(namespace, ""),
        }
    }

    /// Returns the same call for another object of the collection.
    fn for_object<'b>(&self, namespace: &'b str, name: &'b str) -> Call<'b>
    where
        'a: 'b,
    {
        Call { namespace, name, ..*self }
    }
}

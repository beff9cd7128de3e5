//! Conversion of the objects of custom kinds between versions.
//!
//! # Contract
//!
//! A version of a custom kind other than the storage version has an [`ObjectConverter`]. Verbs work in the
//! version of the request: they convert objects after each read and before each commit. Without a conversion
//! webhook, a conversion between versions changes only `apiVersion`.
//!
//! Stored objects can still have an earlier storage version. The conversion webhook converts them, so the storage
//! version also has a converter. Objects that already have the requested version are not sent to the webhook.
//!
//! The objects of lists and watches are converted in batches and cached for at most [`CACHE_TTL`]. Single reads
//! always convert, as in kube-apiserver.
//!
//! # Errors
//!
//! A failed conversion is a Status with code 500 and the message of kube-apiserver. It affects no other kind.
//!
//! # Reference
//!
//! Before the conversion of a stored object, the defaults of its stored version are set. After the
//! conversion, undeclared fields are dropped; defaults of the served version are not set.

mod client;
mod metrics;

pub use client::{ConversionCallError, ConversionClient, ConversionResponse, WebhookConversionClient};
pub use metrics::ConversionMetrics;

use std::fmt::Display;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use apimachinery::clock::{Clock, Rng};
use apimachinery::names::Names;
use apimachinery::object::Object;
use apimachinery::status::{Reason, Status};
use kinds::Kind;
use kinds::custom::ConversionWebhook;
use kinds::custom::conversion::failure;
use kinds::entry::{self, Decoder, Entry};
use metrics::{CALL_FAILURE, response_failure};
use moka::sync::Cache;
use storage::{Revision, Row};
use tokio::sync::OwnedSemaphorePermit;

use crate::unreadable_objects;
use crate::watch_cache::Item;

/// Maximum number of objects of a list or watch in one request to a webhook.
pub const BATCH: usize = 200;

/// Maximum size in bytes of the converted objects that the converter of one version caches.
const CACHE_BYTES: u64 = 16 << 20;
/// Time for which converted objects are cached. A changed webhook is in effect for lists and watches after at
/// most this time.
pub const CACHE_TTL: Duration = Duration::from_secs(300);
/// Estimated bytes of a cached object in addition to its key and value.
const ITEM_OVERHEAD: usize = 512;

/// The context that all converters share.
#[derive(Clone)]
pub struct ConversionContext {
    /// The names of the preset.
    pub names: Arc<Names>,
    /// The source of the uids of ConversionReviews.
    pub rng: Arc<dyn Rng>,
    /// The client of the webhooks.
    pub client: Arc<dyn ConversionClient>,
    /// The clock that measures the duration of requests.
    pub clock: Arc<dyn Clock>,
    /// The metrics of the webhooks.
    pub metrics: Arc<ConversionMetrics>,
}

/// Converted objects by key and revision.
type ConvertedItems = Cache<(Arc<str>, Revision), Arc<Item>>;

/// Converter of the objects of a kind between the storage version and one served version.
pub struct ObjectConverter {
    context: ConversionContext,
    webhook: Option<Arc<ConversionWebhook>>,
    /// The kind in the served version.
    served: Arc<Kind>,
    /// The kind in its storage version.
    stored: Arc<Kind>,
    /// The kind in all versions that are served or stored.
    versions: Arc<[Arc<Kind>]>,
    decoder: Arc<Decoder>,
    /// Cached conversions; created on first use.
    converted_items: OnceLock<ConvertedItems>,
}

/// Converted objects, with the permits for the memory of the response from which they were decoded.
struct ConvertedObjects {
    objects: Vec<Object>,
    _memory: Option<OwnedSemaphorePermit>,
}

impl ObjectConverter {
    /// Creates the converter of a version of a custom kind. None for a built-in kind, and for the storage
    /// version without a conversion webhook.
    ///
    /// `versions` are all versions of the kind, which its converters share.
    pub fn new(
        served: &Arc<Kind>,
        stored: &Arc<Kind>,
        versions: &Arc<[Arc<Kind>]>,
        context: &ConversionContext,
    ) -> Option<Self> {
        let webhook = served.conversion_webhook().cloned();
        if !served.is_custom() || (!served.is_other_version() && webhook.is_none()) {
            return None;
        }
        Some(ObjectConverter {
            context: context.clone(),
            webhook,
            served: Arc::clone(served),
            stored: Arc::clone(stored),
            versions: Arc::clone(versions),
            decoder: Arc::new(Decoder::of_current_form(served)),
            converted_items: OnceLock::new(),
        })
    }

    /// Whether a conversion webhook converts the objects of the kind.
    pub fn has_webhook(&self) -> bool {
        self.webhook.is_some()
    }

    /// Converts a stored object to the served version.
    ///
    /// # Errors
    ///
    /// The conversion fails: see the module documentation.
    pub async fn read(&self, object: Object) -> Result<Object, Status> {
        let mut converted = self.read_all(vec![object]).await?;
        converted.objects.pop().ok_or_else(|| Status::internal("a conversion returned no object"))
    }

    /// Converts an object of the served version to the storage version.
    ///
    /// # Errors
    ///
    /// The conversion fails: see the module documentation.
    pub async fn write(&self, object: &Object) -> Result<Object, Status> {
        let mut converted = self.convert(object.clone(), &self.stored.api_version()).await?;
        if self.served.is_other_version() {
            self.stored.repair(&mut converted);
        }
        Ok(converted)
    }

    async fn convert(&self, object: Object, api_version: &str) -> Result<Object, Status> {
        let mut converted = self.convert_all(vec![object], api_version).await?;
        converted.objects.pop().ok_or_else(|| Status::internal("a conversion returned no object"))
    }

    /// Converts objects to a version, and keeps fields that the schema of that version does not declare.
    ///
    /// # Errors
    ///
    /// The conversion fails: see the module documentation.
    pub async fn convert_objects(
        &self,
        objects: Vec<Object>,
        api_version: &str,
    ) -> Result<Vec<Object>, Status> {
        Ok(self.convert_all(objects, api_version).await?.objects)
    }

    /// Converts an object to a version if that needs no request to a webhook. Returns whether the object has
    /// the version now.
    pub fn convert_locally(&self, object: &mut Object, api_version: &str) -> bool {
        if object.api_version() == api_version {
            return true;
        }
        let is_empty = object.0.keys().all(|field| matches!(field.as_str(), "kind" | "apiVersion"));
        let is_local = is_empty || self.webhook.is_none();
        if is_local {
            let kind = object.kind().to_owned();
            object.set_type(api_version, &kind);
        }
        is_local
    }

    /// Returns a cached object in the served version.
    ///
    /// # Errors
    ///
    /// The conversion fails: see the module documentation. 500 for stored bytes that cannot be decoded.
    pub async fn item(&self, item: &Arc<Item>) -> Result<Arc<Item>, Status> {
        if self.is_current(item)? {
            return Ok(Arc::clone(item));
        }
        let object = self.read(decode(item)?).await?;
        Ok(self.converted_item(item, &object))
    }

    /// Returns cached objects in the served version, in the same order.
    ///
    /// # Errors
    ///
    /// As [`ObjectConverter::item`].
    pub async fn items(&self, items: Vec<Arc<Item>>) -> Result<Vec<Arc<Item>>, Status> {
        let mut items = items;
        let mut missing = Vec::new();
        for (index, item) in items.iter_mut().enumerate() {
            if self.is_current(item)? {
                continue;
            }
            match self.cache().get(&(Arc::clone(item.key()), item.revision())) {
                Some(converted) => *item = converted,
                None => missing.push((index, Arc::clone(item))),
            }
        }
        for batch in missing.chunks(BATCH) {
            let objects = batch.iter().map(|(_, item)| decode(item)).collect::<Result<_, Status>>()?;
            let converted = self.read_all(objects).await?;
            for ((index, item), object) in batch.iter().zip(&converted.objects) {
                let converted = self.converted_item(item, object);
                self.cache().insert((Arc::clone(item.key()), item.revision()), Arc::clone(&converted));
                if let Some(item) = items.get_mut(*index) {
                    *item = converted;
                }
            }
        }
        Ok(items)
    }

    /// Whether a cached object needs no conversion: the served version is the storage version, and the object
    /// is stored in this version.
    fn is_current(&self, item: &Item) -> Result<bool, Status> {
        Ok(!self.served.is_other_version()
            && read_entry(item)?.api_version() == Some(self.stored.api_version()))
    }

    fn cache(&self) -> &ConvertedItems {
        self.converted_items.get_or_init(|| {
            let weight = |(key, _): &(Arc<str>, Revision), item: &Arc<Item>| {
                u32::try_from(key.len() + item.value().len() + ITEM_OVERHEAD).unwrap_or(u32::MAX)
            };
            Cache::builder().max_capacity(CACHE_BYTES).weigher(weight).time_to_live(CACHE_TTL).build()
        })
    }

    fn converted_item(&self, item: &Item, object: &Object) -> Arc<Item> {
        let row =
            Row { key: Arc::clone(item.key()), value: entry::encode(object), revision: item.revision() };
        Item::detached(row, &self.decoder)
    }

    async fn read_all(&self, mut objects: Vec<Object>) -> Result<ConvertedObjects, Status> {
        for object in &mut objects {
            let version = self.versions.iter().find(|version| version.api_version() == object.api_version());
            version.unwrap_or(&self.stored).refresh(object);
        }
        let mut converted = self.convert_all(objects, &self.served.api_version()).await?;
        converted.objects.iter_mut().for_each(|object| self.served.repair(object));
        Ok(converted)
    }

    /// Converts objects to a version. An object that already has this version stays unchanged.
    async fn convert_all(
        &self,
        mut objects: Vec<Object>,
        api_version: &str,
    ) -> Result<ConvertedObjects, Status> {
        let mut positions = Vec::new();
        let mut outgoing = Vec::new();
        for (index, object) in objects.iter_mut().enumerate() {
            if self.convert_locally(object, api_version) {
                continue;
            }
            let mut object = object.clone();
            let revision = object.remove_meta("resourceVersion");
            positions.push((index, revision));
            outgoing.push(object);
        }
        let Some(webhook) = self.webhook.as_ref().filter(|_| !outgoing.is_empty()) else {
            return Ok(ConvertedObjects { objects, _memory: None });
        };
        let names = &self.context.names;
        let uid = self.context.rng.uuid();
        let review = webhook
            .review(&outgoing, api_version, &uid, names)
            .map_err(|error| conversion_failure(&error.to_string(), error.to_string()))?;
        let start = self.context.clock.monotonic();
        let record = |failure| self.record(&outgoing, api_version, failure, start);
        let response = self.context.client.post(webhook.client_config(), review).await;
        let ConversionResponse { review, memory } = response.map_err(|reason| {
            record(Some(CALL_FAILURE));
            let logged = failure(&outgoing, &reason.log_text());
            conversion_failure(&logged, failure(&outgoing, &reason.to_string()))
        })?;
        let converted = webhook.converted(&outgoing, api_version, &uid, review, names).map_err(|error| {
            record(Some(response_failure(error.defect)));
            conversion_failure(&error.message, error.message.clone())
        })?;
        record(None);
        for ((index, revision), mut object) in positions.into_iter().zip(converted) {
            if let Some(revision) = revision {
                object.set_meta("resourceVersion", revision);
            }
            if let Some(original) = objects.get_mut(index) {
                *original = object;
            }
        }
        Ok(ConvertedObjects { objects, _memory: memory })
    }

    /// Records the metrics of a request that converts `outgoing` and began at the monotonic time `start`.
    fn record(&self, outgoing: &[Object], api_version: &str, failure: Option<&'static str>, start: Duration) {
        let versions =
            (outgoing.first().map_or("", |object| version_of(object.api_version())), version_of(api_version));
        let duration = self.context.clock.monotonic().saturating_sub(start);
        self.context.metrics.record(&self.served.group_resource, versions, failure, duration);
    }
}

/// Returns the version in an `apiVersion`.
fn version_of(api_version: &str) -> &str {
    api_version.rsplit_once('/').map_or(api_version, |(_, version)| version)
}

/// Decodes the stored bytes of an item, without a resourceVersion.
fn decode(item: &Item) -> Result<Object, Status> {
    entry::parse(item.value()).map_err(|error| unreadable(item, &error))
}

/// Returns the entry of an item, or 500 if its bytes cannot be decoded.
pub(crate) fn read_entry(item: &Item) -> Result<&Entry, Status> {
    item.entry().map_err(|error| unreadable(item, &error))
}

/// Logs that the stored bytes of an item cannot be read. Returns 500 with the key.
pub(crate) fn unreadable(item: &Item, error: &dyn Display) -> Status {
    unreadable_row(item.row(), &item.decoder().reference_key(item.key()), error)
}

/// Logs that the bytes of a row cannot be read. Returns 500 with the key in kube-apiserver.
pub(crate) fn unreadable_row(row: &Row, reference_key: &str, error: &dyn Display) -> Status {
    tracing::error!(key = %row.key, %error, "stored object cannot be decoded; returning 500");
    Status::internal(unreadable_objects::value_message(reference_key, &row.value, row.revision))
}

/// Returns a status with code 500, the message of the failed conversion and no reason, as in kube-apiserver.
///
/// The log contains another text than the message, because the message may contain the response of a webhook.
fn conversion_failure(logged: &str, message: String) -> Status {
    tracing::warn!(error = logged, "conversion of custom objects failed; returning 500");
    Status::failure(Reason::Unknown, message)
}

//! Resource requests: selects the verb, reads its options and body, and builds the response.

use std::sync::Arc;
use std::time::Duration;

use admission::Recorder;
use apimachinery::attributes::Attributes;
use apimachinery::status::Status;
use bytes::Bytes;
use http::{Method, header};
use kinds::{Kind, STANDARD_VERBS, Storage, Subresource, Verb};
use serde_json::Value;

use crate::negotiate::{
    BodyFormat, EncodingSupport, Format, Negotiation, Offer, accept, body_format, error_format,
};
use crate::request_context::RequestContext;
use crate::response::protobuf;
use crate::response::representation::Representation;
use crate::response::respond::ApiResponse;
use crate::stream::{self, Encoder, WatchShare};
use crate::websocket::Handshake;
use crate::{containers, forwarded, long_running, params};
use audit::Level;
use authclient::Authorized;
use verbs::deletion::options::DeleteOptions;
use verbs::options::{RawWriteOptions, WriteOptions};
use verbs::patch::Patch;
use verbs::{self, BatchLimits, Call, DeleteResult, DeletedCollection, Payload, ResponseObject, WriteResult};
use verbs::{Collection, ServedKinds};

/// Handles a resource request.
pub(super) async fn handle(
    context: &RequestContext,
    authorized: &Authorized,
    body: &[u8],
) -> Result<ApiResponse, Status> {
    let attributes = authorized.attributes();
    let Some(resource) = &context.resource else {
        return if context.documents().discovery().has_group(&attributes.group) {
            Err(Status::unknown_resource())
        } else {
            Ok(ApiResponse::not_found())
        };
    };
    if has_other_scope(context, resource, &attributes.verb) {
        // As in kube-apiserver, the handler of custom kinds leaves such a request to the last handler of the chain.
        return Ok(ApiResponse::not_found());
    }
    if !resource.namespaced && !context.info.namespace.is_empty() {
        return Err(Status::unknown_resource());
    }
    let level = context.audit.level();
    let recorder = Recorder::new(context.audit.is_on()).recording_request_object(level >= Level::Request);
    let result = match (resource.storage, context.kinds.collection(resource)) {
        (Storage::Stored | Storage::Shared(_), Some(collection)) => {
            match handle_stored(context, &context.kinds, authorized, collection, body, &recorder).await {
                Err(status) if is_replaced(collection) && is_repeatable(context) => {
                    Box::pin(repeat(context, authorized, status, body, &recorder)).await
                }
                result => result,
            }
        }
        _ => handle_review(context, authorized, resource, body, &recorder).await,
    };
    with_record(result, &recorder, context)
}

/// Whether the path of a request for a custom kind has a namespace and the kind has none, or the reverse. A list
/// or a watch may be in all namespaces.
fn has_other_scope(context: &RequestContext, resource: &Kind, verb: &str) -> bool {
    let in_namespace = !context.info.namespace.is_empty();
    let is_in_all = resource.namespaced && matches!(verb, "list" | "watch");
    resource.is_custom() && resource.namespaced != in_namespace && !is_in_all
}

/// Maximum number of repetitions when the definition of a custom kind changes during a request.
pub(crate) const MAX_REPETITIONS: usize = 50;
/// Pause before a repetition.
pub(crate) const REPETITION_PAUSE: Duration = Duration::from_millis(10);

fn is_read(context: &RequestContext) -> bool {
    matches!(context.head.method, Method::GET | Method::HEAD)
}

/// Whether a request may run a second time: a read, or the deletion of a collection.
fn is_repeatable(context: &RequestContext) -> bool {
    let is_of_collection = context.info.path_name().is_empty();
    is_read(context) || context.head.method == Method::DELETE && is_of_collection
}

/// Whether another collection serves the custom kind now. The items of a built-in kind end for good: those of Events, when their
/// etcd cluster is lost.
fn is_replaced(collection: &Collection) -> bool {
    collection.kind.is_custom() && collection.items.is_retired()
}

/// Repeats a request for a custom kind that was replaced after the request took its snapshot of the served kinds.
/// `failure` is the Status of the first attempt. Writes of single objects do not need a repetition.
async fn repeat(
    context: &RequestContext,
    authorized: &Authorized,
    failure: Status,
    body: &[u8],
    recorder: &Recorder,
) -> Result<ApiResponse, Status> {
    let attributes = authorized.attributes();
    let mut failure = failure;
    for _ in 0..MAX_REPETITIONS {
        let kinds = context.api_state().kinds.get();
        let Some(resource) =
            kinds.registry.find(&attributes.group, &attributes.version, &attributes.resource)
        else {
            return Err(Status::unknown_resource());
        };
        let Some(collection) = kinds.collection(resource) else { return Err(failure) };
        match handle_stored(context, &kinds, authorized, collection, body, recorder).await {
            Err(status) if is_replaced(collection) => failure = status,
            result => return result,
        }
        tokio::time::sleep(REPETITION_PAUSE).await;
    }
    Err(failure)
}

/// Handles a request for a stored kind.
async fn handle_stored(
    context: &RequestContext,
    kinds: &ServedKinds,
    authorized: &Authorized,
    collection: &Collection,
    body: &[u8],
    recorder: &Recorder,
) -> Result<ApiResponse, Status> {
    let attributes = authorized.attributes();
    let kind = &collection.kind;
    let name = context.info.path_name();
    let namespace = context.info.namespace.as_str();
    let in_all_namespaces = kind.namespaced && namespace.is_empty();
    if in_all_namespaces && !name.is_empty() {
        return Err(Status::unknown_resource());
    }
    let subresource = match attributes.subresource.as_str() {
        "" => None,
        requested => {
            // As in kube-apiserver, a missing subresource of a custom kind returns 404 for the object.
            let subresource_error = || match collection.kind.is_custom() {
                true => Status::not_found(&collection.kind.group_resource, name),
                false => Status::unknown_resource(),
            };
            Some(kind.subresource(requested).ok_or_else(subresource_error)?)
        }
    };
    if context.info.has_extra_segments && !subresource.is_some_and(Subresource::has_paths) {
        return Err(Status::unknown_resource());
    }
    let is_on_path = |verb: &Verb| match verb {
        Verb::Get | Verb::List | Verb::Watch => is_read(context),
        Verb::Create => subresource.is_some() || name.is_empty() && !in_all_namespaces,
        Verb::Update | Verb::Patch | Verb::Delete => !name.is_empty(),
        Verb::DeleteCollection => !in_all_namespaces,
    };
    let verb = match context.head.method {
        // A proxy subresource accepts each method. OPTIONS has no verb, so `Verb::Get` stands for it.
        Method::OPTIONS if attributes.verb.is_empty() && subresource.is_some_and(Subresource::has_paths) => {
            Some(Verb::Get)
        }
        _ => STANDARD_VERBS.iter().copied().find(|verb| verb.as_str() == attributes.verb).filter(is_on_path),
    };
    let served_verbs = subresource.map_or(kind.verbs, |subresource| subresource.verbs);
    let verb = verb.filter(|verb| served_verbs.contains(verb)).ok_or_else(Status::method_not_allowed)?;
    report_deprecation(context, attributes, &collection.kind, recorder);
    let call = context.call(kinds, authorized, collection, recorder);
    let other_subresource =
        subresource.filter(|s| !kind.is_part(s)).filter(|_| call.virtual_kind().is_none());
    if let Some(subresource) = other_subresource {
        return handle_other_subresource(context, &call, subresource, body).await;
    }
    match verb {
        Verb::Get => get(context, &call).await,
        Verb::List => list(context, &call).await,
        Verb::Watch => watch(context, &call).await,
        Verb::Create => create(context, &call, body).await,
        Verb::Update => update(context, &call, body).await,
        Verb::Patch => patch(context, &call, body).await,
        Verb::Delete => delete(context, &call, body).await,
        Verb::DeleteCollection => delete_collection(context, &call, body).await,
    }
}

/// Reports a request for a deprecated version: a warning, the metric and the annotations of the audit log.
fn report_deprecation(
    context: &RequestContext,
    attributes: &Attributes,
    resource: &Kind,
    recorder: &Recorder,
) {
    let Some(deprecation) = &resource.deprecation else { return };
    let (names, metrics) = (&context.api_state().names, &context.http_state.request_metrics);
    let removed = deprecation.removed_release.map(|release| release.to_string()).unwrap_or_default();
    metrics.mark_deprecated(resource, &attributes.version, &attributes.subresource, &removed);
    context.audit.update(|event| {
        event.annotate(names.group_key("deprecated"), "true");
        if !removed.is_empty() {
            event.annotate(names.group_key("removed-release"), &removed);
        }
    });
    recorder.warn(deprecation.warning.clone());
}

/// Adds the records of verbs and admission plugins to the result, even to a failure: warnings for the client,
/// annotations for the audit log.
fn with_record(
    result: Result<ApiResponse, Status>,
    recorder: &Recorder,
    context: &RequestContext,
) -> Result<ApiResponse, Status> {
    context.audit.update(|event| event.take_record(recorder));
    let warnings = recorder.take_warnings();
    match result {
        Err(status) if !warnings.is_empty() => {
            let format = error_format(&context.head.headers, context.encoding_support());
            Ok(ApiResponse::status(status, format).with_warnings(warnings))
        }
        result => Ok(result?.with_warnings(warnings)),
    }
}

async fn get(context: &RequestContext, call: &Call<'_>) -> Result<ApiResponse, Status> {
    let negotiated = context.accept_for(call, Offer::Object)?;
    if context.query.switch("export") {
        return Err(Status::bad_request(
            "the export parameter, deprecated since v1.14, is no longer supported",
        ));
    }
    let object = verbs::get(call, context.query.text("resourceVersion")).await?;
    object_response(context, &context.represent(call, negotiated)?, 200, &object)
}

async fn list(context: &RequestContext, call: &Call<'_>) -> Result<ApiResponse, Status> {
    let representation = context.representation(call, Offer::List)?;
    let options = params::list_options(&context.query, &context.info)?;
    let result = verbs::list(call, &options).await?;
    context.audit_list(&representation, &result);
    Ok(ApiResponse::list(representation.list(result)?, representation.format))
}

async fn watch(context: &RequestContext, call: &Call<'_>) -> Result<ApiResponse, Status> {
    let representation = context.representation(call, Offer::Watch)?;
    let options = params::list_options(&context.query, &context.info)?;
    let handshake = Handshake::from_head(&context.head)?;
    let start = verbs::watch(call, &options).await?;

    let served = &call.collection.kind;
    let finish = long_running::begin(context, served, 200).await;
    let format = representation.format;
    let events = call.api_state.read_metrics.watch_events(served, call.version);
    let encoder = Encoder { events, representation };
    let shared = WatchShare::for_request(context);
    let Some(handshake) = handshake else {
        return Ok(ApiResponse::stream(stream::watch(start, encoder, shared, finish), format));
    };
    let response = ApiResponse::switching_protocols(handshake.headers.clone());
    let is_text = !matches!(format, Format::Protobuf(_) | Format::Cbor);
    let messages = stream::messages(start, encoder, shared, finish);
    handshake.send(messages, is_text, context.http_state.settings.request_timeout);
    Ok(response)
}

async fn create(context: &RequestContext, call: &Call<'_>, body: &[u8]) -> Result<ApiResponse, Status> {
    let representation = context.representation(call, Offer::Object)?;
    let format = context.body_format_for(call)?;
    let options = context.write_options().validate("CreateOptions", &call.api_state.names)?;
    write_response(context, &representation, verbs::create(call, format.payload(body), &options).await?)
}

async fn update(context: &RequestContext, call: &Call<'_>, body: &[u8]) -> Result<ApiResponse, Status> {
    let representation = context.representation(call, Offer::Object)?;
    let format = context.body_format_for(call)?;
    let options = context.write_options().validate("UpdateOptions", &call.api_state.names)?;
    write_response(context, &representation, verbs::update(call, format.payload(body), &options).await?)
}

async fn patch(context: &RequestContext, call: &Call<'_>, body: &[u8]) -> Result<ApiResponse, Status> {
    let content_type = crate::negotiate::media_type(context.head.headers.get(header::CONTENT_TYPE));
    let is_cbor =
        context.encoding_support().cbor && content_type.as_deref() == Some("application/apply-patch+cbor");
    let kind = if is_cbor {
        verbs::patch::PatchType::Apply
    } else {
        Patch::kind(content_type.as_deref(), call.collection.kind.is_custom())?
    };
    let representation = context.representation(call, Offer::Object)?;
    let options = context.write_options();
    let names = &call.api_state.names;
    let options = match kind {
        verbs::patch::PatchType::Apply => options.validate_apply(names)?,
        _ => options.validate("PatchOptions", names)?,
    };
    let limits = call.api_state.body_limits;
    let configuration =
        if is_cbor { params::apply_configuration_from_cbor(body, limits)? } else { Bytes::new() };
    let body = if is_cbor { &*configuration } else { body };
    context.audit_patch(body, kind);
    let patch = Patch::parse(kind, body, limits)?;
    write_response(context, &representation, verbs::patch::patch(call, patch, &options).await?)
}

async fn delete(context: &RequestContext, call: &Call<'_>, body: &[u8]) -> Result<ApiResponse, Status> {
    let representation = context.representation(call, Offer::Object)?;
    let options = context.delete_options(body)?;
    match verbs::delete(call, &options).await? {
        DeleteResult::Status(status) => Ok(ApiResponse::status(*status, representation.format)),
        // 202 for the deprecated `orphanDependents: false`: dependents are still being deleted.
        DeleteResult::Terminating(object) if options.orphan_dependents == Some(false) => {
            object_response(context, &representation, 202, &object)
        }
        DeleteResult::Object(object) | DeleteResult::Terminating(object) => {
            object_response(context, &representation, 200, &object)
        }
    }
}

async fn delete_collection(
    context: &RequestContext,
    call: &Call<'_>,
    body: &[u8],
) -> Result<ApiResponse, Status> {
    let representation = context.representation(call, Offer::List)?;
    let list_options = params::list_options(&context.query, &context.info)?;
    let options = context.delete_options(body)?;
    let limits = BatchLimits {
        concurrency: context.http_state.settings.delete_workers,
        begin_until: Some(context.time_limit.end_of_batches()),
        may_begin: None,
    };
    match verbs::delete_collection(call, &list_options, &options, limits).await? {
        DeletedCollection::Objects(result) => {
            context.audit_list(&representation, &result);
            Ok(ApiResponse::list(representation.list(result)?, representation.format))
        }
        DeletedCollection::Status(status) => Ok(ApiResponse::status(*status, representation.format)),
    }
}

/// Handles a request for a kind that is not stored, a review or a Binding; the only verb is create.
async fn handle_review(
    context: &RequestContext,
    authorized: &Authorized,
    resource: &Kind,
    body: &[u8],
    recorder: &Recorder,
) -> Result<ApiResponse, Status> {
    let attributes = authorized.attributes();
    let is_scope_valid = resource.namespaced != context.info.namespace.is_empty();
    let has_name = !context.info.path_name().is_empty() || !attributes.subresource.is_empty();
    if has_name || context.info.has_extra_segments || !is_scope_valid {
        return Err(Status::unknown_resource());
    }
    if attributes.verb != Verb::Create.as_str() {
        return Err(Status::method_not_allowed());
    }
    report_deprecation(context, attributes, resource, recorder);
    if resource.storage == Storage::BindingLike {
        let target = context.kinds.registry.binding_target(resource);
        let target = target.and_then(|(target, part)| Some((context.kinds.collection(target)?, part)));
        let Some((collection, subresource)) = target else {
            return Err(Status::not_implemented(&resource.group_resource, ""));
        };
        let call = context.call(&context.kinds, authorized, collection, recorder);
        let call = Call { subresource: subresource.name, ..call };
        return handle_binding_like(context, &call, resource, body).await;
    }
    let CreateRequest { format, payload, options } = context.create_request(body)?;
    let (state, id) = (context.api_state(), &context.id);
    let (object, warnings) =
        verbs::review(state, authorized, resource, payload, &options, id, recorder).await?;
    Ok(value_response(context, &object.into_value(), format).with_warnings(warnings))
}

/// Handles subresources with another kind of body: bindings, evictions, token requests, connections.
async fn handle_other_subresource(
    context: &RequestContext,
    call: &Call<'_>,
    subresource: &Subresource,
    body: &[u8],
) -> Result<ApiResponse, Status> {
    let (registry, served) = (&call.kinds.registry, &call.collection.kind);
    let kind = registry.body(served, subresource, &call.api_state.names);
    let is_binding_like =
        |kind: &&Arc<Kind>| kind.storage == Storage::Eviction || kind.binding_action().is_some();
    if let Some(kind) = kind.filter(is_binding_like) {
        return handle_binding_like(context, call, kind, body).await;
    }
    if let Some(kind) = kind.filter(|kind| kind.storage == Storage::Review) {
        return token_request(context, call, kind, body).await;
    }
    let options = params::connect_options(&context.query, &context.info)?;
    if matches!(subresource.name, "log" | "exec" | "attach" | "portforward") {
        return Box::pin(containers::handle(context, call, &options)).await;
    }
    Box::pin(forwarded::proxy(context, call, &options)).await
}

/// Handles a request whose body acts on an object: a binding or an eviction.
async fn handle_binding_like(
    context: &RequestContext,
    call: &Call<'_>,
    kind: &Kind,
    body: &[u8],
) -> Result<ApiResponse, Status> {
    let CreateRequest { format, payload, options } = context.create_request(body)?;
    let (status, warnings) = match kind.storage {
        Storage::Eviction => verbs::evict(call, kind, payload, &options).await?,
        _ => verbs::create_binding_like(call, kind, payload, &options).await?,
    };
    Ok(ApiResponse::status(status, format).with_warnings(warnings))
}

async fn token_request(
    context: &RequestContext,
    call: &Call<'_>,
    kind: &Kind,
    body: &[u8],
) -> Result<ApiResponse, Status> {
    let CreateRequest { format, payload, options } = context.create_request(body)?;
    if body.is_empty() {
        return Err(Status::bad_request("the body of the request is empty: a TokenRequest is expected"));
    }
    let (object, warnings) = verbs::token_request(call, kind, payload, &options).await?;
    Ok(value_response(context, &object.into_value(), format).with_warnings(warnings))
}

/// Encodes the result of a write.
///
/// The caller creates the representation before the write, so a request for an invalid representation is
/// rejected before anything is written.
fn write_response(
    context: &RequestContext,
    representation: &Representation,
    result: WriteResult,
) -> Result<ApiResponse, Status> {
    object_response(context, representation, if result.created { 201 } else { 200 }, &result.object)
}

fn object_response(
    context: &RequestContext,
    representation: &Representation,
    code: u16,
    object: &ResponseObject,
) -> Result<ApiResponse, Status> {
    context.audit_response(|| representation.audited_object(object));
    Ok(ApiResponse::object(code, representation.object(object)?, representation.format))
}

/// Returns the response to a create whose object is not stored.
fn value_response(context: &RequestContext, object: &Value, format: Format) -> ApiResponse {
    context.audit_response(|| Ok(object.to_string().into_bytes()));
    ApiResponse::value(201, object, format)
}

/// A create whose body is not stored: a review, a binding, an eviction or a token request.
struct CreateRequest<'a> {
    /// The encoding of the response.
    format: Format,
    payload: Payload<'a>,
    options: WriteOptions,
}

impl RequestContext {
    /// Returns the call of a verb on the object or the collection that the path names.
    fn call<'a>(
        &'a self,
        kinds: &'a ServedKinds,
        authorized: &'a Authorized,
        collection: &'a Collection,
        recorder: &'a Recorder,
    ) -> Call<'a> {
        let attributes = authorized.attributes();
        Call {
            api_state: self.api_state(),
            kinds,
            authorized,
            collection,
            version: &attributes.version,
            namespace: &self.info.namespace,
            name: self.info.path_name(),
            subresource: &attributes.subresource,
            recorder,
            request_id: &self.id,
            deadline: (!self.info.is_long_running()).then(|| self.time_limit.end()),
            memory: Some(self),
        }
    }

    fn create_request<'a>(&self, body: &'a [u8]) -> Result<CreateRequest<'a>, Status> {
        let format = accept(&self.head.headers, Offer::Plain, self.encoding_support())?.format;
        let payload = self.body_format()?.payload(body);
        let options = self.write_options().validate("CreateOptions", &self.api_state().names)?;
        Ok(CreateRequest { format, payload, options })
    }

    /// Negotiates the response format for objects of a kind.
    fn accept_for(&self, call: &Call<'_>, offer: Offer) -> Result<Negotiation, Status> {
        accept(&self.head.headers, offer, self.encoding_support_of(call))
    }

    /// Returns the body format for an object of a kind.
    fn body_format_for(&self, call: &Call<'_>) -> Result<BodyFormat, Status> {
        body_format(self.head.headers.get(header::CONTENT_TYPE), self.encoding_support_of(call))
    }

    fn encoding_support_of(&self, call: &Call<'_>) -> EncodingSupport<'_> {
        EncodingSupport { protobuf: protobuf::has_message(&call.collection.kind), ..self.encoding_support() }
    }

    fn body_format(&self) -> Result<BodyFormat, Status> {
        body_format(self.head.headers.get(header::CONTENT_TYPE), self.encoding_support())
    }

    fn write_options(&self) -> RawWriteOptions {
        params::write_options(&self.query, &self.head.headers)
    }

    /// Reads the delete options. The Content-Type of an empty body is ignored.
    fn delete_options(&self, bytes: &[u8]) -> Result<DeleteOptions, Status> {
        let format = if bytes.is_empty() { BodyFormat::Json } else { self.body_format()? };
        let options = params::delete_options(&self.query, bytes, format, self.api_state().body_limits)?;
        self.audit_delete_options(bytes, format);
        options.validate(&self.api_state().names)
    }

    /// Negotiates the representation of the objects of a call.
    fn representation(&self, call: &Call<'_>, offer: Offer) -> Result<Representation, Status> {
        self.represent(call, self.accept_for(call, offer)?)
    }

    /// Returns the representation of the objects of a call.
    fn represent(&self, call: &Call<'_>, negotiated: Negotiation) -> Result<Representation, Status> {
        let include = self.query.text("includeObject");
        let (resource, version) = match call.virtual_kind() {
            Some(view) => (view, view.version()),
            None => (&call.collection.kind, call.version),
        };
        let representation = Representation::new(&self.http_state, resource, version, negotiated, include)?;
        Ok(representation.with_pretty(self.response_options.pretty))
    }
}

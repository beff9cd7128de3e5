//! Resource requests: selects the verb, reads its options and body, and builds the response.

use std::sync::Arc;

use admission::Notes;
use apimachinery::status::Status;
use http::{Method, header};
use kinds::{Resource, Storage, Subresource, Verb};

use super::exchange::Exchange;
use super::negotiate::{BodyFormat, Dialect, Format, Negotiated, Offer, accept, body_format};
use super::represent::Representation;
use super::respond::Answer;
use super::stream::{self, Encoder, Finish};
use super::websocket::Handshake;
use super::{params, paths, protobuf};
use crate::audit::Stage;
use crate::auth::Authorized;
use crate::plane::Collection;
use crate::verbs::deletion::options::DeleteOptions;
use crate::verbs::options::{RawWriteOptions, WriteOptions};
use crate::verbs::patch::Patch;
use crate::verbs::{self, Begin, Call, Deleted, Written};

/// Handles a resource request.
pub(super) async fn answer(exchange: &Exchange, by: &Authorized, body: &[u8]) -> Result<Answer, Status> {
    let a = by.attributes();
    let plane = &exchange.plane;
    let Some(resource) = &exchange.resource else {
        return if plane.discovery.knows_group(&a.group) {
            Err(Status::unknown_resource())
        } else {
            Ok(paths::not_found())
        };
    };
    if !resource.kind.namespaced && !exchange.info.namespace.is_empty() {
        return Err(Status::unknown_resource());
    }
    match (resource.kind.storage, plane.collection(resource)) {
        (Storage::Stored | Storage::Shared(_), Some(collection)) => {
            stored(exchange, by, collection, body).await
        }
        _ => review(exchange, by, resource, body).await,
    }
}

/// Handles a request for a stored kind.
async fn stored(
    exchange: &Exchange,
    by: &Authorized,
    collection: &Collection,
    body: &[u8],
) -> Result<Answer, Status> {
    let a = by.attributes();
    let kind = collection.served.kind;
    let name = exchange.info.path_name();
    let namespace = exchange.info.namespace.as_str();
    let method = &exchange.head.method;
    let reading = matches!(*method, Method::GET | Method::HEAD);
    let in_all_namespaces = kind.namespaced && namespace.is_empty();
    if in_all_namespaces && !name.is_empty() {
        return Err(Status::unknown_resource());
    }
    let subresource = match a.subresource.as_str() {
        "" => None,
        sought => {
            let found = kind.subresources.iter().find(|subresource| subresource.name == sought);
            Some(found.ok_or_else(Status::unknown_resource)?)
        }
    };
    if exchange.info.beyond && !subresource.is_some_and(Subresource::has_paths) {
        return Err(Status::unknown_resource());
    }
    let verb = match *method {
        _ if exchange.info.watch_path && !reading => None,
        Method::GET | Method::HEAD => match a.verb.as_str() {
            "watch" => Some(Verb::Watch),
            "list" => Some(Verb::List),
            _ => Some(Verb::Get),
        },
        Method::POST if name.is_empty() && !in_all_namespaces => Some(Verb::Create),
        Method::POST if subresource.is_some() => Some(Verb::Create),
        Method::PUT if !name.is_empty() => Some(Verb::Update),
        Method::PATCH if !name.is_empty() => Some(Verb::Patch),
        Method::DELETE if !name.is_empty() => Some(Verb::Delete),
        Method::DELETE if !in_all_namespaces => Some(Verb::DeleteCollection),
        _ => None,
    };
    let served = subresource.map_or(kind.verbs, |subresource| subresource.verbs);
    let verb = verb.filter(|verb| served.contains(verb)).ok_or_else(Status::method_not_allowed)?;
    let notes = Notes::default();
    let call = Call {
        plane: &exchange.plane,
        by,
        collection,
        version: &a.version,
        namespace,
        name,
        subresource: &a.subresource,
        notes: &notes,
        request_id: &exchange.id,
    };
    let other = subresource.filter(|s| !kind.is_part(s)).filter(|_| call.view().is_none());
    let result = match verb {
        _ if other.is_some() => beside(exchange, &call, other, body).await,
        Verb::Get => get(exchange, &call).await,
        Verb::List => list(exchange, &call).await,
        Verb::Watch => watch(exchange, &call).await,
        Verb::Create => create(exchange, &call, body).await,
        Verb::Update => update(exchange, &call, body).await,
        Verb::Patch => patch(exchange, &call, body).await,
        Verb::Delete => delete(exchange, &call, body).await,
        Verb::DeleteCollection => delete_collection(exchange, &call, body).await,
    };
    let deprecation = kind.strategy.deprecation(&exchange.plane.names);
    if deprecation.is_some() {
        exchange.plane.request_metrics.deprecated(&collection.resource, &a.version, &a.subresource);
        let key = exchange.plane.names.group_key("deprecated");
        exchange.audit.update(|event| event.annotations.push((key, "true".to_owned())));
    }
    with_notes(result.map(|answer| answer.with_warnings(deprecation.into_iter().collect())), &notes, exchange)
}

/// Adds the notes of admission plugins: warnings for the client, annotations for the audit log also on
/// failure.
fn with_notes(result: Result<Answer, Status>, notes: &Notes, exchange: &Exchange) -> Result<Answer, Status> {
    exchange.audit.update(|event| event.take_notes(notes));
    Ok(result?.with_warnings(notes.take_warnings()))
}

async fn get(exchange: &Exchange, call: &Call<'_>) -> Result<Answer, Status> {
    let negotiated = exchange.accept_for(call, Offer::Object)?;
    if exchange.query.switch("export") {
        return Err(Status::bad_request(
            "the export parameter, deprecated since v1.14, is no longer supported",
        ));
    }
    let shown = verbs::get(call, exchange.query.text("resourceVersion")).await?;
    let encoded = exchange.represent(call, negotiated)?.object(&shown)?;
    Ok(Answer::object(200, encoded, negotiated.format))
}

async fn list(exchange: &Exchange, call: &Call<'_>) -> Result<Answer, Status> {
    let negotiated = exchange.accept_for(call, Offer::List)?;
    let representation = exchange.represent(call, negotiated)?;
    let options = params::list_options(&exchange.query, &exchange.info)?;
    let listed = verbs::list(call, &options).await?;
    Ok(Answer::list(representation.list(listed)?, negotiated.format))
}

async fn watch(exchange: &Exchange, call: &Call<'_>) -> Result<Answer, Status> {
    let negotiated = exchange.accept_for(call, Offer::Watch)?;
    exchange.represent(call, negotiated)?;
    let options = params::list_options(&exchange.query, &exchange.info)?;
    let handshake = Handshake::of(&exchange.head)?;
    let begin = verbs::watch(call, &options).await?;

    let plane = Arc::clone(&exchange.plane);
    let mut finish = Finish::new(|| {});
    if let Some(event) = exchange.audit.event() {
        let line = event.line(&plane.names, Stage::ResponseStarted, plane.clock.now(), 200, None);
        plane.audit.write(line).await;
        let plane = Arc::clone(&plane);
        finish = Finish::new(move || {
            let line = event.line(&plane.names, Stage::ResponseComplete, plane.clock.now(), 200, None);
            plane.audit.write_now(line);
        });
    }
    let encoder = |finish| Encoder {
        plane,
        resource: Arc::clone(&call.collection.served),
        version: call.version.to_owned(),
        negotiated,
        include_object: exchange.query.text("includeObject").to_owned(),
        _finish: finish,
    };
    let format = negotiated.format;
    Ok(match (handshake, begin) {
        (None, Begin::Expired(status)) => Answer::stream(stream::failed(&status, format, finish), format),
        (None, Begin::Running(watching)) => Answer::stream(stream::watch(watching, encoder(finish)), format),
        (Some(handshake), begin) => {
            let answer = Answer::upgraded(handshake.headers.clone());
            let text = !matches!(format, Format::Protobuf(_) | Format::Cbor);
            let time = exchange.plane.request_timeout;
            match begin {
                Begin::Expired(status) => {
                    handshake.send(stream::failed_message(&status, format, finish), text, time)
                }
                Begin::Running(watching) => {
                    handshake.send(stream::messages(watching, encoder(finish)), text, time)
                }
            }
            answer
        }
    })
}

async fn create(exchange: &Exchange, call: &Call<'_>, body: &[u8]) -> Result<Answer, Status> {
    let negotiated = exchange.accept_for(call, Offer::Object)?;
    let representation = exchange.represent(call, negotiated)?;
    let format = exchange.body_format_for(call)?;
    let options = exchange.write_options().validate("CreateOptions", &call.plane.names)?;
    let written = verbs::create(call, format.payload(body), &options).await?;
    answer_written(&representation, negotiated, written)
}

async fn update(exchange: &Exchange, call: &Call<'_>, body: &[u8]) -> Result<Answer, Status> {
    let negotiated = exchange.accept_for(call, Offer::Object)?;
    let representation = exchange.represent(call, negotiated)?;
    let format = exchange.body_format_for(call)?;
    let options = exchange.write_options().validate("UpdateOptions", &call.plane.names)?;
    let written = verbs::update(call, format.payload(body), &options).await?;
    answer_written(&representation, negotiated, written)
}

async fn patch(exchange: &Exchange, call: &Call<'_>, body: &[u8]) -> Result<Answer, Status> {
    let content_type = super::negotiate::media_type(exchange.head.headers.get(header::CONTENT_TYPE));
    let is_cbor = exchange.dialect().cbor && content_type.as_deref() == Some("application/apply-patch+cbor");
    let kind = if is_cbor { verbs::patch::Kind::Apply } else { Patch::kind(content_type.as_deref())? };
    let negotiated = exchange.accept_for(call, Offer::Object)?;
    let representation = exchange.represent(call, negotiated)?;
    let options = exchange.write_options();
    let names = &call.plane.names;
    let options = match kind {
        verbs::patch::Kind::Apply => options.validate_apply(names)?,
        _ => options.validate("PatchOptions", names)?,
    };
    let limits = call.plane.body_limits;
    let patch = if is_cbor {
        Patch::parse(kind, &params::intent_of_cbor(body, limits)?, limits)?
    } else {
        Patch::parse(kind, body, limits)?
    };
    let written = verbs::patch::patch(call, &patch, &options).await?;
    answer_written(&representation, negotiated, written)
}

async fn delete(exchange: &Exchange, call: &Call<'_>, body: &[u8]) -> Result<Answer, Status> {
    let negotiated = exchange.accept_for(call, Offer::Object)?;
    let representation = exchange.represent(call, negotiated)?;
    let options = exchange.delete_options(body)?;
    match verbs::delete(call, &options).await? {
        Deleted::Gone(status) => Ok(Answer::status(*status, negotiated.format)),
        Deleted::Object(shown) => Ok(Answer::object(200, representation.object(&shown)?, negotiated.format)),
        Deleted::Held(shown) => {
            // 202 for the deprecated `orphanDependents: false`: dependents are still being deleted.
            let code = if options.orphan_dependents == Some(false) { 202 } else { 200 };
            Ok(Answer::object(code, representation.object(&shown)?, negotiated.format))
        }
    }
}

async fn delete_collection(exchange: &Exchange, call: &Call<'_>, body: &[u8]) -> Result<Answer, Status> {
    let negotiated = exchange.accept_for(call, Offer::List)?;
    let representation = exchange.represent(call, negotiated)?;
    let which = params::list_options(&exchange.query, &exchange.info)?;
    let options = exchange.delete_options(body)?;
    let listed = verbs::delete_collection(call, &which, &options, call.plane.delete_workers).await?;
    Ok(Answer::list(representation.list(listed)?, negotiated.format))
}

/// Handles a request for a review kind; the only verb is create.
async fn review(
    exchange: &Exchange,
    by: &Authorized,
    resource: &Resource,
    body: &[u8],
) -> Result<Answer, Status> {
    let a = by.attributes();
    let scoped = resource.kind.namespaced != exchange.info.namespace.is_empty();
    let named = !exchange.info.path_name().is_empty() || !a.subresource.is_empty();
    if named || exchange.info.beyond || !scoped {
        return Err(Status::unknown_resource());
    }
    if exchange.head.method != Method::POST || exchange.info.watch_path {
        return Err(Status::method_not_allowed());
    }
    if resource.kind.storage == Storage::Order {
        let about = exchange.plane.registry.ordered(resource);
        let about = about.and_then(|(of, part)| Some((exchange.plane.collection(of)?, part)));
        let Some((collection, part)) = about else {
            return Err(Status::not_implemented(&resource.group_resource, ""));
        };
        let notes = Notes::default();
        let call = Call {
            plane: &exchange.plane,
            by,
            collection,
            version: &a.version,
            namespace: &exchange.info.namespace,
            name: "",
            subresource: part.name,
            notes: &notes,
            request_id: &exchange.id,
        };
        let result = order(exchange, &call, resource, body).await;
        return with_notes(result, &notes, exchange);
    }
    let Sent { negotiated, format, options } = exchange.sent()?;
    let (object, warnings) =
        verbs::review(&exchange.plane, by, resource, format.payload(body), &options, &exchange.id).await?;
    Ok(Answer::value(201, &object.into_value(), negotiated.format).with_warnings(warnings))
}

/// Handles subresources with a body of another kind: bindings, evictions, token requests.
///
/// Subresources that discovery lists but that are not implemented return 501.
async fn beside(
    exchange: &Exchange,
    call: &Call<'_>,
    subresource: Option<&Subresource>,
    body: &[u8],
) -> Result<Answer, Status> {
    let (registry, served) = (&call.plane.registry, &call.collection.served);
    let kind = subresource.and_then(|subresource| registry.body(served, subresource, &call.plane.names));
    let carried_out =
        |kind: &&Arc<Resource>| kind.kind.storage == Storage::Removal || kind.kind.strategy.order().is_some();
    if let Some(kind) = kind.filter(carried_out) {
        return order(exchange, call, kind, body).await;
    }
    if let Some(kind) = kind.filter(|kind| kind.kind.storage == Storage::Review) {
        return token_request(exchange, call, kind, body).await;
    }
    // The name of a proxied object may contain a scheme and a port.
    if !call.name.contains(':') {
        verbs::get(call, "").await?;
    }
    Err(Status::not_implemented(&served.group_resource, call.subresource))
}

async fn order(exchange: &Exchange, call: &Call<'_>, kind: &Resource, body: &[u8]) -> Result<Answer, Status> {
    let Sent { negotiated, format, options } = exchange.sent()?;
    let (status, warnings) = match kind.kind.storage {
        Storage::Removal => verbs::evict(call, kind, format.payload(body), &options).await?,
        _ => verbs::order(call, kind, format.payload(body), &options).await?,
    };
    Ok(Answer::status(status, negotiated.format).with_warnings(warnings))
}

async fn token_request(
    exchange: &Exchange,
    call: &Call<'_>,
    kind: &Resource,
    body: &[u8],
) -> Result<Answer, Status> {
    let Sent { negotiated, format, options } = exchange.sent()?;
    if body.is_empty() {
        return Err(Status::bad_request("the body of the request is empty: a TokenRequest is expected"));
    }
    let (object, warnings) = verbs::token_request(call, kind, format.payload(body), &options).await?;
    Ok(Answer::value(201, &object.into_value(), negotiated.format).with_warnings(warnings))
}

/// Encodes the result of a write.
///
/// The representation is created before the write, so that an invalid one rejects the request.
fn answer_written(
    representation: &Representation,
    negotiated: Negotiated,
    written: Written,
) -> Result<Answer, Status> {
    let code = if written.created { 201 } else { 200 };
    let encoded = representation.object(&written.object)?;
    Ok(Answer::object(code, encoded, negotiated.format).with_warnings(written.warnings))
}

/// Options of a request that creates an object of another kind than its path names.
struct Sent {
    negotiated: Negotiated,
    format: BodyFormat,
    options: WriteOptions,
}

impl Exchange {
    fn sent(&self) -> Result<Sent, Status> {
        let negotiated = self.accept(Offer::Plain)?;
        let format = self.body_format()?;
        let options = self.write_options().validate("CreateOptions", &self.plane.names)?;
        Ok(Sent { negotiated, format, options })
    }

    fn accept(&self, offer: Offer) -> Result<Negotiated, Status> {
        accept(&self.head.headers, offer, self.dialect())
    }

    /// Negotiates the response format for objects of a kind.
    fn accept_for(&self, call: &Call<'_>, offer: Offer) -> Result<Negotiated, Status> {
        accept(&self.head.headers, offer, self.dialect_of(call))
    }

    /// Returns the body format for an object of a kind.
    fn body_format_for(&self, call: &Call<'_>) -> Result<BodyFormat, Status> {
        body_format(self.head.headers.get(header::CONTENT_TYPE), self.dialect_of(call))
    }

    fn dialect_of(&self, call: &Call<'_>) -> Dialect<'_> {
        Dialect { protobuf: protobuf::is_form_of(&call.collection.served), ..self.dialect() }
    }

    fn body_format(&self) -> Result<BodyFormat, Status> {
        body_format(self.head.headers.get(header::CONTENT_TYPE), self.dialect())
    }

    fn write_options(&self) -> RawWriteOptions {
        params::write_options(&self.query, &self.head.headers)
    }

    /// Reads the delete options. The Content-Type of an empty body is ignored.
    fn delete_options(&self, bytes: &[u8]) -> Result<DeleteOptions, Status> {
        let format = if bytes.is_empty() { BodyFormat::Json } else { self.body_format()? };
        params::delete_options(&self.query, bytes, format, self.plane.body_limits)?
            .validate(&self.plane.names)
    }

    fn represent(&self, call: &Call<'_>, negotiated: Negotiated) -> Result<Representation, Status> {
        let include = self.query.text("includeObject");
        let (resource, version) = match call.view() {
            Some(view) => (view, view.kind.versions.first().copied().unwrap_or_default()),
            None => (&call.collection.served, call.version),
        };
        let representation = Representation::new(&self.plane, resource, version, negotiated, include)?;
        Ok(representation.with_pretty(self.wishes.pretty))
    }
}

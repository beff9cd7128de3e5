//! Requests for resources: which verb, with which options and body, and its result as an answer.

use std::sync::Arc;

use admission::Notes;
use apimachinery::status::Status;
use http::{Method, header};
use kinds::{Resource, Storage, Verb};

use super::body::RequestBody;
use super::handler::Exchange;
use super::negotiate::{BodyFormat, Negotiated, Offer, Shape, accept, body_format};
use super::represent::Representation;
use super::respond::Answer;
use super::stream::{self, Encoder, Finish};
use super::{params, paths};
use crate::audit::{Event, Stage};
use crate::auth::Authorized;
use crate::plane::Collection;
use crate::verbs::options::DeleteOptions;
use crate::verbs::patch::Patch;
use crate::verbs::{self, Begin, Call, Deleted, Payload, Written};

/// Answers a request for a resource.
pub(super) async fn answer(
    exchange: &Exchange<'_>,
    by: &Authorized,
    body: RequestBody,
    event: &mut Option<Event>,
) -> Result<Answer, Status> {
    let a = by.attributes();
    let plane = exchange.plane;
    let Some(resource) = plane.registry.find(&a.group, &a.version, &a.resource) else {
        return if plane.discovery.knows_group(&a.group) {
            Err(Status::unknown_resource())
        } else {
            Ok(paths::not_found())
        };
    };
    if exchange.info.beyond || (!resource.kind.namespaced && !exchange.info.namespace.is_empty()) {
        return Err(Status::unknown_resource());
    }
    match (resource.kind.storage, plane.collection(resource)) {
        (Storage::Stored, Some(collection)) => stored(exchange, by, collection, body, event).await,
        _ => review(exchange, by, resource, body).await,
    }
}

/// Requests for kinds that are stored.
async fn stored(
    exchange: &Exchange<'_>,
    by: &Authorized,
    collection: &Collection,
    body: RequestBody,
    event: &mut Option<Event>,
) -> Result<Answer, Status> {
    let a = by.attributes();
    let kind = collection.resource.kind;
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
    if subresource.is_some_and(|subresource| !kind.is_part(subresource)) {
        return Err(Status::not_implemented(&collection.resource.group_resource, &a.subresource));
    }
    let notes = Notes::default();
    let call = Call {
        plane: exchange.plane,
        by,
        collection,
        version: &a.version,
        namespace,
        name,
        subresource: &a.subresource,
        notes: &notes,
        request_id: exchange.id,
    };
    let result = match verb {
        Verb::Get => get(exchange, &call).await,
        Verb::List => list(exchange, &call).await,
        Verb::Watch => watch(exchange, &call, event.as_ref()).await,
        Verb::Create => create(exchange, &call, body).await,
        Verb::Update => update(exchange, &call, body).await,
        Verb::Patch => patch(exchange, &call, body).await,
        Verb::Delete => delete(exchange, &call, body).await,
        Verb::DeleteCollection => delete_collection(exchange, &call, body).await,
    };
    if let Some(event) = event {
        event.annotations.extend(notes.take_annotations());
    }
    let mut warnings: Vec<String> = kind.strategy.deprecation(&exchange.plane.names).into_iter().collect();
    warnings.extend(notes.take_warnings());
    Ok(result?.with_warnings(warnings))
}

async fn get(exchange: &Exchange<'_>, call: &Call<'_>) -> Result<Answer, Status> {
    let negotiated = exchange.accept(Offer::Object)?;
    if exchange.query.switch("export") {
        return Err(Status::bad_request(
            "the export parameter, deprecated since v1.14, is no longer supported",
        ));
    }
    let shown = verbs::get(call, exchange.query.text("resourceVersion")).await?;
    let json = exchange.represent(call, negotiated.shape)?.object(&shown)?;
    Ok(Answer::document(200, json, negotiated.format))
}

async fn list(exchange: &Exchange<'_>, call: &Call<'_>) -> Result<Answer, Status> {
    let negotiated = exchange.accept(Offer::List)?;
    let representation = exchange.represent(call, negotiated.shape)?;
    let options = params::list_options(exchange.query)?;
    let listed = verbs::list(call, &options).await?;
    Ok(Answer::document(200, representation.list(&listed)?, negotiated.format))
}

async fn watch(exchange: &Exchange<'_>, call: &Call<'_>, event: Option<&Event>) -> Result<Answer, Status> {
    let negotiated = exchange.accept(Offer::Watch)?;
    exchange.represent(call, negotiated.shape)?;
    let options = params::list_options(exchange.query)?;
    let begin = verbs::watch(call, &options).await?;

    let plane = Arc::clone(exchange.plane);
    let mut finish = Finish::new(|| {});
    if let Some(event) = event {
        let line = event.line(&plane.names, Stage::ResponseStarted, plane.clock.now(), 200, None);
        plane.audit.write(line).await;
        let (plane, event) = (Arc::clone(&plane), event.clone());
        finish = Finish::new(move || {
            let line = event.line(&plane.names, Stage::ResponseComplete, plane.clock.now(), 200, None);
            plane.audit.write_now(line);
        });
    }
    let body = match begin {
        Begin::Expired(status) => stream::failed(&status, finish),
        Begin::Running(watching) => stream::watch(
            watching,
            Encoder {
                plane,
                resource: Arc::clone(&call.collection.resource),
                version: call.version.to_owned(),
                shape: negotiated.shape,
                include_object: exchange.query.text("includeObject").to_owned(),
                _finish: finish,
            },
        ),
    };
    Ok(Answer::stream(body, negotiated.format.media_type()))
}

async fn create(exchange: &Exchange<'_>, call: &Call<'_>, body: RequestBody) -> Result<Answer, Status> {
    let negotiated = exchange.accept(Offer::Object)?;
    let representation = exchange.represent(call, negotiated.shape)?;
    let format = exchange.body_format()?;
    let options = params::write_options(exchange.query).validate("CreateOptions", &call.plane.names)?;
    let bytes = body.read().await?;
    let written = verbs::create(call, payload(&bytes, format), &options).await?;
    answer_written(&representation, negotiated, written)
}

async fn update(exchange: &Exchange<'_>, call: &Call<'_>, body: RequestBody) -> Result<Answer, Status> {
    let negotiated = exchange.accept(Offer::Object)?;
    let representation = exchange.represent(call, negotiated.shape)?;
    let format = exchange.body_format()?;
    let options = params::write_options(exchange.query).validate("UpdateOptions", &call.plane.names)?;
    let bytes = body.read().await?;
    let written = verbs::update(call, payload(&bytes, format), &options).await?;
    answer_written(&representation, negotiated, written)
}

async fn patch(exchange: &Exchange<'_>, call: &Call<'_>, body: RequestBody) -> Result<Answer, Status> {
    let content_type = super::negotiate::media_type(exchange.head.headers.get(header::CONTENT_TYPE));
    let kind = Patch::kind(content_type.as_deref())?;
    let negotiated = exchange.accept(Offer::Object)?;
    let representation = exchange.represent(call, negotiated.shape)?;
    let options = params::write_options(exchange.query).validate("PatchOptions", &call.plane.names)?;
    let bytes = body.read().await?;
    let patch = Patch::parse(kind, &bytes)?;
    let written = verbs::patch::patch(call, &patch, &options).await?;
    answer_written(&representation, negotiated, written)
}

async fn delete(exchange: &Exchange<'_>, call: &Call<'_>, body: RequestBody) -> Result<Answer, Status> {
    let negotiated = exchange.accept(Offer::Object)?;
    let representation = exchange.represent(call, negotiated.shape)?;
    let options = exchange.delete_options(body).await?;
    match verbs::delete(call, &options).await? {
        Deleted::Gone(status) => Ok(Answer::status(*status, negotiated.format)),
        Deleted::Object(shown) => {
            Ok(Answer::document(200, representation.object(&shown)?, negotiated.format))
        }
    }
}

async fn delete_collection(
    exchange: &Exchange<'_>,
    call: &Call<'_>,
    body: RequestBody,
) -> Result<Answer, Status> {
    let negotiated = exchange.accept(Offer::List)?;
    let representation = exchange.represent(call, negotiated.shape)?;
    let which = params::list_options(exchange.query)?;
    let options = exchange.delete_options(body).await?;
    let listed = verbs::delete_collection(call, &which, &options).await?;
    Ok(Answer::document(200, representation.list(&listed)?, negotiated.format))
}

/// Requests for reviews: they are created, and nothing else.
async fn review(
    exchange: &Exchange<'_>,
    by: &Authorized,
    resource: &Resource,
    body: RequestBody,
) -> Result<Answer, Status> {
    let a = by.attributes();
    let scoped = resource.kind.namespaced != exchange.info.namespace.is_empty();
    if !exchange.info.path_name().is_empty() || !a.subresource.is_empty() || !scoped {
        return Err(Status::unknown_resource());
    }
    if exchange.head.method != Method::POST || exchange.info.watch_path {
        return Err(Status::method_not_allowed());
    }
    if resource.kind.storage == Storage::Order {
        return Err(Status::not_implemented(&resource.group_resource, ""));
    }
    let negotiated = exchange.accept(Offer::Plain)?;
    let format = exchange.body_format()?;
    let options = params::write_options(exchange.query).validate("CreateOptions", &exchange.plane.names)?;
    let bytes = body.read().await?;
    let (object, warnings) =
        verbs::review(exchange.plane, by, resource, payload(&bytes, format), &options, exchange.id).await?;
    let json = serde_json::to_vec(&object.0).map_err(Status::internal)?;
    Ok(Answer::document(201, json, negotiated.format).with_warnings(warnings))
}

/// The representation was made before the write, so that one nobody can have refuses it instead of hiding what was done.
fn answer_written(
    representation: &Representation<'_>,
    negotiated: Negotiated,
    written: Written,
) -> Result<Answer, Status> {
    let code = if written.created { 201 } else { 200 };
    let json = representation.object(&written.object)?;
    Ok(Answer::document(code, json, negotiated.format).with_warnings(written.warnings))
}

fn payload(bytes: &[u8], format: BodyFormat) -> Payload<'_> {
    match format {
        BodyFormat::Json => Payload::Json(bytes),
        BodyFormat::Yaml => Payload::Yaml(bytes),
        BodyFormat::Protobuf => Payload::Protobuf(bytes),
    }
}

impl Exchange<'_> {
    fn accept(&self, offer: Offer) -> Result<Negotiated, Status> {
        accept(&self.head.headers, offer, &self.plane.names)
    }

    fn body_format(&self) -> Result<BodyFormat, Status> {
        body_format(self.head.headers.get(header::CONTENT_TYPE), &self.plane.names)
    }

    /// A delete without a body may say anything of its type.
    async fn delete_options(&self, body: RequestBody) -> Result<DeleteOptions, Status> {
        let bytes = body.read().await?;
        let format = if bytes.is_empty() { BodyFormat::Json } else { self.body_format()? };
        params::delete_options(self.query, &bytes, format)?.validate(&self.plane.names)
    }

    fn represent<'s>(&'s self, call: &Call<'s>, shape: Shape) -> Result<Representation<'s>, Status> {
        Representation::new(
            call.plane,
            &call.collection.resource,
            call.version,
            shape,
            self.query.text("includeObject"),
        )
    }
}

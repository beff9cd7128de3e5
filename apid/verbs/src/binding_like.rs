//! Binding-like bodies: objects that are never stored and change another object, as a Binding changes a Pod.

use admission::{Attributes, Operation};
use apimachinery::field::{quote, shorten};
use apimachinery::format;
use apimachinery::gvk::GroupResource;
use apimachinery::object::Object;
use apimachinery::status::{Reason, Status};
use kinds::Kind;
use storage::{Error, Op, Row};

use super::audited_object;
use super::create::resolve_namespace;
use super::decode::decode;
use super::options::WriteOptions;
use super::response_object::read_row;
use super::update::{failed_precondition, uid_conflict};
use super::{Call, Payload};
use crate::VerbFuture;

/// Applies a binding-like body to its target object. A call without a name uses the name of the body. Returns
/// warnings with the result.
///
/// # Errors
///
/// 400 for a malformed body, 403 from admission, 404, 409 when the object's state does not allow the change.
/// 500 without a reason if validation rejects the body, as kube-apiserver responds.
pub fn create_binding_like<'a>(
    call: &'a Call<'a>,
    kind: &'a Kind,
    payload: Payload<'a>,
    options: &'a WriteOptions,
) -> VerbFuture<'a, (Status, Vec<String>)> {
    Box::pin(async move {
        let resource = call.collection.kind.internal();
        let Some(rules) = kind.binding_action() else {
            return Err(Status::not_implemented(&resource.group_resource, call.subresource));
        };
        let version = kind.version();
        let (mut body, warnings) = decode(kind, version, payload, options.field_validation, call.api_state)?;
        call.recorder.set_reference(&body);
        audited_object::record(call.recorder, kind, kind, &body, &call.context());
        let name = body.name().to_owned();
        if call.name.is_empty() {
            check_name_parameter(&name)?;
            // The body of a call without a name is a new object, and the server sets the uid of new objects.
            body.remove_meta("uid");
        }
        if name.is_empty() || !(call.name.is_empty() || call.name == name) {
            let text = format!("name in URL does not match name in {} object", kind.name());
            return Err(Status::bad_request(text));
        }
        // As in kube-apiserver, admission sees a body without a name in the URL as an object of its own resource.
        let body_resource = call.name.is_empty().then_some(kind);
        let call = call.for_object(call.namespace, &name);
        resolve_namespace(&call, &mut body)?;
        let build_options = || options.to_value("CreateOptions", &call.api_state.names);
        let mut attributes = call.admission(Operation::Create, options.dry_run, &build_options);
        if let Some(kind) = body_resource {
            attributes = Attributes { resource: kind, served: kind, subresource: "", ..attributes };
        }
        call.api_state.admission.mutate(&attributes, Some(&mut body)).await?;
        let errors = rules.validate(&body);
        if !errors.is_empty() {
            let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
            return Err(Status::failure(Reason::Unknown, texts.join(", ")));
        }
        call.api_state.admission.validate(&attributes, Some(&body)).await?;

        let key = call.key();
        let mut row: Row = call.get_or_404().await?.row().clone();
        loop {
            let mut object = read_row(&row, call.collection.kind.internal())?;
            check_preconditions(&call, &body, &object)?;
            rules
                .apply_to_target(&body, &mut object, &call.context())
                .map_err(|error| conflict_status(&call, &error.to_string()))?;
            resource.conform(&mut object).map_err(Status::internal)?;
            if options.dry_run {
                break;
            }
            let op = Op::Update(kinds::entry::encode(&object), row.revision);
            match call.api_state.store.commit(&key, op).await {
                Ok(_) => break,
                Err(Error::Conflict(newer)) => row = *newer,
                Err(error) => return Err(call.failure(error)),
            }
        }
        Ok((Status::action_success(), warnings))
    })
}

/// Checks the name in the body of a call without a name in the URL.
fn check_name_parameter(name: &str) -> Result<(), Status> {
    if name.is_empty() {
        return Err(Status::bad_request("Name parameter required."));
    }
    match format::path_segment(name, false).first() {
        None => Ok(()),
        Some(message) => {
            Err(Status::bad_request(format!("Name parameter invalid: {}: {message}", quote(&shorten(name)))))
        }
    }
}

/// Checks the uid and resourceVersion in the body, which are preconditions on the object.
fn check_preconditions(call: &Call<'_>, body: &Object, object: &Object) -> Result<(), Status> {
    if !body.uid().is_empty() && body.uid() != object.uid() {
        return Err(uid_conflict(call, body.uid(), object.uid()));
    }
    let (expected, found) = (body.resource_version(), object.resource_version());
    if !expected.is_empty() && expected != found {
        return Err(failed_precondition(call, "ResourceVersion", expected, found));
    }
    Ok(())
}

/// 409 for a change that the object does not allow; the Status names the subresource.
fn conflict_status(call: &Call<'_>, reason: &str) -> Status {
    let resource = &call.collection.kind.internal().group_resource;
    let group_resource = GroupResource {
        group: resource.group.clone(),
        resource: format!("{}/{}", resource.resource, call.subresource),
    };
    Status::conflict(&group_resource, call.name, reason)
}

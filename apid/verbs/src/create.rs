//! The create verb.

use std::sync::Arc;

use admission::Operation;
use apimachinery::object::Object;
use apimachinery::status::{Reason, Status};
use kinds::Kind;
use storage::{Error, Held, Op};

use super::options::WriteOptions;
use super::ownership::{Ownership, ProposedObject};
use super::response_object::read_row;
use super::served_kinds::terminating_definition;
use super::{Call, Payload, ResponseObject, WriteResult};
use crate::{Item, VerbFuture};

/// Maximum number of attempts to find a free name for one `generateName` (requirement D-META-8).
const ATTEMPTS: usize = 8;

/// Stores a new object.
///
/// # Errors
///
/// 400 for a malformed body or another namespace, 403 and 404 from admission, 409 when the name exists, 422
/// for an invalid object.
pub fn create<'a>(
    call: &'a Call<'a>,
    payload: Payload<'a>,
    options: &'a WriteOptions,
) -> VerbFuture<'a, WriteResult> {
    Box::pin(async move {
        let (mut object, warnings) = call.decode(payload, options.field_validation)?;
        resolve_namespace(call, &mut object)?;
        insert(call, ProposedObject { object, warnings, has_managed_fields: false }, options).await
    })
}

/// Sets a missing namespace to that of the URL, and rejects another namespace (requirements D-META-9, -10).
pub(super) fn resolve_namespace(call: &Call<'_>, object: &mut Object) -> Result<(), Status> {
    if !call.collection.kind.namespaced {
        object.remove_meta("namespace");
        return Ok(());
    }
    set_namespace(object, call.namespace)
}

/// Sets a missing namespace, and rejects a namespace other than this one.
pub(super) fn set_namespace(object: &mut Object, namespace: &str) -> Result<(), Status> {
    if object.namespace().is_empty() {
        object.set_meta("namespace", namespace);
    } else if object.namespace() != namespace {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

/// Defaults, admits, validates and stores a decoded object.
pub(super) async fn insert(
    call: &Call<'_>,
    proposed: ProposedObject,
    options: &WriteOptions,
) -> Result<WriteResult, Status> {
    let ProposedObject { mut object, warnings, has_managed_fields } = proposed;
    call.recorder.warn_all(warnings);
    let resource = call.collection.kind.internal();
    let ctx = call.context();
    let sent_version = version_of_new_object(call, &object);
    if resource.is_terminating() {
        return Err(terminating_definition(resource, object.name()));
    }
    resource.default(&mut object, &ctx);
    if !has_managed_fields {
        Ownership::for_call(call, options).record_changes(None, &mut object).await?;
    }
    let has_no_name = object.name().is_empty();
    let build_options = || options.to_value("CreateOptions", &call.api_state.names);
    let (mut attempt, mut lost_claims) = (0, 0);
    loop {
        attempt += 1;
        // The loop repeats only for a generated name and for allocated values, so most objects are moved, not cloned.
        let is_repeatable = has_no_name || call.allocates_among_servers();
        let mut new = if is_repeatable { object.clone() } else { std::mem::take(&mut object) };
        resource.prepare_create(&mut new, call.namespace, &ctx);
        resource.strategy().record_creator(&mut new, call.authorized.user());
        let (first_name, uid) = (new.name().to_owned(), new.uid().to_owned());
        let call_with_first_name = call.for_object(call.namespace, &first_name);
        let mut attributes =
            call_with_first_name.admission(Operation::Create, options.dry_run, &build_options);
        attributes.has_generated_name = has_no_name;
        if call.api_state.admission.mutate(&attributes, Some(&mut new)).await? {
            prepare_again(call, &mut new, &uid, &ctx)?;
        }
        // A webhook or a policy may set the name.
        let name = new.name().to_owned();
        let is_generated_name = has_no_name && name == first_name;
        let call = call.for_object(call.namespace, &name);
        let attributes = call.admission(Operation::Create, options.dry_run, &build_options);
        call.check_escalation(&new, None).await?;
        call.recorder.warn_all(resource.complete_new(&mut new, &ctx));
        resource.canonicalize(&mut new, &ctx);
        let key = call.key();
        // The server that has the claimed values may have created this object.
        if lost_claims > 0
            && !is_generated_name
            && let Some(item) = existing(&call, &key).await?
        {
            return Err(already_exists(&call, item.value()));
        }
        let mut reservation = call.allocate(&mut new, None, options.dry_run)?;
        let errors = call.collection.kind.validate_create(&new, &ctx);
        let errors = call.api_state.declarative_validation.decide(&call.collection.kind, &new, &ctx, errors);
        if !errors.is_empty() {
            return Err(Status::invalid(&resource.group_kind, &name, &errors));
        }
        call.check_parameter_access(&new, None).await?;
        call.recorder.warn_all(resource.warnings(&new, None, &ctx));
        call.api_state.admission.validate(&attributes, Some(&new)).await?;

        if sent_version.is_some() && !options.dry_run {
            let text = "resourceVersion should not be set on objects to be created";
            return Err(Status::failure(Reason::Unknown, text));
        }
        // A commit with a reservation writes IPAddress objects first. A create of an existing name must write
        // none, so the name is checked before.
        let writes_addresses =
            reservation.as_ref().is_some_and(|reservation| !reservation.addresses().is_empty());
        if options.dry_run || writes_addresses {
            match existing(&call, &key).await? {
                Some(_) if is_generated_name && attempt < ATTEMPTS => continue,
                Some(item) => return Err(already_exists(&call, item.value())),
                None => {}
            }
        }
        if options.dry_run {
            if let Some(version) = sent_version {
                new.set_meta("resourceVersion", version);
            }
            return Ok(WriteResult { created: true, object: call.uncommitted(new).await? });
        }
        let encoded = call.encode(&new).await?;
        if !call.claim(reservation.as_mut(), lost_claims).await? {
            lost_claims += 1;
            attempt -= 1;
            continue;
        }
        call.record_addresses(reservation.as_ref()).await?;
        let mut lost_parents = None;
        let committed = loop {
            let definition = hold_definition(&call, resource).await?;
            let create = call.api_state.kinds.begin_create(resource, &name).await?;
            // Last, because the steps above can wait. The final sweep of a namespace covers the commits that follow.
            let namespace = check_namespace(&call).await?;
            let parents: Vec<Held> = definition.into_iter().chain(namespace).collect();
            let is_repeatable = lost_parents.as_ref() != Some(&parents);
            let op = Op::Create(encoded.clone());
            let committed = call.commit(&key, op, &mut reservation, parents.clone()).await;
            drop(create);
            match committed {
                // The namespace or the definition changed at another server.
                Err(Error::Lost(_)) if is_repeatable => lost_parents = Some(parents),
                committed => break committed,
            }
        };
        match committed {
            Ok(committed) => {
                call.recorder.set_reference(&new);
                let object = ResponseObject::for_commit(call.collection, &key, new, committed.revision).await;
                return Ok(WriteResult { created: true, object });
            }
            Err(Error::Exists(_)) if is_generated_name && attempt < ATTEMPTS => {}
            Err(Error::Exists(row)) => return Err(already_exists(&call, &row.value)),
            Err(error) => return Err(call.failure(error)),
        }
    }
}

/// The object with the key of a new one.
async fn existing(call: &Call<'_>, key: &str) -> Result<Option<Arc<Item>>, Status> {
    let found = call.collection.items.get(key).await.map_err(|error| call.failure(error))?;
    Ok(found.0)
}

/// In a store of several servers, returns the key of the definition of a custom kind. The commit holds the key, so that
/// no object is stored after another server has deleted the definition with its objects.
///
/// # Errors
///
/// 404: the definition is gone.
async fn hold_definition(call: &Call<'_>, resource: &Kind) -> Result<Option<Held>, Status> {
    if !resource.is_custom() || !call.api_state.store.is_shared() {
        return Ok(None);
    }
    let group = call.api_state.names.group("apiextensions");
    let Some(definitions) = call.collection_of(&group, "CustomResourceDefinition") else { return Ok(None) };
    let key = definitions.kind.key("", &resource.group_resource.to_string());
    let (definition, _) = definitions.items.get(&key).await.map_err(|error| call.failure(error))?;
    let definition = definition.ok_or_else(Status::unknown_resource)?;
    // `begin_create` then checks this state of the definition, or a newer one.
    call.api_state.kinds.wait_for_definitions(&call.api_state.names).await;
    Ok(Some(Held { key: key.into(), revision: definition.revision() }))
}

/// Checks that the namespace still exists after admission, which may have waited for a webhook. The namespace
/// controller deletes the objects that are created while their namespace is deleted.
///
/// In a store of several servers, returns the key of the namespace, which the commit holds: no object is stored after
/// another server has begun the deletion of the namespace. A separate store cannot compare the revision of the namespace:
/// there the check reads the newest namespace, and holds only for the time of the call.
///
/// # Errors
///
/// 404: the namespace is gone. 403: it is terminating at another server. 503: for an object of a separate store, the newest
/// state of the namespace is not known. No error if the plugin NamespaceLifecycle is
/// disabled.
async fn check_namespace(call: &Call<'_>) -> Result<Option<Held>, Status> {
    let is_required = call.api_state.admission.names().any(|name| name == "NamespaceLifecycle");
    if !is_required || !call.collection.kind.namespaced {
        return Ok(None);
    }
    let Some(namespaces) = call.collection_of("", "Namespace") else { return Ok(None) };
    if let Some(separate) = call.separate_store() {
        separate.catch_up_with_main().await?;
    }
    let key = namespaces.kind.key("", call.namespace);
    let (namespace, _) = namespaces.items.get(&key).await.map_err(|error| call.failure(error))?;
    let not_found = || Status::not_found(&namespaces.kind.internal().group_resource, call.namespace);
    let namespace = namespace.ok_or_else(not_found)?;
    if !call.api_state.store.is_shared() {
        return Ok(None);
    }
    if read_row(namespace.row(), namespaces.kind.internal())?.is_terminating() {
        let resource = &call.collection.kind.internal().group_resource;
        return Err(admission::terminating_namespace(resource, call.name, call.namespace));
    }
    let held = Held { key: key.into(), revision: namespace.revision() };
    Ok(Some(held).filter(|_| call.separate_store().is_none()))
}

/// Returns the resourceVersion in the body of a create: a reason for rejection, except in a dry run.
///
/// The version `0` and a malformed version count as absent, as in kube-apiserver. Updates and applies that create an
/// object ignore the version.
fn version_of_new_object(call: &Call<'_>, object: &Object) -> Option<String> {
    let version = object.resource_version();
    let is_rejected = version.parse::<u64>().is_ok_and(|version| version != 0);
    (is_rejected && call.authorized.attributes().verb == "create").then(|| version.to_owned())
}

/// Prepares an object that a webhook or policy changed: restores the fields that a client cannot set.
fn prepare_again(
    call: &Call<'_>,
    new: &mut Object,
    uid: &str,
    ctx: &kinds::Context<'_>,
) -> Result<(), Status> {
    let resource = call.collection.kind.internal();
    resolve_namespace(call, new)?;
    if !call.name.is_empty() {
        call.check_name(new)?;
    }
    resource.prepare_create_with_uid(new, call.namespace, uid, ctx);
    resource.strategy().record_creator(new, call.authorized.user());
    Ok(())
}

/// 409 for an existing name. The message says so if the existing object is being deleted.
fn already_exists(call: &Call<'_>, stored: &[u8]) -> Status {
    let mut status = Status::already_exists(&call.collection.kind.group_resource, call.name);
    let is_terminating =
        kinds::entry::decode(stored, storage::Revision(0)).is_ok_and(|object| object.is_terminating());
    if is_terminating {
        status.message = format!("object is being deleted: {}", status.message);
    }
    status
}

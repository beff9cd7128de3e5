//! The subresource `token`: issues service-account tokens (requirements A-SA-20, A-SA-21).
//!
//! # Contract
//!
//! apid looks up the service account and the bound object before authd signs the token. Both must exist, with
//! the uid of the request if the request names one. Nothing is stored.

use admission::Operation;
use apimachinery::field::{FieldError, FieldPath};
use apimachinery::gvk::GroupResource;
use apimachinery::object::Object;
use apimachinery::review::check_sizes;
use apimachinery::status::Status;
use apimachinery::time;
use authproto::auth::{IssueTokenRequest, ObjectRef};
use jiff::Timestamp;
use kinds::Kind;
use serde_json::{Value, json};

use super::audited_object;
use super::connect::find_core_object;
use super::create::resolve_namespace;
use super::decode::decode;
use super::options::WriteOptions;
use super::{Call, Payload};
use crate::VerbFuture;

/// Issues a token for the service account of the call. Returns warnings with the result.
///
/// # Errors
///
/// 400 for a malformed body and for an unsupported kind of bound object, 403 from admission, 404, 409 for
/// another uid. 422 for an invalid request, 500 without a signing key, 503 when authd does not respond.
pub fn token_request<'a>(
    call: &'a Call<'a>,
    kind: &'a Kind,
    payload: Payload<'a>,
    options: &'a WriteOptions,
) -> VerbFuture<'a, (Object, Vec<String>)> {
    Box::pin(async move {
        let version = kind.version();
        let (mut request, mut warnings) =
            decode(kind, version, payload, options.field_validation, call.api_state)?;
        audited_object::record(call.recorder, kind, kind, &request, &call.context());
        check_sizes(&call.api_state.names, &request).map_err(|status| *status)?;
        resolve_namespace(call, &mut request)?;
        if request.name().is_empty() {
            request.set_meta("name", call.name);
        } else if request.name() != call.name {
            let path = FieldPath::new("metadata").child("name");
            let error = FieldError::invalid(
                &path,
                request.name(),
                "must match the service account name if specified",
            );
            return Err(Status::invalid(&kind.group_kind, call.name, &[error]));
        }
        kind.default(&mut request, &call.context());
        let build_options = || options.to_value("CreateOptions", &call.api_state.names);
        let attributes = call.admission(Operation::Create, options.dry_run, &build_options);
        call.api_state.admission.mutate(&attributes, Some(&mut request)).await?;
        let errors = kind.strategy().validate(&request, &call.context());
        if !errors.is_empty() {
            // kube-apiserver does not name the object in this Status either.
            return Err(Status::invalid(&kind.group_kind, "", &errors));
        }
        call.api_state.admission.validate(&attributes, Some(&request)).await?;

        let account = find_core_object(call, "ServiceAccount", call.namespace, call.name).await?;
        let (bound_object, node) = find_bound_object(call, &request).await?;
        let requested_seconds =
            request.at(&["spec", "expirationSeconds"]).and_then(Value::as_i64).unwrap_or_default();
        let audiences = request.at(&["spec", "audiences"]).and_then(Value::as_array).into_iter().flatten();
        let issued_token = call
            .api_state
            .auth
            .issue_token(IssueTokenRequest {
                namespace: call.namespace.to_owned(),
                service_account: call.name.to_owned(),
                service_account_uid: account.uid().to_owned(),
                audiences: audiences.filter_map(Value::as_str).map(str::to_owned).collect(),
                expiration_seconds: requested_seconds,
                bound_object,
                node,
                at_least: None,
            })
            .await?;
        if issued_token.expiration_seconds < requested_seconds {
            warnings.push(format!(
                "requested expiration of {requested_seconds} seconds shortened to {} seconds",
                issued_token.expiration_seconds
            ));
        }
        let id = format!("JTI={}", issued_token.id);
        call.recorder
            .annotate(call.api_state.names.label_sub_key("authentication", "issued-credential-id"), id);
        let expires = Timestamp::from_millisecond(issued_token.expires_at_ms).map_err(Status::internal)?;
        request.set_meta("uid", call.api_state.rng.uuid());
        request.set_meta("creationTimestamp", time::time(call.api_state.clock.now()));
        let spec = request.part_mut("spec");
        spec.insert("audiences".to_owned(), json!(issued_token.audiences));
        spec.insert("expirationSeconds".to_owned(), json!(issued_token.expiration_seconds));
        request
            .set("status", json!({"token": issued_token.token, "expirationTimestamp": time::time(expires)}));
        Ok((request, warnings))
    })
}

/// Returns the bound object, and the node of a bound pod.
async fn find_bound_object(
    call: &Call<'_>,
    request: &Object,
) -> Result<(Option<ObjectRef>, Option<ObjectRef>), Status> {
    let Some(Value::Object(reference)) = request.at(&["spec", "boundObjectRef"]) else {
        return Ok((None, None));
    };
    let text = |field: &str| reference.get(field).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind, name) = (text("apiVersion"), text("kind"), text("name"));
    // The reference compares groups: any text without a slash is a version of the core group.
    let (resource, namespace) = match (api_version.contains('/'), kind) {
        (false, "Pod") => ("pods", call.namespace),
        (false, "Secret") => ("secrets", call.namespace),
        (false, "Node") => ("nodes", ""),
        _ => {
            let group_version =
                if api_version.contains('/') { api_version.to_owned() } else { format!("/{api_version}") };
            let reason = format!("cannot bind token to object of type {group_version}, Kind={kind}");
            return Err(Status::bad_request(reason));
        }
    };
    let object = find_core_object(call, kind, namespace, name).await?;
    if resource == "pods" && object.str_at(&["spec", "serviceAccountName"]).unwrap_or_default() != call.name {
        return Err(Status::bad_request(format!(
            "cannot bind token for serviceaccount \"{}\" to pod running with different serviceaccount name.",
            call.name
        )));
    }
    let uid = text("uid");
    if !uid.is_empty() && uid != object.uid() {
        let reason = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. \
             The object might have been deleted and then recreated"
        );
        let group_resource = GroupResource { group: String::new(), resource: kind.to_owned() };
        return Err(Status::conflict(&group_resource, name, &reason));
    }
    let node = match object.str_at(&["spec", "nodeName"]) {
        Some(node) if resource == "pods" && !node.is_empty() => {
            // A node that is not registered yet has no uid.
            let uid = match find_core_object(call, "Node", "", node).await {
                Ok(node) => node.uid().to_owned(),
                Err(missing) if missing.code == 404 => String::new(),
                Err(error) => return Err(error),
            };
            Some(reference_to("nodes", "", node, &uid))
        }
        _ => None,
    };
    Ok((Some(reference_to(resource, namespace, name, object.uid())), node))
}

fn reference_to(resource: &str, namespace: &str, name: &str, uid: &str) -> ObjectRef {
    ObjectRef {
        group: String::new(),
        resource: resource.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
    }
}

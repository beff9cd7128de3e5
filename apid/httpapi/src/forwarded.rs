//! Requests that another server answers: proxies of pods, Services and nodes, and aggregated APIs.
//!
//! # Contract
//!
//! The body of such a request is not read before it is forwarded ([`streams_body`]); bodies are streamed in both
//! directions, and a side that does not read stops the other. A proxy request has no time limit, as in kube-apiserver:
//! it ends with its client, its backend or the server. A path of a proxy is cleaned, so that it cannot leave its root.
//!
//! # Invariants
//!
//! INVARIANT (answer or tunnel): the client gets 101 only after the backend has answered 101; see
//! [`forwarding::forward()`].

use aggregation::RemoteApi;
use apimachinery::status::Status;
use forwarding::url_path;
use forwarding::{Appearance, Forward, Forwarded};
use http::header::LOCATION;
use http::{HeaderValue, Method};
use serving::body::Body;
use verbs::{Call, ConnectOptions};

use crate::containers::{StoppableBody, spawn, upgrade_headers};
use crate::request_context::RequestContext;
use crate::response::respond::ApiResponse;
use crate::stream::OnDrop;
use crate::{aggregated, deadline, long_running};
use authclient::Authorized;

/// Whether the body of a request is forwarded and not read.
pub(super) fn streams_body(context: &RequestContext) -> bool {
    context.remote.is_some() || context.info.attributes.subresource == "proxy" && context.info.is_unlimited()
}

/// Forwards a request to the server of its API version.
///
/// # Errors
///
/// See [`aggregated::handle`].
pub(super) async fn aggregated(
    context: &RequestContext,
    remote: &RemoteApi,
    authorized: &Authorized,
) -> Result<ApiResponse, Status> {
    let stopping = context.api_state().stopping.clone();
    match aggregated::handle(context, remote, authorized, context.take_body()).await? {
        Err(failure) => Ok(failure),
        Ok(Forwarded::Response(response)) => {
            let is_long = context.info.is_long_running();
            let remaining = context.time_limit.end().saturating_sub(context.api_state().clock.monotonic());
            let response = response.map(|body| match is_long {
                true => Body::stream(StoppableBody::new(body, OnDrop::new(|| ()), stopping)),
                false => deadline::limited(body, remaining),
            });
            let response = ApiResponse::forwarded(response);
            if !is_long {
                // The response is no stream for the audit log, although its body is streamed.
                context.complete_audit(response.code(), None).await;
            }
            Ok(response)
        }
        Ok(Forwarded::Upgraded { head, tunnel }) => {
            let audit = context.begin_stream_audit(head.status.as_u16()).await;
            spawn(context.api_state(), OnDrop::new(move || drop(audit)), async move {
                tunnel.run().await;
            });
            Ok(ApiResponse::switching_protocols(upgrade_headers(&head)))
        }
    }
}

/// Forwards a request for the subresource `proxy`.
///
/// # Errors
///
/// Those of [`verbs::proxy_target`]; 503 if the backend does not answer, 500 if it does not upgrade.
pub(super) async fn proxy(
    context: &RequestContext,
    call: &Call<'_>,
    options: &ConnectOptions,
) -> Result<ApiResponse, Status> {
    let backend = verbs::proxy_target(call, options).await?;
    let forwarding = &call.api_state.forwarding;
    let uri = &context.head.uri;
    let suffix = context.info.path_in_proxy();
    let is_upgrade = forwarding::headers::is_upgrade(&context.head.headers);
    let is_read = matches!(context.head.method, Method::GET | Method::HEAD);
    if suffix.is_empty() && is_read && !is_upgrade {
        return redirect_to_root(context);
    }
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let forward = Forward {
        transport: if backend.is_kubelet { &forwarding.kubelets } else { &forwarding.workloads },
        target: &backend.target,
        path_and_query: format!("{}{query}", url_path::clean_directory(suffix)),
        client: context.connection.peer.map(|peer| peer.ip()),
        appearance: Appearance::Below {
            prefix: uri.path().strip_suffix(suffix).unwrap_or_default().to_owned(),
        },
        user: None,
        extra_headers: Vec::new(),
    };
    let served = &call.collection.served;
    match forwarding::forward(&context.head, context.take_body(), forward).await? {
        Forwarded::Response(response) => {
            let finish = long_running::begin(context, served, response.status().as_u16()).await;
            let stopping = call.api_state.stopping.clone();
            let body = |body| Body::stream(StoppableBody::new(body, finish, stopping));
            Ok(ApiResponse::forwarded(response.map(body)))
        }
        Forwarded::Upgraded { head, tunnel } => {
            let finish = long_running::begin(context, served, head.status.as_u16()).await;
            spawn(call.api_state, finish, async move {
                tunnel.run().await;
            });
            Ok(ApiResponse::switching_protocols(upgrade_headers(&head)))
        }
    }
}

/// Redirects a read of a proxy to the root of its backend, so that relative links of the root work.
fn redirect_to_root(context: &RequestContext) -> Result<ApiResponse, Status> {
    let uri = &context.head.uri;
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let location = HeaderValue::from_str(&format!("{}/{query}", uri.path())).map_err(Status::internal)?;
    Ok(ApiResponse::empty(301).with_header(LOCATION, location))
}

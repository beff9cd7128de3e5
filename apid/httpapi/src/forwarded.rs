//! Requests that another server answers: proxies of pods, Services and nodes, and aggregated APIs.
//!
//! # Contract
//!
//! The body of a proxy request is not read before it is forwarded ([`streams_body`]). The body of a request to an
//! aggregated API arrives before the request takes its place, up to the limit of bodies; a longer or slower body is
//! streamed after that, without the place ([`has_unfinished_body`]). Bodies are streamed in both directions, and a side
//! that does not read stops the other. A proxy request has no time limit, as in kube-apiserver:
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
use http_body_util::BodyExt as _;
use serving::body::Body;
use verbs::{Call, ConnectOptions, ProxyRequest};

use crate::body::RequestBody;
use crate::containers::{AtShutdown, StoppableBody, spawn, until_stopped, upgrade_headers};
use crate::request_context::RequestContext;
use crate::response::respond::ApiResponse;
use crate::stream::OnDrop;
use crate::{aggregated, deadline, long_running};
use authclient::Authorized;

/// Whether the body of a request is forwarded as it arrives. Such requests take no seat.
pub(super) fn streams_body(context: &RequestContext) -> bool {
    context.info.is_unlimited()
        && (context.remote.is_some() || context.info.attributes.subresource == "proxy")
}

/// Whether a part of the body has not arrived when the request is forwarded. Such a request gives its place back, because
/// its client decides how long the rest takes; the limit of forwarded requests of the user bounds such requests.
pub(super) fn has_unfinished_body(context: &RequestContext) -> bool {
    context
        .unread_body
        .lock()
        .as_ref()
        .is_some_and(|body| !matches!(body, RequestBody::Whole(_)) && !body.is_empty())
}

/// Forwards a request to the server of its API version.
///
/// # Errors
///
/// Those of [`aggregated::handle`]; 429 above the limit of the user.
pub(super) async fn aggregated(
    context: &RequestContext,
    remote: &RemoteApi,
    authorized: &Authorized,
) -> Result<ApiResponse, Status> {
    context.begin_forwarded()?;
    let stopping = context.api_state().stopping.clone();
    let answer = aggregated::handle(context, remote, authorized, context.take_body());
    match until_stopped(context.api_state(), answer).await?? {
        Err(failure) => Ok(failure),
        Ok(Forwarded::Response(response)) => {
            let is_long = context.info.is_long_running();
            let is_watch = context.info.attributes.verb == "watch";
            let at_shutdown = if is_watch { AtShutdown::End } else { AtShutdown::Fail };
            let remaining = context.time_limit.end().saturating_sub(context.api_state().clock.monotonic());
            let place = context.forwarded.lock().take();
            let response = response.map(long_running::limit_unwritten).map(|body| match is_long {
                true => {
                    let finish = OnDrop::new(move || drop(place));
                    Body::stream(StoppableBody::new(body, finish, stopping, at_shutdown))
                }
                false => {
                    let body = deadline::limited(body, remaining);
                    Body::stream(body.map_frame(move |frame| {
                        let _place = &place;
                        frame
                    }))
                }
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
            let (connection, place) = (context.connection.slot.keep(), context.forwarded.lock().take());
            let finish = OnDrop::new(move || drop((connection, place, audit)));
            spawn(context.api_state(), finish, async move {
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
/// Those of [`verbs::proxy_request`]; 429 above the limit of the user; 508 for a request that has come back to
/// this server; 503 if the backend does not answer, 500 if it does not upgrade.
pub(super) async fn proxy(
    context: &RequestContext,
    call: &Call<'_>,
    options: &ConnectOptions,
) -> Result<ApiResponse, Status> {
    context.begin_forwarded()?;
    let ProxyRequest { backend, path } = verbs::proxy_request(call, options).await?;
    let forwarding = &call.api_state.forwarding;
    let uri = &context.head.uri;
    let suffix = context.info.path_in_proxy();
    let is_upgrade = forwarding::headers::is_upgrade(&context.head.headers);
    let is_read = matches!(context.head.method, Method::GET | Method::HEAD);
    let path = match path == options.path {
        true => suffix.to_owned(),
        false => changed_path(&path, uri.path()),
    };
    if path.is_empty() && is_read && !is_upgrade {
        return redirect_to_root(context);
    }
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let forward = Forward {
        hops: &forwarding.hops,
        transport: if backend.is_kubelet { &forwarding.kubelets } else { &forwarding.workloads },
        target: &backend.target,
        path_and_query: format!("{}{query}", url_path::clean_directory(&path)),
        client: context.connection.peer.map(|peer| peer.ip()),
        appearance: Appearance::Below {
            prefix: uri.path().strip_suffix(suffix).unwrap_or_default().to_owned(),
        },
        user: None,
        extra_headers: Vec::new(),
    };
    let served = &call.collection.kind;
    let answer = forwarding::forward(&context.head, context.take_body(), forward);
    match until_stopped(call.api_state, answer).await?? {
        Forwarded::Response(response) => {
            let finish = long_running::begin(context, served, response.status().as_u16()).await;
            let stopping = call.api_state.stopping.clone();
            let body = |body| {
                Body::stream(StoppableBody::new(
                    long_running::limit_unwritten(body),
                    finish,
                    stopping,
                    AtShutdown::Fail,
                ))
            };
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

/// Encodes a path that admission has set. As in kube-apiserver, a slash at the end of the URL of the client is kept.
fn changed_path(path: &str, client_path: &str) -> String {
    let mut path = url_path::encode_path(path);
    if client_path.ends_with('/') && !path.ends_with('/') {
        path.push('/');
    }
    path
}

/// Redirects a read of a proxy to the root of its backend, so that relative links of the root work.
fn redirect_to_root(context: &RequestContext) -> Result<ApiResponse, Status> {
    let uri = &context.head.uri;
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let location = HeaderValue::from_str(&format!("{}/{query}", uri.path())).map_err(Status::internal)?;
    Ok(ApiResponse::empty(301).with_header(LOCATION, location))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_of_admission_is_encoded_and_keeps_slash_of_client() {
        for (path, client_path, expected) in [
            ("/a b/100%", "/api/v1/nodes/n/proxy/x", "/a%20b/100%25"),
            ("a%2Fb", "/api/v1/nodes/n/proxy/x", "a%252Fb"),
            ("/a?b#c", "/api/v1/nodes/n/proxy/x", "/a%3Fb%23c"),
            ("/a", "/api/v1/nodes/n/proxy/x/", "/a/"),
            ("", "/api/v1/nodes/n/proxy/x/", "/"),
            ("", "/api/v1/nodes/n/proxy/x", ""),
        ] {
            assert_eq!(changed_path(path, client_path), expected, "{path} {client_path}");
        }
        assert_eq!(url_path::clean_directory("a%252Fb"), "/a%252Fb");
    }
}

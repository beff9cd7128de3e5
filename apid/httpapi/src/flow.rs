//! The limits of requests at once: flow control by schemas and levels, or two plain limits.
//!
//! # Contract
//!
//! A request takes its [`Seat`] after authentication and before its authorization counts: whoever waits in a queue is
//! decided again afterwards ([`Seat::waited`]), so a permission that was revoked meanwhile does not serve. The seat
//! is held until the response is prepared, also while the verb waits for a webhook. It is not held while the body of the
//! request arrives, while a heavy request waits for its slot, or while the client reads the response.
//!
//! Exec, attach, port-forward, proxies and logs take no seat. A watch takes one until it has begun.
//!
//! # Reference
//!
//! `--enable-priority-and-fairness`, `--max-requests-inflight` and `--max-mutating-requests-inflight` of
//! kube-apiserver 1.33: with fairness the limits are one sum of seats, without it each is a limit of its own.

use std::sync::Arc;

use apimachinery::clock::Clock;
use apimachinery::user::UserInfo;
use flowcontrol::{FlowControl, Permit, Schema, ServerLimits, Work};
use http::HeaderValue;
use http::header::RETRY_AFTER;
use serving::metrics::Metrics;

use crate::in_flight::{InFlightLimits, LimitReached, PlainPermit};
use crate::request_context::RequestContext;
use crate::response::respond::ApiResponse;

/// The limits of requests at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// The numbers of reads and writes; without fairness, 0 means no limit.
    pub server: ServerLimits,
    /// Whether flow schemas and priority levels apply (`--enable-priority-and-fairness`).
    pub is_fair: bool,
}

/// Decides which requests run.
pub(crate) enum RequestFlow {
    /// By flow schemas and priority levels.
    Fair(Arc<FlowControl>),
    /// By two limits.
    Plain(InFlightLimits),
}

/// The place of a request among those that run; dropping the seat frees it.
pub(crate) enum Seat {
    /// The request takes no seat.
    None,
    Fair(Permit),
    Plain(#[expect(dead_code, reason = "held for its drop")] PlainPermit),
}

/// The plain text of a rejection, as in kube-apiserver.
const REJECTION: &str = "Too many requests, please try again later.\n";

impl RequestFlow {
    pub(crate) fn new(limits: RequestLimits, clock: &Arc<dyn Clock>, metrics: &Metrics) -> Self {
        match limits.is_fair {
            true => RequestFlow::Fair(FlowControl::new(limits.server, Arc::clone(clock), metrics)),
            false => RequestFlow::Plain(InFlightLimits::new(limits.server)),
        }
    }

    /// Flow control by schemas and levels; None without fairness.
    pub(crate) fn control(&self) -> Option<&Arc<FlowControl>> {
        match self {
            RequestFlow::Fair(control) => Some(control),
            RequestFlow::Plain(_) => None,
        }
    }

    /// Finds the flow schema of a request of the user.
    pub(crate) fn classify(&self, context: &RequestContext, user: &Arc<UserInfo>) {
        context.user.get_or_init(|| Arc::clone(user));
        let attributes = &context.info.attributes;
        let is_limited = attributes.verb == "watch" || !context.info.is_long_running();
        if is_limited
            && let RequestFlow::Fair(control) = self
            && let Some(schema) = control.classify(user, attributes)
        {
            context.flow_schema.get_or_init(|| schema);
        }
    }

    /// Waits until a request of the user may run. The request must be classified. `is_allowed`: whether the decision
    /// allows the request.
    ///
    /// # Errors
    ///
    /// 429: the level of the request, or a plain limit, rejects it.
    pub(crate) async fn enter(
        &self,
        context: &RequestContext,
        user: &Arc<UserInfo>,
        is_allowed: bool,
    ) -> Result<Seat, Box<ApiResponse>> {
        let attributes = &context.info.attributes;
        match self {
            RequestFlow::Plain(limits) if !context.info.is_long_running() => {
                match limits.enter(attributes, user) {
                    Ok(permit) => Ok(permit.map_or(Seat::None, Seat::Plain)),
                    Err(LimitReached) => Err(Box::new(rejection(1))),
                }
            }
            RequestFlow::Plain(_) => Ok(Seat::None),
            RequestFlow::Fair(control) => {
                let Some(schema) = context.flow_schema.get() else { return Ok(Seat::None) };
                let wait_limit = context.time_limit.time / 4;
                // A rejected request touches no object.
                let work = if is_allowed { work(context, schema) } else { Work::SMALL };
                let admitted = control.admit(schema, user, attributes, work, wait_limit).await;
                match admitted {
                    Ok(permit) => Ok(Seat::Fair(permit)),
                    Err(rejected) => Err(Box::new(rejection(rejected.retry_after_seconds))),
                }
            }
        }
    }
}

impl Seat {
    /// Whether the request waited for the seat.
    pub(crate) fn waited(&self) -> bool {
        matches!(self, Seat::Fair(permit) if permit.waited())
    }
}

/// Returns the 429 of kube-apiserver's flow control: plain text, no Status.
fn rejection(retry_after_seconds: u32) -> ApiResponse {
    ApiResponse::text(429, REJECTION).with_header(RETRY_AFTER, HeaderValue::from(retry_after_seconds))
}

/// Estimates the work of a request.
fn work(context: &RequestContext, schema: &Schema) -> Work {
    let attributes = &context.info.attributes;
    match attributes.verb.as_str() {
        "list" | "deletecollection" => list_work(context, schema),
        "watch" if context.query.text("sendInitialEvents") == "true" => list_work(context, schema),
        // A token is no stored object, so watches get no event.
        "create" if attributes.resource == "serviceaccounts" && attributes.subresource == "token" => {
            Work::SMALL
        }
        "create" | "update" | "patch" | "delete" => {
            let Some(collection) = context.stored_collection() else { return Work::SMALL };
            let key = collection.kind.key(&attributes.namespace, &attributes.name);
            let watches = collection.items.watchers_of(&key);
            schema.observe_watches(watches);
            flowcontrol::write_work(watches, || schema.max_seats())
        }
        _ => Work::SMALL,
    }
}

fn list_work(context: &RequestContext, schema: &Schema) -> Work {
    context.list_scope().map_or(Work::SMALL, |scope| flowcontrol::list_work(scope.size(), schema.max_seats()))
}

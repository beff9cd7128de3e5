//! `Mirror.Sync`: feeds the policy mirror, and requests the writes of authd.
//!
//! # Contract
//!
//! The first message must be a hello with the same names preset and API domain, or authd rejects the stream.
//! authd sends its epoch and its readiness at once and after each change. It also sends the write batches of
//! the controllers. authd sends its `apiserver_` metrics when they have changed, at once after a change of the
//! configuration and else every [`METRICS_INTERVAL`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use authproto::auth::{self, mirror_demand::Demand, mirror_update::Update};
use authproto::peer::PeerNames;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{Caller, Components, status};
use crate::controllers::policy::PolicyControllers;
use crate::controllers::tokens::TokenControllers;
use crate::mirror::{Contents, Feed, FeedError, UpdateEffect};

/// The maximum number of messages that wait until apid reads them; at the limit authd waits before it sends.
const MAX_DEMANDS: usize = 16;

pub(super) struct MirrorService(pub(super) Components);

#[tonic::async_trait]
impl auth::mirror_server::Mirror for MirrorService {
    type SyncStream = ReceiverStream<Result<auth::MirrorDemand, Status>>;

    async fn sync(
        &self,
        request: Request<Streaming<auth::MirrorUpdate>>,
    ) -> Result<Response<Self::SyncStream>, Status> {
        let components = self.0.caller(request.metadata());
        let mut updates = request.into_inner();
        let hello = match updates.message().await?.and_then(|first| first.update) {
            Some(Update::Hello(hello)) => hello,
            Some(_) | None => return Err(status::incomplete_request("the first message must be a hello")),
        };
        let authd_names = PeerNames::new(&self.0.names);
        let apid_names = PeerNames { preset: hello.preset, api_domain: hello.api_domain };
        if !authd_names.matches(&apid_names) {
            tracing::error!(
                %authd_names,
                %apid_names,
                "names presets of apid and authd differ; rejecting the mirror stream"
            );
            return Err(status::names_mismatch(&authd_names.to_string(), &apid_names.to_string()));
        }
        tracing::info!(apid = hello.instance, "mirror stream opened");
        let (demands, stream) = mpsc::channel(MAX_DEMANDS);
        let mut session = Session {
            feed: components.mirror.begin(),
            policy_controllers: PolicyControllers::new(Arc::clone(&self.0.names)),
            token_controllers: TokenControllers::new(
                Arc::clone(&self.0.names),
                self.0.issuer.clone(),
                self.0.controllers,
            ),
            used_secrets: BTreeSet::new(),
            components,
            demands,
            sent_ready: None,
            sent_metrics: None,
        };
        tokio::spawn(async move {
            let outcome = session.serve_updates(&mut updates).await;
            let Session { feed, demands, .. } = session;
            drop(feed);
            let reason = match outcome {
                Ok(reason) => reason,
                Err(error) => {
                    let reason = error.to_string();
                    let _ = demands.send(Err(status::feed_ended(error))).await;
                    reason
                }
            };
            tracing::info!(apid = hello.instance, reason, "mirror stream closed");
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// Interval at which metrics are sent to apid if they have changed.
const METRICS_INTERVAL: Duration = Duration::from_secs(5);

/// The state of one mirror stream.
struct Session {
    feed: Feed,
    policy_controllers: PolicyControllers,
    token_controllers: TokenControllers,
    /// Token Secrets with a use that no label records yet, as `namespace/name`.
    used_secrets: BTreeSet<String>,
    components: Caller,
    demands: mpsc::Sender<Result<auth::MirrorDemand, Status>>,
    /// The readiness last sent to apid.
    sent_ready: Option<auth::ReadyState>,
    /// The metrics last sent to apid.
    sent_metrics: Option<String>,
}

impl Session {
    /// Runs until apid ends the stream (returns the reason) or the feed cannot continue.
    async fn serve_updates(
        &mut self,
        updates: &mut Streaming<auth::MirrorUpdate>,
    ) -> Result<String, FeedError> {
        let stream_closed = || Ok("apid has closed the stream".to_owned());
        let mut changes = self.components.config.subscribe();
        changes.mark_changed();
        let mut next_metrics = Duration::ZERO;
        loop {
            if changes.has_changed().unwrap_or(false) {
                changes.mark_unchanged();
                let epoch = self.components.config.current().epoch.clone();
                if !self.send(Demand::Epoch(epoch)).await || !self.send_shared_metrics().await {
                    return stream_closed();
                }
            }
            if !self.send_ready().await {
                return stream_closed();
            }
            let now = self.components.clock.monotonic();
            if now >= next_metrics {
                next_metrics = now + METRICS_INTERVAL;
                if !self.send_shared_metrics().await {
                    return stream_closed();
                }
            }
            let mut pause = next_metrics.saturating_sub(now);
            if let Some(wake_up) = self.policy_controllers.wake_at() {
                pause = pause.min(wake_up.saturating_sub(now));
            }
            // Token controllers run only after default policy is complete.
            if self.policy_controllers.ready().is_ok()
                && let Some(wake_up) = self.token_controllers.next_wake_up(now, self.components.clock.now())
            {
                pause = pause.min(wake_up);
            }
            let mut next_change = changes.clone();
            let update = tokio::select! {
                update = updates.message() => match update {
                    Ok(Some(update)) => update.update,
                    Ok(None) => return Ok("apid closed the stream".to_owned()),
                    Err(status) => return Ok(status.message().to_owned()),
                },
                () = tokio::time::sleep(pause) => None,
                () = self.components.mirror.wait_for_use() => None,
                _ = next_change.changed() => None,
                () = self.demands.closed() => return stream_closed(),
            };
            let effect = match update {
                Some(Update::Put(put)) => self.feed.put(put)?,
                Some(Update::Delete(delete)) => self.feed.delete(delete)?,
                Some(Update::Synced(synced)) => self.feed.synced(synced.revision)?,
                Some(Update::Progress(progress)) => self.feed.progress(progress.revision)?,
                Some(Update::WriteResult(result)) => {
                    self.policy_controllers.handle_result(self.components.clock.monotonic(), &result);
                    self.token_controllers.handle_result(self.components.clock.monotonic(), &result);
                    UpdateEffect::default()
                }
                // A second hello, an empty update and a wake-up without an update change nothing.
                Some(Update::Hello(_)) | None => UpdateEffect::default(),
            };
            if effect.synced {
                let progress = self.components.mirror.progress();
                let (roles, bindings) =
                    self.feed.read(|contents| contents.policy.role_and_binding_counts())?;
                tracing::info!(revision = progress.revision, roles, bindings, "mirror is complete");
                self.policy_controllers.mark_synced();
                self.token_controllers.mark_synced();
            }
            if effect.cluster_roles {
                self.policy_controllers.mark_cluster_role_changed();
            }
            if effect.identities {
                self.token_controllers.mark_changed();
            }
            self.used_secrets.append(&mut self.components.mirror.take_uses());
            if !self.request_writes().await? {
                return stream_closed();
            }
        }
    }

    /// Sends the next batches of the controllers. Returns false once apid has closed the stream.
    async fn request_writes(&mut self) -> Result<bool, FeedError> {
        let (now, wall_time) = (self.components.clock.monotonic(), self.components.clock.now());
        let revision = self.components.mirror.progress().revision;
        let mut batches = Vec::new();
        if self.policy_controllers.ready().is_ok() {
            let (token_controllers, used_secrets) = (&mut self.token_controllers, &mut self.used_secrets);
            let required_writes = |contents: &Contents| {
                let identities = &contents.identities;
                token_controllers.required_writes(now, wall_time, revision, identities, used_secrets)
            };
            if let Some(pending_writes) = self.feed.read(required_writes)? {
                let controller = pending_writes.controller;
                // After a panic while signing there are no writes, and the controller retries.
                let writes =
                    tokio::task::spawn_blocking(|| pending_writes.writes()).await.unwrap_or_default();
                batches.extend(self.token_controllers.build_batch(now, controller, writes));
            }
        }
        if self.policy_controllers.can_start_batch() {
            let policy_controllers = &mut self.policy_controllers;
            batches.extend(
                self.feed.read(|contents| policy_controllers.next_batch(now, revision, &contents.policy))?,
            );
        }
        for batch in batches {
            tracing::info!(controller = batch.controller, writes = batch.writes.len(), "writes requested");
            if !self.send(Demand::Write(batch)).await {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sends the metrics if they changed. Returns false once apid has closed the stream.
    async fn send_shared_metrics(&mut self) -> bool {
        let text = self.components.metrics.shared_text();
        if self.sent_metrics.as_ref() == Some(&text) {
            return true;
        }
        self.sent_metrics = Some(text.clone());
        self.send(Demand::SharedMetrics(auth::SharedMetrics { text })).await
    }

    /// Sends the readiness if it changed. Returns false once apid has closed the stream.
    async fn send_ready(&mut self) -> bool {
        let state = match self.policy_controllers.ready() {
            Ok(()) => auth::ReadyState { ready: true, reasons: self.components.config.notes() },
            Err(reason) => auth::ReadyState { ready: false, reasons: vec![reason.to_string()] },
        };
        if self.sent_ready.as_ref() == Some(&state) {
            return true;
        }
        if state.ready {
            tracing::info!("ready: policy is complete");
        }
        self.sent_ready = Some(state.clone());
        self.send(Demand::Ready(state)).await
    }

    /// Sends one message. Returns false once apid has closed the stream.
    async fn send(&self, demand: Demand) -> bool {
        self.demands.send(Ok(auth::MirrorDemand { demand: Some(demand) })).await.is_ok()
    }
}

//! `Mirror.Sync`: feeds the mirror, and asks for what authd wants written.
//!
//! # Contract
//!
//! The first message must be a hello with our names, or the stream is refused. authd sends its epoch and its readiness
//! at once, its readiness whenever that changes, and write batches from the controllers. After each reload of a
//! configuration file it sends the counters of reloads.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use authproto::auth::{self, mirror_demand::Demand, mirror_update::Update};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{Parts, status};
use crate::controllers::policy::Controllers;
use crate::controllers::tokens::TokenControllers;
use crate::mirror::{Applied, Contents, Feed, FeedError};

/// Demands that may wait for apid to read them.
const MOST_DEMANDS: usize = 16;

pub(super) struct Service(pub(super) Parts);

#[tonic::async_trait]
impl auth::mirror_server::Mirror for Service {
    type SyncStream = ReceiverStream<Result<auth::MirrorDemand, Status>>;

    async fn sync(
        &self,
        request: Request<Streaming<auth::MirrorUpdate>>,
    ) -> Result<Response<Self::SyncStream>, Status> {
        let mut updates = request.into_inner();
        let hello = match updates.message().await?.and_then(|first| first.update) {
            Some(Update::Hello(hello)) => hello,
            Some(_) | None => return Err(status::incomplete("a mirror stream begins with a hello")),
        };
        let names = &self.0.names;
        let ours = (names.preset().to_string(), names.api_domain().to_owned());
        // Under `kubernetes` the domain says nothing.
        let same = ours.0 == hello.preset && (ours.0 == "kubernetes" || ours.1 == hello.api_domain);
        if !same {
            let (ours, theirs) = (ours.0 + " " + &ours.1, hello.preset + " " + &hello.api_domain);
            tracing::error!(ours, theirs, "apid speaks other names: its mirror is refused");
            return Err(status::other_names(&ours, &theirs));
        }
        tracing::info!(apid = hello.instance, "mirror begins");
        let (demands, stream) = mpsc::channel(MOST_DEMANDS);
        let session = Session {
            feed: self.0.mirror.begin(),
            controllers: Controllers::new(Arc::clone(&self.0.names)),
            tokens: TokenControllers::new(
                Arc::clone(&self.0.names),
                self.0.issuer.clone(),
                self.0.token_controllers,
            ),
            used: BTreeSet::new(),
            parts: self.0.clone(),
            demands,
            said: None,
            told_metrics: None,
        };
        tokio::spawn(async move {
            let reason = match session.run(updates).await {
                End::Apid(reason) => reason,
                End::Feed(error, demands) => {
                    let reason = error.to_string();
                    let _ = demands.send(Err(status::feed(error))).await;
                    reason
                }
            };
            tracing::info!(apid = hello.instance, reason, "mirror ends");
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

struct Session {
    feed: Feed,
    controllers: Controllers,
    tokens: TokenControllers,
    /// Token Secrets used, and not noted yet.
    used: BTreeSet<String>,
    parts: Parts,
    demands: mpsc::Sender<Result<auth::MirrorDemand, Status>>,
    /// The readiness that apid knows.
    said: Option<auth::ReadyState>,
    /// The counters of reloads that apid knows.
    told_metrics: Option<String>,
}

enum End {
    /// apid left.
    Apid(String),
    /// The feed cannot go on, and apid is told.
    Feed(FeedError, mpsc::Sender<Result<auth::MirrorDemand, Status>>),
}

impl Session {
    async fn run(mut self, mut updates: Streaming<auth::MirrorUpdate>) -> End {
        match self.talk(&mut updates).await {
            Ok(reason) => End::Apid(reason),
            Err(error) => End::Feed(error, self.demands),
        }
    }

    /// Until apid leaves (its reason) or the feed cannot go on.
    async fn talk(&mut self, updates: &mut Streaming<auth::MirrorUpdate>) -> Result<String, FeedError> {
        let gone = || Ok("apid reads no more".to_owned());
        let mut news = self.parts.live.news();
        news.mark_changed();
        loop {
            if news.has_changed().unwrap_or(false) {
                news.mark_unchanged();
                let epoch = self.parts.live.now().epoch.clone();
                if !self.send(Demand::Epoch(epoch)).await || !self.send_reload_metrics().await {
                    return gone();
                }
            }
            if !self.send_ready().await {
                return gone();
            }
            let now = self.parts.clock.monotonic();
            let pause = self.controllers.wake_at().map_or(Duration::MAX, |at| at.saturating_sub(now));
            // They are asked only then.
            let tokens =
                self.controllers.ready().is_ok().then(|| self.tokens.wake_in(now, self.parts.clock.now()));
            let pause = tokens.flatten().map_or(pause, |other| other.min(pause));
            let mut later = news.clone();
            let update = tokio::select! {
                update = updates.message() => match update {
                    Ok(Some(update)) => update.update,
                    Ok(None) => return Ok("apid closed it".to_owned()),
                    Err(status) => return Ok(status.message().to_owned()),
                },
                () = tokio::time::sleep(pause) => None,
                () = self.parts.mirror.used() => None,
                _ = later.changed() => None,
                () = self.demands.closed() => return gone(),
            };
            let applied = match update {
                Some(Update::Put(put)) => self.feed.put(put)?,
                Some(Update::Delete(delete)) => self.feed.delete(delete)?,
                Some(Update::Synced(synced)) => self.feed.synced(synced.revision)?,
                Some(Update::Progress(progress)) => self.feed.progress(progress.revision)?,
                Some(Update::WriteResult(result)) => {
                    self.controllers.result(self.parts.clock.monotonic(), &result);
                    self.tokens.result(self.parts.clock.monotonic(), &result);
                    Applied::default()
                }
                // A second hello says nothing new; an empty update nothing at all.
                Some(Update::Hello(_)) | None => Applied::default(),
            };
            if applied.synced {
                let progress = self.parts.mirror.progress();
                let (roles, bindings) = self.feed.read(|contents| contents.policy.len())?;
                tracing::info!(revision = progress.revision, roles, bindings, "mirror is complete");
                self.controllers.synced();
                self.tokens.synced();
            }
            if applied.cluster_roles {
                self.controllers.cluster_role_changed();
            }
            if applied.identities {
                self.tokens.changed();
            }
            self.used.append(&mut self.parts.mirror.take_used());
            if !self.ask().await? {
                return gone();
            }
        }
    }

    /// Asks for what the controllers want written now. False: apid reads no more.
    async fn ask(&mut self) -> Result<bool, FeedError> {
        let (now, wall) = (self.parts.clock.monotonic(), self.parts.clock.now());
        let revision = self.parts.mirror.progress().revision;
        let mut batches = Vec::new();
        if self.controllers.ready().is_ok() {
            let (tokens, used) = (&mut self.tokens, &mut self.used);
            let compare =
                |contents: &Contents| tokens.compare(now, wall, revision, &contents.identities, used);
            if let Some(wanted) = self.feed.read(compare)? {
                let controller = wanted.controller;
                // What could not be made is none, and tried again.
                let writes = tokio::task::spawn_blocking(|| wanted.writes()).await.unwrap_or_default();
                batches.extend(self.tokens.ask(now, controller, writes));
            }
        }
        if self.controllers.may_want() {
            let controllers = &mut self.controllers;
            batches.extend(self.feed.read(|contents| controllers.next(now, revision, &contents.policy))?);
        }
        for batch in batches {
            tracing::info!(controller = batch.controller, writes = batch.writes.len(), "writes asked for");
            if !self.send(Demand::Write(batch)).await {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn send_reload_metrics(&mut self) -> bool {
        let text = self.parts.meters.reload_text();
        if self.told_metrics.as_ref() == Some(&text) {
            return true;
        }
        self.told_metrics = Some(text.clone());
        self.send(Demand::ReloadMetrics(auth::ReloadMetrics { text })).await
    }

    async fn send_ready(&mut self) -> bool {
        let state = match self.controllers.ready() {
            Ok(()) => auth::ReadyState { ready: true, reasons: self.parts.live.notes() },
            Err(reason) => auth::ReadyState { ready: false, reasons: vec![reason] },
        };
        if self.said.as_ref() == Some(&state) {
            return true;
        }
        if state.ready {
            tracing::info!("ready: policy is complete");
        }
        self.said = Some(state.clone());
        self.send(Demand::Ready(state)).await
    }

    async fn send(&self, demand: Demand) -> bool {
        self.demands.send(Ok(auth::MirrorDemand { demand: Some(demand) })).await.is_ok()
    }
}

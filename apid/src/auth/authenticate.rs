//! Authentication of requests: by authd, or from the identity cache.
//!
//! # Contract
//!
//! apid logs each rejection with the id that the client gets in `Audit-Id`; the client gets only 401. authd
//! logs the method and the check once for each request to authd.

use std::sync::Arc;

use apimachinery::attributes::Attributes;
use apimachinery::names::Names;
use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use authproto::auth::{AuthorizeNext, Identity, authenticate_response, decide_request, decide_response};
use http::HeaderMap;
use jiff::Timestamp;
use serving::metrics::Metrics;

use super::authority::Undecided;
use super::credentials::{Credentials, Digests};
use super::decision::Expiry;
use super::identity::{Brief, Known, Recalled, Tenure};
use super::meters::{AuthMeters, Login};
use super::presented::Presented;
use super::{Auth, Authenticated, undecided};

impl Auth {
    /// Registers the authentication metrics.
    pub fn count_in(&self, metrics: &Metrics) {
        // A second call changes nothing: a process has one registry.
        let _ = self.meters.set(AuthMeters::new(metrics));
    }

    /// Removes the credentials from the headers of a request.
    pub fn take_credentials(&self, headers: &mut HeaderMap, names: &Names) -> Presented {
        Presented::take(headers, &self.proxy_headers, names)
    }

    /// Authenticates a request.
    ///
    /// # Errors
    ///
    /// 401 for rejected credentials, 503 when authd does not respond.
    pub async fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Authenticated, Status> {
        self.authenticate_for(credentials, None).await
    }

    /// Authenticates a request and prefetches the decision on `wanted`, attributes without impersonation.
    ///
    /// On a cache miss the request to authd contains both. [`Auth::authorize`] then finds the decision in
    /// the cache.
    ///
    /// # Errors
    ///
    /// As [`Auth::authenticate`].
    pub async fn authenticate_for(
        &self,
        credentials: &Credentials<'_>,
        wanted: Option<&Arc<Attributes>>,
    ) -> Result<Authenticated, Status> {
        let begun = self.clock.monotonic();
        let identified = self.identify(credentials, wanted).await;
        if let Some(meters) = self.meters.get() {
            let login = match &identified {
                Ok(who) => {
                    meters.user(&who.user.name);
                    Login::Success
                }
                Err(status) if status.code == 401 => Login::Failure,
                Err(_) => Login::Error,
            };
            meters.login(login, self.clock.monotonic().saturating_sub(begun));
        }
        identified
    }

    pub(super) async fn identify(
        &self,
        credentials: &Credentials<'_>,
        wanted: Option<&Arc<Attributes>>,
    ) -> Result<Authenticated, Status> {
        let request_id = credentials.request_id;
        let digests = self.digester.digest(credentials);
        let recalled = if self.link.cache_serves() { self.recall(&digests) } else { None };
        if let Some(meters) = self.meters.get() {
            meters.looked_up(recalled.is_some());
        }
        match recalled {
            Some(Recalled::Caller(who, until)) => return Ok(who.vouched_until(credentials, until)),
            Some(Recalled::Refused(detail)) => {
                tracing::info!(request_id, %detail, "authentication failed (cached rejection)");
                return Err(Status::unauthorized());
            }
            None => {}
        }
        let asked = self.clock.monotonic();
        let reading = self.revisions.identity_reading();
        // The user determines which components matter, so the request demands all of them.
        let next = wanted.map(|attributes| (attributes, self.revisions.full_reading()));
        let mut question = credentials.ask(reading.at_least);
        question.next = next.as_ref().map(|(attributes, reading)| AuthorizeNext {
            attributes: Some((&***attributes).into()),
            at_least: Some(reading.at_least.clone()),
        });
        let ask = decide_request::Ask::Authenticate(question);
        let answer = self.authority.decide(request_id, ask).await?;
        let place = self.epochs.place(answer.epoch.as_ref());
        let (outcome, until, decision) = match answer.answer {
            Some(decide_response::Answer::Authenticate(response)) => {
                (response.outcome, Expiry::of_wire(asked, response.ttl_ms), response.next)
            }
            other => return Err(undecided(other).into()),
        };
        match outcome {
            Some(authenticate_response::Outcome::Identity(identity)) => {
                let who = self.establish(identity, &digests, reading.as_of, place, until, request_id)?;
                if let (Some((attributes, reading)), Some(decision)) = (next, decision) {
                    let epoch = place.map(|(epoch, _)| epoch);
                    let expiry = Expiry::of_wire(asked, decision.ttl_ms);
                    self.keep(&who.user, attributes, &decision, reading.as_of, epoch, expiry);
                }
                Ok(who.vouched_until(credentials, until))
            }
            Some(authenticate_response::Outcome::Rejected(rejected)) => {
                let detail: Arc<str> = rejected.detail.into();
                tracing::info!(request_id, %detail, "authentication failed");
                if let Some((epoch, _)) = place {
                    let brief = Brief { outcome: Err(detail), as_of: reading.as_of, epoch, until };
                    self.identities.note(&digests, brief);
                }
                Err(Status::unauthorized())
            }
            None => Err(Undecided::Malformed.into()),
        }
    }

    fn recall(&self, digests: &Digests<'_>) -> Option<Recalled> {
        let unchanged = |as_of| self.revisions.identity_unchanged(as_of);
        self.identities.find(digests, self.epochs.count(), &*self.clock, unchanged)
    }

    /// Caches the identity from authd, unless one of its dependencies may have changed meanwhile.
    ///
    /// `place`: the numbers of the epoch and era of the response.
    pub(super) fn establish(
        &self,
        identity: Identity,
        digests: &Digests<'_>,
        as_of: u64,
        place: Option<(u64, u64)>,
        until: Option<Expiry>,
        request_id: &str,
    ) -> Result<Authenticated, Status> {
        let Some(user) = identity.user else { return Err(Undecided::Malformed.into()) };
        let user: Arc<UserInfo> = Arc::new(user.into());
        let foundations = identity
            .rests_on
            .iter()
            .map(|o| self.revisions.foundations().lay(&o.group, &o.resource, &o.namespace, &o.name))
            .collect();
        let expires = match identity.expires_at_ms {
            0 => None,
            ms => Some(Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MIN)),
        };
        let not_before = match identity.not_before_ms {
            0 => None,
            ms => Some(Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MAX)),
        };
        // A response from an older configuration serves only this request: its era is 0, which no era has.
        let era = Some(place.map_or(0, |(_, era)| era));
        let tenure = Arc::new(Tenure { not_before, expires, foundations, era });
        if !tenure.lasts(self.clock.now()) {
            tracing::info!(
                request_id,
                "authentication failed: the credential has expired or is not valid yet"
            );
            return Err(Status::unauthorized());
        }
        if let Some((epoch, _)) = place {
            if identity.anonymous {
                let outcome = Ok((Arc::clone(&user), Arc::clone(&tenure)));
                self.identities.note(digests, Brief { outcome, as_of, epoch, until });
            } else if identity.rests_on.iter().all(|o| self.revisions.table().mirrors(&o.group, &o.resource))
                && (identity.rests_on.is_empty() || self.revisions.identity_unchanged(as_of))
            {
                // The dependencies are tracked and `identity` has not moved since the request, so no change
                // is missed.
                let known = Known { user: Arc::clone(&user), tenure: Arc::clone(&tenure), epoch, until };
                self.identities.accept(digests, known);
            }
        }
        Ok(Authenticated::caller(user, tenure))
    }
}

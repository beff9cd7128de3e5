//! Execution of an authorized request: slot, seat, memory, verb and response.
//!
//! # Contract
//!
//! [`Executor::enter`] waits until a request may run. Flow control decides with a seat. A heavy request waits for a slot
//! of its flow before it takes a seat, and for memory after it: a request that waits for a slot occupies no seat,
//! and a request that waits for a seat occupies no memory.
//!
//! A request gives its slot back while it waits for another process, such as a webhook or authd.
//!
//! [`Executor::execute`] runs the verb and prepares the response, on the I/O thread or, for a heavy request, on the work
//! pool. The request holds its place until its response is prepared. [`request_cost`] decides which requests are heavy
//! by their size, and [`SlowWrites`] which small writes are heavy by their measured cost. A small request with a costly
//! response prepares the response on the pool ([`ApiResponse::is_costly`]).

use std::io;
use std::pin::pin;
use std::sync::Arc;

use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use futures_util::FutureExt as _;
use serving::waits;
use tracing::Instrument as _;

use crate::body::ReceivedBody;
use crate::flow::Seat;
use crate::in_flight::{is_read, too_many_requests};
use crate::request_context::RequestContext;
use crate::response::respond::ApiResponse;
use crate::shares::Reservation;
use crate::slow_writes::SlowWrites;
use crate::work_pool::{Flow, QueueFull, ShutDown, Slot, THREADS_OF_FLOW, WorkPool};
use crate::{forwarded, request_cost, resources, routes};
use authclient::Authorized;

/// Memory of a small write that is heavy by its measured cost, in bytes.
const SLOW_WRITE_BYTES: usize = 4 << 20;

/// The place of a request among those that run; dropping the value frees it.
pub(super) struct Place {
    _seat: Seat,
    /// None for a request that runs on the I/O thread.
    heavy: Option<HeavyPlace>,
    /// Whether the request waited for its place, so that its decision may be outdated.
    pub(super) waited: bool,
}

impl Place {
    /// The place of a request that needs none.
    pub(super) const NONE: Self = Place { _seat: Seat::None, heavy: None, waited: false };

    /// Runs work of the request, which gives its slot back while it waits for another process.
    pub(super) fn hold<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        let slot = self.heavy.as_ref().map(|heavy| heavy.slot.held());
        async move {
            match slot {
                Some(slot) => waits::with_slot(slot, work).await,
                None => work.await,
            }
        }
    }
}

struct HeavyPlace {
    slot: Slot,
    _memory: Option<Reservation>,
}

/// Executes requests.
pub(super) struct Executor {
    pool: Arc<WorkPool>,
    slow_writes: SlowWrites,
}

impl Executor {
    /// Creates an executor. Must be called within the serving runtime.
    ///
    /// # Errors
    ///
    /// The system cannot start a worker thread.
    pub(super) fn start() -> io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // More threads than one flow occupies: the system shares the cores with flows that compute for seconds.
        let pool = Arc::new(WorkPool::start(cores + THREADS_OF_FLOW)?);
        Ok(Executor { pool, slow_writes: SlowWrites::default() })
    }

    /// The work pool.
    pub(super) fn pool(&self) -> &Arc<WorkPool> {
        &self.pool
    }

    /// Waits until a request of the user may run. `is_allowed`: whether the decision allows the request; a rejected
    /// request only needs a seat, as in kube-apiserver.
    ///
    /// # Errors
    ///
    /// 429: the priority level of the request rejects it, or the queue of its flow is full.
    pub(super) async fn enter(
        &self,
        context: &RequestContext,
        user: &Arc<UserInfo>,
        body: &[u8],
        is_allowed: bool,
    ) -> Result<Place, Box<ApiResponse>> {
        let heavy_bytes = if is_allowed { self.heavy_bytes(context, body) } else { None };
        match heavy_bytes {
            // Boxed, because most requests are small and do not need the memory of this future.
            Some(bytes) => Box::pin(self.enter_heavy(context, user, bytes)).await,
            None => {
                let seat = context.http_state.flow.enter(context, user, is_allowed).await?;
                Ok(Place { waited: seat.waited(), _seat: seat, heavy: None })
            }
        }
    }

    async fn enter_heavy(
        &self,
        context: &RequestContext,
        user: &Arc<UserInfo>,
        bytes: usize,
    ) -> Result<Place, Box<ApiResponse>> {
        let slot = self.pool.take_slot(context.flow()).await;
        let slot = slot.map_err(|full| Box::new(context.status_response(queue_full_status(full))))?;
        let seat = context.http_state.flow.enter(context, user, true).await?;
        let mut waited = slot.waited || seat.waited();
        let memory = match context.share.get() {
            Some(share) => {
                let mut reservation = pin!(share.reserve_work(bytes));
                match reservation.as_mut().now_or_never() {
                    Some(reserved) => reserved,
                    None => {
                        waited = true;
                        reservation.await
                    }
                }
            }
            None => None,
        };
        Ok(Place { _seat: seat, heavy: Some(HeavyPlace { slot, _memory: memory }), waited })
    }

    /// Estimates the memory of a heavy request in bytes; None for a small request.
    fn heavy_bytes(&self, context: &RequestContext, body: &[u8]) -> Option<usize> {
        if context.remote.is_some() {
            // The server of the API version does the work.
            return None;
        }
        request_cost::heavy_bytes(context, body).or_else(|| {
            let key = || context.key_of_writes();
            self.slow_writes.contains(key, &*context.api_state().clock).then_some(SLOW_WRITE_BYTES)
        })
    }

    /// Executes an authorized request and prepares its response.
    ///
    /// # Errors
    ///
    /// The errors of the verb; 429 if too many bytes of earlier responses are unread; 503 at the shutdown.
    pub(super) async fn execute(
        &self,
        context: &Arc<RequestContext>,
        authorized: Authorized,
        body: ReceivedBody,
        place: Place,
    ) -> Result<ApiResponse, Status> {
        let _active = context.begin_in_flight();
        let options = context.response_options;
        let place = match forwarded::has_unfinished_body(context) {
            true => {
                drop(place);
                Place::NONE
            }
            false => place,
        };
        if let Some(heavy) = &place.heavy {
            let (flow, context, slot) = (context.flow(), Arc::clone(context), heavy.slot.held());
            // Boxed where the future is created: each layer around the future would copy its memory once more.
            let work = Box::pin(async move {
                let _place = place;
                // Checked again: while the request waited, the unsent responses of its client may have grown.
                context.check_unsent_responses(true)?;
                let mut response = route(&context, &authorized, &body).await?;
                response.prepare(options);
                Ok(response)
            });
            return self.run(flow, waits::with_slot(slot, work)).await?;
        }
        let mut response = {
            // Pinned here: a move into `measure` would enlarge the future of each request.
            let response = pin!(route(context, &authorized, &body));
            if is_read(&context.info.attributes) {
                response.await?
            } else {
                let key = || context.key_of_writes();
                self.slow_writes.measure(key, &*context.api_state().clock, response).await?
            }
        };
        if response.is_costly(options) {
            let work = async move {
                let _place = place;
                response.prepare(options);
                response
            };
            return self.run(context.flow(), work).await;
        }
        response.prepare(options);
        Ok(response)
    }

    /// Runs work on the pool. The future is boxed, because it is too large to be part of the future of each request.
    async fn run<T: Send + 'static>(
        &self,
        flow: Flow,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Status> {
        let output = Box::pin(self.pool.run(flow, work.in_current_span())).await;
        output.map_err(shut_down_status)
    }
}

/// Returns the Status of a request for which the queue of its flow has no place.
pub(super) fn queue_full_status(full: QueueFull) -> Status {
    too_many_requests(&full.to_string())
}

/// Returns the Status of a request whose work did not run because of the shutdown.
pub(super) fn shut_down_status(shut_down: ShutDown) -> Status {
    Status::unavailable(shut_down.to_string(), 1)
}

/// Routes a resource request to its verb, and another request to the handler of its path.
///
/// # Errors
///
/// The errors of the verb.
pub(super) async fn route(
    context: &Arc<RequestContext>,
    authorized: &Authorized,
    body: &[u8],
) -> Result<ApiResponse, Status> {
    if let Some(reason) = context.info.malformed {
        return Err(Status::bad_request(format!("the request path is malformed: {reason}")));
    }
    if let Some(remote) = &context.remote {
        return Box::pin(forwarded::aggregated(context, remote, authorized)).await;
    }
    if context.info.attributes.resource_request {
        resources::handle(context, authorized, body).await
    } else {
        // The future of the router is boxed, so that the futures of resource requests do not contain it.
        Box::pin(routes::handle(context)).await
    }
}

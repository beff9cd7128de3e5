//! Execution of authorized requests: on the I/O thread, or on the work pool when the work is large.
//!
//! # Contract
//!
//! [`Executor::execute`] routes the request and does the work that precedes the response head. The request keeps its
//! seat until the verb has returned. [`request_cost`] decides where the verb runs, and [`SlowWrites`] sends writes of resources with
//! slow admission to the pool; [`ApiResponse::is_costly`] decides where a preparation step runs.

use std::io;
use std::pin::pin;
use std::sync::Arc;

use apimachinery::status::Status;
use tracing::Instrument as _;

use crate::body::ReceivedBody;
use crate::flow::Seat;
use crate::in_flight;
use crate::negotiate::BodySyntax;
use crate::request_context::RequestContext;
use crate::response::respond::{ApiResponse, ResponseOptions};
use crate::shares::UserShare;
use crate::slow_writes::SlowWrites;
use crate::work_pool::{PoolError, PoolLimits, WorkPool};
use crate::{request_cost, resources, routes};
use authclient::Authorized;

/// Memory cost of a preparation on the work pool, in bytes: it encodes the first bytes of a response.
const PREPARE_COST: usize = 1 << 20;

/// Memory cost of a small write with slow admission on the work pool, in bytes.
const SLOW_WRITE_COST: usize = 4 << 20;

/// Number of cheap preparation steps between two yields of an I/O thread: about one millisecond of work.
const CHEAP_STEPS: usize = 5;

/// An authorized request with its body.
pub(super) struct AuthorizedRequest {
    pub(super) authorized: Authorized,
    pub(super) body: ReceivedBody,
    /// The place of the request among those that run.
    pub(super) seat: Seat,
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
        // More threads than tasks of one user: the system shares the cores with tasks that compute for seconds.
        let threads = cores + PoolLimits::SERVER.tasks_per_user;
        let pool = Arc::new(WorkPool::start(threads, PoolLimits::SERVER)?);
        Ok(Executor { pool, slow_writes: SlowWrites::default() })
    }

    /// The work pool.
    pub(super) fn pool(&self) -> &Arc<WorkPool> {
        &self.pool
    }

    /// Executes a request. `share`: the limits and use of its user.
    ///
    /// # Errors
    ///
    /// 429 at a limit; the errors of the verb.
    pub(super) async fn execute(
        &self,
        context: &Arc<RequestContext>,
        request: AuthorizedRequest,
        share: &Arc<UserShare>,
    ) -> Result<ApiResponse, Status> {
        let syntax = BodySyntax::from_headers(&context.head.headers);
        let _active = context.begin_in_flight();
        let clock = &*context.api_state().clock;
        let written = context.resource.as_deref().filter(|_| !in_flight::is_read(&context.info.attributes));
        let is_slow = written.is_some_and(|resource| self.slow_writes.contains(resource, clock));
        let cost = request_cost::expected_cost(context, &request.body, syntax);
        match cost.or(is_slow.then_some(SLOW_WRITE_COST)) {
            None => {
                let AuthorizedRequest { authorized, body, seat } = request;
                let response = {
                    let _seat = seat;
                    // Pinned here: a move into `measure` would enlarge the future of each request.
                    let response = pin!(route(context, &authorized, &body));
                    match written {
                        Some(resource) => self.slow_writes.measure(resource, clock, response).await?,
                        None => response.await?,
                    }
                };
                let is_read = in_flight::is_read(&context.info.attributes);
                self.prepare(response, context.response_options, &share.user, is_read).await
            }
            Some(bytes) => {
                // The future of `run_on_pool` is boxed, because it is too large to be part of this future.
                Box::pin(self.run_on_pool(Arc::clone(context), request, bytes, share)).await
            }
        }
    }

    /// Executes a large request on the work pool. `bytes`: its estimated memory cost.
    async fn run_on_pool(
        &self,
        context: Arc<RequestContext>,
        request: AuthorizedRequest,
        bytes: usize,
        share: &Arc<UserShare>,
    ) -> Result<ApiResponse, Status> {
        let AuthorizedRequest { authorized, body, seat } = request;
        let work = async move {
            let _seat = seat;
            // Checked again: while the request waited in the queue, the unsent responses of its client may have
            // grown.
            context.check_unsent_responses(true)?;
            let mut response = route(&context, &authorized, &body).await?;
            while response.prepare(context.response_options) {}
            Ok(response)
        };
        let result = self.pool.run(&share.user, bytes, work.in_current_span()).await;
        result.unwrap_or_else(|error| Err(rejection_status(error)))
    }

    /// Does the work that precedes the response head, on the pool when it is costly. The request holds no
    /// seat any more.
    ///
    /// # Errors
    ///
    /// 429: the queue of the user is full. A write has happened already, so it ignores this limit.
    async fn prepare(
        &self,
        mut response: ApiResponse,
        response_options: ResponseOptions,
        user: &Arc<str>,
        is_read: bool,
    ) -> Result<ApiResponse, Status> {
        let mut steps = 0;
        while !response.is_costly(response_options) {
            if !response.prepare(response_options) {
                return Ok(response);
            }
            steps += 1;
            if steps % CHEAP_STEPS == 0 {
                tokio::task::yield_now().await;
            }
        }
        let work = async move {
            while response.prepare(response_options) {}
            response
        };
        let work = Box::pin(work.in_current_span());
        if is_read {
            return self.pool.run(user, PREPARE_COST, work).await.map_err(rejection_status);
        }
        self.pool.run_queued(user, PREPARE_COST, work).await.map_err(Status::internal)
    }
}

/// Returns the Status of a request that the work pool rejects.
pub(super) fn rejection_status(error: PoolError) -> Status {
    match error {
        PoolError::QueueFull(full) => in_flight::too_many_requests(&full.to_string()),
        PoolError::ShutDown(error) => Status::unavailable(error.to_string(), 1),
    }
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
    if context.info.attributes.resource_request {
        resources::handle(context, authorized, body).await
    } else {
        // The future of the router is boxed, so that the futures of resource requests do not contain it.
        Box::pin(routes::handle(context)).await
    }
}

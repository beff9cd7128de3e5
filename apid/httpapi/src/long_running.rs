//! Responses that outlast their handler: watches, logs and streams of containers.

use kinds::Kind;
use serving::body::Body;

use crate::request_context::RequestContext;
use crate::stream::OnDrop;

/// Counts a long-running request and its connection, and writes its audit event of the response head. The returned guard
/// ends them when the response ends.
pub(super) async fn begin(context: &RequestContext, served: &Kind, code: u16) -> OnDrop {
    let (info, query, head) = (&context.info, &context.query, &context.head);
    let active_request = context.http_state.request_metrics.begin_long_running(info, query, head, served);
    let stream_audit = context.begin_stream_audit(code).await;
    let connection = context.connection.slot.keep();
    let forwarded = context.forwarded.lock().take();
    OnDrop::new(move || {
        drop(connection);
        drop(forwarded);
        drop(active_request);
        drop(stream_audit);
    })
}

/// Maximum number of bytes of a backend's response that a connection buffers, in addition to the buffers below HTTP.
/// A small buffer does not delay a client that reads, because the backend has sent the next bytes already.
const MAX_UNWRITTEN: usize = 16 * 1024;

/// Limits the buffered bytes of a response whose client does not read.
pub(super) fn limit_unwritten(body: Body) -> Body {
    serving::send_limit::limit_unwritten(body, MAX_UNWRITTEN)
}

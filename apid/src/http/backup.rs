//! `/store/backup`: a backup of all objects at one revision, streamed while the server runs.
//!
//! # Contract
//!
//! A client needs the verb `get` on the path. The body is a backup file as `FORMAT.md` of the store specifies. It
//! ends with a record of the number of objects, so that a client detects a backup that broke off. A backup fails
//! when it takes longer than the retention of the history.
//!
//! # Invariants
//!
//! INVARIANT (one revision): all objects are read at the revision of the head.

use std::sync::Arc;

use apimachinery::status::Status;
use bytes::Bytes;
use futures_util::stream;
use http_body::Frame;
use http_body_util::StreamBody;
use serving::body::Body;
use storage::engine::fjall::Identity;
use storage::engine::fjall::offline::ArchiveEncoder;
use storage::{Revision, Store};

use super::request_context::RequestContext;
use super::respond::ApiResponse;

/// The path.
pub(super) const PATH: &str = "/store/backup";
/// Rows of one read, and of one frame: bounded, because rows of several MiB exist.
const PAGE: usize = 64;

/// The state of a backup between two frames.
struct Backup {
    store: Arc<dyn Store>,
    revision: Revision,
    /// The first key that is not sent yet.
    start: String,
    encoder: ArchiveEncoder,
    /// The bytes of the next frame.
    out: Vec<u8>,
}

/// Begins a backup.
///
/// A store that cannot be read breaks the response off.
///
/// # Errors
///
/// None: the type is that of all routes.
pub(super) fn handle(context: &RequestContext) -> Result<ApiResponse, Status> {
    let (names, store) = (&context.server_state.names, Arc::clone(&context.server_state.store));
    let identity = Identity { preset: names.preset().to_string(), api_domain: names.api_domain().to_owned() };
    let revision = store.revision();
    let mut out = Vec::new();
    let encoder = ArchiveEncoder::begin(&identity, revision.0, &mut out);
    tracing::info!(request_id = context.id, revision = revision.0, "backup started");
    let backup = Backup { store, revision, start: String::new(), encoder, out };
    let frames = stream::unfold(Some(backup), |backup| async move {
        let (frame, rest) = backup?.next().await?;
        Some((frame.map(Frame::data), rest))
    });
    Ok(ApiResponse::octets(Body::stream(StreamBody::new(frames))))
}

impl Backup {
    /// Returns the next frame and the state after it. An error breaks the connection off, as the head of the
    /// response has been sent.
    async fn next(mut self) -> Option<(Result<Bytes, std::io::Error>, Option<Backup>)> {
        let page = self.store.range("", &self.start, PAGE, Some(self.revision)).await;
        let page = match page {
            Ok(page) => page,
            Err(error) => {
                tracing::error!(%error, revision = self.revision.0, "backup failed; breaking the response off");
                return Some((Err(std::io::Error::other(error)), None));
            }
        };
        let mut out = std::mem::take(&mut self.out);
        for row in &page.rows {
            self.encoder.add(&row.key, row.revision.0, &row.value, &mut out);
        }
        match page.rows.last() {
            Some(last) if page.more => {
                self.start = format!("{}\0", last.key);
                Some((Ok(out.into()), Some(self)))
            }
            _ => {
                let (objects, bytes) = self.encoder.finish(&mut out);
                tracing::info!(objects, bytes, revision = self.revision.0, "backup complete");
                Some((Ok(out.into()), None))
            }
        }
    }
}

//! The messages of etcd's gRPC API that the engine uses, with the field numbers of etcd 3.5 and 3.6.
//!
//! Keys are text, because this engine writes text only; [`Key`] rejects other keys of the same cluster. Values are
//! vectors: a message must not keep the buffer of a whole page alive.
//!
//! # Reference
//!
//! The services `KV`, `Watch`, `Lease` and `Maintenance` of the package `etcdserverpb`.

use std::fmt;

/// The state of the cluster in each response.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Header {
    #[prost(uint64, tag = "1")]
    pub cluster: u64,
    #[prost(uint64, tag = "2")]
    pub member: u64,
    #[prost(int64, tag = "3")]
    pub revision: i64,
}

/// A stored key.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub(super) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub create_revision: i64,
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    #[prost(int64, tag = "4")]
    pub version: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub value: Vec<u8>,
    #[prost(int64, tag = "6")]
    pub lease: i64,
}

/// Shows the length of the value only: some values are secrets.
impl fmt::Debug for KeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyValue")
            .field("key", &String::from_utf8_lossy(&self.key))
            .field("mod_revision", &self.mod_revision)
            .field("value_bytes", &self.value.len())
            .finish_non_exhaustive()
    }
}

/// A read of one key, or of the keys from `key` up to `range_end`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    /// 0 means all keys.
    #[prost(int64, tag = "3")]
    pub limit: i64,
    /// 0 means the newest revision.
    #[prost(int64, tag = "4")]
    pub revision: i64,
    #[prost(bool, tag = "8")]
    pub keys_only: bool,
    #[prost(bool, tag = "9")]
    pub count_only: bool,
}

impl RangeRequest {
    /// A read of one key at the newest revision.
    pub(super) fn one(key: Vec<u8>) -> Self {
        RangeRequest { key, ..RangeRequest::default() }
    }
}

/// The keys of a range.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
    #[prost(bool, tag = "3")]
    pub more: bool,
    #[prost(int64, tag = "4")]
    pub count: i64,
}

/// A write of one key.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub(super) struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "bytes", tag = "2")]
    pub value: bytes::Bytes,
    #[prost(int64, tag = "3")]
    pub lease: i64,
}

impl fmt::Debug for PutRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PutRequest")
            .field("key", &String::from_utf8_lossy(&self.key))
            .field("value_bytes", &self.value.len())
            .finish_non_exhaustive()
    }
}

/// The result of a write.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct PutResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
}

/// A deletion of one key.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct DeleteRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
}

/// An operation of a transaction.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RequestOp {
    #[prost(oneof = "Request", tags = "1, 2, 3")]
    pub request: Option<Request>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Request {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    Delete(DeleteRequest),
}

impl From<Request> for RequestOp {
    fn from(request: Request) -> Self {
        RequestOp { request: Some(request) }
    }
}

/// The result of an operation of a transaction. Results other than reads are skipped.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ResponseOp {
    #[prost(message, optional, tag = "1")]
    pub range: Option<RangeResponse>,
}

/// The number of the target "version of the key" in a comparison.
pub(super) const VERSION: i32 = 0;
/// The number of the target "revision of the last change" in a comparison.
pub(super) const MOD_REVISION: i32 = 2;

/// A precondition of a transaction: a number of a key equals another.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Compare {
    /// [`VERSION`] or [`MOD_REVISION`].
    #[prost(int32, tag = "2")]
    pub target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub key: Vec<u8>,
    #[prost(oneof = "Expected", tags = "4, 6")]
    pub expected: Option<Expected>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Expected {
    #[prost(int64, tag = "4")]
    Version(i64),
    #[prost(int64, tag = "6")]
    ModRevision(i64),
}

/// A transaction.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub failure: Vec<RequestOp>,
}

/// The result of a transaction.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub responses: Vec<ResponseOp>,
}

impl TxnResponse {
    /// The first key that a read of the transaction found.
    pub(super) fn into_found(self) -> Option<KeyValue> {
        let ranges = self.responses.into_iter().filter_map(|response| response.range);
        ranges.flat_map(|range| range.kvs).next()
    }
}

/// Removes the history before a revision.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CompactionRequest {
    #[prost(int64, tag = "1")]
    pub revision: i64,
}

/// The result of a compaction.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CompactionResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
}

/// A message to a watch stream.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct WatchRequest {
    #[prost(oneof = "WatchRequestKind", tags = "1, 3")]
    pub kind: Option<WatchRequestKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum WatchRequestKind {
    #[prost(message, tag = "1")]
    Create(WatchCreateRequest),
    #[prost(message, tag = "3")]
    Progress(WatchProgressRequest),
}

/// Begins a watch.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct WatchCreateRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub start_revision: i64,
    #[prost(bool, tag = "4")]
    pub progress_notify: bool,
    #[prost(bool, tag = "6")]
    pub prev_kv: bool,
    #[prost(bool, tag = "8")]
    pub fragment: bool,
}

/// Asks for the revision up to which all events were sent.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct WatchProgressRequest {}

/// A message of a watch stream.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct WatchResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    #[prost(bool, tag = "3")]
    pub created: bool,
    #[prost(bool, tag = "4")]
    pub canceled: bool,
    /// The compacted revision if the watch began before it; else 0.
    #[prost(int64, tag = "5")]
    pub compact_revision: i64,
    #[prost(string, tag = "6")]
    pub cancel_reason: String,
    /// Whether the next message continues the events of this one.
    #[prost(bool, tag = "7")]
    pub fragment: bool,
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<Event>,
}

/// The number of the event type of a deletion.
pub(super) const DELETED: i32 = 1;

/// A change of a key.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Event {
    /// [`DELETED`], or 0 for a write.
    #[prost(int32, tag = "1")]
    pub kind: i32,
    #[prost(message, optional, tag = "2")]
    pub kv: Option<KeyValue>,
    #[prost(message, optional, tag = "3")]
    pub prev_kv: Option<KeyValue>,
}

/// Makes a lease.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct LeaseGrantRequest {
    /// Lifetime in seconds.
    #[prost(int64, tag = "1")]
    pub ttl: i64,
}

/// A new lease.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct LeaseGrantResponse {
    #[prost(int64, tag = "2")]
    pub id: i64,
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

/// Asks a member for its state.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StatusRequest {}

/// The state of a member.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    #[prost(string, tag = "2")]
    pub version: String,
    #[prost(int64, tag = "3")]
    pub db_size: i64,
    #[prost(string, repeated, tag = "8")]
    pub errors: Vec<String>,
    #[prost(int64, tag = "9")]
    pub db_size_in_use: i64,
}

/// Asks for the alarms of all members.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct AlarmRequest {}

/// The alarms of all members.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct AlarmResponse {
    #[prost(message, repeated, tag = "2")]
    pub alarms: Vec<Alarm>,
}

/// The number of the alarm of a member without space.
pub(super) const NO_SPACE: i32 = 1;
/// The number of the alarm of a member with damaged data.
pub(super) const DAMAGED: i32 = 2;

/// An alarm of a member.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Alarm {
    #[prost(uint64, tag = "1")]
    pub member: u64,
    /// [`NO_SPACE`] or [`DAMAGED`].
    #[prost(int32, tag = "2")]
    pub kind: i32,
}

/// The end of the range of all keys that begin with a prefix.
pub(super) fn range_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // The range of all keys.
    vec![0]
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[test]
    fn range_end_follows_all_keys_of_the_prefix() {
        assert_eq!(range_end(b"/registry/"), b"/registry0");
        assert_eq!(range_end(&[b'a', 0xff, 0xff]), b"b");
        assert_eq!(range_end(&[0xff]), [0]);
        assert_eq!(range_end(b""), [0]);
    }

    /// The bytes of kube-apiserver for the same request.
    #[test]
    fn transaction_of_a_deletion_has_the_bytes_of_kube_apiserver() {
        let key = b"/registry/masterleases/192.0.2.10".to_vec();
        let read = RangeRequest::one(key.clone());
        let request = TxnRequest {
            compare: vec![Compare {
                target: MOD_REVISION,
                key: key.clone(),
                expected: Some(Expected::ModRevision(89)),
            }],
            success: vec![Request::Delete(DeleteRequest { key }).into()],
            failure: vec![Request::Range(read).into()],
        };
        let mut expected = vec![0x0a, 0x27, 0x10, 2, 0x1a, 0x21];
        expected.extend_from_slice(b"/registry/masterleases/192.0.2.10");
        expected.extend_from_slice(&[0x30, 89, 0x12, 0x25, 0x1a, 0x23, 0x0a, 0x21]);
        expected.extend_from_slice(b"/registry/masterleases/192.0.2.10");
        expected.extend_from_slice(&[0x1a, 0x25, 0x0a, 0x23, 0x0a, 0x21]);
        expected.extend_from_slice(b"/registry/masterleases/192.0.2.10");
        assert_eq!(request.encode_to_vec(), expected);
    }

    #[test]
    fn debug_output_hides_values() {
        let kv = KeyValue { key: b"k".to_vec(), value: b"secret".to_vec(), ..KeyValue::default() };
        let put = PutRequest { key: b"k".to_vec(), value: "secret".into(), lease: 0 };
        assert!(!format!("{kv:?} {put:?}").contains("secret"));
    }
}

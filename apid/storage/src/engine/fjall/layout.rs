//! Encoding of keys and rows on disk, as `FORMAT.md` specifies. Pure functions from bytes to bytes.
//!
//! # Contract
//!
//! Encoded keys sort like the keys of the store; within one key the newest revision comes first. Every row
//! carries its revision and a CRC over its key and its content. A changed, truncated or misplaced row is
//! [`Error::Corrupt`], and is never returned as data.

use std::sync::Arc;

use bytes::Bytes;

use crate::{Error, Result, Revision};

/// The version of this layout. A store with a higher version comes from a newer release and is rejected.
pub(super) const FORMAT: u32 = 1;

/// Name of the `meta` row that holds [`FORMAT`].
pub(super) const META_FORMAT: &[u8] = b"format";
/// Name of the `meta` row that holds the identity.
pub(super) const META_IDENTITY: &[u8] = b"identity";
/// Name of the `meta` row whose revision field is the compacted revision.
pub(super) const META_COMPACTED: &[u8] = b"compacted";
/// Name of the `meta` row whose revision field is the trimmed revision: superseded versions up to it are
/// removed.
pub(super) const META_TRIMMED: &[u8] = b"trimmed";
/// Prefix of the names of `meta` rows that record a [`Jump`].
pub(super) const META_JUMP: &[u8] = b"jump/";

/// The kind of a row: its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    /// `versions`: an object.
    Object = 1,
    /// `versions`: a tombstone, the key was deleted at this revision.
    Deleted = 2,
    /// `log`: the key was created.
    Created = 3,
    /// `log`: the key was updated.
    Updated = 4,
    /// `log`: the key was deleted.
    Removed = 5,
    /// `meta`: a property of the store.
    Meta = 6,
}

impl Tag {
    fn from_byte(byte: u8) -> Option<Tag> {
        [Tag::Object, Tag::Deleted, Tag::Created, Tag::Updated, Tag::Removed, Tag::Meta]
            .into_iter()
            .find(|tag| *tag as u8 == byte)
    }
}

/// The tag of a row; the checksum of the row is not checked.
pub(super) fn tag(row: &[u8]) -> Option<Tag> {
    row.first().copied().and_then(Tag::from_byte)
}

/// Bytes of the tag and the revision.
const ROW_HEADER_BYTES: usize = 1 + 8;
const CRC_BYTES: usize = 4;

/// Encodes a row: tag, revision, body, and a CRC over the key and these fields.
fn encode_row(key: &[u8], tag: Tag, revision: u64, body: &[&[u8]]) -> Vec<u8> {
    let length = ROW_HEADER_BYTES + body.iter().map(|part| part.len()).sum::<usize>() + CRC_BYTES;
    let mut row = Vec::with_capacity(length);
    row.push(tag as u8);
    row.extend_from_slice(&revision.to_be_bytes());
    for part in body {
        row.extend_from_slice(part);
    }
    let crc = crc32c::crc32c_append(crc32c::crc32c(key), &row);
    row.extend_from_slice(&crc.to_be_bytes());
    row
}

/// A row whose checksum is correct.
struct DecodedRow<'a> {
    tag: Tag,
    revision: u64,
    body: &'a [u8],
}

/// Decodes a row and verifies its checksum. `keyspace` appears only in error messages.
fn decode_row<'a>(keyspace: &str, key: &[u8], row: &'a [u8]) -> Result<DecodedRow<'a>> {
    let corrupt_error =
        |what: &str| Error::Corrupt(format!("a row of `{keyspace}` {what} (key {})", key.escape_ascii()));
    let truncated_error = || corrupt_error("is truncated");
    let (content, crc) = row.split_last_chunk::<CRC_BYTES>().ok_or_else(truncated_error)?;
    if crc32c::crc32c_append(crc32c::crc32c(key), content) != u32::from_be_bytes(*crc) {
        return Err(corrupt_error("fails its checksum"));
    }
    let (tag, rest) = content.split_first().ok_or_else(truncated_error)?;
    let (revision, body) = rest.split_first_chunk::<8>().ok_or_else(truncated_error)?;
    let tag = Tag::from_byte(*tag).ok_or_else(|| corrupt_error("has an unknown tag"))?;
    Ok(DecodedRow { tag, revision: u64::from_be_bytes(*revision), body })
}

/// Escapes a key: NUL becomes `00 01`. Escaped keys keep their order. No escaped key with the terminator
/// `00 00` (see [`head`]) is a prefix of another one.
fn escape(key: &str, output: &mut Vec<u8>) {
    for byte in key.bytes() {
        output.push(byte);
        if byte == 0 {
            output.push(1);
        }
    }
}

/// The prefix that all versions of one object share in `versions`: the escaped key and `00 00`.
pub(super) fn head(key: &str) -> Vec<u8> {
    let mut head = Vec::with_capacity(key.len() + 2 + 8);
    escape(key, &mut head);
    head.extend_from_slice(&[0, 0]);
    head
}

/// Builds a `versions` key from its [`head`]. The bits of the revision are inverted, so the newest version
/// comes first.
pub(super) fn version_key_of(head: &[u8], revision: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(head.len() + 8);
    key.extend_from_slice(head);
    key.extend_from_slice(&(!revision).to_be_bytes());
    key
}

/// Builds a `versions` key.
pub(super) fn version_key(key: &str, revision: u64) -> Vec<u8> {
    let mut bytes = head(key);
    bytes.extend_from_slice(&(!revision).to_be_bytes());
    bytes
}

/// Splits a `versions` key into the head and the revision.
pub(super) fn split_version_key(key: &[u8]) -> Result<(&[u8], u64)> {
    let (head, inverted) = key.split_last_chunk::<8>().ok_or_else(|| {
        Error::Corrupt(format!("a key of `versions` is truncated ({})", key.escape_ascii()))
    })?;
    Ok((head, !u64::from_be_bytes(*inverted)))
}

/// Decodes the object key from a head.
pub(super) fn key_of_head(head: &[u8]) -> Result<Arc<str>> {
    let corrupt_error =
        || Error::Corrupt(format!("a key of `versions` is malformed ({})", head.escape_ascii()));
    let escaped = head.strip_suffix(&[0, 0]).ok_or_else(corrupt_error)?;
    let text = std::str::from_utf8(escaped).map_err(|_| corrupt_error())?;
    Ok(if text.contains('\0') { text.replace("\0\u{1}", "\0").into() } else { text.into() })
}

/// The bounds in `versions` of all keys that begin with `prefix` and are not before `start`.
///
/// The first bound is inclusive, the second exclusive; None means no upper bound.
pub(super) fn bounds(prefix: &str, start: &str) -> (Vec<u8>, Option<Vec<u8>>) {
    let (mut low, mut high) = (Vec::new(), Vec::new());
    escape(prefix.max(start), &mut low);
    escape(prefix, &mut high);
    while let Some(last) = high.pop() {
        if let Some(next) = last.checked_add(1) {
            high.push(next);
            return (low, Some(high));
        }
    }
    (low, None)
}

/// A row of `versions`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) revision: u64,
    /// None is a tombstone.
    pub(super) value: Option<Bytes>,
}

/// Encodes a row of `versions`.
pub(super) fn encode_version(key: &[u8], revision: u64, value: Option<&[u8]>) -> Vec<u8> {
    match value {
        Some(value) => encode_row(key, Tag::Object, revision, &[value]),
        None => encode_row(key, Tag::Deleted, revision, &[]),
    }
}

/// Decodes and checks a row of `versions`.
pub(super) fn decode_version(key: &[u8], row: &[u8]) -> Result<Version> {
    let decoded = decode_row("versions", key, row)?;
    let (_, expected) = split_version_key(key)?;
    let misplaced_error =
        || Error::Corrupt(format!("a row of `versions` does not belong to its key ({})", key.escape_ascii()));
    if decoded.revision != expected {
        return Err(misplaced_error());
    }
    match decoded.tag {
        Tag::Object => Ok(Version { revision: expected, value: Some(Bytes::copy_from_slice(decoded.body)) }),
        Tag::Deleted => Ok(Version { revision: expected, value: None }),
        _ => Err(misplaced_error()),
    }
}

/// The change of one revision: a row of `log`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LogEntry {
    pub(super) revision: u64,
    pub(super) key: Arc<str>,
    /// [`Tag::Created`], [`Tag::Updated`] or [`Tag::Removed`].
    pub(super) event: Tag,
    /// The revision of the previous row of the key; 0 for a create.
    pub(super) previous: u64,
}

/// Length of a `log` key in bytes.
pub(super) const LOG_KEY_BYTES: usize = 8;

/// Encodes a `log` key.
pub(super) fn log_key(revision: u64) -> [u8; LOG_KEY_BYTES] {
    revision.to_be_bytes()
}

/// Decodes the revision of a `log` key.
pub(super) fn log_revision(key: &[u8]) -> Result<u64> {
    let bytes = <[u8; 8]>::try_from(key)
        .map_err(|_| Error::Corrupt(format!("a key of `log` is not a revision ({})", key.escape_ascii())))?;
    Ok(u64::from_be_bytes(bytes))
}

/// Encodes a row of `log`.
pub(super) fn encode_entry(entry: &LogEntry) -> Vec<u8> {
    let key = log_key(entry.revision);
    encode_row(&key, entry.event, entry.revision, &[&entry.previous.to_be_bytes(), entry.key.as_bytes()])
}

/// Decodes and checks a row of `log`.
pub(super) fn decode_entry(key: &[u8], row: &[u8]) -> Result<LogEntry> {
    let decoded = decode_row("log", key, row)?;
    let corrupt_error =
        || Error::Corrupt(format!("a row of `log` is malformed (key {})", key.escape_ascii()));
    let (previous, text) = decoded.body.split_first_chunk::<8>().ok_or_else(corrupt_error)?;
    let event = match decoded.tag {
        event @ (Tag::Created | Tag::Updated | Tag::Removed) => event,
        _ => return Err(corrupt_error()),
    };
    if log_revision(key)? != decoded.revision {
        return Err(corrupt_error());
    }
    let text = std::str::from_utf8(text).map_err(|_| corrupt_error())?;
    Ok(LogEntry {
        revision: decoded.revision,
        key: text.into(),
        event,
        previous: u64::from_be_bytes(*previous),
    })
}

/// Encodes a row of `meta`. `revision` is 0 if the row has none.
pub(super) fn encode_meta_row(name: &[u8], revision: u64, body: &[u8]) -> Vec<u8> {
    encode_row(name, Tag::Meta, revision, &[body])
}

/// Decodes and checks a row of `meta`.
pub(super) fn decode_meta_row<'a>(name: &[u8], row: &'a [u8]) -> Result<(u64, &'a [u8])> {
    let decoded = decode_row("meta", name, row)?;
    match decoded.tag {
        Tag::Meta => Ok((decoded.revision, decoded.body)),
        _ => Err(Error::Corrupt(format!(
            "a row of `meta` does not belong to its key ({})",
            name.escape_ascii()
        ))),
    }
}

/// A gap in the revisions after a restore or repair: the last revision before the gap, and the first revision
/// after the gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Jump {
    pub(super) from: Revision,
    pub(super) to: Revision,
}

/// Encodes a jump as a row of `meta`: name and row.
pub(super) fn encode_jump(jump: Jump) -> (Vec<u8>, Vec<u8>) {
    let name = [META_JUMP, &jump.to.0.to_be_bytes()].concat();
    let row = encode_meta_row(&name, jump.to.0, &jump.from.0.to_be_bytes());
    (name, row)
}

/// Decodes a jump from a row of `meta`.
pub(super) fn decode_jump(name: &[u8], row: &[u8]) -> Result<Jump> {
    let (to, body) = decode_meta_row(name, row)?;
    let from =
        <[u8; 8]>::try_from(body).map_err(|_| Error::Corrupt("a jump in `meta` is malformed".to_owned()))?;
    Ok(Jump { from: Revision(u64::from_be_bytes(from)), to: Revision(to) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_keys_sort_by_key_then_newest_revision() {
        let sorted = [
            "", "\0", "\0\0", "\0a", "\u{1}", "a", "a\0", "a\0/x", "a-b/x", "a/x", "a/x/y", "a/xx", "b", "é",
        ];
        let mut keys = Vec::new();
        for key in sorted {
            for revision in [u64::MAX, 300, 2, 1] {
                keys.push((version_key(key, revision), key, revision));
            }
        }
        assert!(keys.is_sorted_by(|a, b| a.0 < b.0), "the order of bytes is the order of keys");
        for (bytes, key, revision) in keys {
            let (head, found) = split_version_key(&bytes).unwrap();
            assert_eq!((&*key_of_head(head).unwrap(), found), (key, revision));
        }
    }

    #[test]
    fn prefix_bounds_contain_exactly_the_prefix_keys() {
        let keys = ["", "\0", "a", "a\0", "a-b/x", "a/", "a/x", "a/x\u{10ffff}", "a0", "b"];
        for prefix in ["", "\0", "a", "a/", "a/x", "a\0", "zz", "\u{10ffff}"] {
            for start in ["", "a", "a/x", "b"] {
                let (low, high) = bounds(prefix, start);
                for key in keys {
                    let bytes = version_key(key, 7);
                    let inside = bytes >= low && high.as_ref().is_none_or(|high| bytes < *high);
                    let expected = key.starts_with(prefix) && key >= start;
                    assert_eq!(inside, expected, "key {key:?}, prefix {prefix:?}, start {start:?}");
                }
            }
        }
    }

    #[test]
    fn flipped_bit_in_row_fails_checksum() {
        let key = version_key("a/x", 9);
        let row = encode_version(&key, 9, Some(b"value"));
        assert_eq!(
            decode_version(&key, &row).unwrap(),
            Version { revision: 9, value: Some(Bytes::from_static(b"value")) }
        );
        let entry = LogEntry { revision: 9, key: "a/x".into(), event: Tag::Updated, previous: 4 };
        let log = encode_entry(&entry);
        assert_eq!(decode_entry(&log_key(9), &log).unwrap(), entry);
        for (row, decode) in [
            (row, Box::new(|row: &[u8]| decode_version(&key, row).is_err()) as Box<dyn Fn(&[u8]) -> bool>),
            (log, Box::new(|row: &[u8]| decode_entry(&log_key(9), row).is_err())),
        ] {
            for bit in 0..row.len() * 8 {
                let mut flipped = row.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(decode(&flipped), "bit {bit}");
            }
            for length in 0..row.len() {
                assert!(decode(&row[..length]), "cut to {length}");
            }
        }
    }

    #[test]
    fn row_under_wrong_key_is_rejected() {
        let row = encode_version(&version_key("a", 9), 9, Some(b"value"));
        assert!(decode_version(&version_key("b", 9), &row).is_err());
        assert!(decode_version(&version_key("a", 8), &row).is_err());
    }
}

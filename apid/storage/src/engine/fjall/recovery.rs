//! Recovery at start-up: compares the data on disk with the high-water mark, before the store serves
//! requests.
//!
//! # Contract
//!
//! [`compare`] rejects a store as `Corrupt` in four cases. The error message contains the
//! missing revisions, if any.
//! - The newest revision or the compacted revision is below the high-water mark.
//! - A revision that is neither flushed nor compacted is missing in `log`.
//! - The object of such a revision is missing in `versions`.
//! - A row that the comparison reads is corrupt.
//!
//! A store that ends above the mark holds writes that were synced but not acknowledged; these writes stay.
//!
//! # Invariants
//!
//! INVARIANT (no silent loss): after a damaged batch in a journal, fjall drops all following batches without
//! an error. Only unflushed revisions can be lost in this way. [`compare`] scans the unflushed revisions
//! after the compacted revision. It checks the rows of both keyspaces, because these are flushed at different
//! times. [`super::files`] checks the journals for the compacted revisions.

use fjall::{Keyspace, PersistMode};

use super::database::{Tables, map_fjall_error};
use super::high_water_mark::MarkValues;
use super::layout::{self, FORMAT, META_COMPACTED, META_FORMAT, META_IDENTITY, META_TRIMMED};
use super::{Identity, OpenError, reader};
use crate::Error;

/// The revisions of the store at start-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RecoveredRevisions {
    pub(super) revision: u64,
    pub(super) compacted: u64,
    pub(super) trimmed: u64,
}

/// Writes the format and the identity of a new store.
pub(super) fn initialize(tables: &Tables, identity: &Identity) -> Result<(), Error> {
    let mut batch = tables.begin_batch(PersistMode::SyncData)?;
    let format = layout::encode_meta_row(META_FORMAT, 0, &FORMAT.to_be_bytes());
    batch.insert(&tables.meta, META_FORMAT, format);
    let text = format!("{}\n{}", identity.preset, identity.api_domain);
    batch.insert(&tables.meta, META_IDENTITY, layout::encode_meta_row(META_IDENTITY, 0, text.as_bytes()));
    batch.commit().map_err(|error| map_fjall_error(&error))
}

/// Whether the identity was written ([`initialize`]).
pub(super) fn is_initialized(tables: &Tables) -> Result<bool, Error> {
    Ok(meta_row(&tables.meta, META_IDENTITY)?.is_some())
}

/// Rejects a store of a newer layout or with another identity.
pub(super) fn check_identity(tables: &Tables, requested: &Identity) -> Result<(), OpenError> {
    let missing_error = |content: &str| Error::Corrupt(format!("`meta` does not contain {content}"));
    let (_, format) =
        meta_row(&tables.meta, META_FORMAT)?.ok_or_else(|| missing_error("the version of the layout"))?;
    let format =
        <[u8; 4]>::try_from(format.as_slice()).map_err(|_| missing_error("the version of the layout"))?;
    let format = u32::from_be_bytes(format);
    if format > FORMAT {
        return Err(OpenError::Format { found: format, known: FORMAT });
    }
    let stored = identity(tables)?;
    if stored != *requested {
        return Err(OpenError::Identity { stored, requested: requested.clone() });
    }
    Ok(())
}

/// Reads the identity of the store.
pub(super) fn identity(tables: &Tables) -> Result<Identity, Error> {
    let corrupt_error = || Error::Corrupt("`meta` does not contain the identity of the store".to_owned());
    let (_, identity) = meta_row(&tables.meta, META_IDENTITY)?.ok_or_else(corrupt_error)?;
    let identity = String::from_utf8(identity).map_err(|_| corrupt_error())?;
    let (preset, api_domain) = identity.split_once('\n').ok_or_else(corrupt_error)?;
    Ok(Identity { preset: preset.to_owned(), api_domain: api_domain.to_owned() })
}

/// Compares the data on disk with the high-water mark, and returns the revisions of the store.
pub(super) fn compare(tables: &Tables, mark: MarkValues) -> Result<RecoveredRevisions, Error> {
    let compacted = meta_row(&tables.meta, META_COMPACTED)?.map_or(0, |(revision, _)| revision);
    if compacted < mark.compacted {
        return Err(Error::Corrupt(format!(
            "history was compacted up to revision {}, but the store records only revision {compacted}",
            mark.compacted
        )));
    }
    let trimmed = meta_row(&tables.meta, META_TRIMMED)?.map_or(0, |(revision, _)| revision);
    let revision = match tables.log.last_key_value() {
        None => 0,
        Some(guard) => {
            let (key, row) = guard.into_inner().map_err(|error| map_fjall_error(&error))?;
            layout::decode_entry(&key, &row)?.revision
        }
    };
    if revision < mark.revision {
        return Err(lost_revisions_error(revision + 1, mark.revision, mark));
    }
    let snapshot = tables.database.snapshot();
    // Compacted revisions are not scanned, because their versions may already be trimmed.
    let mut last = mark.flushed.log.min(mark.flushed.versions).max(compacted);
    for entry in reader::entries(&snapshot, &tables.log, last, revision) {
        let entry = entry?;
        if !tables.follows(last, entry.revision) {
            return Err(lost_revisions_error(last + 1, entry.revision - 1, mark));
        }
        last = entry.revision;
        if entry.revision <= mark.flushed.versions {
            continue;
        }
        let key = layout::version_key(&entry.key, entry.revision);
        if !tables.versions.contains_key(&key).map_err(|error| map_fjall_error(&error))? {
            return Err(Error::Corrupt(format!(
                "the log names revision {}, whose object is missing",
                entry.revision
            )));
        }
    }
    Ok(RecoveredRevisions { revision, compacted, trimmed })
}

/// The error for revisions at or below the high-water mark that are missing in the store.
fn lost_revisions_error(first: u64, last: u64, mark: MarkValues) -> Error {
    Error::Corrupt(format!(
        "revisions {first} to {last} are missing; writes up to revision {} were acknowledged",
        mark.revision
    ))
}

/// Reads a row of `meta`: its revision and its bytes.
fn meta_row(meta: &Keyspace, name: &[u8]) -> Result<Option<(u64, Vec<u8>)>, Error> {
    let Some(row) = meta.get(name).map_err(|error| map_fjall_error(&error))? else { return Ok(None) };
    let (revision, body) = layout::decode_meta_row(name, &row)?;
    Ok(Some((revision, body.to_vec())))
}

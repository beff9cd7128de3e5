//! Start-up: what is on disk is compared with what was acknowledged, before anything is served.
//!
//! # Contract
//!
//! [`compare`] refuses a store that ends below the high-water mark, that misses a revision after the last flush, or whose
//! rows fail their checks, and says which revisions are missing. A store that ends above the mark holds writes that were
//! synced and not answered: they stay.
//!
//! # Invariants
//!
//! INVARIANT (no silent loss): after a damaged place in a journal fjall drops all that follows, without an error. Only
//! what was not flushed to tables can be lost so: that is the stretch that [`compare`] walks, and it looks for both rows
//! of every revision, because the two keyspaces are flushed at different times.

use fjall::{Keyspace, PersistMode};

use super::database::{Tables, translate};
use super::layout::{self, FORMAT, META_COMPACTED, META_FORMAT, META_IDENTITY, META_TRIMMED};
use super::mark::Values;
use super::{Identity, OpenError, reader};
use crate::Error;

/// Where history stands at start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) revision: u64,
    pub(super) compacted: u64,
    pub(super) trimmed: u64,
}

/// Writes who the store belongs to, once.
pub(super) fn found(tables: &Tables, identity: &Identity) -> Result<(), Error> {
    let mut batch = tables.database.batch().durability(Some(PersistMode::SyncData));
    let format = layout::encode_fact(META_FORMAT, 0, &FORMAT.to_be_bytes());
    batch.insert(&tables.meta, META_FORMAT, format);
    let text = format!("{}\n{}", identity.preset, identity.api_domain);
    batch.insert(&tables.meta, META_IDENTITY, layout::encode_fact(META_IDENTITY, 0, text.as_bytes()));
    batch.commit().map_err(|error| translate(&error))
}

/// Whether the store was ever [`found`]ed.
pub(super) fn is_founded(tables: &Tables) -> Result<bool, Error> {
    Ok(fact(&tables.meta, META_IDENTITY)?.is_some())
}

/// Refuses a store of a newer layout or of somebody else.
pub(super) fn check_identity(tables: &Tables, asked: &Identity) -> Result<(), OpenError> {
    let corrupt = |what: &str| Error::Corrupt(format!("`meta` does not say {what}"));
    let (_, format) = fact(&tables.meta, META_FORMAT)?.ok_or_else(|| corrupt("the version of the layout"))?;
    let format = <[u8; 4]>::try_from(format.as_slice()).map_err(|_| corrupt("the version of the layout"))?;
    let format = u32::from_be_bytes(format);
    if format > FORMAT {
        return Err(OpenError::Format { found: format, known: FORMAT });
    }
    let stored = identity(tables)?;
    if stored != *asked {
        return Err(OpenError::Identity { stored, asked: asked.clone() });
    }
    Ok(())
}

/// Whose store it is.
pub(super) fn identity(tables: &Tables) -> Result<Identity, Error> {
    let corrupt = || Error::Corrupt("`meta` does not say whose store this is".to_owned());
    let (_, identity) = fact(&tables.meta, META_IDENTITY)?.ok_or_else(corrupt)?;
    let identity = String::from_utf8(identity).map_err(|_| corrupt())?;
    let (preset, api_domain) = identity.split_once('\n').ok_or_else(corrupt)?;
    Ok(Identity { preset: preset.to_owned(), api_domain: api_domain.to_owned() })
}

/// Compares what is on disk with the mark.
pub(super) fn compare(tables: &Tables, mark: Values) -> Result<Standing, Error> {
    let compacted = fact(&tables.meta, META_COMPACTED)?.map_or(0, |(revision, _)| revision);
    if compacted < mark.compacted {
        return Err(Error::Corrupt(format!(
            "history was compacted up to revision {}, the store knows of {compacted}",
            mark.compacted
        )));
    }
    let trimmed = fact(&tables.meta, META_TRIMMED)?.map_or(0, |(revision, _)| revision);
    let revision = match tables.log.last_key_value() {
        None => 0,
        Some(guard) => {
            let (key, row) = guard.into_inner().map_err(|error| translate(&error))?;
            layout::decode_entry(&key, &row)?.revision
        }
    };
    if revision < mark.revision {
        return Err(lost(revision + 1, mark.revision, mark));
    }
    let snapshot = tables.database.snapshot();
    // The versions of compacted revisions may be trimmed already, before or after this stretch begins.
    let mut last = mark.flushed.log.min(mark.flushed.versions).max(compacted);
    for entry in reader::entries(&snapshot, &tables.log, last, revision) {
        let entry = entry?;
        if !tables.follows(last, entry.revision) {
            return Err(lost(last + 1, entry.revision - 1, mark));
        }
        last = entry.revision;
        if entry.revision <= mark.flushed.versions {
            continue;
        }
        let key = layout::version_key(&entry.key, entry.revision);
        if !tables.versions.contains_key(&key).map_err(|error| translate(&error))? {
            return Err(Error::Corrupt(format!(
                "the object of revision {} is missing, which the log names",
                entry.revision
            )));
        }
    }
    Ok(Standing { revision, compacted, trimmed })
}

fn lost(first: u64, last: u64, mark: Values) -> Error {
    Error::Corrupt(format!(
        "revisions {first} to {last} are missing; writes up to revision {} were acknowledged",
        mark.revision
    ))
}

/// A row of `meta`: its revision and its bytes.
fn fact(meta: &Keyspace, name: &[u8]) -> Result<Option<(u64, Vec<u8>)>, Error> {
    let Some(row) = meta.get(name).map_err(|error| translate(&error))? else { return Ok(None) };
    let (revision, body) = layout::decode_fact(name, &row)?;
    Ok(Some((revision, body.to_vec())))
}

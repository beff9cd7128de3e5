//! The prefixes of the resources that have objects in a store.

use std::collections::BTreeSet;

use storage::{Revision, Store};

use crate::reference_key::{is_temporary, resource_prefix};

/// A character that sorts after every character of a key.
const LAST: char = '\u{10ffff}';

/// The prefixes of all stored keys at a revision, sorted: that of a resource, or the key of other data.
///
/// A reader that needs all objects in the order of their keys reads one prefix after the other: the order of resources
/// depends on the engine. No prefix begins with another one. Values are not decrypted.
///
/// # Errors
///
/// The revision is not readable.
pub async fn stored_prefixes(store: &dyn Store, at: Revision) -> storage::Result<Vec<String>> {
    let (mut found, mut start) = (BTreeSet::new(), String::new());
    // The loop reads one row of each resource, and then skips to the end of the resource.
    while let Some(row) = store.stored_rows_within("", &start, 1, at).await?.rows.into_iter().next() {
        let prefix = match resource_prefix(&row.key) {
            Some(prefix) => {
                start = format!("{prefix}{LAST}");
                prefix
            }
            None => {
                start = format!("{}\0", row.key);
                &*row.key
            }
        };
        if !is_temporary(prefix) {
            found.insert(prefix.to_owned());
        }
    }
    let mut prefixes: Vec<String> = Vec::with_capacity(found.len());
    for prefix in found {
        // A key of other data can be a prefix of another key.
        if prefixes.last().is_none_or(|last| !prefix.starts_with(last.as_str())) {
            prefixes.push(prefix);
        }
    }
    Ok(prefixes)
}

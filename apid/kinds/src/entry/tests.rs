//! Entries: round trips, splicing and selection.

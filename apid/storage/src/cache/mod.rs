//! The watch cache: for each resource an ordered map of entries with cheap snapshots and a bounded ring of events.

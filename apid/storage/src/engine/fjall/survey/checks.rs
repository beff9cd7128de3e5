//! The checks of a survey: rows against each other and against the high-water mark.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use super::super::high_water_mark::MarkValues;
use super::super::layout::{self, Tag};
use super::Survey;
use super::journals::Gap;

impl Survey {
    /// Compares rows with each other and with the high-water mark.
    pub(super) fn check_consistency(&mut self) {
        if self.identity.is_none() {
            self.damaged_places.push(|| "the identity of the store is missing".to_owned());
        }
        let mark = self.acknowledged();
        let compacted = mark.map_or(0, |mark| mark.compacted);
        if self.compacted < compacted {
            let recorded = self.compacted;
            self.damaged_places.push(|| {
                format!(
                    "history was compacted up to revision {compacted}, \
                     but the store records only revision {recorded}"
                )
            });
        }
        self.check_retained_history(self.compacted.max(compacted));
        self.check_newest_revision(mark);
        let lost = self.lost.clone();
        for gap in std::mem::take(&mut self.gaps) {
            self.check_gap(gap, mark);
        }
        if let Some(torn) = self.torn.take() {
            if lost == self.lost {
                self.remarks.push(format!(
                    "{torn}: no acknowledged write is missing; a crash during a write leaves this state"
                ));
            } else {
                self.damaged_places.push(|| torn);
            }
        }
        if !self.lost.between.is_empty() {
            // The lost revisions are unknown: an unreadable row may be of any age.
            self.lost.add_revision(1);
            self.lost.add_revision(self.revision.max(mark.map_or(0, |mark| mark.revision)));
        }
    }

    /// Checks that the log has every revision after `begin`, and that `versions` has the rows to which the
    /// untrimmed log entries refer.
    fn check_retained_history(&mut self, begin: u64) {
        let mut last = begin;
        for revision in self.log.range(begin + 1..).map(|(revision, _)| *revision) {
            let is_jump = self.jumps.iter().any(|jump| jump.from.0 <= last && jump.to.0 == revision);
            if revision != last + 1 && !is_jump {
                self.damaged_places
                    .push(|| format!("revisions {} to {} are missing", last + 1, revision - 1));
                self.lost.add_revision(last + 1);
                self.lost.add_revision(revision - 1);
            }
            last = revision;
        }
        for entry in self.log.range(self.trimmed.max(begin) + 1..).map(|(_, entry)| entry) {
            for revision in [entry.revision, entry.previous] {
                if revision == 0 || self.versions.contains_key(&*layout::version_key(&entry.key, revision)) {
                    continue;
                }
                self.damaged_places.push(|| {
                    format!("the log names revision {revision} of `{}`, whose object is missing", entry.key)
                });
                self.lost.add_revision(revision);
                self.lost.add_key(&entry.key);
            }
        }
    }

    /// Checks that history reaches the newest acknowledged revision.
    fn check_newest_revision(&mut self, mark: Option<MarkValues>) {
        let newest = self.log.last_key_value().map_or(0, |(revision, _)| *revision);
        match mark {
            Some(mark) if newest < mark.revision => {
                let (first, last) = (newest + 1, mark.revision);
                self.damaged_places.push(|| {
                    format!("revisions {first} to {last} are missing; writes up to revision {last} were acknowledged")
                });
                self.lost.add_revision(first);
                self.lost.add_revision(last);
            }
            Some(_) => {}
            None => self.lost.after = Some(newest),
        }
    }

    /// Checks a gap: rows missing from journals are in tables, or were trimmed, or are lost.
    fn check_gap(&mut self, gap: Gap, mark: Option<MarkValues>) {
        if self.jumps.iter().any(|jump| Some(jump.to.0) == gap.before && gap.after == Some(jump.from.0)) {
            return;
        }
        let tables_reach_past_gap = gap
            .seqno
            .zip(self.persisted)
            .is_some_and(|(seqno_after_gap, persisted)| seqno_after_gap <= persisted.saturating_add(1));
        if tables_reach_past_gap && gap.before.is_some() {
            return;
        }
        // Rows of `versions` up to `flushed` are in tables. Rows of `log` matter only in the retained
        // history, which `check_retained_history` checks.
        let first = gap.after.map_or(1, |after| after + 1).max(self.flushed + 1);
        let last = match (gap.before, mark) {
            (Some(before), _) => before - 1,
            (None, Some(mark)) => mark.revision,
            (None, None) => return,
        };
        if first <= last {
            self.check_missing_objects(first..=last);
        }
    }

    /// Checks revisions whose rows of `versions` were only in the lost part of a journal.
    fn check_missing_objects(&mut self, revisions: RangeInclusive<u64>) {
        let trimmed = self.log.range(*revisions.start()..=self.trimmed.max(*revisions.start()));
        let superseded: BTreeSet<u64> = trimmed
            .map(|(_, entry)| entry.previous)
            .filter(|previous| revisions.contains(previous))
            .collect();
        let mut next = *revisions.start();
        let mut missing = Vec::new();
        for entry in self.log.range(revisions.clone()).map(|(_, entry)| entry) {
            if entry.revision > next {
                missing.push((next, entry.revision - 1, None));
            }
            next = entry.revision + 1;
            // Trimming removes a tombstone together with the versions it hides.
            let trimmed = superseded.contains(&entry.revision)
                || (entry.event == Tag::Removed && entry.revision <= self.trimmed);
            if !trimmed && !self.versions.contains_key(&*layout::version_key(&entry.key, entry.revision)) {
                missing.push((entry.revision, entry.revision, Some(entry.key.clone())));
            }
        }
        if next <= *revisions.end() {
            missing.push((next, *revisions.end(), None));
        }
        for (first, last, key) in missing {
            self.lost.add_revision(first);
            self.lost.add_revision(last);
            if let Some(key) = key {
                self.lost.add_key(&key);
            }
            self.damaged_places.push(|| {
                format!("objects of revisions {first} to {last} were in an unreadable part of a journal")
            });
        }
    }
}

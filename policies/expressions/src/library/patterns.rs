//! Compiled RE2 patterns of schemas and expressions.
//!
//! # Contract
//! [`check`] parses a pattern and compiles nothing, so that a definition with many patterns is cheap to write.
//! [`compiled`] compiles at the first use and shares equal patterns.
//!
//! # Invariants
//! INVARIANT (bounded memory): the cache has at most [`MAX_BYTES`] of compiled patterns, by estimate. The least
//! recently used patterns leave the cache first.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use regex::Regex;

use super::re2::translate;

/// Maximum estimated size of all compiled patterns in the cache, in bytes.
const MAX_BYTES: u64 = 64 << 20;
/// Size limit of one compiled pattern in bytes; the compilation of a larger pattern fails.
const COMPILED_LIMIT: usize = 48 << 20;
/// Maximum weight of a compiled pattern; a heavier pattern fails without compilation.
const MAX_WEIGHT: u64 = 250_000;
/// Size limit of the states that one match of a pattern builds, in bytes.
const MATCH_LIMIT: usize = 1 << 20;
/// Estimated bytes of any compiled pattern, and of each state.
const BASE_BYTES: u64 = 8 << 10;
const STATE_BYTES: u64 = 48;

/// The error of a malformed or too large pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("error parsing regexp: {reason}")]
pub struct PatternError {
    /// The reason with the words of RE2, and the part of the pattern.
    reason: String,
}

impl PatternError {
    fn new(reason: &str) -> PatternError {
        PatternError { reason: reason.to_owned() }
    }
}

/// Checks the syntax and the size of a pattern.
///
/// # Errors
/// RE2 rejects the pattern.
pub fn check(pattern: &str) -> Result<(), PatternError> {
    translate(pattern).map(drop).map_err(|reason| PatternError::new(&reason))
}

/// Whether RE2 accepts a pattern.
pub(crate) fn is_valid(pattern: &str) -> bool {
    check(pattern).is_ok()
}

/// Returns the compiled pattern. Groups do not capture.
///
/// # Errors
/// The pattern is malformed or too large.
pub fn compiled(pattern: &str) -> Result<Arc<Regex>, PatternError> {
    static CACHE: LazyLock<Mutex<Cache>> = LazyLock::new(Mutex::default);
    if let Some(regex) = CACHE.lock().find(pattern) {
        return regex;
    }
    let (regex, bytes) = match compile_with_size(pattern) {
        Ok((regex, bytes)) => (Ok(Arc::new(regex)), bytes),
        Err(error) => (Err(error), BASE_BYTES),
    };
    CACHE.lock().insert(pattern, regex.clone(), bytes.saturating_add(pattern.len() as u64));
    regex
}

/// Compiles a pattern without the cache.
///
/// # Errors
/// The pattern is malformed or too large.
#[cfg(test)]
pub(super) fn compile(pattern: &str) -> Result<Regex, PatternError> {
    compile_with_size(pattern).map(|(regex, _)| regex)
}

/// Compiles a pattern; also returns its estimated size in bytes.
fn compile_with_size(pattern: &str) -> Result<(Regex, u64), PatternError> {
    let translated = translate(pattern).map_err(|reason| PatternError::new(&reason))?;
    if translated.weight > MAX_WEIGHT {
        return Err(PatternError::new("expression too large"));
    }
    let compiled = regex::RegexBuilder::new(&translated.pattern)
        .size_limit(COMPILED_LIMIT)
        .dfa_size_limit(MATCH_LIMIT)
        .build();
    let regex = compiled.map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => PatternError::new("expression too large"),
        other => {
            let text = other.to_string();
            PatternError::new(text.lines().last().unwrap_or_default().trim_start_matches("error: "))
        }
    })?;
    Ok((regex, BASE_BYTES.saturating_add(translated.weight.saturating_mul(STATE_BYTES))))
}

#[derive(Default)]
struct Cache {
    entries: HashMap<Box<str>, Entry>,
    /// Estimated bytes of all entries.
    bytes: u64,
    /// Number of look-ups so far, the clock of the entries.
    uses: u64,
}

struct Entry {
    /// The compiled pattern, or the error of its compilation.
    regex: Result<Arc<Regex>, PatternError>,
    bytes: u64,
    last_use: u64,
}

impl Cache {
    fn find(&mut self, pattern: &str) -> Option<Result<Arc<Regex>, PatternError>> {
        self.uses += 1;
        let entry = self.entries.get_mut(pattern)?;
        entry.last_use = self.uses;
        Some(entry.regex.clone())
    }

    fn insert(&mut self, pattern: &str, regex: Result<Arc<Regex>, PatternError>, bytes: u64) {
        let entry = Entry { regex, bytes, last_use: self.uses };
        self.bytes += bytes;
        if let Some(replaced) = self.entries.insert(pattern.into(), entry) {
            self.bytes -= replaced.bytes;
        }
        if self.bytes > MAX_BYTES {
            self.remove_oldest();
        }
    }

    /// Removes the least recently used patterns until half of the limit is free.
    fn remove_oldest(&mut self) {
        let mut uses: Vec<(u64, u64)> =
            self.entries.values().map(|entry| (entry.last_use, entry.bytes)).collect();
        uses.sort_unstable_by(|a, b| b.cmp(a));
        let mut kept = 0;
        let newest = uses.iter().take_while(|(_, bytes)| {
            kept += bytes;
            kept <= MAX_BYTES / 2
        });
        let first_kept = newest.last().map_or(u64::MAX, |(last_use, _)| *last_use);
        self.entries.retain(|_, entry| entry.last_use >= first_kept);
        self.bytes = self.entries.values().map(|entry| entry.bytes).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_patterns_of_re2_are_accepted() {
        for (pattern, text, matches) in [
            (r"^[\p{S}\p{L}]{2,63}$", "a+é", true),
            (r"^[\p{S}\p{L}]{2,63}$", "a", false),
            (r"^\p{L}{0,200}$", "é", true),
            (r"^a{1000}$", "a", false),
            (r"^([a-z]{1,100}){1,10}$", "abc", true),
        ] {
            check(pattern).unwrap();
            assert_eq!(compiled(pattern).unwrap().is_match(text), matches, "{pattern}");
        }
        for pattern in ["a{1001}", "(a{100}){11}", "(?=a)", "a**"] {
            assert!(check(pattern).is_err(), "{pattern}");
        }
    }

    #[test]
    fn equal_patterns_share_one_compiled_form() {
        let (a, b) = (compiled("^shared$").unwrap(), compiled("^shared$").unwrap());
        assert!(Arc::ptr_eq(&a, &b));
    }

    #[test]
    fn cache_removes_least_recently_used_patterns_beyond_limit() {
        let mut cache = Cache::default();
        let regex = Arc::new(Regex::new("a").unwrap());
        for at in 0..9 {
            cache.uses += 1;
            cache.insert(&format!("p{at}"), Ok(Arc::clone(&regex)), MAX_BYTES / 8);
            assert!(cache.find("p0").is_some() && cache.bytes <= MAX_BYTES, "{at}");
        }
        assert!(cache.find("p1").is_none() && cache.find("p8").is_some());
    }
}

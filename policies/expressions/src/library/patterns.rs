//! Compiled RE2 patterns of schemas and expressions.
//!
//! # Contract
//! [`check`] parses a pattern and compiles nothing, so that a definition with many patterns is cheap to write.
//! [`compiled`] compiles at the first use and shares equal patterns.
//!
//! # Invariants
//! INVARIANT (bounded memory): the cache has at most [`MAX_BYTES`] of compiled patterns. The least recently used
//! patterns leave the cache first. A compiled pattern has no state of evaluations.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use regex_syntax::ParserBuilder;

use super::matcher::Pattern;
use super::re2::translate;

/// Maximum size of all compiled patterns in the cache, in bytes.
const MAX_BYTES: usize = 64 << 20;
/// Bytes of the cache for an entry besides the compiled pattern.
const ENTRY_BYTES: usize = 128;
/// Maximum depth of the syntax tree. [`translate`] has lower limits in groups.
const MAX_DEPTH: u32 = 8_000;

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

/// Checks the syntax and the size of a pattern, and returns its number of instructions in RE2.
///
/// # Errors
/// RE2 rejects the pattern, or the pattern is too large.
pub fn check(pattern: &str) -> Result<u64, PatternError> {
    translate(pattern).map(|translated| translated.size).map_err(|reason| PatternError::new(&reason))
}

/// Whether RE2 accepts a pattern.
pub(crate) fn is_valid(pattern: &str) -> bool {
    check(pattern).is_ok()
}

/// Returns the compiled pattern. Groups do not capture.
///
/// # Errors
/// The pattern is malformed or too large.
pub fn compiled(pattern: &str) -> Result<Arc<Pattern>, PatternError> {
    static CACHE: LazyLock<Mutex<Cache>> = LazyLock::new(Mutex::default);
    if let Some(compiled) = CACHE.lock().find(pattern) {
        return compiled;
    }
    let compiled = compile(pattern).map(Arc::new);
    CACHE.lock().insert(pattern, compiled.clone());
    compiled
}

/// Compiles a pattern without the cache.
///
/// # Errors
/// The pattern is malformed or too large.
pub(super) fn compile(pattern: &str) -> Result<Pattern, PatternError> {
    let translated = translate(pattern).map_err(|reason| PatternError::new(&reason))?;
    let tree = ParserBuilder::new().nest_limit(MAX_DEPTH).build().parse(&translated.pattern);
    let tree = tree.map_err(|error| {
        let text = error.to_string();
        PatternError::new(text.lines().last().unwrap_or_default().trim_start_matches("error: "))
    })?;
    Pattern::compile(&tree).map_err(PatternError::new)
}

#[derive(Default)]
struct Cache {
    entries: HashMap<Box<str>, Entry>,
    /// Bytes of all entries.
    bytes: usize,
    /// Number of look-ups so far, the clock of the entries.
    uses: u64,
}

struct Entry {
    /// The compiled pattern, or the error of its compilation.
    compiled: Result<Arc<Pattern>, PatternError>,
    bytes: usize,
    last_use: u64,
}

impl Cache {
    fn find(&mut self, pattern: &str) -> Option<Result<Arc<Pattern>, PatternError>> {
        self.uses += 1;
        let entry = self.entries.get_mut(pattern)?;
        entry.last_use = self.uses;
        Some(entry.compiled.clone())
    }

    fn insert(&mut self, pattern: &str, compiled: Result<Arc<Pattern>, PatternError>) {
        let size = match &compiled {
            Ok(compiled) => compiled.bytes(),
            Err(error) => error.reason.len(),
        };
        let bytes = ENTRY_BYTES + pattern.len() + size;
        let entry = Entry { compiled, bytes, last_use: self.uses };
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
        let mut uses: Vec<(u64, usize)> =
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
    use crate::library::matcher::Steps;

    #[test]
    fn large_patterns_of_re2_are_accepted() {
        let letters = "é".repeat(1_000);
        for (pattern, text, matches) in [
            (r"^[\p{S}\p{L}]{2,63}$", "a+é", true),
            (r"^[\p{S}\p{L}]{2,63}$", "a", false),
            (r"^\p{L}{0,200}$", "é", true),
            (r"^[\p{L}\p{N}]{0,1000}$", letters.as_str(), true),
            (r"^[\p{L}\p{N}]{0,999}$", letters.as_str(), false),
            (r"[\p{L}\p{N}]{0,1000}", "", true),
            (r"^(\p{L}{1,100} ){1,10}$", "é é ", true),
            (r"^(\p{L}{1,100} ){1,10}$", "é é", false),
            (r"^a{1000}$", "a", false),
            (r"^([a-z]{1,100}){1,10}$", "abc", true),
            (&"([a-c]{1000})?".repeat(1_500), "d", true),
        ] {
            check(pattern).unwrap();
            let found = compiled(pattern).unwrap().is_match(text, &mut { Steps::OBJECT });
            assert_eq!(found, Ok(matches), "{pattern}");
        }
        for pattern in ["a{1001}", "(a{100}){11}", "(?=a)", "a**"] {
            assert!(check(pattern).is_err(), "{pattern}");
        }
    }

    #[test]
    fn patterns_beyond_limits_fail_the_check() {
        for (pattern, reason) in [
            ("a".repeat(200_000), "expression too large"),
            (r"\pL".repeat(4_000), "expression too large"),
            ("|".repeat(200_000), "expression too large"),
            ("()".repeat(100_000), "expression too large"),
            (format!("(a{}){{1000}}", "|".repeat(120_000)), "expression too large"),
            (format!("(?i){}", r"[\0-\x{10ffff}]".repeat(8_000)), "expression too large"),
            ("([a-c]{1000})".repeat(4_000), "expression too large"),
            ("(".repeat(1_001) + &")".repeat(1_001), "expression nests too deeply"),
        ] {
            let error = check(&pattern).unwrap_err().to_string();
            assert!(error.starts_with(&format!("error parsing regexp: {reason}")), "{:.80}", error);
        }
        let nested = "(a|".repeat(900) + &")*".repeat(900);
        check(&nested).unwrap();
        compile(&nested).unwrap();
    }

    #[test]
    fn compiled_pattern_of_large_class_is_small() {
        let bytes = compile(r"^[\p{L}\p{N}]{0,1000}$").unwrap().bytes();
        assert!(bytes < 32 << 10, "{bytes}");
    }

    #[test]
    fn equal_patterns_share_one_compiled_form() {
        let (a, b) = (compiled("^shared$").unwrap(), compiled("^shared$").unwrap());
        assert!(Arc::ptr_eq(&a, &b));
    }

    #[test]
    fn cache_removes_least_recently_used_patterns_beyond_limit() {
        let mut cache = Cache::default();
        let large = Arc::new(compile("([a-c]{1000}){1}".repeat(1_000).as_str()).unwrap());
        let count = MAX_BYTES / large.bytes() + 1;
        for at in 0..count {
            cache.uses += 1;
            cache.insert(&format!("p{at}"), Ok(Arc::clone(&large)));
            assert!(cache.find("p0").is_some() && cache.bytes <= MAX_BYTES, "{at}");
        }
        assert!(cache.find("p1").is_none() && cache.find(&format!("p{}", count - 1)).is_some());
    }
}

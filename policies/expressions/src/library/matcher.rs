//! Compiled patterns: a program for characters, and its evaluation.
//!
//! # Contract A [`Pattern`] is a program with one instruction for a character or class. Copies of a repeated
//! class share the class, so that the program has about the size of that in RE2. The evaluation follows all
//! alternatives in step with the text. It prefers matches as RE2 does: the leftmost match, and among these the
//! first in the order of the alternatives.
//!
//! # Invariants
//! INVARIANT (bounded time): an evaluation takes at most as many steps as its [`Steps`] have left. The number of steps
//! is the number of instructions, and the number of instructions that each character of the text reaches.

use std::collections::HashMap;
use std::ops::Range;

use regex_syntax::hir::{Class, Hir, HirKind, Look, Repetition};

/// Maximum number of instructions. The check of a pattern is stricter; this limit stops a size that it misses.
const MAX_INSTRUCTIONS: usize = 8_000_000;
/// Bytes of a pattern besides its instructions and ranges.
const BASE_BYTES: usize = 256;

/// The steps that evaluations of patterns have left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps(u64);

/// The evaluation of a pattern needs more steps than there are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the evaluation of the pattern takes too many steps")]
pub struct TooManySteps;

impl Steps {
    /// Steps of all patterns of one object, about a second of CPU time.
    pub const OBJECT: Steps = Steps(100_000_000);
    /// Steps of one call in an expression.
    pub(super) const CALL: Steps = Steps(20_000_000);

    /// Number of steps that were taken of [`Steps::CALL`].
    pub(super) fn taken_of_call(self) -> u64 {
        Steps::CALL.0.saturating_sub(self.0)
    }

    fn take(&mut self, steps: u64) -> Result<(), TooManySteps> {
        self.0 = self.0.checked_sub(steps).ok_or(TooManySteps)?;
        Ok(())
    }
}

/// A compiled pattern. Groups do not capture.
#[derive(Debug)]
pub struct Pattern {
    program: Vec<Instruction>,
    classes: Vec<CharacterClass>,
    /// Whether a match can only begin at the start of the text.
    is_anchored: bool,
}

/// An instruction. Targets are relative, so that a copy of a part is a valid program.
#[derive(Clone, Copy, Debug)]
enum Instruction {
    Character(char),
    /// The class with this index.
    Class(u32),
    Assertion(Assertion),
    Jump(i32),
    /// Continues with the next instruction and with the target; the preferred one comes first.
    Split {
        target: i32,
        prefers_target: bool,
    },
    Match,
}

/// A condition on the position in the text.
#[derive(Clone, Copy, Debug)]
enum Assertion {
    TextStart,
    TextEnd,
    LineStart,
    LineEnd,
    WordBoundary,
    NoWordBoundary,
}

/// A set of characters.
#[derive(Debug)]
struct CharacterClass {
    /// The members below 128, one bit each.
    ascii: u128,
    /// All members as sorted ranges, first and last.
    ranges: Box<[(char, char)]>,
}

impl CharacterClass {
    fn new(ranges: Box<[(char, char)]>) -> CharacterClass {
        let of_ascii = ranges.iter().filter(|(first, _)| first.is_ascii());
        let members = of_ascii.flat_map(|(first, last)| *first..=(*last).min('\x7f'));
        let ascii = members.fold(0, |bits, c| bits | 1 << u32::from(c));
        CharacterClass { ascii, ranges }
    }

    fn contains(&self, c: char) -> bool {
        if c.is_ascii() {
            return self.ascii >> u32::from(c) & 1 == 1;
        }
        let at = self.ranges.partition_point(|(_, last)| *last < c);
        self.ranges.get(at).is_some_and(|(first, _)| *first <= c)
    }
}

impl Pattern {
    /// Compiles a syntax tree.
    ///
    /// # Errors
    /// The tree has an assertion that RE2 lacks, or a class of bytes.
    pub(super) fn compile(tree: &Hir) -> Result<Pattern, &'static str> {
        let mut compiler = Compiler::default();
        compiler.emit(tree)?;
        compiler.program.push(Instruction::Match);
        compiler.program.shrink_to_fit();
        let is_anchored = tree.properties().look_set_prefix().contains(Look::Start);
        let classes = compiler.classes.into_iter().map(CharacterClass::new).collect();
        Ok(Pattern { program: compiler.program, classes, is_anchored })
    }

    /// Memory of the pattern in bytes.
    pub(super) fn bytes(&self) -> usize {
        let ranges: usize = self.classes.iter().map(|class| size_of_val::<[_]>(&class.ranges)).sum();
        BASE_BYTES
            + ranges
            + self.classes.len() * size_of::<CharacterClass>()
            + self.program.len() * size_of::<Instruction>()
    }

    /// Whether a text contains a match.
    ///
    /// # Errors
    /// The evaluation takes more steps than there are left.
    pub fn is_match(&self, text: &str, steps: &mut Steps) -> Result<bool, TooManySteps> {
        Search::new(self, text, steps)?.run(0, true).map(|found| found.is_some())
    }

    /// The byte ranges of at most `limit` matches that do not overlap. An empty match directly behind a match is left
    /// out.
    ///
    /// # Errors
    /// The evaluation takes more steps than there are left.
    pub(super) fn find(
        &self,
        text: &str,
        limit: usize,
        steps: &mut Steps,
    ) -> Result<Vec<(usize, usize)>, TooManySteps> {
        let mut search = Search::new(self, text, steps)?;
        let mut matches = Vec::new();
        let (mut from, mut last_end) = (0, None);
        while matches.len() < limit
            && from <= text.len()
            && let Some((start, end)) = search.run(from, false)?
        {
            if start < end || last_end != Some(end) {
                matches.push((start, end));
                last_end = Some(end);
            }
            let next = text.get(end..).and_then(|rest| rest.chars().next()).map_or(1, char::len_utf8);
            from = if start < end { end } else { end + next };
        }
        Ok(matches)
    }
}

/// An alternative under evaluation: its next instruction, and the position where its match begins.
struct Thread {
    at: usize,
    start: usize,
}

/// An evaluation of a pattern on a text.
struct Search<'s> {
    pattern: &'s Pattern,
    text: &'s str,
    /// For each instruction, the number of the last position that reached it.
    reached: Vec<u32>,
    /// Number of the position whose threads are added. It differs for all positions.
    position: u32,
    /// Instructions to visit, the next one last.
    pending: Vec<usize>,
    /// Steps since the last position.
    new_steps: u64,
    /// Steps that are left.
    steps: &'s mut Steps,
}

impl<'s> Search<'s> {
    fn new(pattern: &'s Pattern, text: &'s str, steps: &'s mut Steps) -> Result<Self, TooManySteps> {
        let length = pattern.program.len();
        steps.take(length as u64)?;
        let (reached, pending) = (vec![0; length], Vec::new());
        Ok(Search { pattern, text, reached, position: 0, pending, new_steps: 0, steps })
    }

    /// Searches from a position and returns the byte range of a match. `is_any`: any match will do, and its range is
    /// not that of the preferred match.
    fn run(&mut self, from: usize, is_any: bool) -> Result<Option<(usize, usize)>, TooManySteps> {
        let is_anchored = self.pattern.is_anchored;
        let (mut threads, mut next) = (Vec::new(), Vec::new());
        let mut found = None;
        let mut at = from;
        self.position = self.position.checked_add(1).ok_or(TooManySteps)?;
        loop {
            if found.is_none() && (at == 0 || !is_anchored) {
                self.add(&mut threads, 0, at, at);
            }
            let is_over = threads.is_empty() && (found.is_some() || is_anchored);
            let c = self.text.get(at..).and_then(|rest| rest.chars().next());
            let after = at + c.map_or(0, char::len_utf8);
            self.position = self.position.checked_add(1).ok_or(TooManySteps)?;
            for Thread { at: instruction, start } in threads.drain(..) {
                if self.is_final(instruction) {
                    found = Some((start, at));
                    if is_any {
                        return Ok(found);
                    }
                    // The threads that follow have a lower priority.
                    break;
                }
                if c.is_some_and(|c| self.accepts(instruction, c)) {
                    self.add(&mut next, instruction + 1, start, after);
                }
            }
            self.steps.take(std::mem::take(&mut self.new_steps))?;
            if is_over || c.is_none() {
                return Ok(found);
            }
            std::mem::swap(&mut threads, &mut next);
            at = after;
        }
    }

    /// Adds the threads that an instruction leads to without a character, in the order of preference.
    fn add(&mut self, threads: &mut Vec<Thread>, instruction: usize, start: usize, at: usize) {
        self.pending.push(instruction);
        while let Some(instruction) = self.pending.pop() {
            let Some(reached) = self.reached.get_mut(instruction) else { continue };
            self.new_steps += 1;
            if std::mem::replace(reached, self.position) == self.position {
                continue;
            }
            let target = |offset: i32| instruction.saturating_add_signed(offset as isize);
            match self.pattern.program.get(instruction) {
                Some(Instruction::Jump(offset)) => self.pending.push(target(*offset)),
                Some(Instruction::Split { target: offset, prefers_target }) => {
                    let (mut first, mut second) = (instruction + 1, target(*offset));
                    if *prefers_target {
                        std::mem::swap(&mut first, &mut second);
                    }
                    self.pending.extend([second, first]);
                }
                Some(Instruction::Assertion(assertion)) if assertion.holds(self.text, at) => {
                    self.pending.push(instruction + 1);
                }
                Some(Instruction::Assertion(_)) | None => {}
                Some(_) => threads.push(Thread { at: instruction, start }),
            }
        }
    }

    fn is_final(&self, instruction: usize) -> bool {
        matches!(self.pattern.program.get(instruction), Some(Instruction::Match))
    }

    /// Whether an instruction accepts a character.
    fn accepts(&mut self, instruction: usize, c: char) -> bool {
        self.new_steps += 1;
        match self.pattern.program.get(instruction) {
            Some(Instruction::Character(expected)) => *expected == c,
            Some(Instruction::Class(class)) => {
                self.pattern.classes.get(*class as usize).is_some_and(|class| class.contains(c))
            }
            _ => false,
        }
    }
}

impl Assertion {
    fn holds(self, text: &str, at: usize) -> bool {
        let bytes = text.as_bytes();
        let (before, after) = (at.checked_sub(1).and_then(|before| bytes.get(before)), bytes.get(at));
        let is_word = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
        match self {
            Assertion::TextStart => before.is_none(),
            Assertion::TextEnd => after.is_none(),
            Assertion::LineStart => before.is_none_or(|byte| *byte == b'\n'),
            Assertion::LineEnd => after.is_none_or(|byte| *byte == b'\n'),
            Assertion::WordBoundary => is_word(before) != is_word(after),
            Assertion::NoWordBoundary => is_word(before) == is_word(after),
        }
    }
}

#[derive(Default)]
struct Compiler {
    program: Vec<Instruction>,
    classes: Vec<Box<[(char, char)]>>,
    /// Index of each class.
    class_indexes: HashMap<Box<[(char, char)]>, u32>,
}

impl Compiler {
    /// Appends the instructions of a tree.
    fn emit(&mut self, tree: &Hir) -> Result<(), &'static str> {
        match tree.kind() {
            HirKind::Empty => {}
            HirKind::Literal(literal) => {
                let text = std::str::from_utf8(&literal.0).map_err(|_| "invalid UTF-8")?;
                self.program.extend(text.chars().map(Instruction::Character));
            }
            HirKind::Class(class) => {
                let class = self.class_index(class)?;
                self.program.push(Instruction::Class(class));
            }
            HirKind::Look(look) => self.program.push(Instruction::Assertion(match look {
                Look::Start => Assertion::TextStart,
                Look::End => Assertion::TextEnd,
                Look::StartLF => Assertion::LineStart,
                Look::EndLF => Assertion::LineEnd,
                Look::WordAscii => Assertion::WordBoundary,
                Look::WordAsciiNegate => Assertion::NoWordBoundary,
                _ => return Err("unsupported assertion"),
            })),
            HirKind::Capture(capture) => self.emit(&capture.sub)?,
            HirKind::Concat(parts) => {
                for part in parts {
                    self.emit(part)?;
                }
            }
            HirKind::Alternation(alternatives) => self.emit_alternation(alternatives)?,
            HirKind::Repetition(repetition) => self.emit_repetition(repetition)?,
        }
        Ok(())
    }

    fn class_index(&mut self, class: &Class) -> Result<u32, &'static str> {
        let Class::Unicode(class) = class else { return Err("unsupported class") };
        let ranges: Box<[_]> = class.ranges().iter().map(|range| (range.start(), range.end())).collect();
        if let Some(index) = self.class_indexes.get(&ranges) {
            return Ok(*index);
        }
        let index = u32::try_from(self.classes.len()).map_err(|_| "expression too large")?;
        self.classes.push(ranges.clone());
        self.class_indexes.insert(ranges, index);
        Ok(index)
    }

    /// Appends the instructions of alternatives. Each but the last has a split before it and a jump to the end behind
    /// it.
    fn emit_alternation(&mut self, alternatives: &[Hir]) -> Result<(), &'static str> {
        let Some((last, others)) = alternatives.split_last() else { return Ok(()) };
        let mut jumps = Vec::with_capacity(others.len());
        for alternative in others {
            let split = self.push_split(0, false)?;
            self.emit(alternative)?;
            jumps.push(self.program.len());
            self.program.push(Instruction::Jump(0));
            self.set_target(split)?;
        }
        self.emit(last)?;
        jumps.into_iter().try_for_each(|jump| self.set_target(jump))
    }

    /// Appends the instructions of a repetition: the first copy of its part in place, the others as copies of these
    /// instructions.
    fn emit_repetition(&mut self, repetition: &Repetition) -> Result<(), &'static str> {
        let is_lazy = !repetition.greedy;
        let min = repetition.min as usize;
        let max = repetition.max.map(|max| max as usize);
        if max == Some(0) {
            return Ok(());
        }
        let first_split = if min == 0 { Some(self.push_split(0, is_lazy)?) } else { None };
        let start = self.program.len();
        self.emit(&repetition.sub)?;
        let part = start..self.program.len();
        for _ in 1..min {
            self.copy(&part)?;
        }
        match max {
            // A loop through a part that matches the empty text is optional as a whole, as in RE2. A split
            // before the loop would reach the part with the wrong priority.
            None => {
                let back = -offset(part.len())?;
                self.push_split(back, !is_lazy)?;
            }
            Some(max) => {
                let optional = max - min.max(1);
                for rest in (1..=optional).rev() {
                    self.push_split(offset(rest * (part.len() + 1))?, is_lazy)?;
                    self.copy(&part)?;
                }
            }
        }
        first_split.map_or(Ok(()), |split| self.set_target(split))
    }

    /// Appends a split and returns its place.
    fn push_split(&mut self, target: i32, prefers_target: bool) -> Result<usize, &'static str> {
        if self.program.len() >= MAX_INSTRUCTIONS {
            return Err("expression too large");
        }
        self.program.push(Instruction::Split { target, prefers_target });
        Ok(self.program.len() - 1)
    }

    /// Appends a copy of a part of the program.
    fn copy(&mut self, part: &Range<usize>) -> Result<(), &'static str> {
        if self.program.len() + part.len() > MAX_INSTRUCTIONS {
            return Err("expression too large");
        }
        self.program.extend_from_within(part.clone());
        Ok(())
    }

    /// Lets a split or jump continue at the end of the program.
    fn set_target(&mut self, place: usize) -> Result<(), &'static str> {
        let to_end = offset(self.program.len() - place)?;
        if let Some(Instruction::Split { target, .. } | Instruction::Jump(target)) =
            self.program.get_mut(place)
        {
            *target = to_end;
        }
        Ok(())
    }
}

/// The offset of a target.
fn offset(instructions: usize) -> Result<i32, &'static str> {
    i32::try_from(instructions).map_err(|_| "expression too large")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::patterns::{check, compile};
    use crate::library::re2::translate;

    const TEXTS: [&str; 14] = [
        "",
        "a",
        "b",
        "ab",
        "ba",
        "aab",
        "abab",
        "bbaabab",
        "é",
        "aéb",
        "a b",
        "a\nb\n",
        "AbaB",
        "aaaaaaaaaab",
    ];

    const PATTERNS: [&str; 36] = [
        "",
        "a",
        "a|b",
        "a*",
        "a+?",
        "a??b",
        "(a|ab)(c|bcd)*",
        "(a*)*",
        "(a*)+",
        "(|a)*",
        "(|a)+",
        "(a|b)*abb?",
        "^a",
        "b$",
        "(?m)^b$",
        r"\ba",
        r"\B.",
        r"\Aa\z",
        "^$",
        "a{2}",
        "a{2,}",
        "a{0,3}",
        "a{1,3}?",
        "(ab){1,2}",
        "(a{0,2}b){2,3}",
        "(a?){3}",
        "(a*){2,}",
        "(?i)B",
        "(?U)a+",
        ".",
        "(?s).",
        "[^a]",
        r"\pL{1,2}",
        "()|a",
        "a*?$|b",
        "(?:^|a)b*",
    ];

    /// Compares the matches of a pattern in all texts with those of the `regex` crate.
    fn compare(pattern: &str) {
        let own = compile(pattern).unwrap();
        let Ok(other) = regex::Regex::new(&translate(pattern).unwrap().pattern) else { return };
        for text in TEXTS {
            let expected: Vec<_> = other.find_iter(text).map(|found| (found.start(), found.end())).collect();
            let mut steps = Steps::OBJECT;
            assert_eq!(own.is_match(text, &mut steps), Ok(!expected.is_empty()), "{pattern:?} {text:?}");
            assert_eq!(own.find(text, usize::MAX, &mut steps), Ok(expected), "{pattern:?} {text:?}");
        }
    }

    #[test]
    fn matches_equal_those_of_the_regex_crate() {
        PATTERNS.iter().for_each(|pattern| compare(pattern));
    }

    #[test]
    fn mutated_patterns_that_pass_the_check_compile_and_match_equally() {
        fuzzing::run_text("matches of patterns", &PATTERNS, |pattern| {
            if check(pattern).is_ok() {
                compare(pattern);
            }
        });
    }

    #[test]
    fn evaluation_beyond_its_steps_fails() {
        let pattern = compile("(a|b)*a(a|b){900}c").unwrap();
        assert_eq!(pattern.is_match(&"ab".repeat(100_000), &mut { Steps::OBJECT }), Err(TooManySteps));
        let mut steps = Steps::OBJECT;
        assert_eq!(pattern.is_match(&"ab".repeat(1_000), &mut steps), Ok(false));
        assert_ne!(steps, Steps::OBJECT);
    }
}

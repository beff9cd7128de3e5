//! Translation of RE2 patterns to the syntax of the `regex` crate.
//!
//! # Contract
//! The translation rejects all patterns that RE2 rejects: lookaround, backreferences and flags other than
//! `imsU`. It also rejects repetitions above 1,000, where nested repetitions multiply, and patterns above the size
//! limit of Go. Messages have the words of Go. The translation
//! rewrites syntax that both accept with different meanings. `\d \w \s \b` are ASCII; brackets and `&&` in
//! classes are literals; so is a `{` that starts no repetition. The translation supports octal escapes.
//! Patterns whose syntax tree would take much memory are too large, too.
//! The translated groups do not capture, because no function of the libraries returns captures.

use std::collections::HashSet;
use std::iter::Peekable;
use std::str::Chars;
use std::sync::LazyLock;

use parking_lot::Mutex;

/// Maximum repetition count, also of the product of nested repetitions; a higher count is an error.
const MAX_REPETITIONS: u64 = 1_000;
/// Maximum size of a pattern with expanded repetitions, in instructions of Go's RE2; a larger size is an error.
const MAX_SIZE: u64 = (128 << 20) / 40;
/// Maximum length of a pattern in bytes; a longer pattern is too large.
const MAX_LENGTH: usize = 128 << 10;
/// Maximum number of ranges in all classes of a pattern, by estimate; a pattern with more ranges is too large.
const MAX_RANGES: u64 = 2_000_000;
/// Estimated number of ranges of a Unicode class.
const UNICODE_CLASS: u64 = 700;
/// Characters of a range in a class that count as a further range.
const CHARACTERS_PER_RANGE: u64 = 64;
/// Maximum number of nested groups.
const MAX_NESTED_GROUPS: usize = 1_000;

/// A pattern in the syntax of the `regex` crate.
pub(super) struct Translated {
    pub(super) pattern: String,
    /// Number of instructions in RE2, without repetitions of the classes.
    pub(super) size: u64,
}

/// Translates an RE2 pattern.
///
/// # Errors
/// The reason why RE2 rejects the pattern, and the part of the pattern.
pub(super) fn translate(pattern: &str) -> Result<Translated, String> {
    let mut translator = Translator {
        chars: Cursor { chars: pattern.chars().peekable(), offset: 0 },
        out: String::new(),
        outer_levels: Vec::new(),
        token: 0,
        previous_token: 0,
        ranges: 0,
    };
    match translator.translate_pattern() {
        Ok(size) => Ok(Translated { pattern: translator.out, size }),
        Err(reason) => Err(format!("{reason}: `{}`", translator.failed_part(pattern, reason))),
    }
}

/// Characters of a pattern, with the byte offset of the next one.
#[derive(Clone)]
struct Cursor<'p> {
    chars: Peekable<Chars<'p>>,
    offset: usize,
}

impl Iterator for Cursor<'_> {
    type Item = char;

    fn next(&mut self) -> Option<char> {
        let c = self.chars.next()?;
        self.offset += c.len_utf8();
        Some(c)
    }
}

impl Cursor<'_> {
    fn peek(&mut self) -> Option<&char> {
        self.chars.peek()
    }

    fn next_if(&mut self, holds: impl FnOnce(&char) -> bool) -> Option<char> {
        if self.peek().is_some_and(holds) { self.next() } else { None }
    }

    fn next_if_eq(&mut self, expected: &char) -> Option<char> {
        self.next_if(|c| c == expected)
    }
}

/// An expression that a repetition can follow, or a sequence of them.
#[derive(Clone, Copy, Default)]
struct Atom {
    /// Number of instructions in RE2.
    size: u64,
    /// Maximum product of nested repetition counts.
    repetitions: u64,
}

/// State of the group under translation, or of the whole pattern.
#[derive(Default)]
struct GroupLevel {
    /// Sums of all atoms before the last.
    sum: Atom,
    /// The last atom, and whether an operator already repeats it.
    last: Option<(Atom, bool)>,
}

impl GroupLevel {
    /// Adds the last atom to the sums.
    fn add_last_atom(&mut self) {
        if let Some((atom, _)) = self.last.take() {
            self.sum.size = self.sum.size.saturating_add(atom.size);
            self.sum.repetitions = self.sum.repetitions.max(atom.repetitions);
        }
    }

    /// Adds a character or a class.
    fn add_atom(&mut self) {
        self.add_group(Atom { size: 1, repetitions: 1 });
    }

    fn add_group(&mut self, atom: Atom) {
        self.add_last_atom();
        self.last = Some((atom, false));
    }

    /// Repeats the last atom up to `max_count` times.
    fn repeat(&mut self, max_count: u64) -> Result<(), &'static str> {
        let Some((atom, repeated)) = &mut self.last else {
            return Err("missing argument to repetition operator");
        };
        if *repeated {
            return Err("invalid nested repetition operator");
        }
        *repeated = true;
        atom.repetitions = atom.repetitions.saturating_mul(max_count);
        atom.size = atom.size.saturating_mul(max_count).saturating_add(max_count);
        if atom.repetitions > MAX_REPETITIONS {
            return Err("invalid repeat count");
        }
        Ok(())
    }

    /// Returns the whole group as one atom.
    fn finish(mut self) -> Atom {
        self.add_last_atom();
        let Atom { size, repetitions } = self.sum;
        Atom { size: size.saturating_add(2), repetitions: repetitions.max(1) }
    }
}

struct Translator<'p> {
    chars: Cursor<'p>,
    out: String,
    /// Groups around the group under translation, the outermost first.
    outer_levels: Vec<GroupLevel>,
    /// Byte offset of the token under translation, and of the token before.
    token: usize,
    previous_token: usize,
    /// Estimated number of ranges of the classes so far.
    ranges: u64,
}

impl Translator<'_> {
    /// Translates the whole pattern and returns its size.
    fn translate_pattern(&mut self) -> Result<u64, &'static str> {
        let mut level = GroupLevel::default();
        loop {
            self.previous_token = std::mem::replace(&mut self.token, self.chars.offset);
            if level.sum.size > MAX_SIZE || self.ranges > MAX_RANGES || self.chars.offset > MAX_LENGTH {
                return Err("expression too large");
            }
            let Some(c) = self.chars.next() else { break };
            match c {
                '(' => {
                    if self.translate_group()? {
                        if self.outer_levels.len() >= MAX_NESTED_GROUPS {
                            return Err("expression nests too deeply");
                        }
                        self.outer_levels.push(std::mem::take(&mut level));
                    } else {
                        // Flags end the last atom: what follows cannot repeat it.
                        level.add_last_atom();
                    }
                }
                ')' => {
                    let inner = level.finish();
                    level = self.outer_levels.pop().ok_or("unexpected )")?;
                    self.out.push(')');
                    level.add_group(inner);
                }
                '|' => {
                    level.add_last_atom();
                    // A split and a jump; also an empty alternative is one.
                    level.sum.size = level.sum.size.saturating_add(2);
                    self.out.push('|');
                }
                '*' | '+' | '?' => {
                    self.out.push(c);
                    self.translate_lazy_mark();
                    level.repeat(1)?;
                }
                '{' => match self.parse_repetition() {
                    Some((text, max_count)) => {
                        self.out.push_str(&text);
                        self.translate_lazy_mark();
                        if max_count > MAX_REPETITIONS {
                            return Err("invalid repeat count");
                        }
                        level.repeat(max_count.max(1))?;
                    }
                    None => {
                        self.write_literal('{');
                        level.add_atom();
                    }
                },
                '[' => {
                    let class = self.token;
                    self.translate_class(class)?;
                    level.add_atom();
                }
                '\\' => self.translate_escape(&mut level)?,
                '.' | '^' | '$' => {
                    self.out.push(c);
                    level.add_atom();
                }
                other => {
                    self.write_literal(other);
                    level.add_atom();
                }
            }
        }
        if !self.outer_levels.is_empty() {
            return Err("missing closing )");
        }
        let whole = level.finish();
        if whole.size > MAX_SIZE { Err("expression too large") } else { Ok(whole.size) }
    }

    /// The part of a pattern that the message about an error shows.
    fn failed_part<'s>(&self, pattern: &'s str, reason: &str) -> &'s str {
        let end = self.chars.offset;
        let part = match reason {
            "missing argument to repetition operator"
            | "invalid repeat count"
            | "invalid escape sequence"
            | "invalid character class range"
            | "invalid or unsupported Perl syntax"
            | "invalid named capture" => pattern.get(self.token..end),
            "invalid nested repetition operator" => pattern.get(self.previous_token..end),
            "missing closing ]" => pattern.get(self.token..),
            "trailing backslash at end of expression" => Some(""),
            _ => None,
        };
        part.unwrap_or(pattern)
    }

    fn write_literal(&mut self, c: char) {
        if c.is_ascii_punctuation() || c.is_ascii_control() {
            self.out.push_str(&format!("\\x{{{:x}}}", u32::from(c)));
        } else {
            self.out.push(c);
        }
    }

    /// Translates the `?` of a lazy repetition.
    fn translate_lazy_mark(&mut self) {
        if self.chars.next_if_eq(&'?').is_some() {
            self.out.push('?');
        }
    }

    /// Translates the text after an opening parenthesis; false if it only sets flags.
    fn translate_group(&mut self) -> Result<bool, &'static str> {
        if self.chars.next_if_eq(&'?').is_none() {
            self.out.push_str("(?:");
            return Ok(true);
        }
        let named = self.chars.next_if_eq(&'P').is_some();
        if self.chars.next_if_eq(&'<').is_some() {
            let name: String = self.chars.by_ref().take_while(|c| *c != '>').collect();
            if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
                return Err("invalid named capture");
            }
            self.out.push_str("(?:");
            return Ok(true);
        }
        if named {
            return Err("invalid named capture");
        }
        let mut flags = String::new();
        while let Some(c) = self.chars.next_if(|c| matches!(c, 'i' | 'm' | 's' | 'U' | '-')) {
            flags.push(c);
        }
        if flags.ends_with('-') || flags.matches('-').count() > 1 {
            return Err("invalid or unsupported Perl syntax");
        }
        let flags = distinct_flags(&flags);
        match self.chars.next() {
            Some(':') => {
                self.out.push_str(&format!("(?{flags}:"));
                Ok(true)
            }
            Some(')') if !flags.is_empty() => {
                self.out.push_str(&format!("(?{flags})"));
                Ok(false)
            }
            _ => Err("invalid or unsupported Perl syntax"),
        }
    }

    /// Parses `{n}`, `{n,}` or `{n,m}` after its `{`; returns the text and the count that the
    /// limit on repetitions concerns: `m`, or `n` without `m`.
    ///
    /// The count is `u64::MAX` if `m` is less than `n`. `None` if the text is not a repetition.
    fn parse_repetition(&mut self) -> Option<(String, u64)> {
        let mut ahead = self.chars.clone();
        let inner: String = ahead.by_ref().take_while(|c| *c != '}').take(16).collect();
        let (min, max) = inner.split_once(',').unwrap_or((&inner, &inner));
        let number = |text: &str| {
            let is_number = text == "0" || !text.starts_with('0');
            (is_number && !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()))
                .then(|| text.parse::<u64>().ok())?
        };
        let min_count = number(min)?;
        let limited_count = if max.is_empty() { min_count } else { number(max)? };
        if limited_count < min_count {
            return Some((String::new(), u64::MAX));
        }
        // Checks that the closing brace follows.
        let length = inner.chars().count();
        if self.chars.clone().nth(length) != Some('}') {
            return None;
        }
        self.chars.nth(length);
        Some((format!("{{{inner}}}"), limited_count))
    }

    /// Translates an escape outside classes.
    fn translate_escape(&mut self, level: &mut GroupLevel) -> Result<(), &'static str> {
        let Some(c) = self.chars.next() else { return Err("trailing backslash at end of expression") };
        let simple = match c {
            'b' => "(?-u:\\b)",
            'B' => "(?-u:\\B)",
            'A' => "\\A",
            'z' => "\\z",
            'Q' => {
                while let Some(c) = self.chars.next() {
                    if c == '\\' && self.chars.next_if_eq(&'E').is_some() {
                        return Ok(());
                    }
                    self.write_literal(c);
                    level.add_atom();
                }
                return Ok(());
            }
            'p' | 'P' => {
                let name = self.unicode_class(c)?;
                self.out.push_str(&name);
                level.add_atom();
                return Ok(());
            }
            other => match perl_class(other) {
                Some(class) => class,
                None => {
                    let value = self.parse_character(other)?;
                    self.write_literal(value);
                    level.add_atom();
                    return Ok(());
                }
            },
        };
        self.out.push_str(simple);
        level.add_atom();
        Ok(())
    }

    /// Translates the name of a Unicode class after `\p` or `\P`.
    fn unicode_class(&mut self, c: char) -> Result<String, &'static str> {
        let bad = "invalid character class range";
        self.ranges += UNICODE_CLASS;
        let name: String = match self.chars.next().ok_or(bad)? {
            '{' => self.chars.by_ref().take_while(|c| *c != '}').collect(),
            single => single.to_string(),
        };
        // Names of general categories and of scripts start with a capital letter.
        let plain = name.strip_prefix('^').unwrap_or(&name);
        let known = plain.chars().next().is_some_and(|first| first.is_ascii_uppercase())
            && plain.chars().all(|c| c.is_ascii_alphabetic() || c == '_');
        if !known || !is_known_class(plain) {
            return Err(bad);
        }
        Ok(format!("\\{c}{{{name}}}"))
    }

    /// Parses the escape that starts with a backslash and `c`.
    fn parse_character(&mut self, c: char) -> Result<char, &'static str> {
        let bad = "invalid escape sequence";
        let code = match c {
            'a' => 7,
            'f' => 12,
            't' => 9,
            'n' => 10,
            'r' => 13,
            'v' => 11,
            'x' => {
                let digits: String = if self.chars.next_if_eq(&'{').is_some() {
                    self.chars.by_ref().take_while(|c| *c != '}').collect()
                } else {
                    self.chars.by_ref().take(2).collect()
                };
                let valid = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
                u32::from_str_radix(&digits, 16).ok().filter(|_| valid).ok_or(bad)?
            }
            '0'..='7' => {
                let mut code = u32::from(c) - u32::from('0');
                let mut digits = 1;
                while digits < 3
                    && let Some(digit) = self.chars.next_if(|c| matches!(c, '0'..='7'))
                {
                    code = code * 8 + u32::from(digit) - u32::from('0');
                    digits += 1;
                }
                // A single non-zero digit would be a backreference.
                if digits == 1 && c != '0' {
                    return Err(bad);
                }
                code
            }
            other if other.is_ascii_punctuation() || other == ' ' => u32::from(other),
            _ => return Err(bad),
        };
        char::from_u32(code).ok_or(bad)
    }

    /// Translates a bracket class after its `[`, whose offset is `class`.
    fn translate_class(&mut self, class: usize) -> Result<(), &'static str> {
        let unclosed = "missing closing ]";
        self.out.push('[');
        if self.chars.next_if_eq(&'^').is_some() {
            self.out.push('^');
        }
        let mut first = true;
        loop {
            self.ranges += 1;
            self.token = if self.chars.peek().is_some() { self.chars.offset } else { class };
            let c = self.chars.next().ok_or(unclosed)?;
            if c == ']' && !first {
                self.token = class;
                break;
            }
            first = false;
            if c == '[' && self.chars.peek() == Some(&':') {
                let mut ahead = self.chars.clone();
                ahead.next();
                let name: String = ahead.take_while(|c| *c != ':').collect();
                let closes = self.chars.clone().skip(name.chars().count() + 1).take(2).eq([':', ']']);
                if closes {
                    self.chars.nth(name.chars().count() + 2);
                    let known = POSIX_CLASSES.contains(&name.strip_prefix('^').unwrap_or(&name));
                    self.out.push_str(&format!("[:{name}:]"));
                    if !known {
                        return Err("invalid character class range");
                    }
                    continue;
                }
            }
            let low = if c == '\\' {
                let escaped = self.chars.next().ok_or(unclosed)?;
                if let Some(class) = perl_class(escaped) {
                    self.out.push_str(class);
                    continue;
                }
                match escaped {
                    p @ ('p' | 'P') => {
                        let name = self.unicode_class(p)?;
                        self.out.push_str(&name);
                        continue;
                    }
                    other => self.parse_character(other)?,
                }
            } else {
                c
            };
            self.write_literal(low);
            let mut ahead = self.chars.clone();
            if ahead.next() == Some('-') && ahead.peek().is_some_and(|next| *next != ']') {
                self.chars.next();
                let c = self.chars.next().ok_or(unclosed)?;
                let high = if c == '\\' {
                    let c = self.chars.next().ok_or(unclosed)?;
                    self.parse_character(c)?
                } else {
                    c
                };
                if high < low {
                    return Err("invalid character class range");
                }
                // With the flag `i` the syntax tree looks at each character of a range.
                self.ranges += u64::from(u32::from(high) - u32::from(low)) / CHARACTERS_PER_RANGE;
                self.out.push('-');
                self.write_literal(high);
            }
        }
        self.out.push(']');
        Ok(())
    }
}

/// Flags without duplicates, which RE2 accepts. A flag after the minus sign is cleared.
fn distinct_flags(flags: &str) -> String {
    let (set, cleared) = flags.split_once('-').unwrap_or((flags, ""));
    let mut out = String::new();
    for flag in set.chars().filter(|flag| !cleared.contains(*flag)) {
        if !out.contains(flag) {
            out.push(flag);
        }
    }
    for (index, flag) in cleared.char_indices() {
        if index == 0 {
            out.push('-');
        }
        if !out.contains(flag) {
            out.push(flag);
        }
    }
    out
}

/// The ASCII class of an escape such as `\d`, for use inside and outside other classes.
fn perl_class(escaped: char) -> Option<&'static str> {
    Some(match escaped {
        'd' => "[0-9]",
        'D' => "[^0-9]",
        'w' => "[0-9A-Za-z_]",
        'W' => "[^0-9A-Za-z_]",
        's' => "[\\t\\n\\x0c\\r ]",
        'S' => "[^\\t\\n\\x0c\\r ]",
        _ => return None,
    })
}

/// Whether a general category or a script has this name. The set has only names that exist, so that Unicode limits
/// its size to some hundred names.
fn is_known_class(name: &str) -> bool {
    static KNOWN: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);
    if KNOWN.lock().contains(name) {
        return true;
    }
    let is_known = name.len() <= 64 && regex_syntax::parse(&format!("\\p{{{name}}}")).is_ok();
    if is_known {
        KNOWN.lock().insert(name.to_owned());
    }
    is_known
}

/// Names of classes in `[:name:]`.
const POSIX_CLASSES: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space",
    "upper", "word", "xdigit",
];

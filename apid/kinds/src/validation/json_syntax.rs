//! Errors of JSON texts in the wording of Go, which messages about such texts contain.
//!
//! # Contract
//!
//! [`object_error`] reads a text once, without recursion. Its message contains at most one character of the text.

use apimachinery::field::quote;

/// Maximum depth of a JSON text.
const DEPTH_MAX: usize = 10_000;

/// Text of the error at the end of an incomplete text.
const END: &str = "unexpected end of JSON input";

/// Part that the text must contain next.
#[derive(Clone, Copy)]
enum Next {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    AfterValue,
}

/// The reason why a text is no JSON object and not `null`; None if it is one of these.
pub(crate) fn object_error(text: &[u8]) -> Option<String> {
    if let Err(error) = (Scanner { text, at: 0 }).scan() {
        return Some(error);
    }
    let first = text.iter().find(|byte| !is_space(**byte));
    let kind = match first {
        Some(b'{' | b'n') | None => return None,
        Some(b'[') => "array",
        Some(b'"') => "string",
        Some(b't' | b'f') => "bool",
        Some(_) => "number",
    };
    Some(format!("json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"))
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

/// A JSON text and the position in it.
struct Scanner<'t> {
    text: &'t [u8],
    at: usize,
}

impl Scanner<'_> {
    /// Reads the whole text.
    fn scan(mut self) -> Result<(), String> {
        let (mut open, mut next) = (Vec::new(), Next::Value);
        loop {
            while self.text.get(self.at).copied().is_some_and(is_space) {
                self.at += 1;
            }
            let is_complete = open.is_empty() && matches!(next, Next::AfterValue);
            if is_complete && self.at == self.text.len() {
                return Ok(());
            }
            let byte = self.take()?;
            next = match (next, byte) {
                (Next::Value | Next::ValueOrEnd, b'{' | b'[') => {
                    open.push(byte);
                    if open.len() > DEPTH_MAX {
                        return Err("exceeded max depth".to_owned());
                    }
                    if byte == b'{' { Next::KeyOrEnd } else { Next::ValueOrEnd }
                }
                (Next::ValueOrEnd, b']') | (Next::KeyOrEnd, b'}') => {
                    open.pop();
                    Next::AfterValue
                }
                (Next::Value | Next::ValueOrEnd, _) => {
                    self.scalar(byte)?;
                    Next::AfterValue
                }
                (Next::Key | Next::KeyOrEnd, b'"') => {
                    self.string()?;
                    Next::Colon
                }
                (Next::Key | Next::KeyOrEnd, _) => {
                    return Err(invalid(byte, "looking for beginning of object key string"));
                }
                (Next::Colon, b':') => Next::Value,
                (Next::Colon, _) => return Err(invalid(byte, "after object key")),
                (Next::AfterValue, _) => match (open.last(), byte) {
                    (Some(b'{'), b',') => Next::Key,
                    (Some(b'['), b',') => Next::Value,
                    (Some(b'{'), b'}') | (Some(b'['), b']') => {
                        open.pop();
                        Next::AfterValue
                    }
                    (Some(b'{'), _) => return Err(invalid(byte, "after object key:value pair")),
                    (Some(_), _) => return Err(invalid(byte, "after array element")),
                    (None, _) => return Err(invalid(byte, "after top-level value")),
                },
            };
        }
    }

    /// Takes the next byte.
    fn take(&mut self) -> Result<u8, String> {
        let byte = self.text.get(self.at).copied().ok_or(END)?;
        self.at += 1;
        Ok(byte)
    }

    /// Reads the rest of a string, a number or a literal after its first byte.
    fn scalar(&mut self, first: u8) -> Result<(), String> {
        match first {
            b'"' => self.string(),
            b'-' | b'0'..=b'9' => self.number(first),
            b't' => self.literal("true"),
            b'f' => self.literal("false"),
            b'n' => self.literal("null"),
            _ => Err(invalid(first, "looking for beginning of value")),
        }
    }

    fn literal(&mut self, word: &str) -> Result<(), String> {
        for expected in word.bytes().skip(1) {
            let byte = self.take()?;
            if byte != expected {
                let context = format!("in literal {word} (expecting '{}')", char::from(expected));
                return Err(invalid(byte, &context));
            }
        }
        Ok(())
    }

    fn string(&mut self) -> Result<(), String> {
        loop {
            match self.take()? {
                b'"' => return Ok(()),
                b'\\' => match self.take()? {
                    b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"' => {}
                    b'u' => {
                        for _ in 0..4 {
                            let byte = self.take()?;
                            if !byte.is_ascii_hexdigit() {
                                return Err(invalid(byte, "in \\u hexadecimal character escape"));
                            }
                        }
                    }
                    byte => return Err(invalid(byte, "in string escape code")),
                },
                byte if byte < b' ' => return Err(invalid(byte, "in string literal")),
                _ => {}
            }
        }
    }

    fn number(&mut self, first: u8) -> Result<(), String> {
        let start = self.at.saturating_sub(1);
        let digit = if first == b'-' { self.digit("in numeric literal")? } else { first };
        if digit != b'0' {
            self.digits();
        }
        if self.text.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.digit("after decimal point in numeric literal")?;
            self.digits();
        }
        if matches!(self.text.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.text.get(self.at), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digit("in exponent of numeric literal")?;
            self.digits();
        }
        let number = self.text.get(start..self.at).map(String::from_utf8_lossy).unwrap_or_default();
        match number.parse::<f64>() {
            Ok(value) if value.is_infinite() => {
                Err(format!("json: cannot unmarshal number {number} into Go value of type float64"))
            }
            _ => Ok(()),
        }
    }

    /// Takes one digit.
    fn digit(&mut self, context: &str) -> Result<u8, String> {
        let byte = self.take()?;
        if byte.is_ascii_digit() { Ok(byte) } else { Err(invalid(byte, context)) }
    }

    /// Takes digits, as many as there are.
    fn digits(&mut self) {
        while self.text.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
    }
}

fn invalid(byte: u8, context: &str) -> String {
    let shown = match byte {
        b'\'' => r"'\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        _ => {
            let quoted = quote(&char::from(byte).to_string());
            format!("'{}'", quoted.trim_matches('"'))
        }
    };
    format!("invalid character {shown} {context}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_is_no_json_object_has_error_in_the_wording_of_go() {
        for text in ["null", " {} ", r#"{"a": [1, -0.5e+3, {"b": "\u00e9\n"}], "c": {"d": true}}"#, "[]x"] {
            assert_eq!(object_error(text.as_bytes()).is_some(), text == "[]x", "{text}");
        }
        let type_error = |kind: &str| {
            format!("json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}")
        };
        for (text, expected) in [
            ("", END.to_owned()),
            (" {", END.to_owned()),
            (r#"{"a"#, END.to_owned()),
            ("1e", END.to_owned()),
            ("a", "invalid character 'a' looking for beginning of value".to_owned()),
            ("new", "invalid character 'e' in literal null (expecting 'u')".to_owned()),
            ("{a", "invalid character 'a' looking for beginning of object key string".to_owned()),
            (r#"{"a"1"#, "invalid character '1' after object key".to_owned()),
            (r#"{"a":1 "b"#, "invalid character '\"' after object key:value pair".to_owned()),
            (r#"{"a":1,}"#, "invalid character '}' looking for beginning of object key string".to_owned()),
            ("[1 2]", "invalid character '2' after array element".to_owned()),
            ("[1,]", "invalid character ']' looking for beginning of value".to_owned()),
            ("{} '", r"invalid character '\'' after top-level value".to_owned()),
            ("01", "invalid character '1' after top-level value".to_owned()),
            ("-a", "invalid character 'a' in numeric literal".to_owned()),
            ("1.a", "invalid character 'a' after decimal point in numeric literal".to_owned()),
            ("1ex", "invalid character 'x' in exponent of numeric literal".to_owned()),
            ("\"\n\"", "invalid character '\\n' in string literal".to_owned()),
            (r#""\x""#, "invalid character 'x' in string escape code".to_owned()),
            (r#""\u00g""#, r"invalid character 'g' in \u hexadecimal character escape".to_owned()),
            ("[]", type_error("array")),
            ("1", type_error("number")),
            ("true", type_error("bool")),
            ("\"a\"", type_error("string")),
        ] {
            assert_eq!(object_error(text.as_bytes()), Some(expected), "{text}");
        }
        assert_eq!(object_error("[".repeat(DEPTH_MAX + 1).as_bytes()).unwrap(), "exceeded max depth");
    }
}

//! Blocks of PEM texts.
//!
//! # Reference
//!
//! The format is that of RFC 7468. As in the Go package `encoding/pem`, text outside valid blocks is ignored.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// A block of a PEM text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// Label between `BEGIN` and the dashes, such as `CERTIFICATE`.
    pub(crate) label: String,
    /// Whether the block has headers.
    pub(crate) has_headers: bool,
    /// Decoded content.
    pub(crate) content: Vec<u8>,
}

/// Reads the blocks of a PEM text.
pub(crate) fn blocks(text: &str) -> Vec<Block> {
    let mut lines = text.lines().map(str::trim_end);
    let mut blocks = Vec::new();
    while let Some(line) = lines.next() {
        let Some(label) = boundary(line, "-----BEGIN ") else { continue };
        let end = format!("-----END {label}-----");
        let mut rest = lines.clone();
        let mut is_complete = false;
        // No line of a block begins with dashes, so each line is read at most twice.
        let body: Vec<&str> = rest
            .by_ref()
            .take_while(|line| {
                is_complete = *line == end;
                !line.starts_with("-----")
            })
            .collect();
        let has_headers = body.iter().any(|line| line.contains(':'));
        let content: String =
            body.iter().filter(|line| !line.contains(':')).map(|line| line.trim()).collect();
        if is_complete && let Ok(content) = STANDARD.decode(content) {
            blocks.push(Block { label: label.to_owned(), has_headers, content });
            lines = rest;
        }
    }
    blocks
}

fn boundary<'t>(line: &'t str, prefix: &str) -> Option<&'t str> {
    line.strip_prefix(prefix)?.strip_suffix("-----")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pem_text_has_its_valid_blocks() {
        let text = "note\n-----BEGIN A B-----\nYQ==\n-----END A B-----\n-----BEGIN X-----\n!\n-----END X-----\n\
                    -----BEGIN C-----\nk: v\n\nYWI=\n-----END C-----";
        let block = |label: &str, has_headers, content: &str| Block {
            label: label.to_owned(),
            has_headers,
            content: content.into(),
        };
        assert_eq!(blocks(text), [block("A B", false, "a"), block("C", true, "ab")]);
        assert_eq!(blocks("-----BEGIN A-----\nYQ=="), []);
    }

    #[test]
    fn block_after_many_incomplete_blocks_is_found() {
        let incomplete = "-----BEGIN A-----\n".repeat(100_000);
        assert_eq!(blocks(&incomplete), []);
        let found = blocks(&format!("{incomplete}-----BEGIN B-----\nYQ==\n-----END B-----"));
        assert_eq!(found.iter().map(|block| block.label.as_str()).collect::<Vec<_>>(), ["B"]);
    }
}

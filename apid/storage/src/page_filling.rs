//! Filling of a page within a limit of rows and a limit of bytes, from several reads.
//!
//! A store that converts values limits the bytes of the converted values. The store below counts the bytes before the
//! conversion, so one page of the store below can have too few or too many rows.

use std::ops::ControlFlow;

use crate::{Page, Revision, Row};

/// A page that is not complete yet.
pub struct PageFilling {
    page: Page,
    start: String,
    /// Maximum number of rows; 0 is no limit.
    limit: usize,
    bytes: usize,
    used: usize,
}

impl PageFilling {
    /// An empty page at a revision, of rows from a key on. `limit` is the maximum number of rows, 0 for no limit; `bytes`
    /// the maximum size of the rows in bytes. The first row may be larger.
    pub fn new(start: &str, limit: usize, bytes: usize, at: Revision) -> Self {
        let page = Page { rows: Vec::new(), revision: at, more: true };
        PageFilling { page, start: start.to_owned(), limit, bytes, used: 0 }
    }

    /// The key from which the next read begins.
    pub fn start(&self) -> &str {
        &self.start
    }

    /// Maximum number of rows of the next read; 0 is no limit.
    pub fn rows_left(&self) -> usize {
        self.limit.saturating_sub(self.page.rows.len())
    }

    /// Maximum size of the rows of the next read in bytes.
    pub fn bytes_left(&self) -> usize {
        self.bytes.saturating_sub(self.used)
    }

    /// Adds the rows of a read. Continues if the page needs another read.
    pub fn include(mut self, read: Page) -> ControlFlow<Page, Self> {
        for row in read.rows {
            if !self.add_row(row) {
                return ControlFlow::Break(self.page);
            }
        }
        let is_full = self.limit > 0 && self.page.rows.len() >= self.limit;
        self.page.more = read.more;
        if !read.more || is_full { ControlFlow::Break(self.page) } else { ControlFlow::Continue(self) }
    }

    /// Adds a row if it fits. The first row always fits.
    fn add_row(&mut self, row: Row) -> bool {
        self.used = self.used.saturating_add(row.size());
        if self.used > self.bytes && !self.page.rows.is_empty() {
            return false;
        }
        self.start = format!("{}\0", row.key);
        self.page.rows.push(row);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: &str) -> Row {
        Row { key: key.into(), value: "0123456789".into(), revision: Revision(1) }
    }

    fn read(keys: &[&str], more: bool) -> Page {
        Page { rows: keys.iter().map(|key| row(key)).collect(), revision: Revision(1), more }
    }

    fn keys(page: &Page) -> Vec<&str> {
        page.rows.iter().map(|row| &*row.key).collect()
    }

    #[test]
    fn page_ends_at_a_limit_or_at_the_end_of_the_rows() {
        let size = row("a").size();
        for (limit, bytes, more, expected, expected_more) in [
            (0, 1 << 20, false, vec!["a", "b"], false),
            (2, 1 << 20, true, vec!["a", "b"], true),
            (0, size, true, vec!["a"], true),
            // A row above the limit of bytes is a page of its own.
            (0, 1, false, vec!["a"], true),
        ] {
            let page = PageFilling::new("", limit, bytes, Revision(1)).include(read(&["a", "b"], more));
            let page = page.break_value().expect("a complete page");
            assert_eq!((keys(&page), page.more), (expected, expected_more), "{limit} {bytes}");
        }
    }

    #[test]
    fn page_with_room_needs_a_read_after_its_last_key() {
        let size = row("a").size();
        let filling = PageFilling::new("a", 5, 3 * size, Revision(1));
        assert_eq!((filling.start(), filling.rows_left(), filling.bytes_left()), ("a", 5, 3 * size));
        let filling = filling.include(read(&["a", "b"], true)).continue_value().expect("room for a row");
        assert_eq!((filling.start(), filling.rows_left(), filling.bytes_left()), ("b\0", 3, size));
        let page = filling.include(read(&["c", "d"], false)).break_value().expect("a complete page");
        assert_eq!((keys(&page), page.more), (vec!["a", "b", "c"], true));
    }
}

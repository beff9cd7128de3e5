//! File content in pages. Copies share a page until one of them writes to it.
//!
//! Sharing keeps copies small: write-ahead logs have 64 MiB from the beginning, and every power cut copies
//! the disk.

use std::sync::Arc;

/// Size of a page in bytes.
pub(crate) const PAGE_BYTES: usize = 4096;

/// Content of a file; unwritten bytes are zero and take no memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    size: usize,
    written_pages: usize,
    pages: Vec<Option<Arc<[u8; PAGE_BYTES]>>>,
}

impl Content {
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Returns the number of written pages.
    pub(crate) fn written_pages(&self) -> usize {
        self.written_pages
    }

    /// Returns the number of pages that a write of `size` bytes at `offset` would add.
    pub(crate) fn missing_pages(&self, offset: usize, size: usize) -> usize {
        let missing = |(page, _): &(usize, _)| self.pages.get(*page).is_none_or(Option::is_none);
        page_ranges(offset, offset + size).filter(missing).count()
    }

    /// Reads up to `size` bytes from `offset`: fewer at the end.
    pub(crate) fn read(&self, offset: usize, size: usize) -> Vec<u8> {
        let end = self.size.min(offset.saturating_add(size));
        let mut bytes = Vec::with_capacity(end.saturating_sub(offset));
        for (page, within) in page_ranges(offset, end) {
            match &self.pages[page] {
                Some(page) => bytes.extend_from_slice(&page[within]),
                None => bytes.resize(bytes.len() + within.len(), 0),
            }
        }
        bytes
    }

    /// Writes bytes at `offset`, and extends the content if necessary.
    pub(crate) fn write(&mut self, offset: usize, mut data: &[u8]) {
        let end = offset + data.len();
        if self.size < end {
            self.resize(end);
        }
        for (page, within) in page_ranges(offset, end) {
            let (now, later) = data.split_at(within.len());
            let written_pages = &mut self.written_pages;
            let page = self.pages[page].get_or_insert_with(|| {
                *written_pages += 1;
                Arc::new([0; PAGE_BYTES])
            });
            Arc::make_mut(page)[within].copy_from_slice(now);
            data = later;
        }
    }

    /// Truncates the content to `size` bytes, or extends it with zeros.
    pub(crate) fn resize(&mut self, size: usize) {
        let pages = size.div_ceil(PAGE_BYTES);
        self.written_pages -= self.pages.iter().skip(pages).flatten().count();
        self.pages.resize(pages, None);
        if size < self.size
            && let (used @ 1.., Some(Some(last))) = (size % PAGE_BYTES, self.pages.last_mut())
        {
            Arc::make_mut(last)[used..].fill(0);
        }
        self.size = size;
    }
}

/// Iterates over the pages between two offsets, with the byte range in each.
fn page_ranges(offset: usize, end: usize) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
    (offset / PAGE_BYTES..end.max(offset).div_ceil(PAGE_BYTES)).filter_map(move |page| {
        let begin = page * PAGE_BYTES;
        let within = offset.saturating_sub(begin)..PAGE_BYTES.min(end.saturating_sub(begin));
        (within.start < within.end).then_some((page, within))
    })
}

#[test]
fn paged_content_equals_vector_model() {
    use rand::{Rng, SeedableRng};
    let mut random = rand::rngs::SmallRng::seed_from_u64(1);
    let (mut content, mut vector) = (Content::default(), Vec::<u8>::new());
    for _ in 0..2000 {
        let offset = random.random_range(0..20_000);
        if random.random_bool(0.2) {
            content.resize(offset);
            vector.resize(offset, 0);
        } else {
            let data = vec![random.random(); random.random_range(0..10_000)];
            content.write(offset, &data);
            vector.resize(vector.len().max(offset + data.len()), 0);
            vector[offset..offset + data.len()].copy_from_slice(&data);
        }
        let (from, size) = (random.random_range(0..30_000), random.random_range(0..30_000));
        let expected = vector.get(from..vector.len().min(from + size)).unwrap_or_default();
        assert_eq!(content.read(from, size), expected);
        assert_eq!(content.size(), vector.len());
        assert_eq!(content.written_pages(), content.pages.iter().flatten().count());
    }
}

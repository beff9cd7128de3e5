//! Keys that come more than once: where they are, in a bounded list.
//!
//! # Invariants
//!
//! INVARIANT (bounded): at most 100 paths (the reference stops there too) and, after the first, at most 64 KiB of text
//! is rendered: a long key around many duplicates cannot multiply.

/// Most paths that are kept.
const MAX_PATHS: usize = 100;
/// Most bytes of paths that are rendered, the first path aside.
const MAX_BYTES: usize = 64 * 1024;

/// Where a value is; lives on the stack of the decoder and is rendered only for a duplicate.
#[derive(Clone, Copy)]
pub(super) enum Path<'p> {
    /// The document.
    Root,
    /// A field of an object.
    Field(&'p Path<'p>, &'p str),
    /// An item of a list.
    Item(&'p Path<'p>, usize),
}

impl Path<'_> {
    /// The name of a field; None for an item of a list.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Path::Field(_, name) => Some(name),
            Path::Root | Path::Item(..) => None,
        }
    }

    /// `spec.containers[0].name`. The recursion is as deep as the document, which the decoder limits.
    fn render(&self, out: &mut String) {
        match *self {
            Path::Root => {}
            Path::Field(parent, key) => {
                parent.render(out);
                push_field(out, key);
            }
            Path::Item(parent, index) => {
                parent.render(out);
                push_item(out, index);
            }
        }
    }
}

/// Adds `.key`, without the dot at the beginning.
pub(super) fn push_field(out: &mut String, key: &str) {
    if !out.is_empty() {
        out.push('.');
    }
    out.push_str(key);
}

/// Adds `[index]`.
pub(super) fn push_item(out: &mut String, index: usize) {
    out.push('[');
    out.push_str(&index.to_string());
    out.push(']');
}

/// The paths found so far.
#[derive(Default)]
pub(super) struct Duplicates {
    paths: Vec<String>,
    bytes: usize,
}

impl Duplicates {
    /// The place of what is found next: a key is noted once its value is read, and before what that value held.
    pub(super) fn mark(&self) -> usize {
        self.paths.len()
    }

    /// Notes a path at a place.
    pub(super) fn note(&mut self, mark: usize, path: &Path<'_>) {
        if self.is_full() {
            return;
        }
        let mut text = String::new();
        path.render(&mut text);
        self.note_text(mark, text);
    }

    /// Whether no more will be kept.
    pub(super) fn is_full(&self) -> bool {
        self.paths.len() >= MAX_PATHS || (!self.paths.is_empty() && self.bytes >= MAX_BYTES)
    }

    /// Notes a rendered path at a place.
    pub(super) fn note_text(&mut self, mark: usize, path: String) {
        if self.is_full() {
            return;
        }
        self.bytes += path.len();
        if self.paths.contains(&path) {
            return;
        }
        self.paths.insert(mark.min(self.paths.len()), path);
    }

    /// The paths, in the order of the document.
    pub(super) fn into_paths(self) -> Vec<String> {
        self.paths
    }
}

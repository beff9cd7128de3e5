//! Paths of duplicate keys, in a list of limited size.
//!
//! # Invariants
//!
//! INVARIANT (bounded): at most 100 paths are kept (like the reference). After the first path at most 64 KiB
//! of text is rendered, so that many duplicates below a long key do not repeat the key without limit.

/// Maximum number of kept paths.
const MAX_PATHS: usize = 100;
/// Maximum bytes of rendered paths, without the first path.
const MAX_BYTES: usize = 64 * 1024;

/// Path of a value on the stack of the decoder; rendered only for a duplicate.
#[derive(Clone, Copy)]
pub(super) enum Path<'p> {
    /// Document root.
    Root,
    /// Field of an object.
    Field(&'p Path<'p>, &'p str),
    /// Item of a list.
    Item(&'p Path<'p>, usize),
}

impl Path<'_> {
    /// Name of a field; None for an item of a list.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Path::Field(_, name) => Some(name),
            Path::Root | Path::Item(..) => None,
        }
    }

    /// The rendered path.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        self.render(&mut text);
        text
    }

    /// Renders the path, for example `spec.containers[0].name`. The decoder limits the recursion to the depth
    /// of the document.
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

/// Appends `.key`, without the dot at the beginning.
pub(super) fn push_field(out: &mut String, key: &str) {
    if !out.is_empty() {
        out.push('.');
    }
    out.push_str(key);
}

/// Appends `[index]`.
pub(super) fn push_item(out: &mut String, index: usize) {
    out.push('[');
    out.push_str(&index.to_string());
    out.push(']');
}

/// Paths of duplicates found so far.
#[derive(Default)]
pub(super) struct Duplicates {
    paths: Vec<String>,
    bytes: usize,
}

impl Duplicates {
    /// Position of the next path. A key is noted after its value is read, but before the duplicates in that
    /// value.
    pub(super) fn mark(&self) -> usize {
        self.paths.len()
    }

    /// Notes a path at a position.
    pub(super) fn note(&mut self, mark: usize, path: &Path<'_>) {
        if self.is_full() {
            return;
        }
        self.note_text(mark, path.text());
    }

    /// Whether further paths are dropped.
    pub(super) fn is_full(&self) -> bool {
        self.paths.len() >= MAX_PATHS || (!self.paths.is_empty() && self.bytes >= MAX_BYTES)
    }

    /// Notes a rendered path at a position.
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

    /// Returns the paths in the order of the document.
    pub(super) fn into_paths(self) -> Vec<String> {
        self.paths
    }
}

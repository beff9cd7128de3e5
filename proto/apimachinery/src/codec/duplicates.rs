//! Paths of duplicate keys, in a list of limited size.
//!
//! # Invariants
//!
//! INVARIANT (bounded): at most 100 paths are kept (like kube-apiserver). After 64 KiB of rendered text no further
//! path is rendered. So many duplicates below a long key do not repeat the key without limit.

/// Maximum number of kept paths.
const MAX_PATHS: usize = 100;
/// Bytes of rendered paths after which no further path is rendered.
const MAX_BYTES: usize = 64 * 1024;

/// Path of a value, as a chain of references on the stack of the decoder. Rendered only on demand.
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
    /// Name of a field; None for an item of a list and for the root.
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

    /// Renders the path, for example `spec.containers[0].name`.
    ///
    /// The recursion is as deep as the path, which the decoder limits.
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

/// Appends `.key`; at the beginning of a path only `key`.
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
    /// Position of the next path.
    ///
    /// The decoder takes the position before it reads the value of a key. After the value, it inserts the path
    /// of a duplicate key at this position, so that the path precedes those of duplicates inside the value.
    pub(super) fn next_position(&self) -> usize {
        self.paths.len()
    }

    /// Renders the path of a duplicate and inserts it at a position.
    pub(super) fn insert(&mut self, position: usize, path: &Path<'_>) {
        if self.is_full() {
            return;
        }
        self.insert_text(position, path.text());
    }

    /// Whether the list is full, so that further paths are dropped.
    pub(super) fn is_full(&self) -> bool {
        self.paths.len() >= MAX_PATHS || (!self.paths.is_empty() && self.bytes >= MAX_BYTES)
    }

    /// Inserts the rendered path of a duplicate at a position, unless the list already contains the path.
    pub(super) fn insert_text(&mut self, position: usize, path: String) {
        if self.is_full() {
            return;
        }
        self.bytes += path.len();
        if self.paths.contains(&path) {
            return;
        }
        self.paths.insert(position.min(self.paths.len()), path);
    }

    /// Returns the paths in the order of the document.
    pub(super) fn into_paths(self) -> Vec<String> {
        self.paths
    }
}

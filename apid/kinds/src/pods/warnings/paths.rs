//! Warnings about overlapping files of a volume, which hide each other.

use apimachinery::field::{quote, quote_name};
use apimachinery::object::Value;

use crate::validation::Field;

/// Volume sources that list files. For each: its field in the volume, its field with the name of the referenced
/// object (empty if it has none), and its kind in warnings.
const SOURCES: [(&str, &str, &str); 3] = [
    ("configMap", "name", "ConfigMap"),
    ("secret", "secretName", "Secret"),
    ("downwardAPI", "", "DownwardAPI"),
];

/// Sources of projected volumes that list files, with the same three texts as [`SOURCES`].
const PROJECTED_SOURCES: [(&str, &str, &str); 3] =
    [("configMap", "name", "ConfigMap"), ("secret", "name", "Secret"), ("downwardAPI", "", "DownwardAPI")];

/// Maximum number of pairs of files that are compared for one pod; further pairs cause no warnings.
const COMPARISONS_MAX: usize = 1_000_000;

/// Maximum number of collected warnings about overlaps for each source; a response of apid has fewer
/// warnings.
const OVERLAPS_MAX: usize = 100;

/// A file of a volume.
struct File<'v> {
    path: &'v str,
    /// The description of the file in warnings.
    description: String,
}

impl<'v> File<'v> {
    /// A file of a source. `source` is `""` if the volume has only this source.
    fn new(path: &'v str, source: &str) -> Self {
        let path = path.trim_end_matches('/');
        let description = match source {
            "" => quote_name(path),
            source => format!("{} ({source})", quote_name(path)),
        };
        File { path, description }
    }

    /// Whether both files have the same path, or one is below the other.
    fn overlaps(&self, other: &File<'_>) -> bool {
        let is_below = |path: &str, folder: &str| {
            path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        !self.path.is_empty()
            && !other.path.is_empty()
            && (is_below(self.path, other.path) || is_below(other.path, self.path))
    }
}

/// Reports files of a volume with overlapping paths, and projections without a source.
pub(super) fn overlapping_files(volumes: &Field<'_, '_>, warnings: &mut Vec<String>) {
    let mut comparisons = COMPARISONS_MAX;
    for volume in volumes.items() {
        let name = quote(volume.child("name").text());
        for (field, name_field, kind) in SOURCES {
            let source = volume.child(field);
            let files = files(&source, "");
            report(&name, &describe_source(&source, name_field, kind), &files, &mut comparisons, warnings);
        }
        let (projected, mut all_files) = (volume.child("projected"), Vec::new());
        for source in projected.child("sources").items() {
            match projected_files(&source) {
                Some(files) => all_files.extend(files),
                None => warnings.push(format!("volume {name} (Projected) has no sources provided")),
            }
        }
        report(&name, "Projected", &all_files, &mut comparisons, warnings);
    }
}

/// Reports pairs of files with overlapping paths, at most [`OVERLAPS_MAX`]. Decrements `comparisons` for each
/// compared pair and ends at 0.
fn report(
    volume: &str,
    source: &str,
    files: &[File<'_>],
    comparisons: &mut usize,
    warnings: &mut Vec<String>,
) {
    let pairs = files
        .iter()
        .enumerate()
        .flat_map(|(i, file)| files.iter().take(i).map(move |other| (file, other)))
        .take(*comparisons)
        .inspect(|_| *comparisons -= 1);
    for (file, other) in pairs.filter(|(file, other)| file.overlaps(other)).take(OVERLAPS_MAX) {
        let (file, other) = (&file.description, &other.description);
        warnings.push(format!("volume {volume} ({source}): overlapping paths: {file} with {other}"));
    }
}

/// Describes a source in warnings: its kind, and its name if it has one.
fn describe_source(source: &Field<'_, '_>, name_field: &str, kind: &str) -> String {
    match name_field {
        "" => kind.to_owned(),
        name_field => format!("{kind} {}", quote_name(source.child(name_field).text())),
    }
}

fn files<'v>(source: &Field<'v, '_>, source_text: &str) -> Vec<File<'v>> {
    let items = source.value().and_then(|source| source.get("items")).and_then(Value::as_array);
    let path = |item: &'v Value| item.get("path").and_then(Value::as_str);
    items.into_iter().flatten().filter_map(path).map(|path| File::new(path, source_text)).collect()
}

/// Files of a source of a projected volume; None if the source is empty.
fn projected_files<'v>(source: &Field<'v, '_>) -> Option<Vec<File<'v>>> {
    for (field, name_field, kind) in PROJECTED_SOURCES {
        let source = source.child(field);
        if source.is_present() {
            return Some(files(&source, &describe_source(&source, name_field, kind)));
        }
    }
    let (token, bundle) = (source.child("serviceAccountToken"), source.child("clusterTrustBundle"));
    if token.is_present() {
        return Some(vec![File::new(token.child("path").text(), "ServiceAccountToken")]);
    }
    let name_field = if bundle.child("name").is_present() { "name" } else { "signerName" };
    let source_text = describe_source(&bundle, name_field, "ClusterTrustBundle");
    bundle.is_present().then(|| vec![File::new(bundle.child("path").text(), &source_text)])
}

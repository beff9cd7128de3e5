//! Flags of a command line before it is parsed.
//!
//! # Contract
//!
//! A flag has the form `--name=value` or `--name value`. The last occurrence of a flag counts. [`has_flag`]
//! also knows the form `-n` of a flag with a name of one letter. clap checks names and values; this module
//! finds flags that decide about other flags.

/// Returns the last value of a flag; None without the flag.
pub fn flag_value(arguments: &[String], name: &str) -> Option<String> {
    let mut value = None;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match Occurrence::from_argument(argument, name) {
            Some(Occurrence::Detached) => value = rest.next().cloned(),
            Some(Occurrence::Attached(attached)) => value = Some(attached.to_owned()),
            None => {}
        }
    }
    value
}

/// Whether a command line has a flag.
pub fn has_flag(arguments: &[String], name: &str) -> bool {
    let is_short = |argument: &String| {
        name.len() == 1
            && !argument.starts_with("--")
            && argument.strip_prefix('-').is_some_and(|word| word.starts_with(name))
    };
    arguments.iter().any(|argument| is_short(argument) || Occurrence::from_argument(argument, name).is_some())
}

/// Removes all occurrences of a flag with their values.
pub fn without_flag(arguments: Vec<String>, name: &str) -> Vec<String> {
    let mut rest = arguments.into_iter();
    let mut others = Vec::new();
    while let Some(argument) = rest.next() {
        match Occurrence::from_argument(&argument, name) {
            Some(Occurrence::Detached) => drop(rest.next()),
            Some(Occurrence::Attached(_)) => {}
            None => others.push(argument),
        }
    }
    others
}

/// An argument that is a flag, with the place of its value.
enum Occurrence<'a> {
    /// The value is the next argument.
    Detached,
    /// The value follows an equals sign.
    Attached(&'a str),
}

impl<'a> Occurrence<'a> {
    fn from_argument(argument: &'a str, name: &str) -> Option<Self> {
        match argument.strip_prefix("--")?.strip_prefix(name)? {
            "" => Some(Occurrence::Detached),
            rest => rest.strip_prefix('=').map(Occurrence::Attached),
        }
    }
}

/// Returns the candidate with the least edit distance from `name`, if that is at most a third of the length of
/// `name`. The case of letters does not count.
pub fn most_similar<'c>(name: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let name = name.to_lowercase();
    let distances = candidates
        .into_iter()
        .map(|candidate| (strsim::levenshtein(&name, &candidate.to_lowercase()), candidate));
    let (distance, nearest) = distances.min()?;
    (distance <= name.len() / 3).then_some(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn flag_values_are_found_and_removed_in_both_forms() {
        let line =
            words(&["--etcd-servers=a", "--etcd-servers-overrides=o", "--v=1", "--etcd-servers", "b", "--x"]);
        assert_eq!(flag_value(&line, "etcd-servers").as_deref(), Some("b"));
        assert_eq!(flag_value(&line, "etcd"), None);
        assert_eq!(without_flag(line, "etcd-servers"), ["--etcd-servers-overrides=o", "--v=1", "--x"]);
    }

    #[test]
    fn short_flag_is_found_with_an_attached_value() {
        assert!(has_flag(&words(&["-v4"]), "v"));
        assert!(has_flag(&words(&["--v", "4"]), "v"));
        assert!(!has_flag(&words(&["--verify"]), "v"));
        assert!(!has_flag(&words(&["--datadir"]), "data-dir"));
    }

    #[test]
    fn most_similar_name_is_at_most_a_third_away() {
        let names = ["NodeRestriction", "ResourceQuota", "certs"];
        for (name, expected) in [
            ("noderestriction", Some("NodeRestriction")),
            ("NodeRestrictions", Some("NodeRestriction")),
            ("ResourcesQuota", Some("ResourceQuota")),
            ("cert", Some("certs")),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(most_similar(name, names), expected, "{name}");
        }
    }
}

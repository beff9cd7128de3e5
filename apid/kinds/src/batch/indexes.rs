//! Lists of indexes such as `1,3-5,7`.

use apimachinery::field::quote;

/// The error of an invalid list, with the text of kube-apiserver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum IndexesError {
    /// An interval has more than two parts.
    #[error(
        "the fragment {} violates the requirement that an index interval can have at most two parts separated by '-'",
        quote(.0)
    )]
    Interval(String),
    /// An index is not a number.
    #[error("cannot convert string to integer for index: {}", quote(.0))]
    NotANumber(String),
    /// An index is not below the number of completions.
    #[error("too large index: {}", quote(.0))]
    TooLarge(String),
    /// An index is not above the index before it.
    #[error("non-increasing order, previous: {previous}, current: {index}")]
    Order {
        /// The index that precedes the invalid index.
        previous: i64,
        /// The invalid index.
        index: i64,
    },
}

/// Indexes as ascending ranges, each with its first and its last index.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Indexes(Vec<(i64, i64)>);

impl Indexes {
    /// Parses a list whose indexes are smaller than `completions`. An empty text has no indexes.
    ///
    /// # Errors
    ///
    /// See [`IndexesError`].
    pub(super) fn parse(text: &str, completions: i64) -> Result<Self, IndexesError> {
        let mut ranges = Vec::new();
        let mut last = -1;
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let (first, end) = part.split_once('-').map_or((part, None), |(first, end)| (first, Some(end)));
            if end.is_some_and(|end| end.contains('-')) {
                return Err(IndexesError::Interval(part.to_owned()));
            }
            let start = parse_index(first, last, completions)?;
            last = end.map_or(Ok(start), |end| parse_index(end, start, completions))?;
            ranges.push((start, last));
        }
        Ok(Indexes(ranges))
    }

    /// Number of indexes.
    pub(super) fn len(&self) -> i64 {
        self.0.iter().map(|(start, end)| end - start + 1).sum()
    }

    /// The lowest index that both lists contain.
    pub(super) fn overlap(&self, other: &Indexes) -> Option<i64> {
        let (mut ranges, mut other_ranges) = (self.0.iter().peekable(), other.0.iter().peekable());
        loop {
            let (a, b) = (ranges.peek()?, other_ranges.peek()?);
            let start = a.0.max(b.0);
            if start <= a.1.min(b.1) {
                return Some(start);
            }
            if a.1 < b.1 {
                ranges.next()
            } else {
                other_ranges.next()
            };
        }
    }
}

/// Parses an index above `previous` and below `completions`.
fn parse_index(text: &str, previous: i64, completions: i64) -> Result<i64, IndexesError> {
    let index = text.parse::<i64>().map_err(|_| IndexesError::NotANumber(text.to_owned()))?;
    if index >= completions {
        return Err(IndexesError::TooLarge(text.to_owned()));
    }
    if index <= previous {
        return Err(IndexesError::Order { previous, index });
    }
    Ok(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_parsed_in_order() {
        assert_eq!(Indexes::parse("1,3-5", 6).map(|indexes| indexes.len()), Ok(4));
        assert_eq!(Indexes::parse("", 6).map(|indexes| indexes.len()), Ok(0));
        for (text, error) in [
            ("6", "too large index: \"6\""),
            ("1-9", "too large index: \"9\""),
            ("x", "cannot convert string to integer for index: \"x\""),
            ("2,1", "non-increasing order, previous: 2, current: 1"),
            ("3-3", "non-increasing order, previous: 3, current: 3"),
        ] {
            assert_eq!(Indexes::parse(text, 6).unwrap_err().to_string(), error, "{text}");
        }
        let parse = |text| Indexes::parse(text, 10).unwrap();
        assert_eq!(parse("1-4").overlap(&parse("3,5")), Some(3));
        assert_eq!(parse("1-4").overlap(&parse("5")), None);
        assert_eq!(parse("1,3,5-7").overlap(&parse("2,4,6-9")), Some(6));
    }

    #[test]
    fn long_lists_of_indexes_overlap() {
        let every_second_index_from = |first: usize| {
            let indexes: Vec<String> = (0..200_000).map(|i| (first + 2 * i).to_string()).collect();
            Indexes::parse(&indexes.join(","), 1_000_000).unwrap()
        };
        assert_eq!(every_second_index_from(0).overlap(&every_second_index_from(1)), None);
        assert_eq!(every_second_index_from(0).overlap(&every_second_index_from(200_000)), Some(200_000));
    }
}

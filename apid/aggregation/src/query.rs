//! The query of a forwarded request.

/// Returns a query ordered by the names of its parameters, as kube-aggregator sends it. Values of one name keep their
/// order.
pub fn sorted_query(query: &str) -> String {
    let mut pairs: Vec<&str> = query.split('&').filter(|pair| !pair.is_empty()).collect();
    pairs.sort_by_key(|pair| pair.split('=').next().unwrap_or_default());
    pairs.join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_ordered_by_name_and_values_stay() {
        for (query, expected) in [
            ("", ""),
            ("watch", "watch"),
            ("x=%2Fy+z&limit=5&labelSelector=a%3Db", "labelSelector=a%3Db&limit=5&x=%2Fy+z"),
            ("b=2&a=1&&b=1", "a=1&b=2&b=1"),
        ] {
            assert_eq!(sorted_query(query), expected, "{query}");
        }
    }
}

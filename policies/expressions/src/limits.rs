//! Cost limits of the Kubernetes API, and messages about exceeded estimates.

/// Maximum cost units of one evaluation of one expression.
pub const CALL: u64 = 1_000_000;
/// Maximum cost units of all rules together on one object.
pub const OBJECT: u64 = 10_000_000;
/// Maximum cost units of all match conditions of one webhook or policy together, for one object.
pub const MATCH_CONDITIONS: u64 = 2_500_000;
/// Maximum estimated cost of one rule of a schema, in cost units; a higher estimate is an error.
pub const RULE_ESTIMATE: u64 = 10_000_000;
/// Maximum sum of the estimated costs of all rules of a schema, in cost units; a higher sum is an error.
pub const SCHEMA_ESTIMATE: u64 = 100_000_000;

/// Maximum number of schema paths in a message about an exceeded sum.
const MAX_NAMED: usize = 4;

/// Message about an estimate above its limit; `None` if within the limit.
/// `phrase` names the estimate, for example `estimated rule cost`.
pub fn excess(phrase: &str, cost: u64, limit: u64) -> Option<String> {
    #[expect(clippy::cast_precision_loss, reason = "the factor is only displayed")]
    let factor = cost as f64 / limit as f64;
    if cost <= limit {
        return None;
    }
    let factor = match factor {
        f if f > 100.0 => "more than 100".to_owned(),
        // With one decimal, a small excess would look like a factor of 1.0.
        f if f < 1.5 => format!("{f:.6}"),
        f => format!("{f:.1}"),
    };
    Some(format!(
        "{phrase} exceeds budget by factor of {factor}x (try simplifying the rule, or adding maxItems, \
         maxProperties, and maxLength where arrays, maps, and strings are declared)"
    ))
}

/// Sum of the estimates of all rules of a schema.
#[derive(Clone, Debug, Default)]
pub struct EstimateSum {
    total: u64,
    /// Highest estimates with their schema paths, in descending order.
    highest: Vec<(u64, String)>,
}

impl EstimateSum {
    /// Adds the estimate of the rule at a schema path.
    pub fn add(&mut self, path: impl Into<String>, cost: u64) {
        self.total = self.total.saturating_add(cost);
        // Messages do not contain the paths of estimates below a hundredth of the limit.
        if cost >= SCHEMA_ESTIMATE / 100 {
            let before = self.highest.partition_point(|(known, _)| *known >= cost);
            self.highest.insert(before, (cost, path.into()));
            self.highest.truncate(MAX_NAMED);
        }
    }

    /// The sum.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Schema paths of the highest estimates, in descending order.
    pub fn highest(&self) -> impl Iterator<Item = &str> {
        self.highest.iter().map(|(_, path)| path.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excess_message_has_factor() {
        for (cost, factor) in [
            (10_000_000, None),
            (10_000_001, Some("1.000000x")),
            (14_000_000, Some("1.400000x")),
            (25_000_000, Some("2.5x")),
            (1_000_000_000, Some("100.0x")),
            (u64::MAX, Some("more than 100x")),
        ] {
            let message = excess("estimated rule cost", cost, RULE_ESTIMATE);
            let expected = factor.map(|f| format!("estimated rule cost exceeds budget by factor of {f} ("));
            assert_eq!(message.is_some(), expected.is_some(), "{cost}");
            assert!(message.unwrap_or_default().starts_with(&expected.unwrap_or_default()), "{cost}");
        }
    }

    #[test]
    fn estimate_sum_names_highest_contributors() {
        let mut sum = EstimateSum::default();
        for (place, cost) in [("a", 999_999), ("b", 5_000_000), ("c", 9_000_000), ("d", 1_000_000)] {
            sum.add(place, cost);
        }
        assert_eq!(sum.highest().collect::<Vec<_>>(), ["c", "b", "d"]);
        sum.add("e", 2_000_000);
        sum.add("f", u64::MAX);
        assert_eq!((sum.total(), sum.highest().collect::<Vec<_>>()), (u64::MAX, vec!["f", "c", "b", "e"]));
    }
}

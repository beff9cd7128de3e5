//! Resource amounts and their sums.
//!
//! # Contract
//!
//! A [`Quantity`] is exact to 10^-9 and saturates at about 10^29. A sum keeps the format (binary, decimal,
//! exponent) of its first non-zero operand, as in kube-apiserver. The schema crate defines parsing and
//! formatting of quantities.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use schema::quantity::{Form, nanos, of_nanos};
use serde_json::{Map, Value};

/// The number 1 in units of 10^-9.
const ONE: i128 = 1_000_000_000;

/// A resource amount.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantity {
    nanos: i128,
    form: Form,
}

/// Amounts by resource name.
pub type Amounts = BTreeMap<String, Quantity>;

impl Quantity {
    /// Converts an integer.
    pub fn from_integer(number: i64) -> Self {
        Quantity { nanos: i128::from(number) * ONE, form: Form::Decimal }
    }

    /// Parses a quantity; None if the text is invalid.
    pub fn parse(text: &str) -> Option<Self> {
        let (nanos, form) = nanos(text).ok()?;
        Some(Quantity { nanos, form })
    }

    /// Parses a quantity value of an object: a string or a number.
    pub fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) => Quantity::parse(text),
            Value::Number(number) => Quantity::parse(&number.to_string()),
            _ => None,
        }
    }

    /// Whether the amount is zero.
    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// Whether the amount is negative.
    pub fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// Sum of both amounts.
    #[must_use]
    pub fn plus(self, other: Quantity) -> Quantity {
        let form = if self.is_zero() { other.form } else { self.form };
        Quantity { nanos: self.nanos.saturating_add(other.nanos), form }
    }

    /// Difference of both amounts.
    #[must_use]
    pub fn minus(self, other: Quantity) -> Quantity {
        let form = if self.is_zero() { other.form } else { self.form };
        Quantity { nanos: self.nanos.saturating_sub(other.nanos), form }
    }

    /// Approximate ratio to another amount, which must not be zero.
    pub fn ratio(self, other: Quantity) -> f64 {
        self.nanos as f64 / other.nanos as f64
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

/// Canonical form of the quantity.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&of_nanos(self.nanos, self.form))
    }
}

/// Amounts in a resource list of an object; omits invalid quantities, which validation reports.
pub fn amounts(list: Option<&Value>) -> Amounts {
    let entries = list.and_then(Value::as_object).into_iter().flatten();
    entries.filter_map(|(name, value)| Some((name.clone(), Quantity::from_value(value)?))).collect()
}

/// Converts amounts to a resource list of an object.
pub fn to_list(amounts: &Amounts) -> Value {
    let entries = amounts.iter().map(|(name, amount)| (name.clone(), Value::from(amount.to_string())));
    Value::Object(entries.collect::<Map<_, _>>())
}

/// Adds `addends` to `sums` by resource name.
pub fn add(sums: &mut Amounts, addends: &Amounts) {
    for (name, amount) in addends {
        let sum = sums.entry(name.clone()).or_default();
        *sum = sum.plus(*amount);
    }
}

/// Raises each amount to at least that of `minimum`; a resource without an amount gets the minimum.
pub fn raise(amounts: &mut Amounts, minimum: &Amounts) {
    for (name, amount) in minimum {
        let current = amounts.entry(name.clone()).or_insert(*amount);
        if *current < *amount {
            *current = *amount;
        }
    }
}

/// Formats amounts as `cpu=1,memory=1Gi`, in name order.
pub fn text(amounts: &Amounts) -> String {
    let texts: Vec<String> = amounts.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
    texts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Quantity {
        Quantity::parse(text).unwrap_or_else(|| panic!("{text} is a quantity"))
    }

    #[test]
    fn quantity_is_formatted_in_canonical_form() {
        for (text, canonical) in [
            ("0", "0"),
            ("1", "1"),
            ("100m", "100m"),
            ("1500m", "1500m"),
            ("0.5", "500m"),
            (".5", "500m"),
            ("1000", "1k"),
            ("1Gi", "1Gi"),
            ("1024Mi", "1Gi"),
            ("0.5Gi", "512Mi"),
            ("512", "512"),
            ("1023Ki", "1023Ki"),
            ("1e3", "1e3"),
            ("1E", "1E"),
            ("-3", "-3"),
            ("1n", "1n"),
            ("0.1n", "1n"),
            ("5e-1", "500e-3"),
        ] {
            assert_eq!(parse(text).to_string(), canonical, "{text}");
            let of_schema = schema::quantity::canonical(text, schema::quantity::NANO).unwrap();
            assert_eq!(of_schema.as_deref().unwrap_or(text), canonical, "{text}: as the schema has it");
        }
        for invalid in ["", "x", "1.2.3", "1Xi", "--1", "Ki", "1e", "1 "] {
            assert!(Quantity::parse(invalid).is_none(), "{invalid}");
        }
    }

    #[test]
    fn quantity_sum_keeps_format_of_first_nonzero_operand() {
        for (a, b, sum, difference) in [
            ("1Gi", "1Gi", "2Gi", "0"),
            ("0", "1Gi", "1Gi", "-1Gi"),
            ("600m", "400m", "1", "200m"),
            ("1Gi", "1M", "1074741824", "1072741824"),
            ("1M", "1Ki", "1001024", "998976"),
            ("1500m", "1", "2500m", "500m"),
        ] {
            assert_eq!(parse(a).plus(parse(b)).to_string(), sum, "{a} + {b}");
            assert_eq!(parse(a).minus(parse(b)).to_string(), difference, "{a} - {b}");
        }
        assert!(parse("1Gi") > parse("1G"));
        assert!(parse("1000m") == parse("1"));
        assert_eq!(parse("1").ratio(parse("200m")), 5.0);
    }
}

//! Rules in which the specification and the libraries of Kubernetes 1.33 differ.
//!
//! The preset of names chooses the dialect: a process calls [`Dialect::choose`] at its start.

use std::sync::OnceLock;

use apimachinery::names::Preset;

/// Options of the language and its libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// Cost of a list literal in cost units.
    pub list_literal_cost: u64,
    /// Whether list and map literals of constants cost nothing at evaluation.
    pub has_free_constants: bool,
    /// Whether `cidr` and `isCIDR` accept an address with bits behind the prefix.
    pub has_cidr_host_bits: bool,
    /// Whether a quantity has the member function `sign()`, besides the global function.
    pub has_quantity_sign: bool,
}

/// The dialect of this process.
static CHOSEN: OnceLock<Dialect> = OnceLock::new();

impl Dialect {
    /// The libraries of Kubernetes 1.33.
    pub const KUBERNETES: Dialect = Dialect {
        list_literal_cost: crate::cost::LIST_LITERAL,
        has_free_constants: true,
        has_cidr_host_bits: true,
        has_quantity_sign: false,
    };

    /// The specification.
    pub const SPECIFICATION: Dialect = Dialect {
        list_literal_cost: 40,
        has_free_constants: false,
        has_cidr_host_bits: false,
        has_quantity_sign: true,
    };

    /// The dialect of a preset of names.
    pub fn of(preset: Preset) -> Dialect {
        match preset {
            Preset::Svc => Dialect::SPECIFICATION,
            Preset::Kubernetes => Dialect::KUBERNETES,
        }
    }

    /// Chooses the dialect of all environments of this process. Only the first call has an effect.
    pub fn choose(self) {
        let _ = CHOSEN.set(self);
    }

    /// The chosen dialect; that of Kubernetes before a choice.
    pub(crate) fn chosen() -> Dialect {
        CHOSEN.get().copied().unwrap_or(Dialect::KUBERNETES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cost, Environment};

    #[test]
    fn dialects_differ_in_list_literals_blocks_and_sign() {
        let outcome = |dialect: Dialect, source: &str| {
            let program = Environment::new().with_dialect(dialect).compile(source).ok()?;
            let mut cost = Cost::limit(1_000);
            let value = program.evaluate(&[], &mut cost).map(|value| format!("{value:?}"));
            Some((value.unwrap_or_else(|error| error.to_string()), cost.used(), program.estimate(&[]).max))
        };
        for (source, kubernetes, specification) in [
            ("[1, 2].size() == 2", Some(("true", 2, 12)), Some(("true", 42, 42))),
            ("isCIDR('10.0.0.1/8')", Some(("true", 1, 1)), Some(("false", 1, 1))),
            ("quantity('-1').sign()", None, Some(("-1", 2, 2))),
            ("sign(quantity('-1'))", Some(("-1", 2, 2)), Some(("-1", 2, 2))),
        ] {
            for (preset, expected) in [(Preset::Kubernetes, kubernetes), (Preset::Svc, specification)] {
                let expected = expected.map(|(value, cost, estimate)| (value.to_owned(), cost, estimate));
                assert_eq!(outcome(Dialect::of(preset), source), expected, "{source} {preset:?}");
            }
        }
    }
}

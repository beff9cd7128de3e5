//! A range of numbers with two bands: the lower for values that clients request, the upper for generated values.
//!
//! # Contract
//!
//! [`Band::pick`] returns a free number of the upper band, or of the lower band if the upper band is full.
//! The search begins at a random number, so a released value is seldom used again at once.

/// A range of numbers, for addresses or ports, with its lower band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Band {
    /// The first usable number.
    pub(super) first: u128,
    /// The last usable number.
    pub(super) last: u128,
    /// The size of the lower band; 0 without one.
    pub(super) reserved: u128,
}

impl Band {
    /// Whether the range contains a number.
    pub(super) fn contains(&self, number: u128) -> bool {
        (self.first..=self.last).contains(&number)
    }

    /// Returns a free number; None if no number is free. `random` selects where the search begins.
    pub(super) fn pick(&self, random: u128, is_free: impl Fn(u128) -> bool) -> Option<u128> {
        let upper = self.first.checked_add(self.reserved).filter(|upper| *upper <= self.last);
        let lower_end = match upper {
            Some(upper) => {
                if let Some(number) = search(upper, self.last, random, &is_free) {
                    return Some(number);
                }
                upper.checked_sub(1)?
            }
            None => self.last,
        };
        search(self.first, lower_end, random, &is_free)
    }
}

/// Searches for a free number from `first` to `last`: from a random number to `last`, then from `first`.
fn search(first: u128, last: u128, random: u128, is_free: &impl Fn(u128) -> bool) -> Option<u128> {
    let distance = last.checked_sub(first)?;
    let start = first + distance.checked_add(1).map_or(random, |count| random % count);
    (start..=last).chain(first..start).find(|number| is_free(*number))
}

/// Returns the size of the lower band: `size / divisor`, at least `min` and at most `max`.
///
/// A range of at most `min` numbers has no lower band.
pub(super) fn lower_band_size(size: u128, min: u128, max: u128, divisor: u128) -> u128 {
    if size <= min { 0 } else { (size / divisor).clamp(min, max) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use apimachinery::clock::{Rng as _, SeededRng};

    use super::*;

    #[test]
    fn lower_band_has_the_size_of_the_reference() {
        for (size, expected) in [(8, 0), (16, 0), (32, 16), (256, 16), (1024, 64), (65_536, 256)] {
            assert_eq!(lower_band_size(size, 16, 256, 16), expected, "addresses of {size}");
        }
        for (size, expected) in [(16, 0), (100, 16), (2768, 86), (10_000, 128)] {
            assert_eq!(lower_band_size(size, 16, 128, 32), expected, "ports of {size}");
        }
    }

    #[test]
    fn random_allocations_and_releases_agree_with_a_slow_model() {
        let rng = SeededRng::new(21);
        for size in [1_u128, 7, 16, 17, 40, 254] {
            let band = Band { first: 100, last: 99 + size, reserved: lower_band_size(size + 2, 16, 256, 16) };
            let mut used = BTreeSet::new();
            for _ in 0..2000 {
                if rng.bits().is_multiple_of(3) {
                    let index = usize::try_from(rng.bits() % (used.len() as u128 + 1)).unwrap();
                    let released = used.iter().nth(index).copied();
                    released.map(|number: u128| used.remove(&number));
                    continue;
                }
                let free: Vec<u128> = (100..100 + size).filter(|number| !used.contains(number)).collect();
                let upper_is_free = free.iter().any(|number| *number >= 100 + band.reserved);
                match band.pick(rng.bits(), |number| !used.contains(&number)) {
                    Some(number) => {
                        assert!(free.contains(&number), "{number} is free");
                        assert_eq!(
                            number >= 100 + band.reserved,
                            upper_is_free,
                            "{number} is of the upper band"
                        );
                        used.insert(number);
                    }
                    None => assert!(free.is_empty(), "a full range returns none"),
                }
            }
        }
    }

    #[test]
    fn whole_number_space_is_searched_without_overflow() {
        let band = Band { first: 0, last: u128::MAX, reserved: 0 };
        assert_eq!(band.pick(u128::MAX, |_| true), Some(u128::MAX));
    }
}

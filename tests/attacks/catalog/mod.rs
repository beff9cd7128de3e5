//! Catalog of attacks with names. The generator adds attacks that follow from the OpenAPI schemas.

mod admission;
mod backends;
mod bodies;
mod documents;
mod heads;
mod lists;
mod patches;
mod patterns;
mod streams;

use crate::attack::{AttackMethod, AttackUser};
use crate::client::Prepared;

/// Attack of the catalog.
pub struct Attack {
    /// Name of the attack.
    pub name: &'static str,
    /// Method by which the attacker sends the requests.
    pub method: AttackMethod,
    /// User in a short run: the one with the fewest permissions that reaches the attacked code.
    ///
    /// None means a short run contains the attack only if `ATTACKS_ONLY` selects it, with a privileged user.
    pub short_run_caller: Option<AttackUser>,
    /// Builds the requests, which are sent in turn.
    pub requests: Box<dyn Fn() -> Vec<Prepared>>,
}

impl Attack {
    fn new(
        name: &'static str,
        method: AttackMethod,
        short_run_caller: Option<AttackUser>,
        requests: impl Fn() -> Vec<Prepared> + 'static,
    ) -> Attack {
        Attack { name, method, short_run_caller, requests: Box::new(requests) }
    }
}

/// Returns all named attacks.
pub fn all() -> Vec<Attack> {
    let mut attacks = bodies::attacks();
    attacks.extend(lists::attacks());
    attacks.extend(streams::attacks());
    attacks.extend(heads::attacks());
    attacks.extend(patches::attacks());
    attacks.extend(patterns::attacks());
    attacks.extend(admission::attacks());
    attacks.extend(documents::attacks());
    attacks.extend(backends::attacks());
    attacks
}

/// Repeats an element between two texts, separated by commas.
fn repeat(before: &str, element: &str, count: usize, after: &str) -> String {
    let mut text = String::with_capacity(before.len() + (element.len() + 1) * count + after.len());
    text.push_str(before);
    for number in 0..count {
        if number > 0 {
            text.push(',');
        }
        text.push_str(element);
    }
    text.push_str(after);
    text
}

/// Joins elements with commas between two texts; each element is built from its number.
fn join_numbered(before: &str, element: impl Fn(usize) -> String, count: usize, after: &str) -> String {
    let elements: Vec<String> = (0..count).map(element).collect();
    format!("{before}{}{after}", elements.join(","))
}

#[test]
fn attack_names_are_unique() {
    let mut names: Vec<&str> = all().iter().map(|attack| attack.name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

//! Classes of the resources in requests, limits and quotas: native resources and extended resources.
//!
//! # Contract
//!
//! A resource is native if its name has no domain, or the domain of labels of the names preset. An extended
//! resource belongs to a vendor. A name that begins with `requests.` is the name of a quota, and never that
//! of an extended resource.

use apimachinery::names::Names;

use crate::format;

/// Whether a resource is native.
pub fn is_native(name: &str, names: &Names) -> bool {
    !name.contains('/') || name.contains(&names.label_key(""))
}

/// Whether a resource is an extended resource: a vendor provides it, and a quota can limit its requests.
pub fn is_extended(name: &str, names: &Names) -> bool {
    if is_native(name, names) || name.starts_with("requests.") {
        return false;
    }
    format::qualified_name(&format!("requests.{name}")).is_empty()
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;

    use super::*;

    #[test]
    fn resources_of_other_domains_than_that_of_the_preset_are_extended() {
        let kubernetes = Names::new(Preset::Kubernetes, "").unwrap();
        let neutral = Names::new(Preset::Svc, "example.test").unwrap();
        let native = format!("{}gpu", kubernetes.label_key(""));
        for (name, names, expected) in [
            ("cpu", &kubernetes, [true, false]),
            (&native, &kubernetes, [true, false]),
            (&native, &neutral, [false, true]),
            ("example.test/gpu", &neutral, [true, false]),
            ("a.example.test/gpu", &neutral, [true, false]),
            ("example.test/gpu", &kubernetes, [false, true]),
            ("requests.example.com/gpu", &kubernetes, [false, false]),
            ("example.com/-", &kubernetes, [false, false]),
        ] {
            assert_eq!([is_native(name, names), is_extended(name, names)], expected, "{name}");
        }
    }
}

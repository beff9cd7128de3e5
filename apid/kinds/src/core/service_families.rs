//! Completion of `ipFamilyPolicy` and `ipFamilies` of a service, which depend on the service ranges of the
//! server.
//!
//! # Contract
//!
//! [`complete`] runs after the admission plugins and before the validation. It reports a conflict between the
//! fields and the configured families, as kube-apiserver does before it allocates addresses.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::Object;
use serde_json::{Value, json};

use super::service_addresses;
use crate::defaults::{Fields, fill, part};
use crate::table::cell::PathReader as _;
use crate::validation::{Field, network};

const SINGLE: &str = "SingleStack";
const PREFER: &str = "PreferDualStack";
const REQUIRE: &str = "RequireDualStack";

/// Fills `ipFamilyPolicy` and `ipFamilies` of a service.
///
/// `configured` lists the IP families of the service ranges of the server; the first family is the default.
///
/// # Errors
///
/// Reports fields that are invalid or that the configured families do not satisfy.
pub fn complete(new: &mut Object, old: Option<&Object>, configured: &[&str]) -> FieldErrors {
    let old = old.and_then(|old| old.get("spec"));
    let Some(spec) = part(new, "spec") else { return FieldErrors::new() };
    if spec.get("type").is_some_and(|kind| kind == "ExternalName") {
        return FieldErrors::new();
    }
    if old.is_some_and(|old| is_same_preference(spec, old)) {
        return FieldErrors::new();
    }
    fill_policy(spec, old);
    let value = Value::Object(spec.clone());
    let mut errors = FieldErrors::new();
    service_addresses::validate(&Field::new(Some(&value), "spec"), &mut errors);
    if !errors.is_empty() {
        return errors;
    }
    check_release(&value, old, &mut errors);
    infer_families(spec, configured, &mut errors);
    if !errors.is_empty() {
        return errors;
    }
    let policy = value.text("ipFamilyPolicy");
    let is_headless_without_selector =
        value.text("clusterIP") == "None" && value.entries("selector").is_empty();
    if !is_headless_without_selector {
        check_configured(spec, policy, configured, &mut errors);
        if !errors.is_empty() {
            return errors;
        }
    }
    fill_families(spec, policy, configured, is_headless_without_selector);
    errors
}

/// Whether an update keeps the policy `PreferDualStack`, the type, the cluster IP addresses and the IP
/// families. Such an update does not adapt the IP families to changed service ranges of the server.
fn is_same_preference(spec: &Fields, old: &Value) -> bool {
    let is_preferred = |policy: Option<&Value>| policy.is_some_and(|policy| policy == PREFER);
    is_preferred(spec.get("ipFamilyPolicy"))
        && is_preferred(old.get("ipFamilyPolicy"))
        && !old.items("clusterIPs").is_empty()
        && ["type", "clusterIP", "clusterIPs", "ipFamilies"]
            .iter()
            .all(|field| spec.get(*field) == old.get(*field))
}

fn fill_policy(spec: &mut Fields, old: Option<&Value>) {
    let old_policy = old.and_then(|old| old.get("ipFamilyPolicy")).cloned();
    let is_headless = spec.get("clusterIP").is_some_and(|address| address == "None");
    let has_selector =
        spec.get("selector").and_then(Value::as_object).is_some_and(|labels| !labels.is_empty());
    let default = if is_headless && !has_selector { REQUIRE } else { SINGLE };
    fill(spec, "ipFamilyPolicy", old_policy.unwrap_or_else(|| default.into()));
}

/// Reports an update that removes the second address or IP family although the policy is not `SingleStack`,
/// and two addresses with the policy `SingleStack`.
fn check_release(spec: &Value, old: Option<&Value>, errors: &mut FieldErrors) {
    let path = FieldPath::new("spec").child("ipFamilyPolicy");
    let policy = spec.text("ipFamilyPolicy");
    if policy != SINGLE {
        for (field, part) in [("clusterIPs", "cluster IP"), ("ipFamilies", "IP family")] {
            let count = spec.items(field).len();
            if count > 0 && old.is_some_and(|old| old.items(field).len() > count) {
                let detail = format!("must be 'SingleStack' to release the secondary {part}");
                errors.push(FieldError::invalid(&path, policy, &detail));
            }
        }
    } else if spec.items("clusterIPs").len() == 2 {
        let detail =
            "must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified";
        errors.push(FieldError::invalid(&path, policy, detail));
    }
}

/// Adds the IP families of the addresses in `clusterIPs` to `ipFamilies`.
fn infer_families(spec: &mut Fields, configured: &[&str], errors: &mut FieldErrors) {
    let addresses = spec.get("clusterIPs").cloned().unwrap_or_default();
    let mut families: Vec<Value> =
        spec.get("ipFamilies").and_then(Value::as_array).cloned().unwrap_or_default();
    for (i, address) in addresses.as_array().into_iter().flatten().enumerate().skip(families.len()) {
        let Some(parsed) = address.as_str().and_then(network::parse_ip) else { break };
        let family = if network::is_ipv4(parsed) { "IPv4" } else { "IPv6" };
        if configured.contains(&family) {
            families.push(family.into());
        } else {
            let path = FieldPath::new("spec").child("clusterIPs").index(i);
            let detail = format!("{family} is not configured on this cluster");
            errors.push(FieldError::invalid(&path, addresses.clone(), &detail));
        }
    }
    if !families.is_empty() {
        spec.insert("ipFamilies".to_owned(), families.into());
    }
}

fn check_configured(spec: &Fields, policy: &str, configured: &[&str], errors: &mut FieldErrors) {
    let path = FieldPath::new("spec");
    if policy == REQUIRE && configured.len() < 2 {
        let detail = "this cluster is not configured for dual-stack services";
        errors.push(FieldError::invalid(&path.child("ipFamilyPolicy"), policy, detail));
    }
    let families = spec.get("ipFamilies").and_then(Value::as_array);
    for (i, family) in families.into_iter().flatten().filter_map(Value::as_str).enumerate() {
        if !configured.contains(&family) {
            let path = path.child("ipFamilies").index(i);
            errors.push(FieldError::invalid(&path, family, "not configured on this cluster"));
        }
    }
}

/// Adds the default IP family to an empty list, and the second IP family if the policy and the server allow
/// it.
fn fill_families(spec: &mut Fields, policy: &str, configured: &[&str], is_headless_without_selector: bool) {
    let default = configured.first().copied().unwrap_or("IPv4");
    fill(spec, "ipFamilies", json!([default]));
    let Some(Value::Array(families)) = spec.get_mut("ipFamilies") else { return };
    if families.is_empty() {
        families.push(default.into());
    }
    if policy != SINGLE && families.len() == 1 && (is_headless_without_selector || configured.len() == 2) {
        let other = if families.first().is_some_and(|family| family == "IPv4") { "IPv6" } else { "IPv4" };
        families.push(other.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Completes a service, and returns its policy and families as text, or the errors.
    fn complete_to_text(spec: Value, old: Option<Value>, configured: &[&str]) -> String {
        let object = |spec: Value| Object::from_value(json!({"spec": spec})).unwrap();
        let (mut new, old) = (object(spec), old.map(object));
        let errors = complete(&mut new, old.as_ref(), configured);
        if !errors.is_empty() {
            return errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        }
        let spec = new.get("spec").unwrap();
        format!("{} {}", spec["ipFamilyPolicy"].as_str().unwrap_or(""), spec["ipFamilies"])
    }

    const DUAL: [&str; 2] = ["IPv6", "IPv4"];

    #[test]
    fn families_follow_policy_and_addresses() {
        for (spec, configured, expected) in [
            (json!({}), &["IPv6"][..], r#"SingleStack ["IPv6"]"#),
            (json!({"ipFamilyPolicy": PREFER}), &["IPv4"], r#"PreferDualStack ["IPv4"]"#),
            (json!({"ipFamilyPolicy": PREFER}), &DUAL, r#"PreferDualStack ["IPv6","IPv4"]"#),
            (
                json!({"ipFamilyPolicy": REQUIRE, "ipFamilies": ["IPv4"]}),
                &DUAL,
                r#"RequireDualStack ["IPv4","IPv6"]"#,
            ),
            (json!({"clusterIP": "10.0.0.5", "clusterIPs": ["10.0.0.5"]}), &DUAL, r#"SingleStack ["IPv4"]"#),
            (
                json!({"clusterIP": "None", "clusterIPs": ["None"]}),
                &["IPv4"],
                r#"RequireDualStack ["IPv4","IPv6"]"#,
            ),
            (
                json!({"clusterIP": "None", "clusterIPs": ["None"], "selector": {"a": "b"}}),
                &DUAL,
                r#"SingleStack ["IPv6"]"#,
            ),
        ] {
            assert_eq!(complete_to_text(spec, None, configured), expected);
        }
    }

    #[test]
    fn fields_that_ranges_do_not_satisfy_are_invalid() {
        for (spec, expected) in [
            (json!({"ipFamilyPolicy": REQUIRE}), "this cluster is not configured for dual-stack services"),
            (
                json!({"ipFamilies": ["IPv6"]}),
                "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster",
            ),
            (
                json!({"clusterIP": "fd00::1", "clusterIPs": ["fd00::1"]}),
                "spec.clusterIPs[0]: Invalid value: [\"fd00::1\"]: IPv6 is not configured on this cluster",
            ),
        ] {
            let errors = complete_to_text(spec, None, &["IPv4"]);
            assert!(errors.contains(expected), "{errors}");
        }
    }

    #[test]
    fn update_keeps_preferred_families_and_reports_release() {
        let old = json!({
            "type": "ClusterIP", "ipFamilyPolicy": PREFER, "ipFamilies": ["IPv4"],
            "clusterIP": "10.0.0.5", "clusterIPs": ["10.0.0.5"],
        });
        assert_eq!(complete_to_text(old.clone(), Some(old.clone()), &DUAL), r#"PreferDualStack ["IPv4"]"#);
        let mut required = old.clone();
        required["ipFamilyPolicy"] = json!(REQUIRE);
        assert_eq!(complete_to_text(required, Some(old), &DUAL), r#"RequireDualStack ["IPv4","IPv6"]"#);
        let dual = json!({"ipFamilyPolicy": REQUIRE, "ipFamilies": ["IPv4", "IPv6"]});
        let single = json!({"ipFamilyPolicy": REQUIRE, "ipFamilies": ["IPv4"]});
        let errors = complete_to_text(single, Some(dual), &DUAL);
        assert!(errors.contains("must be 'SingleStack' to release the secondary IP family"), "{errors}");
    }
}

//! DNS settings and IP addresses of a pod.

use apimachinery::field::FieldErrors;

use crate::format;
use crate::validation::{Field, network, text};

/// Maximum number of name servers.
const NAME_SERVERS_MAX: usize = 3;
/// Maximum number of search paths.
const SEARCHES_MAX: usize = 32;
/// Maximum total length, in bytes, of all search paths and the spaces between them.
const SEARCH_LENGTH_MAX: usize = 2048;

/// Validates `dnsConfig` and its relation to `dnsPolicy`.
pub(super) fn validate(spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    let config = spec.child("dnsConfig");
    let servers = config.child("nameservers");
    if spec.child("dnsPolicy").text() == "None" {
        if !config.is_present() {
            errors.push(config.required("must provide `dnsConfig` when `dnsPolicy` is None"));
            return;
        }
        if servers.list().is_empty() {
            errors
                .push(servers.required("must provide at least one DNS nameserver when `dnsPolicy` is None"));
            return;
        }
    }
    if servers.list().len() > NAME_SERVERS_MAX {
        errors.push(servers.invalid(&format!("must not have more than {NAME_SERVERS_MAX} nameservers")));
    }
    for server in servers.items() {
        network::check_ip(&server, errors);
    }
    let searches = config.child("searches");
    if searches.list().len() > SEARCHES_MAX {
        errors.push(searches.invalid(&format!("must not have more than {SEARCHES_MAX} search paths")));
    }
    let texts: Vec<&str> = searches.items().map(|search| search.text()).collect();
    if texts.join(" ").len() > SEARCH_LENGTH_MAX {
        errors.push(searches.invalid(&format!(
            "must not have more than {SEARCH_LENGTH_MAX} characters (including spaces) in the search list"
        )));
    }
    for search in searches.items() {
        if search.text() == "." {
            continue;
        }
        let domain = search.text().strip_suffix('.').unwrap_or(search.text());
        text::check_name(&search, domain, format::subdomain_with_underscores, errors);
    }
    for option in config.child("options").items() {
        if option.child("name").text().is_empty() {
            errors.push(option.required("must not be empty"));
        }
    }
}

//! Options of Windows containers.

use apimachinery::field::FieldErrors;

use crate::format;
use crate::validation::Field;

/// Maximum size, in bytes, of `gmsaCredentialSpec`.
const CREDENTIAL_SPEC_MAX: usize = 64 * 1024;
/// The domain in `runAsUserName` must have fewer bytes than this number.
const DOMAIN_MAX: usize = 256;
/// Maximum length, in bytes, of the user in `runAsUserName`.
const USER_MAX: usize = 104;

/// Validates `windowsOptions`.
pub(super) fn options(options: &Field<'_, '_>, errors: &mut FieldErrors) {
    let name = options.child("gmsaCredentialSpecName");
    if name.is_present() {
        for message in format::subdomain(name.text()) {
            errors.push(name.invalid(&message));
        }
    }
    let credential = options.child("gmsaCredentialSpec");
    if credential.is_present() {
        if credential.text().is_empty() {
            errors.push(credential.invalid("gmsaCredentialSpec cannot be an empty string"));
        } else if credential.text().len() > CREDENTIAL_SPEC_MAX {
            errors.push(credential.invalid("gmsaCredentialSpec size must be under 64 KiB"));
        }
    }
    let user = options.child("runAsUserName");
    if user.is_present() {
        user_name(&user, errors);
    }
}

fn user_name(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    let text = field.text();
    if text.is_empty() {
        errors.push(field.invalid("runAsUserName cannot be an empty string"));
        return;
    }
    if text.chars().any(|c| c.is_ascii_control()) {
        errors.push(field.invalid("runAsUserName cannot contain control characters"));
    }
    let (domain, user) = match text.split_once('\\') {
        None => (None, text),
        Some((_, rest)) if rest.contains('\\') => {
            errors.push(field.invalid("runAsUserName cannot contain more than one backslash"));
            return;
        }
        Some((domain, user)) => (Some(domain), user),
    };
    if let Some(domain) = domain {
        if domain.len() >= DOMAIN_MAX {
            errors
                .push(field.invalid(&format!(
                    "runAsUserName's Domain length must be under {DOMAIN_MAX} characters"
                )));
        }
        if !is_net_bios_name(domain) && !is_dns_domain(domain) {
            errors.push(field.invalid("runAsUserName's Domain doesn't match the NetBios nor the DNS format"));
        }
    }
    if user.is_empty() {
        errors.push(field.invalid("runAsUserName's User cannot be empty"));
    } else if user.len() > USER_MAX {
        errors.push(
            field.invalid(&format!(
                "runAsUserName's User length must not be longer than {USER_MAX} characters"
            )),
        );
    }
    if user.trim_matches([' ', '.']).is_empty() && !user.is_empty() {
        errors.push(field.invalid("runAsUserName's User cannot contain only periods or spaces"));
    }
    if user.contains(['"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']']) {
        errors.push(
            field.invalid("runAsUserName's User cannot contain the following characters: \"/\\:;|=,+*?<>@[]"),
        );
    }
}

/// Whether a domain is a NetBIOS name: `^[^\\/:\*\?"<>|\.][^\\/:\*\?"<>|]{0,14}$`.
fn is_net_bios_name(domain: &str) -> bool {
    (1..=15).contains(&domain.chars().count())
        && !domain.starts_with('.')
        && !domain.contains(['\\', '/', ':', '*', '?', '"', '<', '>', '|'])
}

/// Whether a domain is a DNS name: labels of letters, digits and inner dashes, with dots between them.
fn is_dns_domain(domain: &str) -> bool {
    domain.split('.').all(|label| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    })
}

/// Validates that either all containers of a pod are host processes, or none.
pub(super) fn host_process(spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    let host_process_of = |context: &Field<'_, '_>| {
        let options = context.child("windowsOptions");
        options.child("hostProcess").value().and_then(serde_json::Value::as_bool)
    };
    let context = spec.child("securityContext");
    let pod_value = host_process_of(&context);
    let (mut count, mut host_processes) = (0, 0);
    for list in ["containers", "initContainers"] {
        for container in spec.child(list).items() {
            let context = container.child("securityContext");
            let container_value = host_process_of(&context);
            if let (Some(pod_value), Some(container_value)) = (pod_value, container_value)
                && pod_value != container_value
            {
                let options = context.child("windowsOptions");
                let field = options.child("hostProcess");
                let detail =
                    format!("pod hostProcess value must be identical if both are specified, was {pod_value}");
                errors.push(field.invalid(&detail));
            }
            count += 1;
            host_processes += usize::from(container_value.or(pod_value) == Some(true));
        }
    }
    if host_processes == 0 {
        return;
    }
    if host_processes != count {
        errors.push(spec.invalid_value(
            "",
            "If pod contains any hostProcess containers then all containers must be HostProcess containers",
        ));
    }
    let network = spec.child("hostNetwork");
    if !network.flag() {
        errors.push(
            network
                .invalid_value(false, "hostNetwork must be true if pod contains any hostProcess containers"),
        );
    }
}

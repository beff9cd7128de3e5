//! Rules for `spec.conversion`.
//!
//! # Contract
//!
//! The paths of errors are those of the internal form of kube-apiserver: `webhookClientConfig` and
//! `conversionReviewVersions` lie directly below `conversion`.

use std::collections::HashSet;

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::format;
use apimachinery::object::Value;

use super::certificates::validate_bundle;
use super::name_rules::validate_choice;
use super::props::Props;
use super::url;

const STRATEGIES: [&str; 2] = ["None", "Webhook"];

/// Versions of the ConversionReview that apid sends.
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// The rules of `spec.conversion` that an update enforces only if the old definition obeys them.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConversionRules {
    /// Whether the review versions must include one of [`REVIEW_VERSIONS`].
    pub(super) requires_known_review_version: bool,
    /// Whether the certificates of the webhook may be invalid: in a definition that is not established, or
    /// whose certificates were invalid before.
    pub(super) allows_invalid_bundle: bool,
}

/// The field `conversion`, split as in the internal form.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conversion<'a> {
    pub(super) strategy: &'a str,
    client_config: Option<Props<'a>>,
    pub(super) review_versions: &'a [Value],
}

impl<'a> Conversion<'a> {
    /// Reads the conversion of a `spec`.
    pub(super) fn from_spec(spec: Option<Props<'a>>) -> Option<Self> {
        let conversion = spec?.schema("conversion")?;
        let webhook = conversion.schema("webhook");
        Some(Conversion {
            strategy: conversion.text("strategy"),
            client_config: webhook.and_then(|webhook| webhook.schema("clientConfig")),
            review_versions: webhook.map_or(&[], |webhook| webhook.list("conversionReviewVersions")),
        })
    }

    /// Whether the webhook has certificates, and they are invalid.
    pub(super) fn has_invalid_bundle(&self) -> bool {
        let bundle = self.client_config.map_or("", |config| config.text("caBundle"));
        !bundle.is_empty() && validate_bundle(bundle, &FieldPath::root()).is_some()
    }

    /// Whether the review versions include one that apid sends.
    pub(super) fn has_known_review_version(&self) -> bool {
        let mut versions = self.review_versions.iter().filter_map(Value::as_str);
        versions.any(|version| REVIEW_VERSIONS.contains(&version))
    }
}

/// Validates the conversion.
pub(super) fn validate_conversion(
    conversion: Conversion<'_>,
    rules: ConversionRules,
    path: &FieldPath,
) -> FieldErrors {
    let mut errors = FieldErrors::new();
    errors.extend(validate_choice(conversion.strategy, &path.child("strategy"), &STRATEGIES));
    let config_path = path.child("webhookClientConfig");
    let versions_path = path.child("conversionReviewVersions");
    if conversion.strategy != "Webhook" {
        let detail = "should not be set when strategy is not set to Webhook";
        if conversion.client_config.is_some() {
            errors.push(FieldError::forbidden(&config_path, detail));
        }
        if !conversion.review_versions.is_empty() {
            errors.push(FieldError::forbidden(&versions_path, detail));
        }
        return errors;
    }
    match conversion.client_config {
        None => errors.push(FieldError::required(&config_path, "required when strategy is set to Webhook")),
        Some(config) => errors.extend(validate_client_config(config, rules, &config_path)),
    }
    errors.extend(validate_review_versions(&conversion, rules, &versions_path));
    errors
}

fn validate_client_config(config: Props<'_>, rules: ConversionRules, path: &FieldPath) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let url = config.get("url").and_then(Value::as_str);
    match (url, config.schema("service")) {
        (Some(url), None) => errors.extend(url::validate_webhook_url(url, &path.child("url"))),
        (None, Some(service)) => errors.extend(validate_service(service, &path.child("service"))),
        _ => errors.push(FieldError::required(path, "exactly one of url or service is required")),
    }
    let bundle = config.text("caBundle");
    if !bundle.is_empty() && !rules.allows_invalid_bundle {
        errors.extend(validate_bundle(bundle, &path.child("caBundle")));
    }
    errors
}

fn validate_service(service: Props<'_>, path: &FieldPath) -> FieldErrors {
    let mut errors = FieldErrors::new();
    // As in kube-apiserver, the error of an absent field has the path of the other field.
    for (field, reported) in [("namespace", "name"), ("name", "namespace")] {
        if service.text(field).is_empty() {
            errors.push(FieldError::required(&path.child(reported), ""));
        }
    }
    let port = service.get("port").and_then(Value::as_i64).unwrap_or(0);
    if !(1..=65_535).contains(&port) {
        let detail = "port is not valid: must be between 1 and 65535, inclusive";
        errors.push(FieldError::invalid(&path.child("port"), port, detail));
    }
    if let Some(text) = service.get("path").and_then(Value::as_str) {
        errors.extend(validate_service_path(text, &path.child("path")));
    }
    errors
}

/// Validates the URL path of a Service: an absolute path whose segments are DNS subdomains.
fn validate_service_path(text: &str, path: &FieldPath) -> FieldErrors {
    let mut errors = FieldErrors::new();
    match text {
        "" | "/" => return errors,
        "//" => return FieldError::invalid(path, text, "segment[0] may not be empty").into(),
        _ => {}
    }
    if !text.starts_with('/') {
        errors.push(FieldError::invalid(path, text, "must start with a '/'"));
    }
    // As in kube-apiserver, the first character is skipped as the slash, even if it is another one.
    let mut chars = text.chars();
    chars.next();
    let rest = chars.as_str();
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    for (index, segment) in rest.split('/').enumerate() {
        if segment.is_empty() {
            errors.push(FieldError::invalid(path, text, &format!("segment[{index}] may not be empty")));
            continue;
        }
        for message in format::subdomain(segment) {
            errors.push(FieldError::invalid(path, text, &format!("segment[{index}]: {message}")));
        }
    }
    errors
}

fn validate_review_versions(
    conversion: &Conversion<'_>,
    rules: ConversionRules,
    path: &FieldPath,
) -> FieldErrors {
    if conversion.review_versions.is_empty() {
        return FieldError::required(path, "").into();
    }
    let mut errors = FieldErrors::new();
    let mut seen_versions = HashSet::new();
    for (index, version) in conversion.review_versions.iter().enumerate() {
        let version = version.as_str().unwrap_or("");
        if !seen_versions.insert(version) {
            errors.push(FieldError::invalid(&path.index(index), version, "duplicate version"));
            continue;
        }
        for message in format::label_1035(version) {
            errors.push(FieldError::invalid(&path.index(index), version, &message));
        }
    }
    if rules.requires_known_review_version && !conversion.has_known_review_version() {
        let detail = format!("must include at least one of {}", REVIEW_VERSIONS.join(", "));
        errors.push(FieldError::invalid(path, conversion.review_versions.to_vec(), &detail));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(conversion: Value, expected: &[&str]) {
        let spec = json!({ "conversion": conversion });
        let conversion = Conversion::from_spec(Props::from_value(&spec)).unwrap();
        let rules = ConversionRules { requires_known_review_version: true, allows_invalid_bundle: false };
        let errors = validate_conversion(conversion, rules, &FieldPath::new("conversion"));
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn webhook_conversion_needs_valid_url_and_known_review_version() {
        let webhook = |url: &str, versions: Value| json!({"strategy": "Webhook", "webhook": {"clientConfig": {"url": url}, "conversionReviewVersions": versions}});
        check(json!({"strategy": "None"}), &[]);
        check(webhook("https://a.example/c", json!(["v2", "v1"])), &[]);
        check(
            webhook("http://a.example?x=y", json!(["v1", "v1", "V"])),
            &[
                "conversion.webhookClientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: https://host[/path]",
                "conversion.webhookClientConfig.url: Invalid value: \"x=y\": query parameters are not permitted in the URL",
                "conversion.conversionReviewVersions[1]: Invalid value: \"v1\": duplicate version",
                "conversion.conversionReviewVersions[2]: Invalid value: \"V\": a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')",
            ],
        );
        check(
            webhook("https://", json!(["v2"])),
            &[
                "conversion.webhookClientConfig.url: Invalid value: \"\": host must be specified; desired format: https://host[/path]",
                "conversion.conversionReviewVersions: Invalid value: [\"v2\"]: must include at least one of v1, v1beta1",
            ],
        );
    }

    #[test]
    fn bundle_without_certificate_is_rejected() {
        let config = json!({"service": {"name": "s", "namespace": "n", "port": 443}, "caBundle": "YQ=="});
        check(
            json!({"strategy": "Webhook", "webhook": {"clientConfig": config, "conversionReviewVersions": ["v1"]}}),
            &[
                "conversion.webhookClientConfig.caBundle: Invalid value: \"YQ==\": unable to load root certificates: data does not contain any valid RSA or ECDSA certificates",
            ],
        );
    }
}

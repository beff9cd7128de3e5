//! Health endpoints: named checks of `/livez`, `/readyz` and `/healthz`.
//!
//! # Contract
//!
//! [`Checks::answer`] depends only on its arguments and on the current results of the checks and notes. The
//! response of a whole endpoint withholds the reasons of failed checks; [`HealthAnswer::failures`] has them
//! for the log. The response of a single check, which requires its own permission, contains the reason
//! (requirements D-HEALTH).
//!
//! # Reference
//!
//! The texts are those of Kubernetes. The last line of a verbose response follows the names preset.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

/// Media type of all responses.
pub const MEDIA_TYPE: &str = "text/plain; charset=utf-8";

type Probe = dyn Fn() -> Result<(), String> + Send + Sync;
type Notes = dyn Fn() -> Vec<String> + Send + Sync;

/// Named check.
#[derive(Clone)]
struct Check {
    name: Arc<str>,
    /// The check with which this one is excluded, too.
    group: Option<Arc<str>>,
    probe: Arc<Probe>,
}

/// Checks of one endpoint, in the order of the response.
#[derive(Clone, Default)]
pub struct Checks {
    checks: Vec<Check>,
    notes: Vec<Arc<Notes>>,
}

impl std::fmt::Debug for Checks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

/// Response of a health endpoint or of a single check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthAnswer {
    /// 200, 404 or 500.
    pub status: u16,
    /// Plain text.
    pub body: String,
    /// Failed checks with their reasons, for the log only.
    pub failures: Vec<(String, String)>,
}

impl HealthAnswer {
    fn new(status: u16, body: impl Into<String>) -> Self {
        HealthAnswer { status, body: body.into(), failures: Vec::new() }
    }

    /// Logs the failures with their reasons.
    pub fn log(&self, endpoint: &str) {
        for (check, reason) in &self.failures {
            tracing::warn!(endpoint, check, reason, "health check failed");
        }
    }
}

impl Checks {
    /// Creates an endpoint without checks, which is healthy.
    pub fn new() -> Self {
        Checks::default()
    }

    /// Adds a check. The probe must be fast; it returns the reason of a failure.
    #[must_use]
    pub fn with(
        mut self,
        name: &str,
        probe: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.checks.push(Check { name: name.into(), group: None, probe: Arc::new(probe) });
        self
    }

    /// As [`Checks::with`], for a check that `?exclude=GROUP` excludes, too.
    #[must_use]
    pub fn with_grouped(
        mut self,
        name: &str,
        group: &str,
        probe: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.checks.push(Check { name: name.into(), group: Some(group.into()), probe: Arc::new(probe) });
        self
    }

    /// Adds notes, which a verbose response without failures shows as lines `warn: …`.
    ///
    /// Every client that may request the endpoint can read the notes.
    #[must_use]
    pub fn with_notes(mut self, notes: impl Fn() -> Vec<String> + Send + Sync + 'static) -> Self {
        self.notes.push(Arc::new(notes));
        self
    }

    /// Iterates over the names of the checks, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.checks.iter().map(|check| &*check.name)
    }

    /// Whether all checks pass.
    pub fn is_healthy(&self) -> bool {
        self.checks.iter().all(|check| (check.probe)().is_ok())
    }

    /// Whether all checks pass that are in no group. Those in a group concern a part of the requests only.
    pub fn passes_ungrouped_checks(&self) -> bool {
        self.checks.iter().filter(|check| check.group.is_none()).all(|check| (check.probe)().is_ok())
    }

    /// Responds to a request.
    ///
    /// `endpoint` is `livez`, `readyz` or `healthz`. `check` is the rest of the path (`ping`,
    /// `poststarthook/x`), None for the endpoint itself. `query` is the raw query. `own_name` selects the
    /// name of the endpoint instead of `healthz` in the last line of a successful verbose response.
    pub fn answer(&self, endpoint: &str, check: Option<&str>, query: &str, own_name: bool) -> HealthAnswer {
        match check {
            Some(name) => self.answer_single(name),
            None => self.answer_all(endpoint, query, own_name),
        }
    }

    fn answer_single(&self, name: &str) -> HealthAnswer {
        let Some(check) = self.checks.iter().find(|check| &*check.name == name) else {
            return HealthAnswer::new(404, "404 page not found\n");
        };
        match (check.probe)() {
            Ok(()) => HealthAnswer::new(200, "ok"),
            Err(reason) => HealthAnswer {
                failures: vec![(name.to_owned(), reason.clone())],
                ..HealthAnswer::new(500, format!("internal server error: {reason}\n"))
            },
        }
    }

    fn answer_all(&self, endpoint: &str, query: &str, own_name: bool) -> HealthAnswer {
        let parameters: Vec<(String, String)> = parameters(query).collect();
        let verbose = parameters.iter().any(|(name, _)| name == "verbose");
        let excluded = parameters.iter().filter(|(name, _)| name == "exclude");
        let excluded: BTreeSet<&str> = excluded.map(|(_, value)| value.as_str()).collect();
        let mut unmatched = excluded.clone();
        let mut lines = String::new();
        let mut failures = Vec::new();
        for Check { name, group, probe } in &self.checks {
            let matching = [Some(name), group.as_ref()].into_iter().flatten();
            let matching: Vec<&str> =
                matching.map(|name| &**name).filter(|name| excluded.contains(name)).collect();
            unmatched.retain(|name| !matching.contains(name));
            let line = if !matching.is_empty() {
                format!("[+]{name} excluded: ok\n")
            } else if let Err(reason) = probe() {
                failures.push((name.to_string(), reason));
                format!("[-]{name} failed: reason withheld\n")
            } else {
                format!("[+]{name} ok\n")
            };
            lines.push_str(&line);
        }
        if !unmatched.is_empty() {
            let names: Vec<String> = unmatched.iter().map(|name| apimachinery::field::quote(name)).collect();
            let _ = writeln!(
                lines,
                "warn: some health checks cannot be excluded: no matches for {}",
                names.join(", ")
            );
        }
        if !failures.is_empty() {
            return HealthAnswer {
                failures,
                ..HealthAnswer::new(500, format!("{lines}{endpoint} check failed\n"))
            };
        }
        if !verbose {
            return HealthAnswer::new(200, "ok");
        }
        for note in self.notes.iter().flat_map(|notes| notes()) {
            let _ = writeln!(lines, "warn: {note}");
        }
        let name = if own_name { endpoint } else { "healthz" };
        HealthAnswer::new(200, format!("{lines}{name} check passed\n"))
    }
}

/// Decodes names and values of a query; a name without `=` has an empty value.
fn parameters(query: &str) -> impl Iterator<Item = (String, String)> {
    let decode = |text: &str| {
        let spaced = text.replace('+', " ");
        percent_encoding::percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
    };
    query.split('&').filter(|part| !part.is_empty()).map(move |part| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        (decode(name), decode(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks(storage: Result<(), &'static str>) -> Checks {
        Checks::new()
            .with("ping", || Ok(()))
            .with("storage", move || storage.map_err(str::to_owned))
            .with("poststarthook/rbac", || Ok(()))
    }

    #[test]
    fn healthy_endpoint_returns_ok_or_verbose_check_list() {
        let all = "[+]ping ok\n[+]storage ok\n[+]poststarthook/rbac ok\n";
        for (endpoint, query, own_name, expected) in [
            ("livez", "", false, "ok".to_owned()),
            ("livez", "exclude=ping", false, "ok".to_owned()),
            ("livez", "verbose", false, format!("{all}healthz check passed\n")),
            ("livez", "verbose=true", true, format!("{all}livez check passed\n")),
            ("readyz", "verbose&x=y", true, format!("{all}readyz check passed\n")),
            ("healthz", "verbose=0", false, format!("{all}healthz check passed\n")),
            (
                "readyz",
                "verbose&exclude=poststarthook%2Frbac&exclude=ping&exclude=ping",
                false,
                "[+]ping excluded: ok\n[+]storage ok\n[+]poststarthook/rbac excluded: ok\nhealthz check passed\n".to_owned(),
            ),
            (
                "livez",
                "verbose&exclude=z&exclude=a+b",
                true,
                format!("{all}warn: some health checks cannot be excluded: no matches for \"a b\", \"z\"\nlivez check passed\n"),
            ),
        ] {
            let answer = checks(Ok(())).answer(endpoint, None, query, own_name);
            assert_eq!(answer, HealthAnswer::new(200, expected), "{endpoint}?{query}");
        }
    }

    #[test]
    fn failed_health_checks_are_listed_without_reasons() {
        let answer = checks(Err("disk full")).answer("readyz", None, "", false);
        assert_eq!(answer.status, 500);
        assert_eq!(
            answer.body,
            "[+]ping ok\n[-]storage failed: reason withheld\n[+]poststarthook/rbac ok\nreadyz check failed\n"
        );
        assert_eq!(answer.failures, [("storage".to_owned(), "disk full".to_owned())]);
        assert_eq!(checks(Err("disk full")).answer("readyz", None, "exclude=storage", false).status, 200);
        assert_eq!((checks(Err("disk full")).is_healthy(), checks(Ok(())).is_healthy()), (false, true));
    }

    #[test]
    fn check_is_excluded_with_its_group() {
        let checks = checks(Ok(())).with_grouped("storage-override-0", "storage", || Err("away".to_owned()));
        let status = |query| checks.answer("readyz", None, query, true).status;
        for (query, expected) in [("", 500), ("exclude=ping", 500), ("exclude=storage", 200)] {
            assert_eq!(status(query), expected, "{query}");
        }
        let one = checks.answer("readyz", None, "verbose&exclude=storage-override-0", true).body;
        assert!(
            one.contains("[+]storage ok\n") && one.contains("[+]storage-override-0 excluded: ok\n"),
            "{one}"
        );
        let group = checks.answer("readyz", None, "verbose&exclude=storage", true).body;
        assert!(
            !group.contains("warn:") && group.contains("[+]storage-override-0 excluded: ok\n"),
            "{group}"
        );
        assert_eq!(checks.answer("readyz", Some("storage-override-0"), "", true).status, 500);
        assert!(!checks.is_healthy() && checks.passes_ungrouped_checks());
    }

    #[test]
    fn single_health_check_returns_its_reason() {
        let single = |name, storage| checks(storage).answer("livez", Some(name), "verbose", false);
        assert_eq!(single("ping", Ok(())), HealthAnswer::new(200, "ok"));
        assert_eq!(single("poststarthook/rbac", Ok(())), HealthAnswer::new(200, "ok"));
        assert_eq!(single("nope", Ok(())).status, 404);
        assert_eq!(single("", Ok(())).status, 404);
        let failed = single("storage", Err("disk full"));
        assert_eq!((failed.status, failed.body.as_str()), (500, "internal server error: disk full\n"));
    }

    #[test]
    fn health_notes_are_verbose_warning_lines_and_not_failures() {
        let noted =
            Checks::new().with("ping", || Ok(())).with_notes(|| vec!["a file is rejected".to_owned()]);
        let verbose = noted.answer("readyz", None, "verbose", true);
        let expected = "[+]ping ok\nwarn: a file is rejected\nreadyz check passed\n";
        assert_eq!((verbose.status, verbose.body.as_str()), (200, expected));
        assert_eq!(noted.answer("readyz", None, "", true).body, "ok");
    }
}

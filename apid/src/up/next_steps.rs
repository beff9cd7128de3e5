//! The text that `apid up` prints when the server is ready: the address and the next commands.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use apimachinery::names::Preset;
use serving::certs::ServingPair;

use super::demo::Demo;

/// The address of the server and what the next commands need.
pub(super) struct NextSteps<'a> {
    pub(super) server: &'a str,
    pub(super) kubeconfig: &'a Path,
    pub(super) pair: &'a ServingPair,
    pub(super) preset: Preset,
    pub(super) demo: Option<&'a Demo>,
    /// Further lines about the server.
    pub(super) details: &'a str,
    /// Time since the start of the command.
    pub(super) elapsed: Duration,
}

impl fmt::Display for NextSteps<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kubeconfig = quote(self.kubeconfig);
        writeln!(
            f,
            "\nready at {}, as admin (group system:masters) with {kubeconfig} ({:.1} s)",
            self.server,
            self.elapsed.as_secs_f64()
        )?;
        writeln!(f, "try:")?;
        match (self.demo, self.preset) {
            (Some(demo), preset) => {
                let kubectl = if preset == Preset::Svc { "kubectl svc" } else { "kubectl" };
                writeln!(f, "  export KUBECONFIG={kubeconfig}")?;
                f.write_str(&demo.next_steps(kubectl))?;
            }
            (None, Preset::Kubernetes) => writeln!(
                f,
                "  export KUBECONFIG={kubeconfig}\n  kubectl auth whoami\n  \
                 kubectl create configmap hello --from-literal=who=world\n  kubectl get configmaps"
            )?,
            (None, Preset::Svc) => {
                let dir = self.pair.ca.parent().unwrap_or(Path::new("."));
                let (ca, cert, key) =
                    (quote(&self.pair.ca), quote(&dir.join("admin.crt")), quote(&dir.join("admin.key")));
                let server = self.server;
                writeln!(
                    f,
                    "  api() {{ curl --cacert {ca} --cert {cert} --key {key} \"$@\"; }}\n  \
                     api {server}/api/v1/namespaces\n  \
                     api {server}/api/v1/namespaces/default/configmaps --json \
                     '{{\"metadata\":{{\"name\":\"hello\"}},\"data\":{{\"who\":\"world\"}}}}'\n  \
                     api \"{server}/api/v1/configmaps?watch=1\""
                )?;
            }
        }
        if self.preset == Preset::Svc {
            writeln!(
                f,
                "The names are svc: `kubectl svc` is the plugin deploy/kubectl-svc, in an archive kubectl/kubectl-svc, on \
                 PATH.\nkubectl alone prints no columns of kinds; its explain, auth can-i, create and other typed commands do \
                 not work.\nFor kubectl without a plugin, start with --names kubernetes and a new --data-dir; a store keeps \
                 its names."
            )?;
        }
        f.write_str(self.details)?;
        writeln!(f, "Ctrl-C stops it")
    }
}

/// Returns a path as one word of a shell command.
pub(super) fn quote(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./-+@:,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_one_word_of_a_shell() {
        for (path, quoted) in
            [("/a/b-c.d", "/a/b-c.d"), ("/a b", "'/a b'"), ("it's", r"'it'\''s'"), ("$x", "'$x'"), ("", "''")]
        {
            assert_eq!(quote(Path::new(path)), quoted);
        }
    }

    #[test]
    fn commands_fit_the_names_of_the_server() {
        let pair = ServingPair::in_dir(Path::new("/d/certs"));
        for (preset, words) in [
            (Preset::Svc, ["curl --cacert /d/certs/ca.crt", "--names kubernetes"]),
            (Preset::Kubernetes, ["kubectl", "KUBECONFIG=/d/k"]),
        ] {
            let steps = NextSteps {
                server: "https://127.0.0.1:1",
                kubeconfig: Path::new("/d/k"),
                pair: &pair,
                preset,
                demo: None,
                details: "more\n",
                elapsed: Duration::from_millis(1234),
            };
            let text = steps.to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
            assert!(text.contains("ready at https://127.0.0.1:1, as admin"), "{text}");
        }
    }
}

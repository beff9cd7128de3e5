//! The subcommands of apid with one line each, for the help text.

/// Names and descriptions of the subcommands, in the order of the help text. A subcommand precedes all flags.
pub(crate) const SUBCOMMANDS: [(&str, &str); 12] = [
    ("up", "Start a control plane with one command: apid, authd, certificates and a kubeconfig"),
    ("test-server", "Start a private control plane for a test, in a temporary directory"),
    ("env-test", "Run as kube-apiserver or etcd of the env tests of controller-runtime"),
    ("certs", "Create a CA, the serving certificate and client certificates"),
    ("store", "Check, repair, back up, restore or rewrite a store"),
    ("audit-tail", "Show and follow the events of an audit log"),
    ("convert", "Convert manifests between API versions"),
    ("deprecations", "List uses of deprecated and removed API versions"),
    ("completion", "Print the completions of a shell"),
    ("man", "Print the manual page of apid or of a subcommand"),
    ("help", "Print this text, or the help of a subcommand"),
    ("version", "Print version, commit, date and compiler"),
];

/// Returns the usage lines and the list of the subcommands, for the beginning of the help text.
pub(crate) fn usage() -> String {
    let mut text = "apid up [FLAGS]\n       apid --data-dir <DIR> --spawn-authd [FLAGS]\n       \
                    apid --data-dir <DIR> --authd-socket <FILE> [FLAGS]\n       apid COMMAND [ARGUMENTS]\n\nCommands:"
        .to_owned();
    for (name, about) in SUBCOMMANDS {
        text.push_str(&format!("\n  {name:<13} {about}"));
    }
    text
}

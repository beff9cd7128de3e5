//! The subcommands of authd with one line each, for the help text.

/// Names and descriptions of the subcommands, in the order of the help text. A subcommand precedes all flags.
pub(crate) const SUBCOMMANDS: [(&str, &str); 10] = [
    ("check", "Check configuration files without a server"),
    ("why", "Explain why a request is allowed or denied, and which role is missing"),
    ("why-token", "Explain which user a token belongs to, or which check fails"),
    ("who-can", "List the subjects that RBAC allows a request"),
    ("matrix", "Print subjects, verbs and resources that RBAC allows"),
    ("audit-roles", "Print the smallest roles for the requests of a user in audit logs"),
    ("completion", "Print the completions of a shell"),
    ("man", "Print the manual page of authd or of a subcommand"),
    ("help", "Print this text, or the help of a subcommand"),
    ("version", "Print version, commit, date and compiler"),
];

/// Returns the usage lines and the list of the subcommands, for the beginning of the help text.
pub(crate) fn usage() -> String {
    let mut text = "authd --socket <PATH> [FLAGS]\n       authd --listen-address <ADDRESS:PORT> [FLAGS]\n       authd COMMAND [ARGUMENTS]\n\nCommands:".to_owned();
    for (name, about) in SUBCOMMANDS {
        text.push_str(&format!("\n  {name:<13} {about}"));
    }
    text
}

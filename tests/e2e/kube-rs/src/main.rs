//! Sessions of kube-rs, unmodified, with a server whose configuration file `KUBECONFIG` names.
//!
//! # Contract
//!
//! The first argument names the session. What only the caller can do (start the server again, trim its history) is asked for
//! by a line on standard output and awaited as a line on standard input: [`ask`]. A session that finds what it must not find
//! panics; the process then ends with another code than 0.

mod dynamic;
mod reflected;
mod typed;

use std::io::Write;
use std::time::Duration;

use kube::Client;

/// How long anything may take before a session gives up.
const DEADLINE: Duration = Duration::from_secs(60);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let client = Client::try_default().await.expect("a configuration file");
    let session = std::env::args().nth(1).unwrap_or_default();
    match session.as_str() {
        "typed" => typed::run(client).await,
        "dynamic" => dynamic::run(client).await,
        "reflected" => reflected::run(client, reflected::Initial::List).await,
        "reflected-streaming" => reflected::run(client, reflected::Initial::Stream).await,
        "trimmed" => reflected::trimmed(client).await,
        other => panic!("no session `{other}`"),
    }
}

/// Asks the caller to do something to the server, and waits until it is done.
///
/// # Panics
///
/// The caller has gone.
fn ask(what: &str) {
    println!("{what}");
    std::io::stdout().flush().expect("the caller reads");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("the caller answers");
    assert_eq!(line, "done\n", "the answer to `{what}`");
}

//! Sessions of unmodified kube-rs with a server whose kubeconfig file is in `KUBECONFIG`.
//!
//! # Contract
//!
//! The first argument names the session. Some actions need the test: restarting the server, or compacting its
//! history. A session requests them by a line on standard output and waits for a line on standard input:
//! [`ask`]. A session that finds a violation panics; the process then ends with a code other than 0.

mod custom;
mod dynamic;
mod reflected;
mod typed;

use std::io::Write;
use std::time::Duration;

use kube::Client;

/// Time limit of any wait in a session.
const DEADLINE: Duration = Duration::from_secs(60);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let client = Client::try_default().await.expect("a configuration file");
    let session = std::env::args().nth(1).unwrap_or_default();
    match session.as_str() {
        "custom" => custom::run(client).await,
        "typed" => typed::run(client).await,
        "dynamic" => dynamic::run(client).await,
        "reflected" => reflected::run(client, reflected::Initial::List).await,
        "reflected-streaming" => reflected::run(client, reflected::Initial::Stream).await,
        "failing" => reflected::through_failures(client).await,
        "trimmed" => reflected::trimmed(client).await,
        other => panic!("no session `{other}`"),
    }
}

/// Requests an action of the test on the server, and waits until it is done.
///
/// # Panics
///
/// The test has ended.
fn ask(what: &str) {
    assert_eq!(answer(what), "done\n", "response to `{what}`");
}

/// Sends a line to the test, and waits for a line.
///
/// # Panics
///
/// The test has ended.
fn answer(what: &str) -> String {
    println!("{what}");
    std::io::stdout().flush().expect("the test reads");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("the test responds");
    line
}

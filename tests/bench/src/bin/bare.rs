//! Runs the baseline server: reads the body from standard input, prints the port, serves until it is killed.

#![allow(clippy::disallowed_methods, reason = "a bench measures the machine's time")]

use std::io::{Read, Write};

use bench::client::Error;
use bytes::Bytes;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut body = Vec::new();
    std::io::stdin().read_to_end(&mut body)?;
    bench::bare::serve(Bytes::from(body), |port| {
        println!("{port}");
        drop(std::io::stdout().flush());
    })
    .await
}

//! The program `backends`: one of the servers, until it is stopped.
//!
//! ```text
//! backends apiserver [--address 127.0.0.1:0] [--requestheader-client-ca FILE] [--allowed-name NAME] [--delay-ms N]
//! ```
//!
//! The certificate is for `localhost` and for the names of `--name`; `--ca-out FILE` receives its CA bundle.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use backends::apiserver::{ApiServer, ApiServerOptions};
use backends::server::ServingCertificate;

#[tokio::main]
async fn main() -> ExitCode {
    match run(std::env::args().skip(1)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("backends: {error}");
            ExitCode::from(64)
        }
    }
}

async fn run(mut arguments: impl Iterator<Item = String>) -> Result<(), String> {
    let subcommand = arguments.next().unwrap_or_default();
    let options: Vec<String> = arguments.collect();
    match subcommand.as_str() {
        "apiserver" => run_api_server(&options).await,
        other => Err(format!("unknown subcommand `{other}`: expected `apiserver`")),
    }
}

async fn run_api_server(arguments: &[String]) -> Result<(), String> {
    let mut options = ApiServerOptions::default();
    let mut names = vec!["localhost".to_owned()];
    let (mut address, mut ca_out) = (SocketAddr::from(([127, 0, 0, 1], 0)), None);
    let mut arguments = arguments.iter();
    while let Some(flag) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("`{flag}` needs a value"))?;
        let invalid = |error: &dyn std::fmt::Display| format!("`{flag} {value}`: {error}");
        match flag.as_str() {
            "--address" => address = value.parse().map_err(|error| invalid(&error))?,
            "--name" => names.push(value.clone()),
            "--ca-out" => ca_out = Some(value.clone()),
            "--requestheader-client-ca" => {
                options.proxy_ca = Some(std::fs::read_to_string(value).map_err(|error| invalid(&error))?);
            }
            "--allowed-name" => options.allowed_names.push(value.clone()),
            "--delay-ms" => {
                options.delay = Duration::from_millis(value.parse().map_err(|error| invalid(&error))?);
            }
            _ => return Err(format!("unknown flag `{flag}`")),
        }
    }
    let certificate = ServingCertificate::generate(&names).map_err(|error| error.to_string())?;
    if let Some(file) = ca_out {
        std::fs::write(&file, &certificate.ca).map_err(|error| format!("`{file}`: {error}"))?;
    }
    let server = ApiServer::start(address, &certificate, options).await.map_err(|error| error.to_string())?;
    println!("serving at https://{}", server.address());
    tokio::signal::ctrl_c().await.map_err(|error| error.to_string())
}

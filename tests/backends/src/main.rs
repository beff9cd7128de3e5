//! The program `backends`: one of the servers, until it is stopped.
//!
//! ```text
//! backends apiserver [--requestheader-client-ca FILE] [--allowed-name NAME]... [--delay-ms N] [SERVER FLAGS]
//! backends kubelet --client-ca FILE [--node-name NAME] [--container NAMESPACE/POD/CONTAINER]... [--log-interval-ms N]
//!     [SERVER FLAGS]
//! ```
//!
//! Server flags: `--address 127.0.0.1:0`; `--name NAME`, a name or an address of the certificate besides `localhost` and
//! `127.0.0.1`; `--ca-out FILE`, which receives the CA bundle of the certificate.
//!
//! The kubelet runs commands of exec on this machine, without isolation. Each container writes a line to its log at the
//! interval, one second by default.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use backends::apiserver::{ApiServer, ApiServerOptions};
use backends::kubelet::{Kubelet, Log};
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
        "kubelet" => run_kubelet(&options).await,
        other => Err(format!("unknown subcommand `{other}`: expected `apiserver` or `kubelet`")),
    }
}

/// The flags of both servers.
struct ServerFlags {
    address: SocketAddr,
    names: Vec<String>,
    ca_out: Option<String>,
}

impl ServerFlags {
    /// Parses flags with values. `own` takes the flags of one server, and returns false for an unknown flag.
    fn parse(
        arguments: &[String],
        mut own: impl FnMut(&str, &str) -> Result<bool, String>,
    ) -> Result<Self, String> {
        let mut flags = ServerFlags {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            names: vec!["localhost".to_owned(), "127.0.0.1".to_owned()],
            ca_out: None,
        };
        let mut arguments = arguments.iter();
        while let Some(flag) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("`{flag}` needs a value"))?;
            let invalid = |error: &dyn std::fmt::Display| format!("`{flag} {value}`: {error}");
            match flag.as_str() {
                "--address" => flags.address = value.parse().map_err(|error| invalid(&error))?,
                "--name" => flags.names.push(value.clone()),
                "--ca-out" => flags.ca_out = Some(value.clone()),
                _ => match own(flag, value) {
                    Ok(true) => {}
                    Ok(false) => return Err(format!("unknown flag `{flag}`")),
                    Err(error) => return Err(invalid(&error)),
                },
            }
        }
        Ok(flags)
    }

    /// Generates the certificate, and writes its CA bundle.
    fn certificate(&self) -> Result<ServingCertificate, String> {
        let certificate = ServingCertificate::generate(&self.names).map_err(|error| error.to_string())?;
        if let Some(file) = &self.ca_out {
            std::fs::write(file, &certificate.ca).map_err(|error| format!("`{file}`: {error}"))?;
        }
        Ok(certificate)
    }
}

fn read_file(file: &str) -> Result<String, String> {
    std::fs::read_to_string(file).map_err(|error| error.to_string())
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    text.parse().map(Duration::from_millis).map_err(|error| error.to_string())
}

async fn run_api_server(arguments: &[String]) -> Result<(), String> {
    let mut options = ApiServerOptions::default();
    let flags = ServerFlags::parse(arguments, |flag, value| {
        match flag {
            "--requestheader-client-ca" => options.proxy_ca = Some(read_file(value)?),
            "--allowed-name" => options.allowed_names.push(value.to_owned()),
            "--delay-ms" => options.delay = milliseconds(value)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let certificate = flags.certificate()?;
    let server = ApiServer::start(flags.address, &certificate, options).await;
    let server = server.map_err(|error| error.to_string())?;
    serve_until_stopped(server.address()).await
}

async fn run_kubelet(arguments: &[String]) -> Result<(), String> {
    let (mut client_ca, mut node_name, mut containers) = (None, "n1".to_owned(), Vec::new());
    let mut log_interval = Duration::from_secs(1);
    let flags = ServerFlags::parse(arguments, |flag, value| {
        match flag {
            "--client-ca" => client_ca = Some(read_file(value)?),
            "--node-name" => value.clone_into(&mut node_name),
            "--container" => containers.push(container(value)?),
            "--log-interval-ms" => log_interval = milliseconds(value)?.max(Duration::from_millis(1)),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let client_ca = client_ca.ok_or("`--client-ca` is missing: the CA bundle of the clients, in PEM")?;
    let certificate = flags.certificate()?;
    let kubelet = Kubelet::start(flags.address, &certificate, &client_ca).await;
    let kubelet = kubelet.map_err(|error| error.to_string())?;
    kubelet.set_node_name(&node_name);
    for [namespace, pod, container] in &containers {
        let log = kubelet.add_container(namespace, pod, container);
        tokio::spawn(write_lines(log, log_interval));
    }
    serve_until_stopped(kubelet.address()).await
}

/// Parses `NAMESPACE/POD/CONTAINER`.
fn container(text: &str) -> Result<[String; 3], String> {
    let parts: Vec<String> = text.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
    parts.try_into().map_err(|_| "expected NAMESPACE/POD/CONTAINER".to_owned())
}

#[expect(clippy::disallowed_methods, reason = "a server of tests runs on the machine's time")]
async fn write_lines(log: Arc<Log>, interval: Duration) {
    for number in 1_u64.. {
        log.push(jiff::Timestamp::now(), &format!("line {number}"));
        tokio::time::sleep(interval).await;
    }
}

async fn serve_until_stopped(address: SocketAddr) -> Result<(), String> {
    println!("serving at https://{address}");
    tokio::signal::ctrl_c().await.map_err(|error| error.to_string())
}

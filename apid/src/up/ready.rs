//! The work of `apid up` when the server is ready: the kubeconfig, `cluster-info`, the objects of the demo, the next steps.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use apimachinery::names::Names;
use serving::certs::ServingPair;
use serving::client::SettingsError;
use tokio::time::Instant;

use super::api::Api;
use super::credentials::Credentials;
use super::demo::Demo;
use super::kubeconfig::Kubeconfig;
use super::{ADMIN, KUBECONFIG_FILE, cluster_info, next_steps};
use crate::console::print;
use crate::process::OnReadyError;

/// The state that the work at readiness needs.
pub(super) struct Ready {
    pub(super) begin: Instant,
    pub(super) data_dir: PathBuf,
    /// The address under which clients of this machine reach the server.
    pub(super) address: IpAddr,
    pub(super) names: Names,
    pub(super) pair: ServingPair,
    pub(super) admin: Credentials,
    pub(super) demo: Option<Demo>,
}

impl Ready {
    fn url(&self, port: u16) -> String {
        format!("https://{}", SocketAddr::new(self.address, port))
    }

    /// Returns the API of a server of this machine.
    ///
    /// # Errors
    ///
    /// The CA bundle or the client certificate cannot be used.
    pub(super) fn api(&self, port: u16) -> Result<Api, SettingsError> {
        Api::new(&self.url(port), &self.pair.ca, &self.admin)
    }

    /// Writes the kubeconfig for the server on a port, creates the objects, and prints the next steps with `details`.
    ///
    /// # Errors
    ///
    /// The kubeconfig cannot be written.
    pub(super) async fn publish(&self, port: u16, details: &str) -> Result<(), OnReadyError> {
        let kubeconfig = self.write_kubeconfig(port)?;
        let api = self.api(port)?;
        self.create_objects(&api, port, &kubeconfig, details).await;
        Ok(())
    }

    fn kubeconfig_path(&self) -> PathBuf {
        self.data_dir.join(KUBECONFIG_FILE)
    }

    /// Writes the kubeconfig for the server on a port.
    ///
    /// # Errors
    ///
    /// The CA bundle or the existing file is not readable, or the file cannot be written.
    pub(super) fn write_kubeconfig(&self, port: u16) -> Result<Kubeconfig, OnReadyError> {
        let mut kubeconfig = Kubeconfig::new(self.names.preset(), &self.url(port), &self.pair.ca)?;
        kubeconfig.add_client(&self.admin, "default");
        if let Some(demo) = &self.demo {
            demo.add_users(&mut kubeconfig);
        }
        kubeconfig.write(&self.kubeconfig_path(), ADMIN.0)?;
        Ok(kubeconfig)
    }

    /// Creates the objects, and prints the next steps with `details`.
    pub(super) async fn create_objects(&self, api: &Api, port: u16, kubeconfig: &Kubeconfig, details: &str) {
        for error in cluster_info::publish(api, &self.names, kubeconfig).await {
            print(format!("not published: {error}\n"));
        }
        if let Some(demo) = &self.demo {
            for error in demo.create_objects(api, &self.names).await {
                print(format!("demo: not created: {error}\n"));
            }
        }
        let (server, path) = (self.url(port), self.kubeconfig_path());
        let steps = next_steps::NextSteps {
            server: &server,
            kubeconfig: &path,
            pair: &self.pair,
            preset: self.names.preset(),
            demo: self.demo.as_ref(),
            details,
            elapsed: self.begin.elapsed(),
        };
        print(steps.to_string());
    }
}

//! The ConfigMap `extension-apiserver-authentication`: CA bundles that extension API servers trust
//! (requirement A-PROXY-21).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use apimachinery::object::{Map, Value};
use apimachinery::status::Status;

use super::super::actor::Actor;
use super::super::runner::{Reconcile, Requeue, Runner};
use super::super::stored;
use super::PublishedConfig;
use super::{put_config_map, read_file};
use verbs::Collection;

use crate::ControllerState;

/// Name of the ConfigMap.
const NAME: &str = "extension-apiserver-authentication";

/// The publisher, with one key for the ConfigMap.
struct AuthenticationPublisher {
    actor: Actor,
    maps: Arc<Collection>,
    published_config: PublishedConfig,
}

/// Writes the ConfigMap after each change of the files or of the ConfigMap, until the process ends.
pub(crate) async fn run(state: Arc<ControllerState>, published_config: PublishedConfig) {
    let Ok(maps) = stored::core(&state.api_state, "configmaps") else { return };
    let namespace = state.api_state.names.system_namespace;
    let proxy = published_config.proxy.as_ref().map(|proxy| proxy.client_ca.clone());
    let files: Vec<PathBuf> = published_config.client_ca.iter().cloned().chain(proxy).collect();
    let runner = Runner::new(&state, "authentication_config_map")
        .start_with(())
        .watch_files(files, ())
        .watch_named(&maps.items, NAME, move |event| (event.entry().namespace() == namespace).then_some(()));
    let actor = state.apiserver().of_leader();
    runner.run(Arc::new(AuthenticationPublisher { actor, maps, published_config })).await;
}

impl Reconcile for AuthenticationPublisher {
    type Key = ();

    async fn reconcile(&self, (): &()) -> Result<Requeue, Status> {
        let data = config_map_data(&self.published_config)?;
        let namespace = self.actor.api_state().names.system_namespace;
        put_config_map(&self.actor, &self.maps, (namespace, NAME), data, false).await?;
        Ok(Requeue::No)
    }
}

/// Reads a CA bundle. Extension API servers must not trust a certificate that is not of a CA.
fn read_authorities(file: &Path) -> Result<String, Status> {
    serving::tls::check_authorities(file).map_err(|error| Status::unavailable(error.to_string(), 1))?;
    read_file(file)
}

/// Builds the data of the ConfigMap from the flags and the files.
fn config_map_data(published_config: &PublishedConfig) -> Result<Map<String, Value>, Status> {
    let mut data = Map::new();
    if let Some(file) = &published_config.client_ca {
        data.insert("client-ca-file".to_owned(), read_authorities(file)?.into());
    }
    if let Some(proxy) = &published_config.proxy {
        data.insert("requestheader-client-ca-file".to_owned(), read_authorities(&proxy.client_ca)?.into());
        for (key, list) in &proxy.lists {
            data.insert((*key).to_owned(), Value::from(list.clone()).to_string().into());
        }
    }
    Ok(data)
}

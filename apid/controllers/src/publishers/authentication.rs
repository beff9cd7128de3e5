//! The ConfigMap `extension-apiserver-authentication`: CA bundles that extension API servers trust
//! (requirement A-PROXY-21).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use apimachinery::object::{Map, Value};
use apimachinery::status::Status;
use tokio::sync::mpsc;

use super::super::reflector::{ObjectEvent, reflect_named};
use super::super::retries::MAX_PAUSE;
use super::super::stored;
use super::PublishedConfig;
use super::{RETRY, put_config_map, read_file, send_on_change};

use crate::ControllerState;

/// Name of the ConfigMap.
const NAME: &str = "extension-apiserver-authentication";

/// Writes the ConfigMap after each change of the files or of the ConfigMap, until the process ends.
pub(super) async fn run(state: Arc<ControllerState>, published_config: PublishedConfig) {
    let Ok(maps) = stored::core(&state.api_state, "configmaps") else { return };
    let namespace = state.api_state.names.system_namespace;
    let (request_sender, mut requests) = mpsc::unbounded_channel();
    let proxy = published_config.proxy.as_ref().map(|proxy| proxy.client_ca.clone());
    let files: Vec<PathBuf> = published_config.client_ca.iter().cloned().chain(proxy).collect();
    let _watch = send_on_change(files, request_sender.clone(), ());
    let retry_sender = request_sender.clone();
    let follow = reflect_named(maps.items.clone(), NAME, move |event| {
        let (ObjectEvent::Exists(map) | ObjectEvent::Deleted(map)) = event;
        if map.namespace() == namespace {
            let _ = request_sender.send(());
        }
    });
    let actor = state.apiserver();
    let publish = async {
        let mut pause = RETRY;
        while requests.recv().await.is_some() {
            let result = match config_map_data(&published_config) {
                Ok(data) => put_config_map(&actor, &maps, (namespace, NAME), data, false).await,
                Err(status) => Err(status),
            };
            if let Err(status) = result {
                tracing::warn!(name = NAME, reason = %status, "publishing a ConfigMap failed; retrying");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(MAX_PAUSE);
                let _ = retry_sender.send(());
            } else {
                pause = RETRY;
            }
        }
    };
    tokio::join!(follow, publish);
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

//! Hot reload of the authorization configuration.

use std::sync::Arc;

use apimachinery::clock::Clock;
use serving::reload::Watch;

use super::{WatchedFile, watch_file};
use crate::active_config::SharedConfig;
use crate::authz::{Modes, Settings, Union};
use crate::config::authorization_source::AuthorizationSource;
use crate::metrics::AuthdMetrics;
use crate::mirror::Mirror;

/// The subject of the note about the file.
const SUBJECT: &str = "authorization configuration";

/// Watches the file until the returned value is dropped; None: only flags configure authorizers.
/// Needs a tokio runtime. `initial` are the authorizers at start.
pub fn watch(
    mut source: AuthorizationSource,
    initial: &Modes,
    settings: &Settings,
    mirror: &Arc<Mirror>,
    metrics: &Arc<AuthdMetrics>,
    config: &Arc<SharedConfig>,
    clock: &Arc<dyn Clock>,
) -> Option<Watch> {
    let (path, snapshot) = source.take_file()?;
    let file = WatchedFile { subject: SUBJECT, path: path.clone(), metrics: metrics.authz_reloads.clone() };
    let (initial, settings, mirror) = (initial.clone(), settings.clone(), Arc::clone(mirror));
    let (metrics, shared_config) = (Arc::clone(metrics), Arc::clone(config));
    Some(watch_file(file, snapshot, Arc::clone(config), Arc::clone(clock), move |content| {
        let modes = source.decode_reload(&path, content, &initial)?;
        shared_config.replace_authz(Union::build(&modes, &settings, &mirror, &metrics)?);
        Ok(())
    }))
}

//! `apid certs --rotate-ca`: the steps of a rotation of the authority without an outage.

use apimachinery::printable::escape;
use jiff::Timestamp;
use serving::certs::rotation;

use super::CertsError;
use super::folder::Folder;
use crate::console::print;

/// A step of the rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Step {
    /// Trust a new CA beside the old one, which still signs
    Add,
    /// Let the new CA sign
    Switch,
    /// Remove the old CA and its key
    Remove,
}

/// Runs a step.
///
/// # Errors
///
/// The step does not follow the state of the folder, a certificate of the folder still needs the old authority, or a
/// file cannot be read or written.
pub(super) fn rotate(folder: &Folder, step: Step, now: Timestamp) -> Result<(), CertsError> {
    let signing = folder.authority()?;
    let bundle = folder.pair.ca.display();
    match step {
        Step::Add => {
            let mut lists = folder.revocations()?;
            let new = rotation::add(&folder.pair, now)?;
            lists.revoke(&new, &[], now)?;
            lists.write(&folder.lists)?;
            let new = escape(&new.name());
            print(format!("added to {bundle}: {new}; give the file to all clients before the step switch\n"));
        }
        Step::Switch => {
            let new = rotation::switch(&folder.pair)?;
            let new = escape(&new.name());
            print(format!(
                "signs now: {new}; --renew reissues the certificates of the server and of clients\n"
            ));
        }
        Step::Remove => {
            let old = rotation::removable(&folder.pair)?;
            let trust = folder.trust()?;
            let needs_old = folder.certificates()?.into_iter().filter(|known| {
                old.iter().any(|old| old.is_issuer_of(&known.facts))
                    && !signing.is_issuer_of(&known.facts)
                    && !known.facts.is_authority
                    && trust.problem(&known.facts, now).is_none()
            });
            // A certificate without a file was replaced; its client may have the new one.
            let files: Vec<String> = needs_old.filter_map(|known| known.file).collect();
            if !files.is_empty() {
                return Err(CertsError::NotReissued { files, dir: folder.dir.clone() });
            }
            rotation::remove(&folder.pair)?;
            for old in &old {
                print(format!("removed from {bundle}: {}\n", escape(&old.name())));
            }
        }
    }
    Ok(())
}

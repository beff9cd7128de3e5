//! The controllers of apid that `--controllers` enables.

/// The controllers that run: all by default, otherwise the controllers that `--controllers` enables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnabledControllers {
    /// The signer of CertificateSigningRequests.
    pub certificate_signer: bool,
    /// The cleaner of old CertificateSigningRequests.
    pub certificate_cleaner: bool,
    /// Removal of the protection finalizers of PersistentVolumeClaims.
    pub claim_protection: bool,
    /// Removal of the protection finalizers of PersistentVolumes.
    pub volume_protection: bool,
}

impl EnabledControllers {
    /// Determines the enabled controllers from the entries of `--controllers`.
    pub fn new(entries: &[String]) -> Self {
        let has = |names: [&str; 2]| is_enabled(entries, &names);
        EnabledControllers {
            certificate_signer: has(["certificatesigningrequest-signing-controller", "csrsigning"]),
            certificate_cleaner: has(["certificatesigningrequest-cleaner-controller", "csrcleaner"]),
            claim_protection: has(["persistentvolumeclaim-protection-controller", "pvc-protection"]),
            volume_protection: has(["persistentvolume-protection-controller", "pv-protection"]),
        }
    }
}

/// Whether the value of `--controllers` enables a controller, which can have several names.
///
/// The first entry with one of `names` decides. Without such an entry, the controller is enabled if the list
/// contains `*` or is empty.
pub fn is_enabled(controllers: &[String], names: &[&str]) -> bool {
    let decide = |entry: &String| match entry.strip_prefix('-') {
        Some(disabled) => names.contains(&disabled).then_some(false),
        None => names.contains(&entry.as_str()).then_some(true),
    };
    let decision = controllers.iter().find_map(decide);
    decision.unwrap_or_else(|| controllers.is_empty() || controllers.iter().any(|entry| entry == "*"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_are_enabled_by_name_and_by_default() {
        let enabled_by = |text: &str| {
            let entries: Vec<String> = text.split_terminator(',').map(str::to_owned).collect();
            let enabled = EnabledControllers::new(&entries);
            [
                enabled.certificate_signer,
                enabled.certificate_cleaner,
                enabled.claim_protection,
                enabled.volume_protection,
            ]
        };
        assert_eq!(enabled_by(""), [true; 4]);
        assert_eq!(enabled_by("*,bootstrapsigner"), [true; 4]);
        assert_eq!(enabled_by("*,-csrsigning"), [false, true, true, true]);
        assert_eq!(enabled_by("*,-certificatesigningrequest-cleaner-controller"), [true, false, true, true]);
        assert_eq!(enabled_by("pvc-protection"), [false, false, true, false]);
        assert_eq!(enabled_by("-pv-protection,*"), [true, true, true, false]);
    }
}

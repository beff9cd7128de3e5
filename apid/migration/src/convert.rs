//! Conversion of one manifest between API versions.
//!
//! # Contract
//!
//! The target is a group and version. Without a target, or if the target lacks the kind, a manifest of a
//! removed version is converted to the replacement, and a manifest of a served version keeps its version, as
//! in the convert plugin of kubectl. A manifest of a kind without a schema in this program, such as a custom
//! kind, stays unchanged. A built-in group that only the other names preset has is an error. Warnings list
//! fields whose meaning or default changes, unknown fields, and fields that the server will reject.
//!
//! # Errors
//!
//! See [`ConvertError`].

use apimachinery::clock::{Clock, Rng};
use apimachinery::gvk::GroupVersion;
use apimachinery::names::Names;
use apimachinery::object::Object;
use kinds::{Context, Registry, Resource, Storage};

use crate::removed::{self, Notes, RemovedVersion};
use kinds::lifecycle;

/// The reason why a manifest cannot be converted.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConvertError {
    /// The manifest has no `apiVersion` or no `kind`.
    #[error("the manifest has no `apiVersion` or no `kind`")]
    Untyped,
    /// `apiVersion` is not `VERSION` or `GROUP/VERSION`.
    #[error("`{0}` is not an API version; use VERSION or GROUP/VERSION")]
    ApiVersion(String),
    /// The kind was removed and has no replacement.
    #[error("{0} was removed without a replacement: {1}")]
    NoReplacement(String, &'static str),
    /// Only the other names preset has the group. The second text has the flags that select that preset.
    #[error("{0} has a group of the other names preset; use `{1}`")]
    OtherNames(String, String),
    /// No built-in kind has the target version.
    #[error("no built-in kind has the version {0}")]
    UnknownTarget(GroupVersion),
    /// A value has a wrong type.
    #[error("{0}")]
    Type(String),
}

/// A converted manifest.
#[derive(Clone, Debug)]
pub struct Conversion {
    /// The manifest in the target version.
    pub object: Object,
    /// Remarks for the user, in the order of the conversion steps.
    pub warnings: Vec<String>,
}

/// Kinds that were removed without a replacement: group stem, kind, advice.
const WITHOUT_REPLACEMENT: [(&str, &str, &str); 2] =
    [("policy", "PodSecurityPolicy", POD_SECURITY), ("extensions", "PodSecurityPolicy", POD_SECURITY)];

const POD_SECURITY: &str = "label namespaces for the built-in pod security admission, or use an admission webhook or an admission policy";

/// Converts manifests under a names preset.
pub struct Converter<'a> {
    names: &'a Names,
    registry: Registry,
    clock: &'a dyn Clock,
    rng: &'a dyn Rng,
}

/// Group stem, version and kind of a manifest.
struct Source<'a> {
    stem: &'a str,
    version: &'a str,
    kind: &'a str,
}

impl<'a> Converter<'a> {
    /// Creates a converter for the kinds of a names preset. Defaulting uses `clock` for times and `rng` for
    /// random values.
    pub fn new(names: &'a Names, clock: &'a dyn Clock, rng: &'a dyn Rng) -> Self {
        Converter { names, registry: Registry::new(names), clock, rng }
    }

    /// Converts a manifest to a group and version. Without a target, a manifest of a removed version is
    /// converted to the replacement, and a manifest of a served version keeps its version.
    ///
    /// # Errors
    ///
    /// See [`ConvertError`].
    pub fn convert(&self, object: Object, target: Option<&GroupVersion>) -> Result<Conversion, ConvertError> {
        let (api_version, kind) = (object.api_version().to_owned(), object.kind().to_owned());
        if api_version.is_empty() || kind.is_empty() {
            return Err(ConvertError::Untyped);
        }
        let source = GroupVersion::parse(&api_version).ok_or(ConvertError::ApiVersion(api_version))?;
        let stem = self.names.stem(&source.group);
        let source_text = format!("{source} {kind}");
        if let Some(flags) = self.flags_of_other_names(&source.group) {
            return Err(ConvertError::OtherNames(source_text, flags));
        }
        if let Some((_, _, advice)) =
            WITHOUT_REPLACEMENT.iter().find(|(group, removed, _)| stem == Some(*group) && *removed == kind)
        {
            return Err(ConvertError::NoReplacement(source_text, advice));
        }
        let removed = stem.and_then(|stem| removed::find(stem, &source.version, &kind));
        let Some(resource) = self.served_resource(removed, &source, &kind) else {
            let warning = format!("{source_text} is not a built-in kind; the manifest is unchanged");
            return Ok(Conversion { object, warnings: vec![warning] });
        };
        let mut notes = Notes::default();
        let object = self.upgrade(object, resource, removed, &mut notes)?;
        let source = Source { stem: stem.unwrap_or_default(), version: &source.version, kind: &kind };
        let object = self.represent(object, resource, &source, target, &mut notes)?;
        Ok(Conversion { object, warnings: notes.0 })
    }

    /// Checks that a built-in kind has, or had, a target version.
    ///
    /// # Errors
    ///
    /// [`ConvertError::OtherNames`] or [`ConvertError::UnknownTarget`].
    pub fn check_target(&self, target: &GroupVersion) -> Result<(), ConvertError> {
        if let Some(flags) = self.flags_of_other_names(&target.group) {
            return Err(ConvertError::OtherNames(target.to_string(), flags));
        }
        let mut versions = lifecycle::versions().iter().map(|row| row.group_version(self.names));
        match versions.any(|version| version == *target) {
            true => Ok(()),
            false => Err(ConvertError::UnknownTarget(target.clone())),
        }
    }

    /// The flags that select the other names preset, if only that preset has the group.
    fn flags_of_other_names(&self, group: &str) -> Option<String> {
        if self.names.stem(group).is_some() {
            return None;
        }
        let other_names = self.names.with_other_preset();
        let stem = other_names.stem(group)?;
        lifecycle::versions().iter().any(|row| row.group == stem).then(|| other_names.flags())
    }

    /// The resource of the version of a manifest, or of the served version with which a removed version is
    /// converted. None for a kind that is not built in.
    fn served_resource(
        &self,
        removed: Option<&RemovedVersion>,
        source: &GroupVersion,
        kind: &str,
    ) -> Option<&Resource> {
        match removed {
            Some(RemovedVersion { served: (stem, version), .. }) => {
                self.registry.find_kind_version(&self.names.group(stem), version, kind)
            }
            None => self.registry.find_kind_version(&source.group, &source.version, kind),
        }
        .map(AsRef::as_ref)
    }

    /// Converts a manifest to the storage version of its kind, with defaults.
    fn upgrade(
        &self,
        mut object: Object,
        resource: &Resource,
        removed: Option<&RemovedVersion>,
        notes: &mut Notes,
    ) -> Result<Object, ConvertError> {
        if let Some(removed) = removed {
            (removed.upgrade)(&mut object, self.names, notes);
        }
        object.set_type(&resource.api_version(), resource.kind.kind());
        let report =
            resource.conform_body(&mut object, self.names).map_err(|e| ConvertError::Type(e.to_string()))?;
        notes.0.extend(report.unknown.iter().map(|path| format!("{path}: dropped: unknown field")));
        let conformed = object.clone();
        resource.to_stored(&mut object, self.names).map_err(|e| ConvertError::Type(e.to_string()))?;
        let stored = resource.stored();
        stored.default(&mut object, &self.context());
        if removed.is_some() {
            notes.0.extend(self.rejections(&object, stored));
        }
        if let Some(removed) = removed {
            (removed.restore)(&conformed, &mut object);
        }
        Ok(object)
    }

    fn context(&self) -> Context<'_> {
        Context { names: self.names, clock: self.clock, rng: self.rng, subresource: "" }
    }

    /// Warnings with the validation errors that the server would return for a creation of the object.
    fn rejections(&self, object: &Object, stored: &Resource) -> Vec<String> {
        if stored.kind.storage() != Storage::Stored {
            return Vec::new();
        }
        let mut new_object = object.clone();
        let context = self.context();
        let namespace =
            if new_object.namespace().is_empty() { "default" } else { new_object.namespace() }.to_owned();
        stored.prepare_create(&mut new_object, &namespace, &context);
        stored.canonicalize(&mut new_object, &context);
        let errors = stored.validate_create(&new_object, &context);
        errors.iter().map(|error| format!("the server will reject the manifest: {error}")).collect()
    }

    /// Converts an object of the storage version to the target version. Without a target, or if the target
    /// lacks the kind, the result has the version of the manifest, or the replacement of a removed version.
    fn represent(
        &self,
        mut object: Object,
        resource: &Resource,
        source: &Source<'_>,
        target: Option<&GroupVersion>,
        notes: &mut Notes,
    ) -> Result<Object, ConvertError> {
        let type_error = |error: schema::TypeError| ConvertError::Type(error.to_string());
        let candidates = || self.registry.versions_of(resource);
        if let Some(target) = target {
            if let Some(version) = candidates().find(|version| version.api_version() == target.to_string()) {
                version.represent(&mut object, self.names).map_err(type_error)?;
                return Ok(object);
            }
            let removed = self
                .names
                .stem(&target.group)
                .and_then(|stem| removed::find(stem, &target.version, source.kind));
            if let Some(removed) = removed
                && let Some(served) = candidates().find(|version| {
                    version.kind.has_version(removed.served.1)
                        && version.group_kind.group == self.names.group(removed.served.0)
                })
            {
                served.represent(&mut object, self.names).map_err(type_error)?;
                (removed.downgrade)(&mut object, self.names);
                object.set_type(&target.to_string(), source.kind);
                return Ok(object);
            }
        }
        let (stem, version) = match removed::find(source.stem, source.version, source.kind) {
            Some(removed) => removed.replacement(),
            None => (source.stem, source.version),
        };
        let group = self.names.group(stem);
        if let Some(target) = target {
            let fallback = GroupVersion { group: group.clone(), version: version.to_owned() };
            notes.0.push(format!("{target} has no {}; the manifest is converted to {fallback}", source.kind));
        }
        let fallback = candidates().find(|v| v.kind.has_version(version) && v.group_kind.group == group);
        fallback.map_or(resource, AsRef::as_ref).represent(&mut object, self.names).map_err(type_error)?;
        Ok(object)
    }
}

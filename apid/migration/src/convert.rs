//! Conversion of one manifest between API versions.
//!
//! # Contract
//!
//! The target is a group and version. Without a target, or if the target lacks the kind, a manifest of a
//! removed version is converted to the replacement. A manifest of a served version keeps its version, as in the
//! convert plugin of kubectl. A manifest of a kind without a schema in this program, such as a custom kind,
//! stays unchanged. A built-in group that only the other names preset has is an error. Warnings list fields
//! whose meaning or default changes, unknown fields, and fields that the server will reject.
//!
//! # Errors
//!
//! See [`ConvertError`].

use apimachinery::clock::{Clock, Rng};
use apimachinery::gvk::GroupVersion;
use apimachinery::names::Names;
use apimachinery::object::Object;
use kinds::{Context, Kind, Registry, Storage, lifecycle};
use schema::TypeError;

use crate::removed::{self, Notes, RemovedVersion};

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
    #[error(transparent)]
    Type(#[from] TypeError),
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
        let (group, version) = match &removed {
            Some(removed) => (self.names.group(removed.served.0), removed.served.1),
            None => (source.group.clone(), source.version.as_str()),
        };
        let Some(resource) = self.registry.find_kind_version(&group, version, &kind) else {
            let warning = format!("{source_text} is not a built-in kind; the manifest is unchanged");
            return Ok(Conversion { object, warnings: vec![warning] });
        };
        let mut notes = Notes::default();
        let object = self.upgrade(object, resource, removed.as_ref(), &mut notes)?;
        let unchanged = (stem.unwrap_or_default(), source.version.as_str());
        let fallback = removed.map_or(unchanged, |removed| removed.replacement);
        let object = self.represent(object, resource, fallback, target, &mut notes)?;
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

    /// Converts a manifest to the storage version of its kind, with defaults.
    fn upgrade(
        &self,
        mut object: Object,
        resource: &Kind,
        removed: Option<&RemovedVersion>,
        notes: &mut Notes,
    ) -> Result<Object, ConvertError> {
        if let Some(removed) = removed {
            (removed.changes.upgrade)(&mut object, self.names, notes);
        }
        object.set_type(&resource.api_version(), resource.name());
        let report = resource.conform_body(&mut object, self.names)?;
        notes.0.extend(report.unknown.iter().map(|path| format!("{path}: dropped: unknown field")));
        let conformed = object.clone();
        resource.to_stored(&mut object, self.names)?;
        let stored = resource.stored();
        stored.default(&mut object, &self.context());
        if removed.is_some() {
            notes.0.extend(self.rejections(&object, stored));
        }
        if let Some(removed) = removed {
            (removed.changes.restore)(&conformed, &mut object);
        }
        Ok(object)
    }

    fn context(&self) -> Context<'_> {
        Context { names: self.names, clock: self.clock, rng: self.rng, subresource: "" }
    }

    /// Warnings with the validation errors that the server would return for a creation of the object.
    fn rejections(&self, object: &Object, stored: &Kind) -> Vec<String> {
        if stored.storage != Storage::Stored {
            return Vec::new();
        }
        let mut new_object = object.clone();
        let context = self.context();
        let namespace =
            if new_object.namespace().is_empty() { "default" } else { new_object.namespace() }.to_owned();
        stored.prepare_create(&mut new_object, &namespace, &context);
        // The warnings of the kind also contain the warnings about the unchanged object.
        stored.complete_new(&mut new_object, &context);
        stored.canonicalize(&mut new_object, &context);
        let errors = stored.validate_create(&new_object, &context);
        errors.iter().map(|error| format!("the server will reject the manifest: {error}")).collect()
    }

    /// Converts an object of the storage version to the target version. Without a target, or if the target
    /// lacks the kind, the result has the group stem and version `fallback`.
    fn represent(
        &self,
        mut object: Object,
        resource: &Kind,
        fallback: (&str, &str),
        target: Option<&GroupVersion>,
        notes: &mut Notes,
    ) -> Result<Object, ConvertError> {
        let kind = resource.name();
        let find_version = |(stem, version): (&str, &str)| {
            let group = self.names.group(stem);
            let mut versions = self.registry.versions_of(resource);
            versions.find(|other| other.has_version(version) && other.group_kind.group == group)
        };
        if let Some(target) = target {
            let mut versions = self.registry.versions_of(resource);
            if let Some(version) = versions.find(|version| version.api_version() == target.to_string()) {
                version.represent(&mut object, self.names)?;
                return Ok(object);
            }
            let stem = self.names.stem(&target.group);
            if let Some(removed) = stem.and_then(|stem| removed::find(stem, &target.version, kind))
                && let Some(served) = find_version(removed.served)
            {
                served.represent(&mut object, self.names)?;
                (removed.changes.downgrade)(&mut object, self.names);
                object.set_type(&target.to_string(), kind);
                return Ok(object);
            }
            let (stem, version) = fallback;
            let fallback = GroupVersion { group: self.names.group(stem), version: version.to_owned() };
            notes.0.push(format!("{target} has no {kind}; the manifest is converted to {fallback}"));
        }
        find_version(fallback).map_or(resource, AsRef::as_ref).represent(&mut object, self.names)?;
        Ok(object)
    }
}

//! Typed view of a definition, with the fields that all versions share at the top level.
//!
//! # Contract
//!
//! kube-apiserver validates its internal form. There, fields of the versions (`schema`, `subresources`,
//! `additionalPrinterColumns`, `selectableFields`) move to the top level if they are equal in all versions.
//! Errors name the internal paths: `spec.validation.openAPIV3Schema` instead of
//! `spec.versions[0].schema.openAPIV3Schema`. [`Spec::new`] does the same.

use apimachinery::object::{Object, Value};

use super::props::Props;

/// The `spec` of a definition in the internal form.
#[derive(Clone, Debug)]
pub(crate) struct Spec<'a> {
    /// The whole `spec`.
    pub(crate) fields: Option<Props<'a>>,
    pub(crate) versions: Vec<Version<'a>>,
    /// Fields that are equal in all versions.
    pub(crate) common: Version<'a>,
    /// Whether the subresources differ between versions.
    has_own_subresources: bool,
}

/// A version, or the fields that all versions share. Shared fields are absent in the versions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Version<'a> {
    pub(crate) fields: Option<Props<'a>>,
    /// The `schema`, which may lack `openAPIV3Schema`.
    pub(crate) validation: Option<Props<'a>>,
    pub(crate) subresources: Option<Props<'a>>,
    pub(crate) columns: &'a [Value],
    pub(crate) selectable_fields: &'a [Value],
}

impl<'a> Version<'a> {
    fn from_value(value: &'a Value) -> Self {
        let fields = Props::from_value(value);
        Version {
            fields,
            validation: fields.and_then(|fields| fields.schema("schema")),
            subresources: fields.and_then(|fields| fields.schema("subresources")),
            columns: fields.map_or(&[], |fields| fields.list("additionalPrinterColumns")),
            selectable_fields: fields.map_or(&[], |fields| fields.list("selectableFields")),
        }
    }

    /// The name; `""` if absent.
    pub(crate) fn name(&self) -> &'a str {
        self.fields.map_or("", |fields| fields.text("name"))
    }

    /// Whether the version is served.
    pub(crate) fn is_served(&self) -> bool {
        self.fields.is_some_and(|fields| fields.flag("served"))
    }

    /// Whether the version is the storage version.
    pub(crate) fn is_storage(&self) -> bool {
        self.fields.is_some_and(|fields| fields.flag("storage"))
    }

    /// The schema.
    pub(crate) fn schema(&self) -> Option<Props<'a>> {
        self.validation.and_then(|validation| validation.schema("openAPIV3Schema"))
    }

    /// Whether the subresource `status` is enabled.
    pub(crate) fn has_status(&self) -> bool {
        self.subresources.is_some_and(|subresources| subresources.get("status").is_some())
    }
}

impl<'a> Spec<'a> {
    /// Reads the `spec` of a definition.
    pub(crate) fn new(definition: &'a Object) -> Self {
        let fields = definition.get("spec").and_then(Props::from_value);
        let list = fields.map_or(&[][..], |fields| fields.list("versions"));
        let mut versions: Vec<Version<'a>> = list.iter().map(Version::from_value).collect();
        let mut common = Version::default();
        let Some(first) = versions.first().copied() else {
            return Spec { fields, versions, common, has_own_subresources: false };
        };
        let all_versions = |get: &dyn Fn(&Version<'a>) -> bool| versions.iter().all(get);
        let are_same =
            |a: Option<Props<'a>>, b: Option<Props<'a>>| a.map(|props| props.0) == b.map(|props| props.0);
        let is_schema_common = all_versions(&|version| are_same(version.validation, first.validation));
        let are_subresources_common =
            all_versions(&|version| are_same(version.subresources, first.subresources));
        let are_columns_common = all_versions(&|version| version.columns == first.columns);
        let are_fields_common =
            is_schema_common && all_versions(&|version| version.selectable_fields == first.selectable_fields);
        if is_schema_common {
            common.validation = first.validation;
            versions.iter_mut().for_each(|version| version.validation = None);
        }
        if are_subresources_common {
            common.subresources = first.subresources;
            versions.iter_mut().for_each(|version| version.subresources = None);
        }
        if are_columns_common {
            common.columns = first.columns;
            versions.iter_mut().for_each(|version| version.columns = &[]);
        }
        if are_fields_common {
            common.selectable_fields = first.selectable_fields;
            versions.iter_mut().for_each(|version| version.selectable_fields = &[]);
        }
        Spec { fields, versions, common, has_own_subresources: !are_subresources_common }
    }

    /// A text of the `spec`; `""` if absent.
    pub(crate) fn text(&self, field: &str) -> &'a str {
        self.fields.map_or("", |fields| fields.text(field))
    }

    /// The requested names.
    pub(crate) fn names(&self) -> Option<Props<'a>> {
        self.fields.and_then(|fields| fields.schema("names"))
    }

    /// A requested name; `""` if absent.
    pub(crate) fn requested_name(&self, field: &str) -> &'a str {
        self.names().map_or("", |names| names.text(field))
    }

    /// Whether objects keep unknown fields, which only definitions of older releases can request.
    pub(crate) fn preserves_unknown_fields(&self) -> bool {
        self.fields.is_some_and(|fields| fields.flag("preserveUnknownFields"))
    }

    /// All schemas: the common schema, then those of the versions.
    pub(crate) fn schemas(&self) -> impl Iterator<Item = Props<'a>> {
        self.common.schema().into_iter().chain(self.versions.iter().filter_map(Version::schema))
    }

    /// Whether a version has the subresource `status`, in its own fields or in the common ones.
    pub(crate) fn has_status(&self, version: &Version<'a>) -> bool {
        if self.has_own_subresources { version.has_status() } else { self.common.has_status() }
    }

    /// Whether any version has the subresource `status`.
    pub(crate) fn has_any_status(&self) -> bool {
        self.common.has_status() || self.versions.iter().any(Version::has_status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn equal_fields_of_all_versions_are_common() {
        let version = |name: &str, path: &str| {
            json!({
                "name": name, "schema": {"openAPIV3Schema": {"type": "object"}},
                "subresources": {"status": {}}, "selectableFields": [{"jsonPath": path}],
            })
        };
        let object = |versions: Value| Object::from_value(json!({"spec": {"versions": versions}})).unwrap();
        let one = object(json!([version("v1", ".a")]));
        let spec = Spec::new(&one);
        assert!(spec.common.schema().is_some() && spec.common.has_status());
        assert!(spec.versions[0].schema().is_none() && spec.has_status(&spec.versions[0]));
        assert_eq!(spec.common.selectable_fields.len(), 1);

        let two = object(json!([version("v1", ".a"), version("v2", ".b")]));
        let spec = Spec::new(&two);
        assert!(spec.common.schema().is_some() && spec.common.selectable_fields.is_empty());
        assert_eq!(spec.versions[1].selectable_fields.len(), 1);

        let mut other = two.clone();
        other.get_mut("spec").unwrap()["versions"][1]["schema"]["openAPIV3Schema"]["title"] = json!("t");
        let spec = Spec::new(&other);
        assert!(spec.common.schema().is_none() && spec.versions[0].schema().is_some());
        let none = Object::default();
        assert!(Spec::new(&none).versions.is_empty());
    }
}

//! Protobuf messages of an OpenAPI 2 document, limited to the used fields.
//!
//! # Reference
//!
//! Field numbers of the package `openapi.v2`, file `OpenAPIv2.proto` of gnostic. Maps are lists of named
//! values. The fields `place` and `ty` are `in` and `type` there, which are Rust keywords.

use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(super) struct Document {
    #[prost(string, tag = "1")]
    pub(super) swagger: String,
    #[prost(message, optional, tag = "2")]
    pub(super) info: Option<Info>,
    #[prost(message, optional, tag = "8")]
    pub(super) paths: Option<Paths>,
    #[prost(message, optional, tag = "9")]
    pub(super) definitions: Option<Definitions>,
    #[prost(message, optional, tag = "10")]
    pub(super) parameters: Option<ParameterDefinitions>,
    #[prost(message, repeated, tag = "12")]
    pub(super) security: Vec<SecurityRequirement>,
    #[prost(message, optional, tag = "13")]
    pub(super) security_definitions: Option<SecurityDefinitions>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Info {
    #[prost(string, tag = "1")]
    pub(super) title: String,
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Paths {
    #[prost(message, repeated, tag = "2")]
    pub(super) path: Vec<NamedPathItem>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NamedPathItem {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<PathItem>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PathItem {
    #[prost(message, optional, tag = "2")]
    pub(super) get: Option<Operation>,
    #[prost(message, optional, tag = "3")]
    pub(super) put: Option<Operation>,
    #[prost(message, optional, tag = "4")]
    pub(super) post: Option<Operation>,
    #[prost(message, optional, tag = "5")]
    pub(super) delete: Option<Operation>,
    #[prost(message, optional, tag = "6")]
    pub(super) options: Option<Operation>,
    #[prost(message, optional, tag = "7")]
    pub(super) head: Option<Operation>,
    #[prost(message, optional, tag = "8")]
    pub(super) patch: Option<Operation>,
    #[prost(message, repeated, tag = "9")]
    pub(super) parameters: Vec<ParametersItem>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Operation {
    #[prost(string, repeated, tag = "1")]
    pub(super) tags: Vec<String>,
    #[prost(string, tag = "3")]
    pub(super) description: String,
    #[prost(string, tag = "5")]
    pub(super) operation_id: String,
    #[prost(string, repeated, tag = "6")]
    pub(super) produces: Vec<String>,
    #[prost(string, repeated, tag = "7")]
    pub(super) consumes: Vec<String>,
    #[prost(message, repeated, tag = "8")]
    pub(super) parameters: Vec<ParametersItem>,
    #[prost(message, optional, tag = "9")]
    pub(super) responses: Option<Responses>,
    #[prost(string, repeated, tag = "10")]
    pub(super) schemes: Vec<String>,
    #[prost(bool, tag = "11")]
    pub(super) deprecated: bool,
    #[prost(message, repeated, tag = "13")]
    pub(super) vendor_extension: Vec<NamedAny>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ParameterDefinitions {
    #[prost(message, repeated, tag = "1")]
    pub(super) additional_properties: Vec<NamedParameter>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NamedParameter {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<Parameter>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ParametersItem {
    #[prost(oneof = "ParameterOrReference", tags = "1, 2")]
    pub(super) oneof: Option<ParameterOrReference>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum ParameterOrReference {
    #[prost(message, tag = "1")]
    Parameter(Parameter),
    #[prost(message, tag = "2")]
    Reference(JsonReference),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct JsonReference {
    #[prost(string, tag = "1")]
    pub(super) reference: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Parameter {
    #[prost(oneof = "AnyParameter", tags = "1, 2")]
    pub(super) oneof: Option<AnyParameter>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum AnyParameter {
    #[prost(message, tag = "1")]
    Body(BodyParameter),
    #[prost(message, tag = "2")]
    NonBody(NonBodyParameter),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct BodyParameter {
    #[prost(string, tag = "2")]
    pub(super) name: String,
    #[prost(string, tag = "3")]
    pub(super) place: String,
    #[prost(bool, tag = "4")]
    pub(super) required: bool,
    #[prost(message, optional, boxed, tag = "5")]
    pub(super) schema: Option<Box<Schema>>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NonBodyParameter {
    #[prost(oneof = "ParameterSubSchema", tags = "3, 4")]
    pub(super) oneof: Option<ParameterSubSchema>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum ParameterSubSchema {
    #[prost(message, tag = "3")]
    Query(QueryParameter),
    #[prost(message, tag = "4")]
    Path(PathParameter),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct QueryParameter {
    #[prost(string, tag = "2")]
    pub(super) place: String,
    #[prost(string, tag = "3")]
    pub(super) description: String,
    #[prost(string, tag = "4")]
    pub(super) name: String,
    #[prost(string, tag = "6")]
    pub(super) ty: String,
    #[prost(bool, tag = "20")]
    pub(super) unique_items: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PathParameter {
    #[prost(bool, tag = "1")]
    pub(super) required: bool,
    #[prost(string, tag = "2")]
    pub(super) place: String,
    #[prost(string, tag = "3")]
    pub(super) description: String,
    #[prost(string, tag = "4")]
    pub(super) name: String,
    #[prost(string, tag = "5")]
    pub(super) ty: String,
    #[prost(bool, tag = "19")]
    pub(super) unique_items: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Responses {
    #[prost(message, repeated, tag = "1")]
    pub(super) response_code: Vec<NamedResponseValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NamedResponseValue {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<ResponseValue>,
}

/// A response. The alternative, a reference, is not used.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ResponseValue {
    #[prost(message, optional, tag = "1")]
    pub(super) response: Option<Response>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Response {
    #[prost(string, tag = "1")]
    pub(super) description: String,
    #[prost(message, optional, tag = "2")]
    pub(super) schema: Option<SchemaItem>,
}

/// The schema of a response. The alternative, a file, is not used.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SchemaItem {
    #[prost(message, optional, tag = "1")]
    pub(super) schema: Option<Schema>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Definitions {
    #[prost(message, repeated, tag = "1")]
    pub(super) additional_properties: Vec<NamedSchema>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NamedSchema {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<Schema>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Schema {
    #[prost(string, tag = "1")]
    pub(super) reference: String,
    #[prost(string, tag = "2")]
    pub(super) format: String,
    #[prost(string, tag = "4")]
    pub(super) description: String,
    #[prost(string, repeated, tag = "19")]
    pub(super) required: Vec<String>,
    #[prost(message, repeated, tag = "20")]
    pub(super) enumeration: Vec<Any>,
    #[prost(message, optional, boxed, tag = "21")]
    pub(super) additional_properties: Option<Box<AdditionalProperties>>,
    #[prost(message, optional, tag = "22")]
    pub(super) ty: Option<TypeItem>,
    #[prost(message, optional, tag = "23")]
    pub(super) items: Option<ItemsItem>,
    #[prost(message, optional, tag = "25")]
    pub(super) properties: Option<Definitions>,
    #[prost(message, repeated, tag = "31")]
    pub(super) vendor_extension: Vec<NamedAny>,
}

/// Schema of additional properties. The alternative, a boolean, is not used.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AdditionalProperties {
    #[prost(message, optional, boxed, tag = "1")]
    pub(super) schema: Option<Box<Schema>>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TypeItem {
    #[prost(string, repeated, tag = "1")]
    pub(super) value: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ItemsItem {
    #[prost(message, repeated, tag = "1")]
    pub(super) schema: Vec<Schema>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NamedAny {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<Any>,
}

/// Any value, as YAML.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Any {
    #[prost(string, tag = "2")]
    pub(super) yaml: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SecurityDefinitions {
    #[prost(message, repeated, tag = "1")]
    pub(super) additional_properties: Vec<NamedSecurityDefinition>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NamedSecurityDefinition {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<SecurityDefinition>,
}

/// A security definition as an API key in a header; the other forms are not used.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SecurityDefinition {
    #[prost(message, optional, tag = "2")]
    pub(super) api_key: Option<ApiKey>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ApiKey {
    #[prost(string, tag = "1")]
    pub(super) ty: String,
    #[prost(string, tag = "2")]
    pub(super) name: String,
    #[prost(string, tag = "3")]
    pub(super) place: String,
    #[prost(string, tag = "4")]
    pub(super) description: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SecurityRequirement {
    #[prost(message, repeated, tag = "1")]
    pub(super) additional_properties: Vec<NamedStringArray>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NamedStringArray {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<TypeItem>,
}

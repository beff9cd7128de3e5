//! Content negotiation: the representation of the response and the format of the body.
//!
//! # Contract
//!
//! [`accept`] picks the first clause of the `Accept` header, by quality and then by order, that the endpoint
//! can serve. A clause may request another kind with `as`, `g` and `v`: a Table or PartialObjectMetadata.
//! [`body_format`] reads `Content-Type`. An `Accept` header that cannot be served returns 406, an unsupported
//! `Content-Type` 415 (requirements D-MT).

use apimachinery::names::Names;
use apimachinery::status::{Details, Reason, Status};
use http::{HeaderMap, HeaderName, HeaderValue, header};

use verbs::Payload;

/// Response encodings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// `application/json`
    Json,
    /// `application/yaml`
    Yaml,
    /// `application/cbor`, alpha.
    Cbor,
    /// Protobuf in its envelope. The preset defines the media type.
    Protobuf(&'static str),
}

/// Inputs of negotiation besides the request.
#[derive(Clone, Copy)]
pub(super) struct EncodingSupport<'a> {
    /// Names of API groups and of the Protobuf media type.
    pub(super) names: &'a Names,
    /// Whether CBOR is enabled.
    pub(super) cbor: bool,
    /// Whether the kind has a Protobuf message; custom kinds have none.
    pub(super) protobuf: bool,
}

impl EncodingSupport<'_> {
    /// Returns the supported media types, as the messages of 406 and 415 list them.
    fn media_types(self) -> Vec<&'static str> {
        let mut media_types = vec!["application/json", "application/yaml"];
        if self.protobuf {
            media_types.push(self.names.protobuf_media_type);
        }
        if self.cbor {
            media_types.push("application/cbor");
        }
        media_types
    }
}

impl Format {
    /// The media type.
    pub(super) fn media_type(self) -> &'static str {
        match self {
            Format::Json => "application/json",
            Format::Yaml => "application/yaml",
            Format::Cbor => "application/cbor",
            Format::Protobuf(media_type) => media_type,
        }
    }

    /// The media type of an event stream.
    pub(super) fn stream_media_type(self) -> String {
        match self {
            Format::Json | Format::Yaml => self.media_type().to_owned(),
            Format::Cbor => "application/cbor-seq".to_owned(),
            Format::Protobuf(media_type) => format!("{media_type};stream=watch"),
        }
    }

    /// Wraps the bytes of a body in this encoding.
    pub(super) fn payload(self, bytes: &[u8]) -> Payload<'_> {
        match self {
            Format::Json => Payload::Json(bytes),
            Format::Yaml => Payload::Yaml(bytes),
            Format::Cbor => Payload::Cbor(bytes),
            Format::Protobuf(_) => Payload::Protobuf(bytes),
        }
    }
}

/// The kind that represents the objects of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// The kind of the objects themselves.
    Own,
    /// `Table` of this version of the meta group.
    Table(&'static str),
    /// `PartialObjectMetadata`, or its list, of this version.
    Metadata(&'static str),
    /// `APIGroupDiscoveryList` of this version.
    AggregatedDiscovery(&'static str),
}

/// The result of negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Negotiation {
    /// The encoding.
    pub(super) format: Format,
    /// The kind that represents the objects.
    pub(super) shape: Shape,
}

impl Negotiation {
    /// JSON of the objects themselves.
    pub(super) const JSON: Negotiation = Negotiation { format: Format::Json, shape: Shape::Own };
}

/// The representations that an endpoint can serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offer {
    /// One object.
    Object,
    /// A list.
    List,
    /// A stream of events.
    Watch,
    /// A discovery document that also has an aggregated form.
    Discovery,
    /// A kind without Table or metadata shape: reviews, other discovery documents, results without an object.
    Plain,
}

/// One clause of an `Accept` header.
struct Clause<'a> {
    media_type: &'a str,
    /// The text after the media type.
    parameters: &'a str,
}

impl<'a> Clause<'a> {
    /// Parses one clause. Returns None if the clause has no media type.
    fn parse(text: &'a str) -> Option<Self> {
        let (media_type, parameters) = text.split_once(';').unwrap_or((text, ""));
        let media_type = media_type.trim();
        (!media_type.is_empty()).then_some(Clause { media_type, parameters })
    }

    /// Returns the names and values of the parameters. Quotation marks around values are removed.
    fn parameters(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.parameters.split(';').map(|parameter| {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            (name.trim(), value.trim().trim_matches('"'))
        })
    }

    /// Returns the quality: 1 without a valid parameter `q`. None if the client rejects the media type.
    fn quality(&self) -> Option<f32> {
        let qualities = self.parameters().filter(|(name, _)| name.eq_ignore_ascii_case("q"));
        let quality = qualities.last().and_then(|(_, value)| value.parse().ok()).unwrap_or(1.0);
        let quality = if (0.0..=1.0).contains(&quality) { quality } else { 1.0 };
        (quality > 0.0).then_some(quality)
    }
}

/// Returns the clauses of the `Accept` header, in the order of the client.
fn clauses(headers: &HeaderMap) -> impl Iterator<Item = Clause<'_>> {
    list_elements(headers, header::ACCEPT).filter_map(Clause::parse)
}

/// Returns the candidate of the highest quality, the first one among equals.
fn preferred<T>(candidates: impl Iterator<Item = (f32, T)>) -> Option<T> {
    let best = candidates.reduce(|best, next| if next.0 > best.0 { next } else { best });
    best.map(|(_, candidate)| candidate)
}

/// Negotiates the representation of a response.
///
/// # Errors
///
/// 406: the endpoint can serve no clause.
pub(super) fn accept(
    headers: &HeaderMap,
    offer: Offer,
    encoding_support: EncodingSupport<'_>,
) -> Result<Negotiation, Status> {
    // Fast path for the headers of most clients.
    if accepts_stored_json(headers) {
        return Ok(Negotiation::JSON);
    }
    let mut clauses = clauses(headers).peekable();
    if clauses.peek().is_none() {
        return Ok(Negotiation::JSON);
    }
    let mut is_format_supported = false;
    let servable = clauses.filter_map(|clause| {
        // The format comes first: it excludes most clauses of a long header.
        let format = format_of(clause.media_type, offer, encoding_support)?;
        let quality = clause.quality()?;
        is_format_supported = true;
        match shape_of(&clause, offer, encoding_support.names)? {
            // A Table has no Protobuf message.
            Shape::Table(_) if matches!(format, Format::Protobuf(_)) => None,
            shape => Some((quality, Negotiation { format, shape })),
        }
    });
    preferred(servable).ok_or_else(|| not_acceptable(is_format_supported, encoding_support))
}

fn format_of(media_type: &str, offer: Offer, encoding_support: EncodingSupport<'_>) -> Option<Format> {
    let EncodingSupport { names, cbor, protobuf } = encoding_support;
    let is_media_type = |known: &str| media_type.eq_ignore_ascii_case(known);
    if is_media_type("*/*") || is_media_type("application/*") || is_media_type("application/json") {
        Some(Format::Json)
    } else if is_media_type("application/yaml") {
        // A stream of YAML documents has no framing.
        (offer != Offer::Watch).then_some(Format::Yaml)
    } else if is_media_type("application/cbor") {
        cbor.then_some(Format::Cbor)
    } else if is_media_type("application/cbor-seq") {
        (cbor && offer == Offer::Watch).then_some(Format::Cbor)
    } else if is_media_type(names.protobuf_media_type) {
        protobuf.then_some(Format::Protobuf(names.protobuf_media_type))
    } else {
        None
    }
}

/// Returns the shape that `as`, `g` and `v` request; None if the endpoint cannot serve it.
///
/// Other parameters are ignored.
fn shape_of(clause: &Clause<'_>, offer: Offer, names: &Names) -> Option<Shape> {
    let parameter =
        |key: &str| clause.parameters().find(|(name, _)| *name == key).map_or("", |(_, value)| value);
    let (kind, group, version) = (parameter("as"), parameter("g"), parameter("v"));
    if kind.is_empty() {
        return Some(Shape::Own);
    }
    let known_version = |known: [&'static str; 2]| known.into_iter().find(|known| *known == version);
    let meta_version = || known_version(["v1", "v1beta1"]).filter(|_| group == names.meta_group());
    match (kind, offer) {
        ("Table", Offer::Object | Offer::List | Offer::Watch) => meta_version().map(Shape::Table),
        ("PartialObjectMetadata", Offer::Object | Offer::Watch)
        | ("PartialObjectMetadataList", Offer::List) => meta_version().map(Shape::Metadata),
        ("APIGroupDiscoveryList", Offer::Discovery) if group == names.group("apidiscovery") => {
            known_version(["v2", "v2beta1"]).map(Shape::AggregatedDiscovery)
        }
        _ => None,
    }
}

/// Returns the index in `offered` of the media type that the client prefers; None if it accepts none of them.
/// Without an `Accept` header, the index is 0.
pub(super) fn preferred_media_type(headers: &HeaderMap, offered: &[&str]) -> Option<usize> {
    let mut clauses = clauses(headers).peekable();
    if clauses.peek().is_none() {
        return Some(0);
    }
    preferred(clauses.filter_map(|clause| {
        let is_any = matches!(clause.media_type, "*/*" | "application/*");
        let index =
            offered.iter().position(|offer| is_any || clause.media_type.eq_ignore_ascii_case(offer))?;
        Some((clause.quality()?, index))
    }))
}

/// Returns 406 as kube-apiserver does for the documents of the aggregation layer.
pub(super) fn only_accepted(encoding_support: EncodingSupport<'_>) -> Status {
    Status::not_acceptable(&encoding_support.media_types())
}

/// Returns 406 for a document that exists as JSON only.
pub(super) fn json_only() -> Status {
    unavailable_representations(&[Format::Json.media_type()])
}

fn unavailable_representations(available: &[&str]) -> Status {
    let text = format!("406: Not Acceptable\n\nAvailable representations: {}", available.join(", "));
    Status::failure(Reason::NotAcceptable, text).with_details(Details::default())
}

fn not_acceptable(is_format_supported: bool, encoding_support: EncodingSupport<'_>) -> Status {
    let media_types = encoding_support.media_types();
    if is_format_supported {
        return Status::not_acceptable(&media_types);
    }
    unavailable_representations(&media_types)
}

/// Returns the encoding of an error response: JSON if the client accepts no supported encoding.
pub(super) fn error_format(headers: &HeaderMap, encoding_support: EncodingSupport<'_>) -> Format {
    let formats = clauses(headers).filter_map(|clause| {
        let format = format_of(clause.media_type, Offer::Plain, encoding_support)?;
        Some((clause.quality()?, format))
    });
    preferred(formats).unwrap_or(Format::Json)
}

/// The encoding of a request body.
pub(super) type BodyFormat = Format;

/// Returns the encoding of a request body; JSON without a `Content-Type`.
///
/// # Errors
///
/// 415: the media type is not supported.
pub(super) fn body_format(
    content_type: Option<&HeaderValue>,
    encoding_support: EncodingSupport<'_>,
) -> Result<BodyFormat, Status> {
    let protobuf = encoding_support.names.protobuf_media_type;
    match media_type(content_type).as_deref() {
        None | Some("" | "application/json") => Ok(BodyFormat::Json),
        Some("application/yaml") => Ok(BodyFormat::Yaml),
        Some("application/cbor") if encoding_support.cbor => Ok(BodyFormat::Cbor),
        Some(other) if other == protobuf && encoding_support.protobuf => Ok(BodyFormat::Protobuf(protobuf)),
        Some(_) => Err(Status::unsupported_media_type(&encoding_support.media_types())),
    }
}

/// The syntax of a body, for the cost estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodySyntax {
    /// JSON, and every unknown media type.
    Json,
    /// A JSON Patch.
    JsonPatch,
    /// YAML, which has aliases.
    Yaml,
    /// CBOR or Protobuf.
    Binary,
}

impl BodySyntax {
    /// Returns the syntax that the `Content-Type` header names.
    pub(super) fn from_headers(headers: &HeaderMap) -> Self {
        let media_type = media_type(headers.get(header::CONTENT_TYPE)).unwrap_or_default();
        match media_type.as_str() {
            "application/json-patch+json" => BodySyntax::JsonPatch,
            other if other.ends_with("protobuf") || other.ends_with("cbor") => BodySyntax::Binary,
            other if other.ends_with("yaml") => BodySyntax::Yaml,
            _ => BodySyntax::Json,
        }
    }
}

/// Returns the media type of a `Content-Type` header in lower case, without parameters.
pub(super) fn media_type(content_type: Option<&HeaderValue>) -> Option<String> {
    let text = content_type?.to_str().unwrap_or("invalid");
    Some(text.split(';').next().unwrap_or("").trim().to_ascii_lowercase())
}

/// Whether `Accept` is one of the usual values that select plain JSON. Unusual values may select JSON too.
pub(super) fn accepts_stored_json(headers: &HeaderMap) -> bool {
    let mut accepted = headers.get_all(header::ACCEPT).iter();
    let is_json = |value: &HeaderValue| {
        matches!(value.as_bytes(), b"" | b"*/*" | b"application/json" | b"application/json, */*")
    };
    accepted.next().is_none_or(is_json) && accepted.next().is_none()
}

/// Whether the client accepts gzip. As in Kubernetes, a clause with a quality does not count.
pub(super) fn accepts_gzip(headers: &HeaderMap) -> bool {
    list_elements(headers, header::ACCEPT_ENCODING).any(|clause| clause.eq_ignore_ascii_case("gzip"))
}

/// Returns the elements of a list-valued header, without the white space around them.
pub(super) fn list_elements(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::names::Preset;

    #[test]
    fn usual_accept_values_select_stored_json_and_others_are_undecided() {
        let accepts = |values: &[&'static str]| {
            let values = values.iter().map(|value| (header::ACCEPT, HeaderValue::from_static(value)));
            accepts_stored_json(&values.collect())
        };
        for accepted in [&[][..], &["*/*"], &["application/json"], &["application/json, */*"]] {
            assert!(accepts(accepted), "{accepted:?}");
        }
        for undecided in [
            &["application/yaml"][..],
            &["application/json;as=Table;g=meta.example.test;v=v1"],
            &["*/*", "application/yaml"],
        ] {
            assert!(!accepts(undecided), "{undecided:?}");
        }
    }

    fn negotiate(accept_header: Option<&str>, offer: Offer) -> Result<Negotiation, Status> {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let mut headers = HeaderMap::new();
        if let Some(value) = accept_header {
            headers.insert(header::ACCEPT, HeaderValue::from_str(value).unwrap());
        }
        accept(&headers, offer, EncodingSupport { names: &names, cbor: false, protobuf: true })
    }

    #[test]
    fn accept_header_selects_best_supported_clause() {
        use Format::{Json, Yaml};
        const PROTOBUF: Format = Format::Protobuf("application/vnd.kubernetes.protobuf");
        for (header, offer, format, shape) in [
            (None, Offer::Object, Json, Shape::Own),
            (Some(""), Offer::Object, Json, Shape::Own),
            (Some("*/*"), Offer::Object, Json, Shape::Own),
            (Some("application/yaml, application/json"), Offer::Object, Yaml, Shape::Own),
            (Some("application/json;q=0.2, application/yaml;q=0.9"), Offer::Object, Yaml, Shape::Own),
            (Some("application/xml, application/yaml;q=0.2"), Offer::Object, Yaml, Shape::Own),
            (Some("text/html, */*;q=0.8"), Offer::List, Json, Shape::Own),
            (Some("application/yaml; Q = 0.1 , application/json"), Offer::Object, Json, Shape::Own),
            (Some("application/yaml;q=0.9;q=0.1, application/json;q=0.5"), Offer::Object, Json, Shape::Own),
            (Some("application/yaml;q=2, application/json"), Offer::Object, Yaml, Shape::Own),
            (Some("application/yaml;q=NaN, application/json"), Offer::Object, Yaml, Shape::Own),
            (Some("application/yaml;q=0.1;q=x, application/json;q=0.5"), Offer::Object, Yaml, Shape::Own),
            (Some("application/yaml;q, application/json;q=0.5"), Offer::Object, Yaml, Shape::Own),
            (Some(r#"application/yaml;q="0.1", application/json;q=0.5"#), Offer::Object, Json, Shape::Own),
            (Some(" ;q=0.5, ,"), Offer::Object, Json, Shape::Own),
            (
                Some(r#"application/json; as = "Table" ; v="v1"; g=meta.k8s.io; as=Other"#),
                Offer::List,
                Json,
                Shape::Table("v1"),
            ),
            (
                Some("application/vnd.kubernetes.protobuf, application/json"),
                Offer::List,
                PROTOBUF,
                Shape::Own,
            ),
            (Some("Application/vnd.Kubernetes.protobuf"), Offer::Plain, PROTOBUF, Shape::Own),
            (Some("application/vnd.kubernetes.protobuf;stream=watch"), Offer::Watch, PROTOBUF, Shape::Own),
            (
                Some(
                    "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io,\
                     application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
                ),
                Offer::Object,
                PROTOBUF,
                Shape::Metadata("v1"),
            ),
            (Some("application/vnd.svc.protobuf, application/json;q=0.1"), Offer::Object, Json, Shape::Own),
            (
                Some("application/json;as=Table;v=v1;g=meta.k8s.io,application/json"),
                Offer::List,
                Json,
                Shape::Table("v1"),
            ),
            (
                Some("application/json;as=Table;v=v1beta1;g=meta.k8s.io"),
                Offer::Object,
                Json,
                Shape::Table("v1beta1"),
            ),
            (
                Some("application/json;as=Table;v=v9;g=meta.k8s.io,application/json"),
                Offer::List,
                Json,
                Shape::Own,
            ),
            (
                Some("application/json;as=Table;v=v1;g=meta.k8s.io,application/json"),
                Offer::Plain,
                Json,
                Shape::Own,
            ),
            (
                Some("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"),
                Offer::List,
                Json,
                Shape::Metadata("v1"),
            ),
            (
                Some("application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"),
                Offer::Watch,
                Json,
                Shape::Metadata("v1"),
            ),
            (Some("application/json;stream=watch"), Offer::Watch, Json, Shape::Own),
            (
                Some("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"),
                Offer::Discovery,
                Json,
                Shape::AggregatedDiscovery("v2"),
            ),
            (
                Some("application/json;g=apidiscovery.k8s.io;v=v9;as=APIGroupDiscoveryList,application/json"),
                Offer::Discovery,
                Json,
                Shape::Own,
            ),
        ] {
            assert_eq!(negotiate(header, offer), Ok(Negotiation { format, shape }), "{header:?} {offer:?}");
        }
    }

    #[test]
    fn preferred_media_type_has_highest_quality() {
        let preferred = |value: &'static str| {
            let headers = [(header::ACCEPT, HeaderValue::from_static(value))].into_iter().collect();
            preferred_media_type(&headers, &["application/a", "application/b"])
        };
        for (accept_header, index) in [
            ("", Some(0)),
            ("*/*", Some(0)),
            ("text/html, application/*;q=0.1", Some(0)),
            ("Application/B", Some(1)),
            ("application/a;q=0.5, application/b", Some(1)),
            ("application/b;q=0.5, application/a;q=0.5", Some(1)),
            ("application/a;q=0, text/html", None),
        ] {
            assert_eq!(preferred(accept_header), index, "{accept_header}");
        }
    }

    #[test]
    fn error_format_is_preferred_format_or_json() {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let support = EncodingSupport { names: &names, cbor: false, protobuf: true };
        for (accept_header, format) in [
            ("", Format::Json),
            ("text/html", Format::Json),
            ("application/json;q=0.5, application/yaml", Format::Yaml),
            ("application/yaml;q=0, text/html", Format::Json),
            ("application/yaml;as=Table;v=v9, application/json", Format::Yaml),
        ] {
            let headers = [(header::ACCEPT, HeaderValue::from_static(accept_header))].into_iter().collect();
            assert_eq!(error_format(&headers, support), format, "{accept_header}");
        }
    }

    #[test]
    fn unsupported_accept_header_returns_406() {
        for (header, offer) in [
            ("application/xml", Offer::Object),
            ("application/json;q=0", Offer::Object),
            ("application/yaml", Offer::Watch),
            ("application/json;as=Nonsense;v=v1;g=meta.k8s.io", Offer::Object),
            ("application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", Offer::List),
            ("application/cbor", Offer::Object),
            ("application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io", Offer::List),
        ] {
            assert_eq!(negotiate(Some(header), offer).unwrap_err().code, 406, "{header}");
        }
    }

    #[test]
    fn body_without_content_type_is_json() {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        for (header, format) in [
            (None, Some(BodyFormat::Json)),
            (Some("application/json; charset=utf-8"), Some(BodyFormat::Json)),
            (Some("Application/YAML"), Some(BodyFormat::Yaml)),
            (
                Some("application/vnd.kubernetes.protobuf"),
                Some(BodyFormat::Protobuf("application/vnd.kubernetes.protobuf")),
            ),
            (Some("text/plain"), None),
            (Some("application/cbor"), None),
        ] {
            let value = header.map(|h| HeaderValue::from_str(h).unwrap());
            assert_eq!(
                body_format(value.as_ref(), EncodingSupport { names: &names, cbor: false, protobuf: true })
                    .ok(),
                format,
                "{header:?}"
            );
        }
    }

    #[test]
    fn body_syntax_ignores_case_and_parameters() {
        for (content_type, syntax) in [
            ("application/json", BodySyntax::Json),
            ("Application/vnd.Kubernetes.Protobuf; x=1", BodySyntax::Binary),
            ("application/CBOR", BodySyntax::Binary),
            ("application/apply-patch+cbor", BodySyntax::Binary),
            ("application/apply-patch+yaml", BodySyntax::Yaml),
            ("application/json-patch+json;charset=utf-8", BodySyntax::JsonPatch),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
            assert_eq!(BodySyntax::from_headers(&headers), syntax, "{content_type}");
        }
    }
}

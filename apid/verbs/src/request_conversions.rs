//! Conversions that the field ownership of one request needs.
//!
//! # Contract
//!
//! Field ownership is computed without waiting. [`RequestConversions::find`] returns the result of a conversion, or
//! fails and records the conversion. [`RequestConversions::convert_missing`] converts the recorded objects, with one
//! request for each version. Then the caller repeats the computation.
//!
//! # Invariants
//!
//! INVARIANT (progress): each conversion runs once, so each repetition has more results.

use apimachinery::object::Object;
use apply::update::ConversionError;
use parking_lot::Mutex;

use crate::conversion::ObjectConverter;

/// The conversions of one request.
#[derive(Default)]
pub(super) struct RequestConversions {
    conversions: Mutex<Vec<RequestConversion>>,
}

/// The conversion of one object to one other version.
struct RequestConversion {
    object: Object,
    api_version: String,
    /// The converted object or the failure; None before the conversion.
    result: Option<Result<Object, ConversionError>>,
}

impl RequestConversions {
    /// Returns an object in another version.
    ///
    /// # Errors
    ///
    /// The conversion failed, or has not run yet.
    pub(super) fn find(&self, object: &Object, api_version: &str) -> Result<Object, ConversionError> {
        let mut conversions = self.conversions.lock();
        let is_equal =
            |other: &&RequestConversion| other.api_version == api_version && other.object == *object;
        let pending_error = || Err(ConversionError::Pending);
        if let Some(conversion) = conversions.iter().find(is_equal) {
            return conversion.result.clone().unwrap_or_else(pending_error);
        }
        let (object, api_version) = (object.clone(), api_version.to_owned());
        conversions.push(RequestConversion { object, api_version, result: None });
        pending_error()
    }

    /// Converts the recorded objects. Returns whether there were any.
    pub(super) async fn convert_missing(&self, converter: &ObjectConverter) -> bool {
        let mut has_converted = false;
        while let Some((api_version, objects)) = self.next_missing() {
            has_converted = true;
            let count = objects.len();
            let results: Vec<Result<Object, ConversionError>> =
                match converter.convert_objects(objects, &api_version).await {
                    Ok(objects) => objects.into_iter().map(Ok).collect(),
                    Err(status) => vec![Err(ConversionError::Failed(status.message)); count],
                };
            let mut conversions = self.conversions.lock();
            let missing = conversions.iter_mut().filter(|conversion| conversion.is_missing(&api_version));
            for (conversion, result) in missing.zip(results) {
                conversion.result = Some(result);
            }
        }
        has_converted
    }

    /// Returns a version and the objects whose conversion to that version has not run.
    fn next_missing(&self) -> Option<(String, Vec<Object>)> {
        let conversions = self.conversions.lock();
        let first = conversions.iter().find(|conversion| conversion.result.is_none())?;
        let api_version = first.api_version.clone();
        let missing = conversions.iter().filter(|conversion| conversion.is_missing(&api_version));
        let objects = missing.map(|conversion| conversion.object.clone()).collect();
        Some((api_version, objects))
    }
}

impl RequestConversion {
    fn is_missing(&self, api_version: &str) -> bool {
        self.result.is_none() && self.api_version == api_version
    }
}

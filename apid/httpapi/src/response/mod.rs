//! Responses, from the result of a verb to the bytes on the connection.
//!
//! # Contract
//!
//! Each file is one step: [`representation`] chooses the form of objects and lists. [`list_source`] and
//! [`object_source`] produce a list and a large object chunk by chunk; [`list_encoding`] and [`protobuf`] encode
//! their items. [`chunked_document`] is a document of such chunks, with its compression, and [`chunk_producer`] sends it
//! as the connection takes more. [`respond`] turns all results and each Status into responses.

pub(crate) mod chunk_producer;
pub(crate) mod chunked_document;
pub(crate) mod list_encoding;
pub(crate) mod list_source;
pub(crate) mod object_source;
pub(crate) mod protobuf;
pub(crate) mod representation;
pub(crate) mod respond;

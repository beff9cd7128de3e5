//! Builds a tree from parser events, without recursion.

use std::collections::HashMap;

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, Tag};
use serde_json::map::Entry;
use serde_json::{Map, Value};

use super::scalar::{self, Scalar, ScalarError};
use crate::codec::duplicates::{Duplicates, push_field, push_item};
use crate::codec::{Budget, Cost, DecodeError, Decoded, Limits};

/// Weight in bytes of a value or key without its text: about its size in memory.
const NODE_WEIGHT: usize = 32;

/// Decodes the first document and ignores later documents. Input without a document decodes to null.
///
/// # Errors
///
/// See [`DecodeError`].
pub fn decode(input: &[u8], limits: Limits) -> Result<Decoded, DecodeError> {
    if input.len() > limits.bytes {
        return Err(DecodeError::TooLarge(limits.bytes));
    }
    let text = std::str::from_utf8(input)
        .map_err(|e| DecodeError::Syntax(format!("yaml: not UTF-8 at byte {}", e.valid_up_to())))?;
    let options = granit_parser::options! {
        // The scanner looks ahead of the events; the exact depth limit applies to the events.
        flow_nesting_limit: limits.depth.saturating_add(8),
        block_nesting_limit: limits.depth.saturating_add(8),
    };
    let mut parser = Parser::new_from_str_with_options(text.trim_start_matches('\u{feff}'), options);
    let mut builder = Builder::new(limits);
    while let Some(next) = parser.next_event() {
        let (event, span) = next.map_err(|e| match e.kind() {
            ErrorKind::RecursionLimitExceeded => DecodeError::TooDeep(limits.depth),
            _ => syntax(e.marker().line(), &e.info()),
        })?;
        if matches!(event, Event::DocumentEnd) {
            break;
        }
        builder.handle_event(event).map_err(|problem| match problem {
            EventError::Limit(error) => error,
            error => syntax(span.start.line(), &error.to_string()),
        })?;
    }
    Ok(Decoded { value: builder.root.unwrap_or(Value::Null), duplicates: builder.duplicates.into_paths() })
}

/// Syntax error with its line, in the usual form of YAML readers.
fn syntax(line: usize, text: &str) -> DecodeError {
    DecodeError::Syntax(format!("yaml: line {line}: {text}"))
}

/// Error while the builder handles an event of the parser.
#[derive(Debug, thiserror::Error)]
enum EventError {
    #[error(transparent)]
    Limit(#[from] DecodeError),
    #[error(transparent)]
    Scalar(#[from] ScalarError),
    #[error("an anchor contains an alias of itself")]
    RecursiveAlias,
    #[error("only a scalar can be a key")]
    KeyNotScalar,
    #[error("a merge needs a mapping or a list of mappings")]
    Merge,
}

/// Finished value. A copy for an anchor or an alias is charged its weight and its cost.
#[derive(Clone)]
struct Node {
    value: Value,
    /// Approximate size in memory in bytes.
    weight: usize,
    /// Cost of the value and its content in the budget.
    cost: Cost,
    /// Number of nested collections: 0 for a scalar.
    height: usize,
}

/// Key that waits for its value.
enum Key {
    Name(String),
    Merge,
}

/// Open mapping or list.
struct Frame {
    content: Content,
    anchor: usize,
    weight: usize,
    cost: Cost,
    height: usize,
}

enum Content {
    List(Vec<Value>),
    Map { map: Map<String, Value>, key: Option<Key>, key_position: usize, merges: Vec<Value> },
}

/// Tree under construction.
struct Builder {
    limits: Limits,
    frames: Vec<Frame>,
    root: Option<Value>,
    anchors: HashMap<usize, Node>,
    /// Total weight of the copies for anchors and aliases, limited by [`Limits::bytes`].
    copied_weight: usize,
    /// Remaining budget for the tree and for the copies.
    budget: Budget,
    duplicates: Duplicates,
}

impl Builder {
    fn new(limits: Limits) -> Self {
        Builder {
            limits,
            frames: Vec::new(),
            root: None,
            anchors: HashMap::new(),
            copied_weight: 0,
            budget: Budget::new(limits),
            duplicates: Duplicates::default(),
        }
    }

    fn handle_event(&mut self, event: Event<'_>) -> Result<(), EventError> {
        match event {
            Event::Scalar(text, style, anchor, tag) => self.add_scalar(&text, style, anchor, tag.as_deref()),
            Event::SequenceStart(_, anchor, _) => self.open_frame(Content::List(Vec::new()), anchor),
            Event::MappingStart(_, anchor, _) => self.open_frame(
                Content::Map { map: Map::new(), key: None, key_position: 0, merges: Vec::new() },
                anchor,
            ),
            Event::SequenceEnd | Event::MappingEnd => self.close_frame(),
            Event::Alias(id) => self.add_alias(id),
            _ => Ok(()),
        }
    }

    /// Whether the next node is a key.
    fn at_key(&self) -> bool {
        matches!(self.frames.last(), Some(Frame { content: Content::Map { key: None, .. }, .. }))
    }

    fn add_scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        anchor: usize,
        tag: Option<&Tag>,
    ) -> Result<(), EventError> {
        let plain = style == ScalarStyle::Plain;
        let core = tag.and_then(|tag| tag.suffix_in_namespace(scalar::CORE));
        let at_key = self.at_key();
        if at_key && text == "<<" && ((plain && tag.is_none()) || core.as_deref() == Some("merge")) {
            return self.set_key(Key::Merge);
        }
        let scalar = match tag {
            None if plain => scalar::resolve(text),
            None => Scalar::Text(text.to_owned()),
            Some(_) => scalar::resolve_tagged(core.as_deref(), text)?,
        };
        let weight = NODE_WEIGHT + text.len();
        if at_key {
            if anchor != 0 {
                let value = scalar.clone().into_value()?;
                let cost = Cost::text(text.len());
                self.store_anchor(anchor, &Node { value, weight, cost, height: 0 })?;
            }
            return self.set_key(Key::Name(scalar.into_key()?));
        }
        let value = scalar.into_value()?;
        let cost = Cost::shallow(&value);
        self.budget.charge(cost)?;
        let node = Node { value, weight, cost, height: 0 };
        self.store_anchor(anchor, &node)?;
        self.complete(node)
    }

    fn add_alias(&mut self, id: usize) -> Result<(), EventError> {
        let Some(node) = self.anchors.get(&id) else {
            return Err(EventError::RecursiveAlias);
        };
        if self.frames.len() + node.height > self.limits.depth {
            return Err(EventError::Limit(DecodeError::TooDeep(self.limits.depth)));
        }
        let (weight, cost) = (node.weight, node.cost);
        self.charge(weight, cost)?;
        let Some(node) = self.anchors.get(&id).cloned() else { return Ok(()) };
        if self.at_key() {
            let key = match node.value {
                Value::String(text) => text,
                Value::Bool(_) | Value::Number(_) => node.value.to_string(),
                _ => return Err(EventError::KeyNotScalar),
            };
            return self.set_key(Key::Name(key));
        }
        self.complete(node)
    }

    fn set_key(&mut self, key: Key) -> Result<(), EventError> {
        let position = self.duplicates.next_position();
        if let Some(Frame {
            content: Content::Map { map, key: slot, key_position, .. }, weight, cost, ..
        }) = self.frames.last_mut()
        {
            if let Key::Name(name) = &key {
                let key_cost = Cost::key(name.len(), map.len());
                self.budget.charge(key_cost)?;
                *weight += NODE_WEIGHT + name.len();
                *cost = cost.plus(key_cost);
            }
            *slot = Some(key);
            *key_position = position;
        }
        Ok(())
    }

    fn open_frame(&mut self, content: Content, anchor: usize) -> Result<(), EventError> {
        if self.at_key() {
            return Err(EventError::KeyNotScalar);
        }
        if self.frames.len() >= self.limits.depth {
            return Err(EventError::Limit(DecodeError::TooDeep(self.limits.depth)));
        }
        let cost = if matches!(content, Content::List(_)) { Cost::LIST } else { Cost::OBJECT };
        self.budget.charge(cost)?;
        self.frames.push(Frame { content, anchor, weight: NODE_WEIGHT, cost, height: 1 });
        Ok(())
    }

    fn close_frame(&mut self) -> Result<(), EventError> {
        let Some(Frame { content, anchor, weight, mut cost, height }) = self.frames.pop() else {
            return Ok(());
        };
        let value = match content {
            Content::List(items) => Value::Array(items),
            Content::Map { mut map, merges, .. } => {
                for source in merges {
                    merge(&mut map, source)?;
                }
                let name = match self.frames.last() {
                    Some(Frame { content: Content::Map { key: Some(Key::Name(name)), .. }, .. }) => {
                        Some(name.as_str())
                    }
                    _ => None,
                };
                let end = Cost::object_end(map.len(), name);
                self.budget.charge(end)?;
                cost = cost.plus(end);
                Value::Object(map)
            }
        };
        let node = Node { value, weight, cost, height };
        self.store_anchor(anchor, &node)?;
        self.complete(node)
    }

    /// Adds a finished node to the innermost collection.
    fn complete(&mut self, node: Node) -> Result<(), EventError> {
        let Some(frame) = self.frames.last_mut() else {
            self.root = Some(node.value);
            return Ok(());
        };
        frame.weight += node.weight;
        frame.cost = frame.cost.plus(node.cost);
        frame.height = frame.height.max(node.height + 1);
        let duplicate = match &mut frame.content {
            Content::List(items) => {
                items.push(node.value);
                None
            }
            Content::Map { map, key, key_position, merges } => match key.take() {
                Some(Key::Name(name)) => match map.entry(name) {
                    Entry::Vacant(slot) => {
                        slot.insert(node.value);
                        None
                    }
                    Entry::Occupied(mut slot) => {
                        slot.insert(node.value);
                        Some((*key_position, slot.key().clone()))
                    }
                },
                Some(Key::Merge) => {
                    merges.push(node.value);
                    None
                }
                None => None,
            },
        };
        if let Some((position, key)) = duplicate
            && !self.duplicates.is_full()
        {
            let path = self.path(&key);
            self.duplicates.insert_text(position, path);
        }
        Ok(())
    }

    /// Keeps a copy of a node with an anchor for its aliases. Anchor 0 means no anchor.
    fn store_anchor(&mut self, anchor: usize, node: &Node) -> Result<(), EventError> {
        if anchor != 0 {
            self.charge(node.weight, node.cost)?;
            self.anchors.insert(anchor, node.clone());
        }
        Ok(())
    }

    /// Charges a copy of a node for an anchor or an alias.
    fn charge(&mut self, weight: usize, cost: Cost) -> Result<(), EventError> {
        self.budget.charge(cost)?;
        self.copied_weight = self.copied_weight.saturating_add(weight);
        if self.copied_weight > self.limits.bytes {
            return Err(EventError::Limit(DecodeError::TooLarge(self.limits.bytes)));
        }
        Ok(())
    }

    /// Returns the path of a key of the innermost open mapping.
    fn path(&self, key: &str) -> String {
        let mut path = String::new();
        let outer = self.frames.len().saturating_sub(1);
        for frame in self.frames.iter().take(outer) {
            match &frame.content {
                Content::List(items) => push_item(&mut path, items.len()),
                Content::Map { key: Some(Key::Name(name)), .. } => push_field(&mut path, name),
                Content::Map { .. } => push_field(&mut path, "<<"),
            }
        }
        push_field(&mut path, key);
        path
    }
}

/// Merges the value of `<<`, a mapping or a list of mappings, into a mapping; existing keys stay.
fn merge(into: &mut Map<String, Value>, source: Value) -> Result<(), EventError> {
    let sources = match source {
        Value::Array(sources) => sources,
        single => vec![single],
    };
    for source in sources {
        let Value::Object(source) = source else {
            return Err(EventError::Merge);
        };
        for (key, value) in source {
            if let Entry::Vacant(slot) = into.entry(key) {
                slot.insert(value);
            }
        }
    }
    Ok(())
}

//! Structural schemas of custom kinds, compiled for pruning, defaults and validation.

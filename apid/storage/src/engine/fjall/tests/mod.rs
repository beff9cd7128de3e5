//! Tests of what only this engine has.

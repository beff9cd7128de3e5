//! Shared parts of the tests that run the real programs.

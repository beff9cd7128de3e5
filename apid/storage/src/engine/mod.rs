//! The engines: one file (or folder) each, the same contract.

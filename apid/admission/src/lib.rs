//! Admission: what may change or refuse a write between decoding and storing. One file a plugin, one ordered table.

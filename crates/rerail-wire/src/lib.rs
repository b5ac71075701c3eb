//! Frames of the Rerail protocol: checked views for reading, builders for writing.

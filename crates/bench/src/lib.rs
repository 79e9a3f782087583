//! Load generator on public clients only, and its reports.

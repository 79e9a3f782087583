//! `thalweg demo`.
use crate::args::Demo;
use crate::output::Result;
pub fn run(_args: &Demo, _json: bool) -> Result { Ok(()) }

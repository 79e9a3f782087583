//! `thalweg top`.
use crate::args::Top;
use crate::output::Result;
use thalweg::config::Config;
pub fn run(_config: &Config, _args: &Top, _json: bool) -> Result { Ok(()) }

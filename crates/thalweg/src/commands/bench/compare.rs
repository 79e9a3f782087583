//! `thalweg bench compare`: this and another system in turn, on this machine, and the ratios.

use crate::args::BenchCompare;
use crate::output::Result;

pub fn run(args: &BenchCompare, is_json: bool) -> Result {
    let _ = (args, is_json);
    Ok(())
}
